"""What the solver says of every framework release with every torch release: possible, with which Pythons, or forbidden by which rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from envsmith.model.cell import Request
from envsmith.model.platform import Platform
from envsmith.model.rule import Knowledge, Release
from envsmith.model.version import Spec, version_key
from envsmith.solve.solver import Solver

__all__ = ["default_builds", "grid_json", "stable"]

FRAMEWORKS = ("deepspeed", "megatron-core", "colossalai")


def stable(releases: Sequence[Release]) -> list[Release]:
    """Releases that are neither withdrawn nor pre-releases, newest first."""
    found = [r for r in releases if not r.yanked and (k := version_key(r.version)) and not k.is_prerelease]
    return sorted(found, key=lambda r: version_key(r.version), reverse=True)  # type: ignore[arg-type,return-value]


def default_builds(known: Knowledge, platform: Platform = Platform.LINUX_64) -> list[str]:
    """The build that the default index gives of each torch release, newest first."""
    builds: dict[str, str] = {}
    for release in stable(known.releases.get("torch", ())):
        public, _, local = release.version.partition("+")
        if release.index == "default" and platform in release.platforms and (local != "cpu" or public not in builds):
            builds[public] = release.version if local != "cpu" else builds.get(public, release.version)
    return list(builds.values())


def grid_json(
    solver: Solver, *, progress: Callable[[str], None] = lambda _line: None, platform: Platform = Platform.LINUX_64
) -> dict[str, dict[str, dict[str, Any]]]:
    """``{framework: {version: {torch build: entry}}}``; an entry is ``{"status", "rules", "cell"}``.

    ``status`` is possible, warned (possible, a rule warns) or forbidden; ``rules`` say why; ``cell`` is the id of the best cell.
    """
    known = solver.knowledge()
    builds = default_builds(known, platform)
    grid: dict[str, dict[str, dict[str, Any]]] = {}
    for framework in FRAMEWORKS:
        rows = grid[framework] = {}
        for release in stable(known.releases.get(framework, ())):
            progress(f"{framework} {release.version}")
            rows[release.version] = {
                build: _entry(solver, framework, release.version, build, platform) for build in builds
            }
    return grid


def _entry(solver: Solver, framework: str, version: str, build: str, platform: Platform) -> dict[str, Any]:
    request = Request(
        frameworks={framework: Spec.exactly(version)}, constraints={"torch": Spec.exactly(build)}, platform=platform
    )
    posed = solver.pose(request)
    answer = solver.best(posed)
    if answer is None:
        stuck = solver.stuck(posed)
        rules = sorted({group.rule for group in stuck.groups}) if stuck else []
        return {"status": "forbidden", "rules": rules, "cell": None}
    warned = "warning" not in answer.avoided
    return {"status": "warned" if warned else "possible", "rules": [], "cell": str(answer.cell.id)}
