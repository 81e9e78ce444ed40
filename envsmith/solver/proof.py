"""Whether somebody ran a given set: what a judgement may call ``ok``.

A run proves the set that it had, and every part of that set. A package that its record does not name is proved only
where another one of the run declares it: then some release was there, and rules say which ones go. What is of the host
is no part of this, for what a wheel needs of it is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.rule import Evidence, PassedRun, Tested
from envsmith.model.version import minor_of, public
from envsmith.solver.case import JudgementDraft
from envsmith.solver.words import join_words, name_release


def proof_of(case: JudgementDraft, inferred: Mapping[str, str], runs: Iterable[PassedRun]) -> Evidence | None:
    """Return the newest evidence that all packages of a set were run: one of ``runs``, else a tested line."""
    packages = _Packages(case, inferred)
    proofs = [run.evidence for run in runs if packages.versions and not packages.differences(run)]
    lines = () if proofs else case.solver.graph.tested
    proofs += [line.evidence[0] for line in lines if _is_line_of(case, inferred, line)]
    return max(proofs, key=lambda evidence: evidence.date, default=None)


def run_of_set(case: JudgementDraft, inferred: Mapping[str, str], runs: Iterable[PassedRun]) -> PassedRun | None:
    """Return the run of the very set in the environment at hand."""
    packages = _Packages(case, inferred)
    return next((run for run in runs if run.stages and not packages.differences(run)), None)


def unproved(case: JudgementDraft, inferred: Mapping[str, str], runs: Iterable[PassedRun]) -> list[str]:
    """Return a sentence that nobody is known to have run a set that has no proof, and what comes nearest.

    Nothing is missing where there is only torch and what it carries: rules that were measured speak of that.
    """
    compared, roles = _Packages(case, inferred), case.solver.compiled.roles
    packages = compared.versions
    if all(roles[name] is Role.CORE for name in packages):
        return []
    names = [name for name in packages if roles[name] is not Role.CORE or name == "torch"]
    releases = join_words([name_release(name, packages[name]) for name in names[:_SHOWN]])
    further = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    sentence = f"whether {releases}{further} work{'s' if len(names) == 1 else ' together'}: no run is known"
    near = [d for run in runs if len(d := compared.differences(run)) < len(names) - 1 or d.keys() <= {"python"}]
    least = min(near, key=len, default={})
    others = [
        name_release(name, version) if version else f"no {name}" for name, version in list(least.items())[:_SHOWN]
    ]
    return [sentence + (f" (the nearest had {join_words(others)})" if others else "")]


def ran_together(names: Collection[str], versions: Mapping[str, str], runs: Iterable[PassedRun]) -> bool:
    """Tell whether a run passed that had some components in these releases."""
    return any(
        all(public(run.components.get(name, "")) == public(versions.get(name, "?")) for name in names) for run in runs
    )


# So many releases are named in a sentence.
_SHOWN = 6


def _packages(case: JudgementDraft) -> dict[str, str]:
    roles = case.solver.compiled.roles
    return {name: text for name, text in case.subject.plain.items() if roles[name] is not Role.HOST}


class _Packages:
    """The packages of a judged set, held against many runs: each question about one of them is answered once."""

    def __init__(self, case: JudgementDraft, inferred: Mapping[str, str]) -> None:
        self.versions = _packages(case)
        self._case, self._inferred = case, inferred
        self._has: dict[tuple[str, str], bool] = {}
        self._owners: dict[str, frozenset[str]] = {}

    def differences(self, run: PassedRun) -> dict[str, str]:
        """Return what of the set a run did not have, with the release that it had instead or ``""``."""
        others = {}
        for name in self.versions:
            version = run.components.get(name)
            if version is None:
                owners = self._owners.get(name)
                if owners is None:
                    owners = self._owners[name] = self._declaring(name)
                if not any(owner in run.components for owner in owners):
                    others[name] = ""
                continue
            has = self._has.get((name, version))
            if has is None:
                has = self._has[name, version] = self._is(name, version)
            if not has:
                others[name] = version
        return others

    def _is(self, name: str, version: str) -> bool:
        """Tell whether the set may have this release."""
        case, listed = self._case, self._case.solver.compiled.versions.get(name, ())
        if name in self._inferred:  # a torch without a build is the one that an index gives
            return version == self._inferred[name]
        if version in listed:
            return bool(case.subject.masks[name] >> listed.index(version) & 1)
        return public(version) == public(case.subject.plain[name])

    def _declaring(self, name: str) -> frozenset[str]:
        """Return the packages of the set that declare one of them."""
        pairs = (rule.declared for rule in self._case.solver.compiled.rules_of([name]))
        return frozenset(p[0] for p in pairs if p is not None and p[1] == name and p[0] in self.versions)


def _is_line_of(case: JudgementDraft, inferred: Mapping[str, str], line: Tested) -> bool:
    """Tell whether a tested line speaks of every package of a set, and of this build of torch if it names one."""
    packages, roles = _packages(case), case.solver.compiled.roles
    if line.framework not in packages or not line.trains or not line.version.contains(packages[line.framework]):
        return False
    if line.kind == "record" and case.problem.platform is not Platform.LINUX_64:
        return False  # the runs of a platform are compared themselves
    if any(name != line.framework and roles[name] is not Role.CORE for name in packages):
        return False
    python = packages.get("python")
    if python is not None and line.python is not None and not line.python.contains(minor_of(python)):
        return False
    if "torch" not in packages:
        return True
    torch, cuda = ({**packages, **inferred}.get(name, "") for name in ("torch", "cuda"))
    return line.torch.contains(torch) and (line.cuda is None or (bool(cuda) and line.cuda.contains(cuda)))
