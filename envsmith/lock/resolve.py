"""One resolution by uv: requirement lines in, distributions with files, hashes and edges out."""

from __future__ import annotations

import datetime as dt
import re
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from envsmith.errors import LockError, StorageError, UsageError
from envsmith.lock.uv_output import Resolved, parse_edges, parse_pylock
from envsmith.model.given import GivenArchive
from envsmith.sources.uv import Finished, Uv, explain_failure

__all__ = ["Query", "Resolution", "cutoff", "resolve"]

_UNDATED = re.compile(r"warning: `([A-Za-z0-9][^`]*?)` is missing an upload date")
# How often the list of projects without dates may grow before the date is given up altogether.
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What uv is asked. ``newest`` is an RFC 3339 time; ``interpreter`` the path of the Python that runs setup scripts.

    Without ``edges`` the answer does not say who requires whom, which saves one run of uv. ``given`` are distributions that are not asked of
    the index.
    """

    requirements: tuple[str, ...]
    python: str
    platform: str
    newest: str
    interpreter: str
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    backend: str = ""
    find_links: tuple[str, ...] = ()
    wheels_only: bool = False
    edges: bool = True
    given: tuple[GivenArchive, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """``undated`` are the projects to which the date could not be applied because the index tells no upload times (``*``: all)."""

    packages: tuple[Resolved, ...]
    requires: dict[str, tuple[str, ...]]
    undated: tuple[str, ...] = ()


def cutoff(exclude_newer: str) -> str:
    """The first moment that is too new: an ISO day counts in full, in UTC; a time is taken as it is. ``UsageError`` for anything else.

    uv reads a bare day in the time zone of the host, which would give two hosts two locks.
    """
    text = exclude_newer.strip()
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            day = dt.date.fromisoformat(text) + dt.timedelta(days=1)
            return f"{day.isoformat()}T00:00:00Z"
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{exclude_newer!r} is not a date", hint="give an ISO day (2026-11-20) or an RFC 3339 time"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return moment.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def resolve(query: Query, uv: Uv, *, what: str, on_line: Callable[[str], None] | None = None) -> Resolution:
    """Resolve. Raises ``LockError``, ``NetworkError``, ``StorageError``, ``EngineError`` or ``InterruptedRunError``."""
    try:
        with tempfile.TemporaryDirectory(prefix="envsmith-lock-") as folder:
            return _Run(uv, Path(folder), what).resolve(query, on_line)
    except OSError as error:
        raise StorageError(
            f"{what}: {error.strerror or error}", hint="check the space and permissions of the temporary folder"
        ) from None


@dataclass(frozen=True, slots=True)
class _Run:
    """One resolution: ``folder`` holds uv's input and output while it lasts."""

    uv: Uv
    folder: Path
    what: str

    def resolve(self, query: Query, on_line: Callable[[str], None] | None) -> Resolution:
        output = self.folder / "pylock.toml"
        done, undated = self._dated(query, ["--format", "pylock.toml", "--output-file", str(output)], on_line)
        if done.status != 0:
            raise explain_failure(done, what=self.what)
        try:
            packages = parse_pylock(output.read_text(encoding="utf-8"), {a.name for a in query.given})
        except UnicodeDecodeError:
            raise LockError(f"{self.what}: uv wrote something that is not text") from None
        own = (Resolved(name=a.name, version=a.version, artifacts=(a.artifact,), sdist=True) for a in query.given)
        packages = tuple(sorted((*packages, *own), key=lambda r: r.name))
        requires = self._edges(query, packages, undated) if query.edges else {}
        return Resolution(packages=packages, requires=requires, undated=undated)

    def _dated(
        self, query: Query, more: list[str], on_line: Callable[[str], None] | None
    ) -> tuple[Finished, tuple[str, ...]]:
        """Run with the date; where the index tells no upload times, uv hides the files and names them: ask again without the date for those."""
        undated: tuple[str, ...] = ()
        for left in range(_ROUNDS, -1, -1):
            done = self.uv.run([*_arguments(query, self.folder, undated), *more], on_line=on_line)
            found = {_project(name) for line in done.lines for name in _UNDATED.findall(line)} - {*undated, ""}
            if not found:
                break
            undated = tuple(sorted({*undated, *found})) if left > 1 else ("*",)
        return done, undated

    def _edges(
        self, query: Query, packages: Sequence[Resolved], undated: tuple[str, ...]
    ) -> dict[str, tuple[str, ...]]:
        """Ask again for the same versions, annotated: ``pylock.toml`` does not say who requires whom. Everything is in uv's cache by now."""
        exact = replace(query, constraints=(*query.constraints, *(f"{p.name}=={p.version}" for p in packages)))
        arguments = [*_arguments(exact, self.folder, undated), "--annotation-style", "split", "--quiet"]
        # Offline nothing is asked whether it is still fresh; only where the cache is switched off the network is needed again.
        done = self.uv.run([*arguments, "--offline"])
        if done.status != 0:
            done = self.uv.check(arguments, what=self.what)
        requires = parse_edges(done.stdout)
        names = {p.name for p in packages}
        if set(requires) != names:
            odd = ", ".join(sorted(set(requires) ^ names)[:8])
            raise LockError(
                f"{self.what}: uv gave two answers to one request, they differ in {odd}",
                hint="run the same command again",
            )
        return requires


def _project(filename: str) -> str:
    """The project of a file name (``tiny_a-1.0-py3-none-any.whl``)."""
    return canonicalize_name(re.split(r"-(?=\d)", filename, maxsplit=1)[0])


def _stand_in(archive: GivenArchive, folder: Path) -> Path:
    """A wheel without content that says what the archive says: the resolver reads it, where it would run the archive's setup without torch."""
    stem = f"{archive.name.replace('-', '_')}-{archive.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    if path.exists():
        return path
    metadata = [f"Metadata-Version: 2.1\nName: {archive.name}\nVersion: {archive.version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in archive.requires]
    wheel = "Wheel-Version: 1.0\nGenerator: envsmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{stem}.dist-info/METADATA", "\n".join(metadata) + "\n")
        file.writestr(f"{stem}.dist-info/WHEEL", wheel)
        file.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def _arguments(query: Query, folder: Path, undated: tuple[str, ...]) -> list[str]:
    def file(name: str, lines: Sequence[str]) -> str:
        path = folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)

    lines = [*query.requirements, *(f"{a.name} @ {_stand_in(a, folder).as_uri()}" for a in query.given)]
    arguments = ["pip", "compile", file("request.in", lines), "--no-header", "--resolution", "highest"]
    arguments += ["--python-version", query.python, "--python-platform", query.platform]
    arguments += ["--python", query.interpreter]
    if query.constraints:
        arguments += ["--constraints", file("constraints.txt", query.constraints)]
    if query.overrides:
        arguments += ["--overrides", file("overrides.txt", query.overrides)]
    if query.backend:
        arguments += ["--torch-backend", query.backend]
    if query.wheels_only:
        arguments += ["--only-binary", ":all:"]
    for link in query.find_links:
        arguments += ["--find-links", link]
    if undated != ("*",):
        arguments += ["--exclude-newer", query.newest]
        arguments += [a for name in undated for a in ("--exclude-newer-package", f"{name}=false")]
    return arguments
