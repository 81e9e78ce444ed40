"""Requirements of a published release in a form that the installers of today refuse."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.project.published.code import PublishedRelease
from envsmith.project.published.stated import Stated

# Seen on 2026-11-29 by installing gym 0.21.0 (opencv-python>=3.) and omegaconf 2.0.6 (PyYAML>=5.1.*): pip 24.0 and
# setuptools 66.1.1 take them, pip 24.1 and setuptools 67.0.0 do not. uv takes the wheel.
_PIP, _SETUPTOOLS = Version("24.1"), Version("67")


def refused_requirements(release: PublishedRelease, facts: ReleaseFacts, stated: Stated) -> Iterator[Finding]:
    """Yield that setuptools refuses what a release requires where it is built from its source, else that pip does.

    An error beside a stated setuptools, a warning where none is stated. None beside an older one.
    """
    is_built = not facts.filename.endswith(".whl")
    tool, since = ("setuptools", _SETUPTOOLS) if is_built else ("pip", _PIP)
    _, present = stated.get(tool, ("", None))
    if not facts.refused or (present and present < since):
        return
    wheel_fix = f"Install it with uv or with pip below {_PIP}, or take another release of {release.name}."
    source_fix = f"Install setuptools below {_SETUPTOOLS}, then it with --no-build-isolation, or take another release of {release.name}."
    yield Finding(
        rule="release-metadata",
        severity=Severity.ERROR if is_built and present else Severity.WARNING,
        components={release.name: release.version} | ({tool: str(present)} if present else {}),
        needs={tool: f"<{since}"},
        message=f"{release.name} {release.version} requires {facts.refused[0]}, a form that {tool} refuses from {since} on"
        + (", and it has no wheel" if is_built else ""),
        evidence=(release.evidence,),
        fix=source_fix if is_built else wheel_fix,
        stage="install",
    )
