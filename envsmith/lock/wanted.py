"""What a cell wants of the package resolver: pure, a cell in, requirement lines out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envsmith.errors import LockError
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable, Role
from envsmith.model.platform import Platform

__all__ = ["Wanted", "overrides", "uv_platform", "wanted"]

# What torch brings in exact versions: checked afterwards, never asked for.
_FOLLOW = frozenset({"python", "cuda", "nccl", "cudnn", "triton"})
# What runs but is not declared: object collectives of torch pickle through numpy; torch.utils.cpp_extension, with which the
# frameworks compile their operators at run time, imports setuptools and starts ninja;
# megatron-core 0.13 compares versions with packaging and says so when it runs.
_UNDECLARED = {
    "deepspeed": ("numpy", "setuptools", "ninja"),
    "colossalai": ("numpy", "setuptools", "ninja"),
    "megatron-core": ("numpy", "packaging", "setuptools"),
}
# The C library that a lock is made for when the cell does not name one: the oldest that today's torch wheels run on.
DEFAULT_GLIBC = "2.28"
# The platforms that uv knows by their C library (uv 0.13), ascending.
_UV_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """``requirements`` and ``constraints`` for uv; ``backend`` is the word of ``--torch-backend`` (``""``: the default index)."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    python: str
    platform: str
    backend: str = ""


def wanted(
    cell: Cell,
    table: ComponentTable,
    constraints: Sequence[tuple[str, str]],
    also: Sequence[str] = (),
    *,
    given: Collection[str] = (),
) -> Wanted:
    """The request to uv; ``also`` are requirements beside the cell, ``given`` are distributions whose archives the user has.

    ``LockError`` names the rule whose constraint is not a requirement.
    """
    asked = _requirements(cell, table, given)
    lines: dict[str, str] = {canonicalize_name(_name(line)): line for line in asked}
    lines = {name: line for name, line in lines.items() if name not in given}
    extra = ["numpy"] + [name for framework in cell.frameworks for name in _UNDECLARED.get(framework, ())]
    for name in extra:
        lines.setdefault(name, name)
    for text, rule in constraints:
        _parse(text, rule)
    return Wanted(
        requirements=tuple(sorted({*lines.values(), *also})),
        constraints=tuple(sorted({text for text, _ in constraints})),
        python=".".join(cell.components["python"].split(".")[:2]),
        platform=uv_platform(cell.platform, cell.components.get("glibc")),
        backend=_backend(cell),
    )


def _parse(text: str, rule: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise LockError(f"rule {rule}: {text!r} is not a requirement that a package resolver understands") from None


def _name(line: str) -> str:
    return Requirement(line).name


def _requirements(cell: Cell, table: ComponentTable, given: Collection[str] = ()) -> list[str]:
    lines = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or component.role is Role.HOST or name in _FOLLOW or version in {"none", "cpu"}:
            continue
        if not component.distributions and name in given:
            continue
        if not component.distributions:
            raise LockError(
                f"cell {cell.id}: {component.title} is not on the package index, so it cannot be locked",
                hint=f"give its source archive, which is then compiled for the cell: --source '{name}@ARCHIVE#sha256=…'",
            )
        # On the default index the build is not part of torch's version.
        exact = version.partition("+")[0] if name == "torch" and cell.index == "default" else version
        lines.append(f"{component.distributions[0]}{_extras(name, cell)}=={exact}")
    return lines


def _extras(name: str, cell: Cell) -> str:
    """The extras without which a distribution is an empty shell: transformer-engine's bindings for torch and its core for one CUDA major."""
    if name != "transformer-engine":
        return ""
    major = cell.components.get("cuda", "12").partition(".")[0]
    # Releases up to 2.8 have no such extra; uv only warns about one that does not exist.
    return f"[pytorch,core_cu{major}]" if major.isdigit() else "[pytorch]"


def _backend(cell: Cell) -> str:
    if cell.index != "pytorch":
        return ""
    return cell.components["torch"].partition("+")[2] or "cpu"


def uv_platform(platform: Platform, glibc: str | None) -> str:
    """``x86_64-manylinux_2_28``: the newest of uv's platforms that ``glibc`` (2.28 when it is not given) can run."""
    limit = Version(glibc or DEFAULT_GLIBC)
    fitting = [known for known in _UV_GLIBC if Version(known) <= limit] or [_UV_GLIBC[0]]
    return f"{platform.machine}-manylinux_{fitting[-1].replace('.', '_')}"


def overrides(cell: Cell, table: ComponentTable, found: dict[str, str]) -> tuple[str, ...]:
    """Override lines for an NCCL that is not the one torch pins exactly; empty when they agree. ``found`` are the resolved versions."""
    version = cell.components.get("nccl")
    component = table.by_name.get("nccl")
    if version in {None, "none"} or component is None:
        return ()
    return tuple(f"{dist}=={version}" for dist in component.distributions if dist in found and found[dist] != version)
