"""What a change makes possible or impossible, and which kind of release it asks for.

The study of 849 bug reports (arXiv 2512.20345) advises library maintainers to follow semantic versioning strictly for communication features and
APIs: a break there asks for a major version. Here a break is what can be read out of the source without running it: a public function, class
or method that is gone, or that can no longer be called as before, in a module that imports a communication library.
"""

from __future__ import annotations

import ast
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from packaging.version import InvalidVersion, Version

from envsmith.ci.check import Located
from envsmith.ci.declared import FILES
from envsmith.ci.library import CONFIG, Library, read_library
from envsmith.ci.possible import space_of
from envsmith.errors import DataError, EnvsmithError, UsageError
from envsmith.graph.load import components
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity

_STUDY = "arXiv 2512.20345: advice to maintainers: semantic versions, a major one for a break in a communication API"
_STUDY_READ = "2026-11-20"
# Who imports one of these speaks to other ranks.
_COMMUNICATION = (
    "torch.distributed",
    "deepspeed.comm",
    "deepspeed",
    "megatron.core",
    "colossalai",
    "mpi4py",
    "horovod",
    "oneccl_bindings_for_pytorch",
)
_MAX_MODULES = 4000
_LEVELS = ("patch", "minor", "major")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """``lost`` and ``gained`` map an axis to its values that no longer, or now, occur; ``asks`` is the release that the change asks for."""

    base: str
    before: int
    after: int
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()
    asks: str = "patch"
    findings: tuple[Located, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "base": self.base,
            "combinations": {"before": self.before, "after": self.after},
            "lost": {k: list(v) for k, v in self.lost.items()},
            "gained": {k: list(v) for k, v in self.gained.items()},
            "communication_breaks": list(self.breaks),
            "asks_for": self.asks,
        }


def changed(root: Path, base: str) -> bool:
    """Whether anything that decides the matrix differs from ``base``: what is declared, or the configuration. ``UsageError`` when git cannot say."""
    names = [CONFIG, *FILES, "requirements"]
    done = _git(root, "diff", "--name-only", base, "--", *names)
    return bool(done.strip())


def compare(root: Path, base: str, library: Library) -> Comparison:
    """The library against its state at ``base``, a git revision. ``UsageError`` when git knows no such revision."""
    _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    old = _library_at(root, base)
    then = _values(old) if old else (0, {})
    now = _values(library)
    lost = _less(then[1], now[1])
    gained = _less(now[1], then[1])
    breaks = tuple(f"{path}: {what}" for path, what, _ in _breaks(root, base))
    asks = "major" if breaks else "minor" if lost or gained else "patch"
    found = [*_narrowed(library, base, lost, then[0], now[0])]
    found += [_broken(path, line, what) for path, what, line in _breaks(root, base)]
    found += _version(library, old, asks, breaks)
    return Comparison(
        base=base,
        before=then[0],
        after=now[0],
        lost=lost,
        gained=gained,
        breaks=breaks,
        asks=asks,
        findings=tuple(found),
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"--since: git cannot be asked: {error}", hint="run it in a checkout, with git installed"
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"no revision {arguments[-1]!r}"])[0]
        raise UsageError(
            f"--since: git {arguments[0]}: {said}", hint="name a branch or commit that is here: git fetch origin main"
        )
    return done.stdout


def _library_at(root: Path, base: str) -> Library | None:
    """The library as it was; ``None`` when it declared nothing that could be read then."""
    listed = _git(root, "ls-tree", "-r", "--name-only", base, "--", CONFIG, *FILES, "requirements").splitlines()
    with tempfile.TemporaryDirectory(prefix="envsmith-since-") as folder:
        for name in listed[:50]:
            target = Path(folder, name)
            if ".." in target.parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_git(root, "show", f"{base}:./{name}"), encoding="utf-8")
        try:
            return read_library(Path(folder))
        except (DataError, UsageError):
            return None


def _values(library: Library) -> tuple[int, dict[str, set[str]]]:
    """How many combinations there are, and the values of each axis that occur in one."""
    try:
        space = space_of(library)
        rows = space.rows()
    except EnvsmithError:
        return 0, {}
    return len(rows), {axis.name: {row[i] for row in rows} for i, axis in enumerate(space.axes)}


def _less(all_: Mapping[str, set[str]], without: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name, values in all_.items():
        gone = sorted(values - without.get(name, set()), key=_key)
        if gone and name in without:
            found[name] = tuple(gone)
    return found


def _key(text: str) -> tuple[int, Version | str]:
    try:
        return (1, Version(text))
    except InvalidVersion:
        return (0, text)


def _study() -> Evidence:
    return Evidence(kind=EvidenceKind.DOCUMENTED, source=_STUDY, date=_STUDY_READ)


def _narrowed(
    library: Library, base: str, lost: Mapping[str, Sequence[str]], before: int, after: int
) -> Iterator[Located]:

    table = components()
    for name, values in lost.items():
        declared = library.declared(name, table)
        at = (
            (declared.file, declared.line)
            if declared
            else library.declaration.python_at or (library.config or CONFIG, 1)
        )
        yield Located(
            finding=Finding(
                rule="ci-support-dropped",
                severity=Severity.WARNING,
                components={name: str(library.ranges.get(name, "*"))},
                message=f"this change drops {name} {', '.join(values)} (combinations: {before} at {base}, {after} now)",
                evidence=(
                    Evidence(kind=EvidenceKind.DECLARED, source=f"the requirements at {base} and now", date=_today()),
                ),
                fix="say so in the changelog; dropped support asks for a minor version at least",
            ),
            file=at[0],
            line=at[1],
        )


def _broken(path: str, line: int, what: str) -> Located:
    return Located(
        finding=Finding(
            rule="ci-communication-break",
            severity=Severity.WARNING,
            components={},
            message=f"{what}: whoever calls it across ranks breaks",
            evidence=(_study(),),
            fix="keep the old name or signature for a release with a deprecation warning, or raise the major version",
        ),
        file=path,
        line=line,
    )


def _version(library: Library, old: Library | None, asks: str, breaks: Sequence[str]) -> list[Located]:
    """The version that the change declares against the one it asks for."""
    before = old.declaration.version if old else None
    now = library.declaration.version
    if not before or not now:
        return []
    try:
        a, b = Version(before), Version(now)
    except InvalidVersion:
        return []
    done = "major" if b.major > a.major else "minor" if b.release[:2] > a.release[:2] else "patch"
    # Before 1.0 the minor number plays the part of the major one (semver.org, item 4).
    needed = "minor" if asks == "major" and a.major == 0 else "patch" if a.major == 0 else asks
    if b <= a or _LEVELS.index(done) >= _LEVELS.index(needed):
        return []
    why = f"{len(breaks)} break(s) in a communication API" if breaks else "support was dropped or added"
    return [
        Located(
            finding=Finding(
                rule="ci-version-too-small",
                severity=Severity.ERROR if breaks else Severity.WARNING,
                components={library.name: now},
                message=f"version {before} -> {now} is a {done} release, the change asks for a {needed} one: {why}",
                evidence=(_study(),),
                fix=f"release it as a {needed} version",
            ),
            file="pyproject.toml",
            line=1,
        )
    ]


def _today() -> str:
    import datetime as dt

    return dt.datetime.now(dt.timezone.utc).date().isoformat()


def _breaks(root: Path, base: str) -> list[tuple[str, str, int]]:
    """``(file, what, line)`` of every break in the Python files that differ."""
    found: list[tuple[str, str, int]] = []
    for line in _git(root, "diff", "--name-status", "--no-renames", base, "--", "*.py").splitlines()[:_MAX_MODULES]:
        status, _, name = line.partition("\t")
        if status not in ("M", "D") or _private(name):
            continue
        before = _git(root, "show", f"{base}:{name}")
        path = Path(_git(root, "rev-parse", "--show-toplevel").strip(), name)
        try:
            after = path.read_text(encoding="utf-8", errors="replace") if status == "M" else ""
        except OSError:
            after = ""
        found += [(name, what, line_) for what, line_ in api_breaks(before, after)]
    return found


def _private(name: str) -> bool:
    parts = Path(name).parts
    return any(p.startswith("_") and p != "__init__.py" for p in parts) or any(
        p in ("tests", "test", "examples", "docs") for p in parts
    )


def api_breaks(before: str, after: str) -> list[tuple[str, int]]:
    """``(what, line now)`` for each public callable of ``before`` that is gone or called differently in ``after``.

    Empty when ``before`` imports no communication library, or is no Python.
    """
    try:
        old, new = ast.parse(before), ast.parse(after)
    except (SyntaxError, ValueError, RecursionError):
        return []
    if not _communicates(old):
        return []
    there = dict(_callables(new))
    found = []
    for name, function in _callables(old):
        match = there.get(name)
        if match is None:
            found.append((f"{name} is gone", 1))
        elif (why := _differs(function, match)) is not None:
            found.append((f"{name}: {why}", match.lineno))
    return found


def _communicates(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        if any(n == c or n.startswith(c + ".") for n in names for c in _COMMUNICATION):
            return True
    return False


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _callables(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, _Function) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from ((f"{node.name}.{f.name}", f) for f in node.body if _is_public_method(f))


def _is_public_method(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
        not node.name.startswith("_") or node.name == "__init__"
    )


def _differs(old: _Function, new: _Function) -> str | None:
    """Why a call that worked may fail now."""
    if isinstance(old, ast.ClassDef) != isinstance(new, ast.ClassDef):
        return "a class and a function are not called alike"
    if isinstance(old, ast.ClassDef) or isinstance(new, ast.ClassDef):
        return None
    a, b = old.args, new.args
    before, now = [x.arg for x in [*a.posonlyargs, *a.args]], [x.arg for x in [*b.posonlyargs, *b.args]]
    names = {*now, *(x.arg for x in b.kwonlyargs)}
    gone = [n for n in [*before, *(x.arg for x in a.kwonlyargs)] if n not in names]
    if gone and b.kwarg is None:
        return f"parameter {', '.join(gone)} is gone"
    required = now[: len(now) - len(b.defaults)] + [
        x.arg for x, d in zip(b.kwonlyargs, b.kw_defaults, strict=True) if d is None
    ]
    had = {*before, *(x.arg for x in a.kwonlyargs)}
    optional = {*before[len(before) - len(a.defaults) :]} if a.defaults else set()
    optional |= {x.arg for x, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None}
    new_required = [n for n in required if n not in had or n in optional]
    if new_required:
        return f"parameter {', '.join(new_required)} is required now"
    kept = [n for n in before if n in now]
    if kept != [n for n in now if n in before] or (now[: len(kept)] != kept and b.vararg is None):
        return "the order of its parameters changed"
    return None
