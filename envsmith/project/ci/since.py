"""What a change makes possible or impossible, and which kind of release it asks for.

The study of 849 bug reports (arXiv 2512.20345) advises library maintainers to follow semantic versioning strictly for
communication features and APIs: a break there asks for a major version. Here a break is what griffe reads out of two
versions of a module that imports a communication library, without running either.
"""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from envsmith.base.about import command_for
from envsmith.base.files import read_text, scratch
from envsmith.base.git import git
from envsmith.base.json_types import JsonDict
from envsmith.errors import DataError, EnvsmithError, UsageError
from envsmith.frameworks import added_frameworks
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import version_key
from envsmith.project.ci.check import Located
from envsmith.project.ci.library import CONFIG, Library, read_library
from envsmith.project.ci.possible import EXTRA, combinations_of
from envsmith.project.declared import FILES

if TYPE_CHECKING:
    from griffe import Breakage, Module

_STUDY = Evidence(
    kind=EvidenceKind.DOCUMENTED,
    source="arXiv 2512.20345: advice to maintainers: semantic versions, a major one for a break in a communication API",
    date="2026-11-20",
)
# Who imports one of these speaks to other ranks.
_COMMUNICATION = ("torch.distributed", "mpi4py", "horovod", "oneccl_bindings_for_pytorch")
_MAX_MODULES = 4000
_LEVELS = ("patch", "minor", "major")
# What griffe calls each break that stops a call which worked, in our words. A changed default or type is not one.
_BREAKS = {
    "OBJECT_REMOVED": "{name} is gone",
    "OBJECT_CHANGED_KIND": "{name}: a {old} and a {new} are not called alike",
    "PARAMETER_REMOVED": "{name}: parameter {parameter} is gone",
    "PARAMETER_ADDED_REQUIRED": "{name}: parameter {parameter} is required now",
    "PARAMETER_CHANGED_REQUIRED": "{name}: parameter {parameter} is required now",
    "PARAMETER_CHANGED_KIND": "{name}: parameter {parameter} was {old} and is {new}",
    "PARAMETER_MOVED": "{name}: the order of its parameters changed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A library beside its state at ``base``.

    ``lost`` and ``gained`` map an axis to its values that no longer, or now, occur. ``asks`` is the kind of release
    that the change asks for.
    """

    base: str
    before: int
    after: int
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()
    asks: str = "patch"
    findings: tuple[Located, ...] = ()

    @property
    def differences(self) -> list[str]:
        """Return one line for each axis with other values, and for each break of what the library communicates."""
        axes = (("no longer possible", self.lost), ("now possible", self.gained))
        lines = [f"{word}: {name} {', '.join(values)}" for word, every in axes for name, values in every.items()]
        return [*lines, *(f"communication API: {what}" for what in self.breaks)]

    def to_json(self) -> JsonDict:
        """Return plain values for programs."""
        return {
            "base": self.base,
            "combinations": {"before": self.before, "after": self.after},
            "lost": {k: list(v) for k, v in self.lost.items()},
            "gained": {k: list(v) for k, v in self.gained.items()},
            "communication_breaks": list(self.breaks),
            "asks_for": self.asks,
        }


def changed(root: Path, base: str) -> bool:
    """Return whether anything that decides the matrix differs from ``base``: what is declared, or the configuration."""
    return bool(_git(root, "diff", "--name-only", base, "--", CONFIG, *FILES, "requirements").strip())


def compare(root: Path, base: str, library: Library) -> Comparison:
    """Compare the library with its state at a git revision. ``UsageError`` when git does not know it."""
    _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    old = _library_at(root, base)
    before, values_before = _values(old) if old else (0, {})
    after, values_after = _values(library)
    lost = _without(values_before, values_after, library)
    gained = _without(values_after, values_before, old) if old else {}
    breaks = [(path, what, line) for path, texts in _python_files(root, base) for what, line in api_breaks(*texts)]
    asks = "major" if breaks else "minor" if lost or gained else "patch"
    findings = [
        _dropped(library, base, name, f"{', '.join(v)} (combinations: {before} at {base}, {after} now)")
        for name, v in lost.items()
    ]
    findings += [_broken(*each) for each in breaks]
    if old is not None:
        findings += _version(library, old, asks, len(breaks))
    return Comparison(
        base=base,
        before=before,
        after=after,
        lost=lost,
        gained=gained,
        breaks=tuple(f"{path}: {what}" for path, what, _ in breaks),
        asks=asks,
        findings=tuple(findings),
    )


def _git(root: Path, command: str, *arguments: str) -> str:
    try:
        finished = git(root, command, *arguments)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"Cannot compare with --since: git does not start ({error}).",
            hint="Run it in a checkout, with git installed.",
        ) from error
    if finished.returncode:
        message = (
            finished.stderr.strip().splitlines() or [f"no revision {arguments[-1].removesuffix('^{commit}')!r}"]
        )[0]
        raise UsageError(
            f"Cannot compare with --since: git {command} says {message}.",
            hint="Name a branch or commit that is here: git fetch origin main.",
        )
    return finished.stdout


def _library_at(root: Path, base: str) -> Library | None:
    """Return the library as it was. ``None``: it declared nothing that can be read."""
    names = _git(root, "ls-tree", "-r", "--name-only", base, "--", CONFIG, *FILES, "requirements").splitlines()
    with scratch() as folder:
        for name in names[:50]:
            target = folder / name
            if ".." not in target.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_git(root, "show", f"{base}:./{name}"), encoding="utf-8")
        try:
            return read_library(folder)
        except (DataError, UsageError):
            return None


def _values(library: Library) -> tuple[int, dict[str, set[str]]]:
    """Return how many combinations there are, and the values of each axis that occur in one."""
    try:
        combinations = combinations_of(library)
        rows = combinations.rows()
    except EnvsmithError:
        return 0, {}
    return len(rows), {name: {row[i] for row in rows if row[i]} for i, name in enumerate(combinations.axes)}


def _without(
    values: Mapping[str, set[str]], sampled: Mapping[str, set[str]], counterpart: Library
) -> dict[str, tuple[str, ...]]:
    """Return the values of each axis that cannot occur in ``counterpart``, of which ``sampled`` are but one a minor series."""
    missing = {
        n: sorted(
            (t for t in v - sampled[n] if not _occurs(counterpart, n, t)), key=lambda t: version_key(t) or Version("0")
        )
        for n, v in values.items()
        if n in sampled
    }
    return {name: tuple(listed) for name, listed in missing.items() if listed}


def _occurs(library: Library, name: str, value: str) -> bool:
    if name == EXTRA:
        return False
    alone = replace(library, axes=(name,), settings=replace(library.settings, axes=(name,), values={name: (value,)}))
    return _values(alone)[0] > 0


def _dropped(library: Library, base: str, name: str, what: str) -> Located:
    file, line = library.line(name)
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    finding = Finding(
        rule="ci-support-dropped",
        severity=Severity.WARNING,
        components={name: str(library.ranges.get(name, "*"))},
        message=f"this change drops {name} {what}",
        evidence=(Evidence(kind=EvidenceKind.DECLARED, source=f"the requirements at {base} and now", date=today),),
        fix="say so in the changelog; dropped support asks for a minor version at least",
    )
    return Located(finding=finding, file=file, line=line)


def _broken(path: str, what: str, line: int) -> Located:
    finding = Finding(
        rule="ci-communication-break",
        severity=Severity.WARNING,
        components={},
        message=f"{what}: code that calls it across ranks breaks",
        evidence=(_STUDY,),
        fix="keep the old name or signature for a release with a deprecation warning, or raise the major version",
    )
    return Located(finding=finding, file=path, line=line)


def _version(library: Library, old: Library, asks: str, breaks: int) -> Iterator[Located]:
    """Judge the version that the change declares against the one it asks for."""
    try:
        before, now = Version(old.declaration.version or ""), Version(library.declaration.version or "")
    except InvalidVersion:
        return
    level = "major" if now.major > before.major else "minor" if now.release[:2] > before.release[:2] else "patch"
    # Before 1.0 the minor number plays the part of the major one (semver.org, item 4).
    needed = "minor" if asks == "major" and before.major == 0 else "patch" if before.major == 0 else asks
    if now <= before or _LEVELS.index(level) >= _LEVELS.index(needed):
        return
    why = f"{breaks} break(s) in a communication API" if breaks else "support was dropped or added"
    finding = Finding(
        rule="ci-version-too-small",
        severity=Severity.ERROR if breaks else Severity.WARNING,
        components={library.name: str(library.declaration.version)},
        message=f"version {old.declaration.version} -> {library.declaration.version} is a {level} release, "
        f"the change asks for a {needed} one: {why}",
        evidence=(_STUDY,),
        fix=f"release it as a {needed} version",
    )
    yield Located(finding=finding, file="pyproject.toml", line=1)


def _python_files(root: Path, base: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield name, text at ``base`` and text now of every public module that was changed or deleted."""
    names = _git(root, "diff", "--name-only", "--no-renames", "--diff-filter=MD", base, "--", "*.py").splitlines()
    for name in names[:_MAX_MODULES]:
        parts = Path(name).parts
        private = (p.startswith("_") and p != "__init__.py" for p in parts)
        if any(private) or not {"tests", "test", "examples", "docs"}.isdisjoint(parts):
            continue
        path = Path(_git(root, "rev-parse", "--show-toplevel").strip(), name)
        after = read_text(path, errors="replace") if path.is_file() else ""
        yield name, (_git(root, "show", f"{base}:{name}"), after)


def api_breaks(before: str, after: str) -> list[tuple[str, int]]:
    """Return ``(what, line)`` for each public name of ``before`` that ``after`` lacks or calls otherwise.

    Empty when ``before`` imports no communication library, or one of them is not Python.
    """
    try:
        import griffe
    except ImportError:
        raise UsageError(
            "Cannot read Python files for --since: griffe is not installed.",
            hint=f"Install it: {command_for('api')}.",
        ) from None
    try:
        old, new = (griffe.visit("module", filepath=Path("module.py"), code=text) for text in (before, after))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if not _communicates(old):
        return []
    sentences = (_sentence(breakage) for breakage in griffe.find_breaking_changes(old, new))
    return list(dict.fromkeys(each for each in sentences if each is not None))


def _communicates(module: Module) -> bool:
    names = (*_COMMUNICATION, *(framework.module for framework in added_frameworks().values()))
    return any(path == name or path.startswith(name + ".") for path in module.imports.values() for name in names)


def _sentence(breakage: Breakage) -> tuple[str, int] | None:
    words = _BREAKS.get(breakage.kind.name)
    if words is None:
        return None
    old, new = breakage.old_value, breakage.new_value
    name = breakage.obj.path.partition(".")[2]
    parameter = getattr(old or new, "name", "")
    kinds = [getattr(getattr(value, "kind", value), "value", "") for value in (old, new)]
    return words.format(name=name, parameter=parameter, old=kinds[0], new=kinds[1]), breakage.obj.lineno or 1
