"""What uv is asked for a lock, and its answer: one run for the packages, one for who requires whom."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from envsmith.base.files import scratch, storage_errors
from envsmith.errors import LockError
from envsmith.lock.index.uv import Finished, Uv, explain_failure
from envsmith.lock.uv_output import Resolved, parse_edges, parse_pylock
from envsmith.model.lock import Artifact, GivenArchive
from envsmith.model.project_name import normal_name
from envsmith.model.wheel import ReadyWheel

# A distribution that is not asked of the index.
Archive = GivenArchive | ReadyWheel

_UNDATED = re.compile(r"warning: `([A-Za-z0-9][^`]*?)` is missing an upload date")
# How often the list of projects without dates may grow before the date is given up altogether.
_ROUNDS = 8


class Described(Protocol):
    """A distribution whose metadata is known without asking the index."""

    @property
    def name(self) -> str:
        """Return its normalised name."""

    @property
    def version(self) -> str:
        """Return its version."""

    @property
    def requires(self) -> tuple[str, ...] | None:
        """Return what it requires."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What uv is asked. ``newest`` is an RFC 3339 time, ``interpreter`` the path of the Python that runs setup scripts.

    ``backend`` is the word of ``--torch-backend`` (``""``: the default index). Without ``edges`` the answer does not
    say who requires whom, which saves one run of uv. ``archives`` are distributions that are not asked of the index.
    ``present`` are distributions that stay as they are: they are neither asked for nor in the answer. ``preferred`` are
    names and versions that uv keeps where it can.
    ``later`` are distributions of which only a wheel is taken, each up to the release that is named, published until
    ``latest``.
    """

    requirements: tuple[str, ...]
    python: str
    platform: str
    newest: str = ""
    interpreter: str = ""
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    backend: str = ""
    find_links: tuple[str, ...] = ()
    wheels_only: bool = False
    edges: bool = True
    archives: tuple[Archive, ...] = ()
    present: tuple[Described, ...] = ()
    preferred: tuple[tuple[str, str], ...] = ()
    later: tuple[tuple[str, str], ...] = ()
    latest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """``undated`` are the projects (``*``: all) whose upload times the index does not tell."""

    packages: tuple[Resolved, ...]
    requires: dict[str, tuple[str, ...]]
    undated: tuple[str, ...] = ()


def resolve(query: Query, uv: Uv, *, work: str, on_line: Callable[[str], None] | None = None) -> Resolution:
    """Resolve a query. ``LockError``, ``NetworkError`` and the errors of uv say why not."""
    with storage_errors("the lists of requirements"), scratch() as folder:
        return _Run(uv, folder, work).resolve(query, on_line)


@dataclass(frozen=True, slots=True)
class _Run:
    """One resolution: ``folder`` holds uv's input and output while it lasts."""

    uv: Uv
    folder: Path
    work: str

    def resolve(self, query: Query, on_line: Callable[[str], None] | None) -> Resolution:
        output = self.folder / "pylock.toml"
        if query.preferred:
            output.write_text(_earlier(query.preferred), encoding="utf-8")
        run, undated = self._dated(query, ["--format", "pylock.toml", "--output-file", str(output)], on_line)
        if run.status != 0:
            raise explain_failure(run, work=self.work)
        described = {d.name for d in (*query.archives, *query.present)}
        packages = parse_pylock(output.read_text(encoding="utf-8"), described)
        own = (_resolved(archive) for archive in query.archives)
        packages = tuple(sorted((*packages, *own), key=lambda r: r.name))
        requires = self._edges(query, packages, undated) if query.edges else {}
        return Resolution(packages=packages, requires=requires, undated=undated)

    def _dated(
        self, query: Query, options: list[str], on_line: Callable[[str], None] | None
    ) -> tuple[Finished, tuple[str, ...]]:
        """Run with the date, and again without it for the projects whose upload times the index does not tell."""
        undated: tuple[str, ...] = ()
        for rounds in range(_ROUNDS, -1, -1):
            run = self.uv.run([*_arguments(query, self.folder, undated), *options], on_line=on_line)
            hidden = {_project(name) for line in run.lines for name in _UNDATED.findall(line)} - {*undated, ""}
            if not hidden:
                break
            undated = tuple(sorted({*undated, *hidden})) if rounds > 1 else ("*",)
        return run, undated

    def _edges(
        self, query: Query, packages: Sequence[Resolved], undated: tuple[str, ...]
    ) -> dict[str, tuple[str, ...]]:
        """Ask again for the same versions, annotated: ``pylock.toml`` does not say who requires whom."""
        exact = replace(query, constraints=(*query.constraints, *(f"{p.name}=={p.version}" for p in packages)))
        arguments = [*_arguments(exact, self.folder, undated), "--annotation-style", "split", "--quiet"]
        # Offline nothing is asked whether it is still fresh; only where the cache is switched off the network is needed
        # again.
        run = self.uv.run([*arguments, "--offline"])
        if run.status != 0:
            run = self.uv.check(arguments, work=self.work)
        requires = parse_edges(run.stdout)
        names = {p.name for p in packages}
        if set(requires) != names:
            odd = ", ".join(sorted(set(requires) ^ names)[:8])
            raise LockError(
                f"Cannot {self.work}: uv gave two answers to one request, and they differ in {odd}.",
                hint="Run the same command again.",
            )
        return requires


def _earlier(preferred: Iterable[tuple[str, str]]) -> str:
    """Return an earlier answer of uv: it prefers the versions of the file that it is to write."""
    tables = (f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' for name, version in preferred)
    return 'lock-version = "1.0"\ncreated-by = "envsmith"\n' + "".join(tables)


def _resolved(archive: Archive) -> Resolved:
    """Return what uv was not asked about: the user's source archive, or a ready wheel."""
    if isinstance(archive, GivenArchive):
        return Resolved(name=archive.name, version=archive.version, artifacts=(archive.artifact,), sdist=True)
    artifact = Artifact(filename=archive.filename, sha256=archive.sha256, url=archive.address)
    return Resolved(
        name=archive.name, version=archive.version, artifacts=(artifact,), sdist=False, address=archive.address
    )


def _project(filename: str) -> str:
    return normal_name(re.split(r"-(?=\d)", filename, maxsplit=1)[0])


def _stand_in(archive: Described, folder: Path) -> Path:
    """Write a wheel without content that says what the archive says: its setup needs torch, or it was not fetched yet."""
    stem = f"{archive.name.replace('-', '_')}-{archive.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    if path.exists():
        return path
    metadata = [f"Metadata-Version: 2.1\nName: {archive.name}\nVersion: {archive.version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in archive.requires or ()]
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

    described = (*query.archives, *query.present)
    lines = [*query.requirements, *(f"{d.name} @ {_stand_in(d, folder).as_uri()}" for d in described)]
    arguments = ["pip", "compile", file("request.in", lines), "--no-header", "--resolution", "highest"]
    arguments += ["--python-version", query.python, "--python-platform", query.platform]
    arguments += ["--python", query.interpreter]
    if constraints := [*query.constraints, *(f"{name}<={release}" for name, release in query.later)]:
        arguments += ["--constraints", file("constraints.txt", constraints)]
    if query.overrides:
        arguments += ["--overrides", file("overrides.txt", query.overrides)]
    if query.backend:
        arguments += ["--torch-backend", query.backend]
    if query.wheels_only:
        arguments += ["--only-binary", ":all:"]
    dates = {name: query.latest for name, _ in query.later} | dict.fromkeys(undated, "false")
    for name, _ in query.later:
        arguments += ["--only-binary", name]
    for link in query.find_links:
        arguments += ["--find-links", link]
    if undated != ("*",):
        arguments += ["--exclude-newer", query.newest]
        arguments += [a for name, day in dates.items() for a in ("--exclude-newer-package", f"{name}={day}")]
    return arguments
