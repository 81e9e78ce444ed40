"""A project's code held against a set of versions: a judgement with what the code takes and they lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envsmith import solver
from envsmith.base.progress import Progress, silent
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.project.code.judge_overrides import judge_overrides
from envsmith.project.code.judge_refused import judge_refused
from envsmith.project.code.judge_uses import by_distribution, judge_uses
from envsmith.project.code.needs import exact_versions, infer, newest_admitted
from envsmith.project.code.reading import read_code
from envsmith.project.stated import read_stated


def judge_code(
    path: Path, versions: Mapping[str, str], judgement: Judgement, platform: Platform, progress: Progress = silent
) -> Judgement:
    """Return a judgement of versions with what the code of a project takes and they lack.

    The repair is a set in which the code finds its names too, if there is one.

    A package whose version is not stated is judged by the project's own pin. Where nothing at all is stated, a package
    without a pin is judged by the newest measured release that the project admits.
    """
    index = NameIndex.installed()
    project, uses = read_code(path, index, progress)
    requirements = read_stated(project.root, project.files)
    inferred = exact_versions(requirements)
    newest = {} if versions else newest_admitted(uses, requirements, index)
    newest = {name: one for name, one in newest.items() if name not in inferred}
    code = judge_uses(uses, {**inferred, **versions}, index, newest)
    releases = {**{name: one.version for name, one in newest.items()}, **by_distribution({**inferred, **versions})}
    overrides = [*judge_overrides(uses, releases, index, newest), *judge_refused(uses, releases, index)]
    assumed = {name: one.version for name, one in newest.items()} | {
        name: version for name, version in inferred.items() if name in index.distributions() and name not in versions
    }
    status, repair = judgement.status, judgement.repair
    if any(f.severity is Severity.ERROR for f in code.findings):
        names = infer(uses, requirements, index).names
        needed = {name: Spec.parse(spec) for name, spec in names.items() if name in versions}
        repair = solver.check(versions, platform, needed=needed).repair if needed else None
    elif not (code.judged or versions):
        status = "unknown"
    return replace(
        judgement,
        status=status,
        findings=(*judgement.findings, *code.findings, *overrides),
        inferred={**judgement.inferred, **assumed},
        repair=repair,
        unknown=(*judgement.unknown, *code.blind),
    ).settled()
