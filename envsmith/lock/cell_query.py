"""What a cell wants of the package resolver: pure, a cell in, requirement lines out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from envsmith.errors import LockError
from envsmith.frameworks import FRAMEWORKS
from envsmith.lock.index.torch_wheel import glibc_floor
from envsmith.lock.query import Archive, Query
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Lock
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of, public

# What torch brings in exact versions: checked afterwards, never asked for.
_FOLLOW = frozenset({"python", "cuda", "nccl", "cudnn", "triton"})
_ABSENT = frozenset({"none", "cpu"})
# The C library that a lock is made for when the cell does not name one: the oldest that today's torch wheels run on.
DEFAULT_GLIBC = "2.28"
# That of Debian 12, from which the base images are made.
IMAGE_GLIBC = "2.36"
# The platforms that uv knows by their C library (uv 0.13), ascending.
_UV_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")


def query_of(
    cell: Cell,
    table: ComponentTable,
    constraints: Sequence[tuple[str, str]] = (),
    *,
    archives: tuple[Archive, ...] = (),
) -> Query:
    """Return the request to uv: the cell, and what is asked for beside it.

    The companions are preferred in the cell's versions: what may have one release only, uv decides before all else, and
    then it looks through thousands of releases of what does not go with the newest that this one requires.
    ``archives`` are what of the cell is a file of the user's, or a ready wheel. ``LockError`` names the rule whose constraint is not a requirement.
    """
    own = {archive.name for archive in archives}
    parsed = {normal_name(r.name): r for r in map(Requirement, _requirements(cell, table, own))}
    companions = exact_companions(cell, table)
    lines: dict[str, str] = {
        name: _any(r) if name in companions else str(r) for name, r in parsed.items() if name not in own
    }
    # Object collectives of torch pickle through numpy, which it does not declare.
    for name in ("numpy", *(n for framework in cell.frameworks for n in FRAMEWORKS[framework].undeclared)):
        lines.setdefault(name, name)
    for text, rule in constraints:
        _parse(text, rule)
    return Query(
        requirements=tuple(sorted({*lines.values(), *(line.partition(" --hash=")[0] for line in cell.further)})),
        constraints=tuple(sorted({*(text for text, _ in constraints), *_further(cell, table)})),
        python=minor_of(cell.components["python"]),
        platform=uv_platform(cell.platform, cell.components.get("glibc")),
        backend=cell.torch_backend,
        archives=archives,
        preferred=tuple(pair for pair in companions.items() if pair[0] in lines),
    )


def exact_companions(cell: Cell, table: ComponentTable) -> dict[str, str]:
    """Return the first distribution of each of the cell's companions with its version."""
    pairs = ((table.by_name.get(name), version) for name, version in cell.components.items())
    return {
        component.distributions[0]: version
        for component, version in pairs
        if component and component.role is Role.COMPANION and component.distributions and version not in _ABSENT
    }


def further_constraints(cell: Cell, query: Query, table: ComponentTable) -> list[str]:
    """Return the cell's companions as constraints that are not in the query yet: uv chose other versions of some."""
    names = {normal_name(r.name) for r in map(Requirement, query.requirements)}
    lines = (f"{name}=={version}" for name, version in exact_companions(cell, table).items() if name in names)
    return [line for line in lines if line not in query.constraints]


def fixed(cell: Cell, query: Query, table: ComponentTable) -> set[str]:
    """Return what has no other release: exact requirements, the cell's companions, archives, later wheels."""
    exact = [r.name for r in map(Requirement, query.requirements) if "==" in str(r.specifier)]
    exact += [*exact_companions(cell, table), *(a.name for a in query.archives), *dict(query.later)]
    return set(map(normal_name, exact))


def _any(requirement: Requirement) -> str:
    """Return a requirement without its version."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}"


def _further(cell: Cell, table: ComponentTable) -> Iterator[str]:
    """Yield for the further distributions of a component that they have its version, should one of them come along.

    So with triton: torch 2.2 and 2.3 do not declare it for Python 3.12, and others may.
    """
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        follows = name in _FOLLOW - {"triton"}
        if component and component.role is not Role.HOST and not follows and version != "none":
            further = component.distributions[name != "triton" :]
            yield from (f"{distribution}=={exact_version(name, version, cell)}" for distribution in further)


def exact_version(name: str, version: str, cell: Cell) -> str:
    """Return the version as the index has it: on the default index the build is not part of torch's."""
    return public(version) if name == "torch" and cell.index == "default" else version


def _parse(text: str, rule: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise LockError(
            f"Cannot use the rule {rule}: {text!r} is not a requirement that a package resolver understands."
        ) from None


def _requirements(cell: Cell, table: ComponentTable, archives: Collection[str]) -> list[str]:
    lines = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or component.role is Role.HOST or name in _FOLLOW or version in _ABSENT:
            continue
        if not component.distributions and name in archives:
            continue
        if not component.distributions:
            raise LockError(
                f"Cannot lock {cell.id}: {component.title} is not on the package index.",
                hint="Give its source archive, which is then compiled for the cell: --source "
                f"'{name}@ARCHIVE#sha256=…'.",
                names=[name],
            )
        lines.append(f"{component.distributions[0]}{_extras(name, cell)}=={exact_version(name, version, cell)}")
    return lines


def _extras(name: str, cell: Cell) -> str:
    if name in FRAMEWORKS and FRAMEWORKS[name].extras:
        return f"[{','.join(FRAMEWORKS[name].extras)}]"
    if name != "transformer-engine":
        return ""
    major = cell.components.get("cuda", "12").partition(".")[0]
    # Releases up to 2.8 have no such extra; uv only warns about one that does not exist.
    return f"[pytorch,core_cu{major}]" if major.isdigit() else "[pytorch]"


def uv_platform(platform: Platform, glibc: str | None) -> str:
    """Return the newest of uv's platforms that ``glibc`` can run, such as ``x86_64-manylinux_2_28``."""
    limit = Version(glibc or DEFAULT_GLIBC)
    fitting = [release for release in _UV_GLIBC if Version(release) <= limit] or [_UV_GLIBC[0]]
    return f"{platform.machine}-manylinux_{fitting[-1].replace('.', '_')}"


def glibc_of(lock: Lock) -> str:
    """Return the oldest glibc with which each package of a lock has a wheel that runs."""
    return max((lock.cell.components.get("glibc") or DEFAULT_GLIBC, *newer_glibc_of(lock).values()), key=Version)


def newer_glibc_of(lock: Lock) -> dict[str, str]:
    """Return the packages whose wheels ask for a newer glibc than the lock's other ones, with that glibc."""
    usual = Version(lock.cell.components.get("glibc") or DEFAULT_GLIBC)
    floors = {}
    for pin in lock.pins:
        stems = [artifact.filename.removesuffix(".whl") for artifact in pin.artifacts]
        floor = None if any(stem.endswith("-any") for stem in stems) else glibc_floor(stems)
        if floor and Version(text := ".".join(map(str, floor))) > usual:
            floors[pin.name] = text
    return floors


def overrides(cell: Cell, table: ComponentTable, resolved: dict[str, str]) -> tuple[str, ...]:
    """Return override lines for an NCCL that is not the one torch pins exactly."""
    version = cell.components.get("nccl")
    component = table.by_name.get("nccl")
    if version in {None, "none"} or component is None:
        return ()
    return tuple(
        f"{dist}=={version}" for dist in component.distributions if dist in resolved and resolved[dist] != version
    )
