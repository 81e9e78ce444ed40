"""A file of a project mended: the fewest changes to what it asks for, shown before they are written, and taken back."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envsmith.base.files import read_text, write_whole
from envsmith.doctor.mend.environment import Environment, Installed
from envsmith.doctor.mend.resolution import PackageChange, is_same
from envsmith.doctor.mend.treatment import Treatment, treatment_of_repair
from envsmith.errors import LockError, UsageError
from envsmith.lock.cell_query import uv_platform
from envsmith.lock.days import cutoff, last_day
from envsmith.lock.index.interpreters import find_interpreter, running_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.query import Query, resolve
from envsmith.lock.uv_output import is_of_torch
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of
from envsmith.project.demand import Demand, Demands
from envsmith.project.uv_and_pixi import difference

# Lines after the first of a requirement in which its specifier may stand.
_REACH = 4
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;\"'\\)\]#]+"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileMend:
    """What would be written. ``texts`` are the old and the new text of each file that changes.

    ``by_hand`` is what no requirement can say.
    """

    path: Path
    changes: tuple[PackageChange, ...] = ()
    texts: Mapping[Path, tuple[str, str]] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()

    @property
    def diffs(self) -> list[str]:
        """Return what changes in each file, as a unified diff."""
        return [difference(old, new, str(path)) for path, (old, new) in self.texts.items()]

    def write(self) -> None:
        """Write the files. The old texts stay beside them until the next mend."""
        for path, (old, new) in self.texts.items():
            write_whole(_earlier(path), old)
            write_whole(path, new)

    def take_back(self) -> None:
        """Write the old texts again."""
        for path in self.texts:
            undo_file(path)


def propose_for_file(
    path: Path,
    demands: Demands,
    judgement: Judgement,
    *,
    keep: Collection[str] = (),
    platform: Platform = Platform.LINUX_64,
    uv: Uv | None = None,
) -> FileMend:
    """Return the fewest changes of requirements that make a judgement good. ``LockError`` where there are none.

    uv resolves the changed requirements. At first everything that is pinned stays. Where that cannot be, other pins
    move as well, as little as uv can do.
    """
    if judgement.repair is None:
        raise LockError(
            f"Cannot mend {path}: no set of releases is known that repairs it.",
            hint="Change the requirements that envsmith check names.",
        )
    named = {demand.name: demand for demand in reversed(demands.demands)}
    minor = minor_of(judgement.repair.cell.components["python"])
    treatment = treatment_of_repair(judgement.repair, judgement.findings, _as_environment(path, named, minor))
    names = set(map(normal_name, keep))
    if fixed := sorted(names & treatment.names):
        raise LockError(
            f"Cannot mend {path}: {', '.join(fixed)} would have to change, and --keep holds it.",
            hint=f"Leave out --keep {fixed[0]}, or mend the rest by hand.",
        )
    if odd := sorted(treatment.names - set(named)):
        raise LockError(
            f"Cannot mend {path}: {', '.join(odd)} would have to change, and no line of it names that.",
            hint="Add a line for it, and run envsmith check again.",
        )
    specs = {name: _spec(named[name], line) for name, line in treatment.install.items()}
    moved = _moved(path, named, specs, treatment, _Resolver(names, minor, platform, uv or Uv()))
    texts = _texts(demands, {**specs, **{name: f"=={version}" for name, version in moved.items() if version}})
    changes = tuple(_changes(named, specs, moved, treatment))
    gone = sorted({*treatment.remove, *(name for name, version in moved.items() if version is None)})
    hints = [f"{name}: remove its line  [{treatment.reasons.get(name) or 'goes with torch'}]" for name in gone]
    if treatment.backend:
        hints.append(f"torch: take it from PyTorch's own index, {treatment.backend}")
    return FileMend(path=path, changes=changes, texts=texts, by_hand=(*treatment.by_hand, *hints))


def undo_file(path: Path, agree: Callable[[], object] = lambda: None) -> None:
    """Put back the text of before the last mend. ``UsageError`` when there is none, or ``agree`` raises it."""
    earlier = _earlier(path)
    if not earlier.is_file():
        raise UsageError(
            f"Cannot undo a change of {path}: no earlier text of it is there.",
            hint="Use your version control, or edit the file.",
        )
    agree()
    write_whole(path, read_text(earlier))
    earlier.unlink()


def _earlier(path: Path) -> Path:
    return path.with_name(f".{path.name}.envsmith")


def _as_environment(path: Path, named: Mapping[str, Demand], minor: str) -> Environment:
    """Return what a file pins, as if it were installed."""
    pins = {name: demand.exact for name, demand in named.items()}
    distributions = {name: Installed(name=name, version=version or "") for name, version in pins.items()}
    return Environment(root=path, python=f"{minor}.0", distributions=distributions)


def _spec(demand: Demand, line: str) -> str:
    version = line.partition("==")[2]
    return spec_for(demand.requirement.specifier, version)


@dataclass(frozen=True, slots=True)
class _Resolver:
    """How requirements are resolved: what may not move, for which Python and platform, by which uv."""

    keep: Collection[str]
    minor: str
    platform: Platform
    uv: Uv

    def versions(self, path: Path, lines: Collection[str], pins: Mapping[str, str]) -> dict[str, str]:
        """Return the version of each distribution that uv finds. ``LockError`` where there is no set."""
        query = Query(
            requirements=tuple(sorted(lines)),
            python=self.minor,
            platform=uv_platform(self.platform, None),
            newest=cutoff(last_day()),
            interpreter=(find_interpreter(self.minor) or running_interpreter()).path,
            edges=False,
            preferred=tuple(sorted(pins.items())),
        )
        return {p.name: p.version for p in resolve(query, self.uv, work=f"mend {path}").packages}


def _moved(
    path: Path, named: Mapping[str, Demand], specs: Mapping[str, str], treatment: Treatment, resolver: _Resolver
) -> dict[str, str | None]:
    """Return the pins that have to move beside the treatment: the new version, or ``None`` for what torch leaves."""
    exact = {name: version for name, demand in named.items() if (version := demand.exact) and name not in specs}
    followers = {name for name in exact if is_of_torch(name) and "torch" in specs and name not in resolver.keep}
    stays = {name: demand for name, demand in named.items() if name not in treatment.remove | followers}
    refusal: LockError | None = None
    for free in (frozenset[str](), frozenset(exact) - frozenset(resolver.keep)):
        lines = [_line(demand, specs.get(name), is_free=name in free) for name, demand in stays.items()]
        try:
            versions = resolver.versions(path, lines, exact)
        except LockError as error:
            refusal = refusal or error
            continue
        moved = {n: versions.get(n) for n in sorted({*free, *followers})}
        return {n: new for n, new in moved.items() if new is None or not is_same(exact[n], new)}
    raise refusal or LockError(f"Cannot mend {path}: nothing can be installed.")


def _line(demand: Demand, spec: str | None, *, is_free: bool) -> str:
    requirement = demand.requirement
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{demand.name}{extras}{'' if is_free else spec or requirement.specifier}{marker}"


def _texts(demands: Demands, specs: Mapping[str, str]) -> dict[Path, tuple[str, str]]:
    """Return the files that change, with old and new text. ``LockError`` where a line cannot be changed in place."""
    texts: dict[Path, tuple[str, str]] = {}
    for demand in demands.demands:
        spec = specs.get(demand.name)
        if spec is None:
            continue
        file, _, line = demand.where.rpartition(":")
        place = Path(file)
        if demand.hashes:
            raise LockError(
                f"Cannot mend {place}: its line {line} has hashes, so a tool wrote it.",
                hint=f"Run that tool again, such as uv pip compile IN -o {place.name} "
                f"--upgrade-package {demand.name}{spec}.",
            )
        old, text = texts.get(place) or (read_text(place),) * 2
        new = with_requirement(text, int(line), demand.name, spec)
        if new is None:
            raise LockError(
                f"Cannot mend {place}: its line {line} is not a requirement that can be changed in place.",
                hint=f"Write {demand.name}{spec} there, and run envsmith check again.",
            )
        texts[place] = (old, new)
    return {place: pair for place, pair in texts.items() if pair[0] != pair[1]}


def _changes(
    named: Mapping[str, Demand], specs: Mapping[str, str], moved: Mapping[str, str | None], treatment: Treatment
) -> Iterator[PackageChange]:
    """Yield the changes of the files, each with why."""
    for name, spec in sorted(specs.items()):
        old = str(named[name].requirement.specifier).removeprefix("==") or "any"
        yield PackageChange(name=name, old=old, new=spec.removeprefix("=="), why=treatment.reasons.get(name, ""))
    for name, version in moved.items():
        if version is None:
            continue
        why = "goes with torch" if is_of_torch(name) else "the new releases need it"
        yield PackageChange(name=name, old=named[name].exact, new=version, why=why)


# Requirements in a text changed in place: pip's lines, strings of TOML and YAML, Poetry's tables. The rest stays.


def spec_for(old: SpecifierSet, version: str) -> str:
    """Return a specifier that admits a release: the clauses of the old one that admit it, and a bound in its place.

    One exact release stays one exact release.
    """
    new = Version(version)
    dropped = [clause for clause in old if not clause.contains(new, prereleases=True)]
    if any(clause.operator in {"==", "==="} for clause in dropped) or not dropped:
        return f"=={version}"
    bound = ">=" if all(_is_below(clause, new) for clause in dropped) else "<="
    remaining = sorted(str(c) for c in old if c not in dropped and c.operator not in {bound, bound[0]})
    return ",".join([f"{bound}{version}", *remaining])


def _is_below(clause: Specifier, version: Version) -> bool:
    try:
        return Version(clause.version.removesuffix(".*")) <= version
    except InvalidVersion:
        return True


def with_requirement(text: str, line: int, name: str, spec: str) -> str | None:
    """Return a text whose requirement of a distribution, at or after a line, has another specifier.

    ``None`` where no such requirement stands there.
    """
    lines = text.splitlines(keepends=True)
    plain, table = _plain(name), _table(name)
    for number in range(line - 1, min(line - 1 + _REACH, len(lines))):
        code, comment = _without_comment(lines[number])
        changed, count = table.subn(lambda m: f"{m['before']}{spec}{m['after']}", code, count=1)
        if not count:
            changed, count = plain.subn(lambda m: f"{m['name']}{spec}", code, count=1)
        if count:
            lines[number] = changed + comment
            return "".join(lines)
    return None


def _without_comment(line: str) -> tuple[str, str]:
    match = re.search(r"(?:^|\s)#", line)
    return (line[: match.start()], line[match.start() :]) if match else (line, "")


def _spelt(name: str) -> str:
    return r"[-_.]+".join(map(re.escape, name.split("-")))


def _plain(name: str) -> re.Pattern[str]:
    """Return the pattern of ``name[extras]`` with its clauses, if any, where no other name goes on."""
    return re.compile(
        rf"(?P<name>(?<![\w.-]){_spelt(name)}(?![\w.-]*\w)(?:\[[^\]]*\])?)(?:\s*\(?{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\)?)?",
        re.IGNORECASE,
    )


def _table(name: str) -> re.Pattern[str]:
    """Return the pattern of Poetry's ``name = "^1.2"`` and ``name = {version = "^1.2"}``."""
    return re.compile(
        rf"(?P<before>^\s*[\"']?{_spelt(name)}[\"']?\s*=\s*(?:\{{.*?\bversion\s*=\s*)?[\"'])[^\"']*(?P<after>[\"'])",
        re.IGNORECASE,
    )
