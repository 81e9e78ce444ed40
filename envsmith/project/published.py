"""What the package index says of releases that the graph does not know: what they declare, and what their code takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace

from envsmith.errors import EnvsmithError, NetworkError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.lock.index.index import PackageIndex, quick_index
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity
from envsmith.net.http import NotFoundError
from envsmith.project.code.judge_uses import component_name
from envsmith.project.published_release import IndexRelease

# A person waits: how many releases are asked for, and the seconds after which no further one is.
_MOST, _LONGEST = 8, 40.0


def judge_published(
    versions: Mapping[str, str],
    judgement: Judgement,
    platform: Platform,
    find: Callable[[], PackageIndex] = quick_index,
    clock: Callable[[], float] = time.monotonic,
) -> Judgement:
    """Return a judgement of versions with what unknown releases among them ask for, and the others do not give.

    What the index does not tell is said in ``unknown``. A release that an error names already is not asked for.
    """
    faulty = {name for f in judgement.findings if f.severity is Severity.ERROR for name in f.components}
    findings: list[Finding] = []
    unknown: list[str] = []
    what = ""
    unmeasured = version_graph().unknown_releases(versions)
    subjects = set(map(component_name, unmeasured))
    measured = _measured(versions, subjects)
    end = clock() + _LONGEST
    try:
        for name, version in [*unmeasured.items()][:_MOST]:
            what = f"what {name} {version} asks for"
            if component_name(name) in faulty:
                continue
            _refuse_late(end - clock())
            if release := _release(find(), name, version):
                findings.extend(release.faults(versions, platform))  # as far as they come
            else:
                unknown.append(f"{what}: the package index has no such release")
                subjects.discard(component_name(name))
        for name, version in [*measured.items()][: _MOST if subjects else 0]:
            what = f"what later releases of {name} {version} bar"
            _refuse_late(end - clock())
            if release := _release(find(), name, version):
                findings += release.barred(versions, platform, subjects)
    except EnvsmithError as error:  # whoever waits has waited once
        unknown.append(f"{what}: the package index did not say, {error.reason}")
    return replace(
        judgement, findings=(*judgement.findings, *findings), unknown=(*judgement.unknown, *unknown)
    ).settled()


def _refuse_late(seconds_left: float) -> None:
    if seconds_left < 0:
        raise NetworkError(f"Cannot read the package index: it took more than {_LONGEST:.0f} s for the others.")


def _release(packages: PackageIndex, name: str, version: str) -> IndexRelease | None:
    """Return a release under its name, or under another that the component is published as."""
    component = components().find(name)
    for project in component.distributions if component and component.distributions else (name,):
        with suppress(NotFoundError):
            return IndexRelease(packages, name, project, version)
    return None


def _measured(versions: Mapping[str, str], unmeasured: Container[str]) -> dict[str, str]:
    """Return the stated releases of components that the package index has, without those that were not measured."""
    found = {name: components().find(name) for name in versions if name not in unmeasured}
    return {name: versions[name] for name, c in found.items() if c and c.distributions and versions[name][:1].isdigit()}
