"""The files of a published release: which Python its wheels are for, and what the compiled ones were built for and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from packaging.tags import Tag

from envsmith.errors import ContentError, NetworkError
from envsmith.lock.index.asked_names import twice
from envsmith.lock.index.cuda_libraries import loaded_libraries
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.torch_wheel import linux_wheels
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.wheel_name import read_wheel_name
from envsmith.net.http import Fetcher
from envsmith.project.published.code import PublishedRelease
from envsmith.project.published.compiled import CompiledRelease
from envsmith.project.published.libraries import brought_libraries, unmet
from envsmith.project.published.stated import stated_python, stated_releases


def _is_for(tag: Tag, minor: int, platform: Platform) -> bool:
    """Return whether CPython 3.``minor`` on a platform, of whatever glibc, takes a wheel with that tag."""
    since = tag.interpreter.removeprefix("cp3")
    is_python = tag.interpreter in {"py3", f"py3{minor}", f"cp3{minor}"} and not tag.abi.endswith("t")
    is_stable = tag.abi == "abi3" and since.isdigit() and int(since) <= minor
    is_linux = tag.platform.startswith(("linux", "manylinux")) and tag.platform.endswith(platform.machine)
    return (is_python or is_stable) and (is_linux or tag.platform == "any")


def evidence_of(file: IndexFile, kind: EvidenceKind) -> Evidence:
    """Return a file of a release as evidence."""
    source = f"{file.filename}, read on the package index now"
    return Evidence(kind=kind, source=source, date=file.day or "", sha256=file.sha256)


@dataclass(frozen=True, slots=True)
class ReleaseWheels:
    """The ``files`` of a release. ``unread`` is told what the index did not say."""

    release: PublishedRelease
    files: Sequence[IndexFile]
    fetcher: Fetcher
    unread: Callable[[str], None]

    def faults(self, versions: Mapping[str, str], platform: Platform) -> Iterator[Finding]:
        """Yield that it has no wheel for the stated Python, or that its compiled files do not go with the stated versions."""
        yield from self._unbuilt(stated_python(versions), platform)
        yield from self._misbuilt(versions, platform)

    def has_file(self, python: str, platform: Platform) -> bool:
        """Return whether an installer finds a file of it for a Python: a wheel, or a source that it builds."""
        return any(not file.is_wheel for file in self.files) or self._has_wheel(python, platform)

    def _has_wheel(self, python: str, platform: Platform) -> bool:
        minor = int(python.partition(".")[2])
        tags = (tag for file in self.files if file.is_wheel for tag in read_wheel_name(file.filename).tags)
        return any(_is_for(tag, minor, platform) for tag in tags)

    def _unbuilt(self, python: str | None, platform: Platform) -> Iterator[Finding]:
        """Yield that it has compiled wheels, and none for the stated Python: a warning where pip compiles its source."""
        wheels = [read_wheel_name(f.filename) for f in self.files if f.is_wheel]
        built = sorted({tag.interpreter for w in wheels for tag in w.tags if tag.platform.endswith(platform.machine)})
        if python is None or not built or self._has_wheel(python, platform):
            return
        has_source = any(not f.is_wheel for f in self.files)
        name, version = self.release.name, self.release.version
        yield Finding(
            rule="release-unbuilt",
            severity=Severity.WARNING if has_source else Severity.ERROR,
            components={name: version, "python": str(python)},
            message=f"{name} {version} has no wheel for Python {python} (it has some for {', '.join(built)})"
            + (": an installer compiles its source" if has_source else ", and no source"),
            evidence=(self.release.evidence,),
            fix=f"Take a Python of one of its wheels, or a release of {name} that has one for Python {python}.",
            stage="install",
        )

    def _misbuilt(self, versions: Mapping[str, str], platform: Platform) -> Iterator[Finding]:
        """Yield that its compiled files were built for numpy 1 beside numpy 2, or do not load with the stated libraries."""
        stated, brought = stated_releases(versions), brought_libraries(versions, platform)
        (component, numpy), (_, torch) = (stated.get(name, ("", None)) for name in ("numpy", "torch"))
        is_read = torch or brought or (numpy and numpy.major > 1)
        compiled = self._compiled(stated_python(versions), platform) if is_read else None
        if compiled and numpy and numpy.major > 1:
            yield from compiled.built_for_numpy_1(component, str(numpy))
        if compiled and torch:
            with suppress(NetworkError, ContentError):  # its sources can be read all the same
                yield from compiled.not_linking(str(torch), platform.value)
        if compiled and brought:
            try:
                loaded = twice(lambda url: loaded_libraries(url, self.fetcher), compiled.file.url)
                yield from unmet(self.release, loaded, brought, platform)
            except NetworkError as error:
                self.unread(f"CUDA: the package index did not say, {error.reason}")

    def _compiled(self, python: str | None, platform: Platform) -> CompiledRelease | None:
        """Return the wheel for the stated Python, else for the newest one, where there are compiled wheels."""
        tag = f"-cp{(python or '3').replace('.', '')}"
        wheels = linux_wheels(self.files).get(platform, ())
        fitting = [f for f in wheels if tag in f.filename and "t-" not in f.filename and "musl" not in f.filename]
        if not fitting:
            return None
        return CompiledRelease(
            name=self.release.name,
            version=self.release.version,
            file=fitting[-1],
            fetcher=self.fetcher,
            evidence=evidence_of(fitting[-1], EvidenceKind.MEASURED),
        )
