"""What the solver says of every framework release with every torch release: possible, or forbidden by which rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envsmith.base.json_types import JsonDict
from envsmith.frameworks import FRAMEWORKS, beside_core
from envsmith.model.cell import Platform, Request
from envsmith.model.rule import Knowledge, Release
from envsmith.model.version import Spec, version_key
from envsmith.solver.request import Posed
from envsmith.solver.solver import Solver


def stable(releases: Sequence[Release]) -> list[Release]:
    """Return the releases that are neither withdrawn nor pre-releases, newest first."""
    finals = [r for r in releases if not r.yanked and (k := version_key(r.version)) and not k.is_prerelease]
    return sorted(finals, key=lambda r: version_key(r.version), reverse=True)  # type: ignore[arg-type,return-value]


def default_builds(knowledge: Knowledge, platform: Platform = Platform.LINUX_64) -> list[str]:
    """Return the build that the default index gives of each torch release, newest first."""
    builds: dict[str, str] = {}
    for release in stable(knowledge.releases.get("torch", ())):
        public, _, local = release.version.partition("+")
        if release.index == "default" and platform in release.platforms and (local != "cpu" or public not in builds):
            builds[public] = release.version if local != "cpu" else builds.get(public, release.version)
    return list(builds.values())


def grid_json(
    solver: Solver, *, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, dict[str, JsonDict]]:
    """Return ``{framework: {version: {torch build: entry}}}``. An entry is ``{"status", "rules", "cell"}``.

    The versions of torch itself are those of Python.
    ``status`` is possible, warned (possible, a rule warns) or forbidden. ``rules`` say why. ``cell`` is the best cell.
    """
    knowledge = solver.knowledge()
    builds = default_builds(knowledge)
    grid: dict[str, dict[str, JsonDict]] = {}
    for framework in FRAMEWORKS:
        rows = grid[framework] = {}
        component = beside_core(framework)
        requests = {
            build: Request(constraints={component: Spec("*"), "torch": Spec.exactly(build)}) for build in builds
        }
        posed = {build: solver.pose(request) for build, request in requests.items()}
        # What forbids a release forbids each that no rule tells apart from it.
        forbidden: dict[tuple[int, str], JsonDict] = {}
        for release in stable(knowledge.releases.get(component, ())):
            progress(f"{framework} {release.version}")
            row = rows[release.version] = {}
            for build, question in posed.items():
                wish = question.problem.wish(component, Spec.exactly(release.version))
                pair = question.problem.alike(*wish.masks[0]), build
                exactly = question.with_wishes([wish, *question.problem.wishes])
                entry = row[build] = dict(forbidden.get(pair) or _entry(solver, exactly))
                if entry["status"] == "forbidden":
                    forbidden[pair] = entry
    return grid


def _entry(solver: Solver, posed: Posed) -> JsonDict:
    answer = solver.best(posed)
    if answer is None:
        stuck = solver.stuck(posed.problem)
        rules = sorted({group.rule for group in stuck.groups}) if stuck else []
        return {"status": "forbidden", "rules": rules, "cell": None}
    warned = "warning" not in answer.avoided
    return {"status": "warned" if warned else "possible", "rules": [], "cell": str(answer.cell.id)}
