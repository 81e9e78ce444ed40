"""Methods of a project that stand in the place of a package's, held against what the releases of the package give them.

A release that gives a method what it does not take, or does not give what it wants, calls it in vain: what its own
method has without a default, what is known to be given (``matrix/given.yaml``), and less than is wanted by position.
Only a method that fits other releases is told: what it leaves out in all of them, its author left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from envsmith.knowledge.graph.given_arguments import given_arguments
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.knowledge.names.walk import named, positional
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, Severity
from envsmith.project.code.judge_uses import Assumed, component_name, has, is_guarded
from envsmith.project.code.reading import OverridePlace, ProjectUses


class Index(Protocol):
    """What is asked which release has an argument of a method."""

    def ask(self, path: str, argument: str | None = None, *, distribution: str | None = None) -> Presence | None:
        """Return which releases have a name, or accept an argument of it."""

    def arguments(self, path: str) -> tuple[str, ...]:
        """Return the names of the arguments that a method has in any release."""

    def optional(self, path: str, argument: str) -> frozenset[str]:
        """Return the releases in which an argument may be left out."""

    def evidence(self, distribution: str, version: str) -> tuple[Evidence, ...]:
        """Return the files that the answer about a release was read from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Misfit:
    """What a release gives a method and it does not take, or it wants and is not given, and the releases that it fits."""

    arguments: tuple[str, ...]
    is_given: bool
    fitting: frozenset[str]


def judge_overrides(
    uses: ProjectUses, releases: Mapping[str, str], index: Index, assumed: Mapping[str, Assumed]
) -> Iterator[Finding]:
    """Yield a warning for each method that a release calls with other arguments than it takes.

    What Python itself calls, and what stands under a condition, is left out.
    """
    for place in uses.overrides:
        override = place.override
        there = None if override.chain[-1].startswith("__") else index.ask(".".join(override.chain))
        version = releases.get(there.distribution) if there else None
        if there is None or version is None or is_guarded(override.guard) or override.guard.branch:
            continue
        if has(there, version) and (misfit := _misfit(override.text, there, version, index)):
            one = assumed.get(there.distribution)
            words = f"{version}, {one.words}," if one else version
            yield _finding(place, misfit, there, words, index.evidence(there.distribution, version))


def _misfit(text: str, there: Presence, version: str, index: Index) -> _Misfit | None:
    """Return how a method with that text does not fit a release, ``None`` where it does or fits no other one either."""
    if not text.startswith("("):
        return None
    words = text.removeprefix("(").split(",")
    answers = {argument: index.ask(there.path, argument) for argument in index.arguments(there.path)}
    known = {argument: (answer, has(answer, version)) for argument, answer in answers.items() if answer}
    own, wanted = named(text), [word for word in positional(words) if not word.endswith("=")]
    lacking = {name: answer.absent for name, (answer, given) in known.items() if given and name not in own}
    row = given_arguments().get(there.path)
    must = {name for name in lacking if (row and name in row.gives) or version not in index.optional(there.path, name)}
    if must and not {"*", "**"} & {*words}:
        return _fitting(lacking, there, is_given=True)
    taken = index.ask(there.path, f"#{len(wanted)}")
    if taken and has(taken, version) is False:
        beyond = {name: known[name][0].present for name in wanted if name in known and known[name][1] is False}
        return _fitting(beyond, there, is_given=False)
    return None


def _fitting(arguments: Mapping[str, frozenset[str]], there: Presence, *, is_given: bool) -> _Misfit | None:
    fitting = there.present.intersection(*arguments.values()) if arguments else frozenset()
    return _Misfit(arguments=tuple(arguments), is_given=is_given, fitting=fitting) if fitting else None


def _finding(
    place: OverridePlace, misfit: _Misfit, there: Presence, version: str, evidence: tuple[Evidence, ...]
) -> Finding:
    component, names = component_name(there.distribution), ", ".join(misfit.arguments)
    verb, change = ("does not take", f"take {names}") if misfit.is_given else ("wants", f"do without {names}")
    spec = short_spec_of(there.releases, misfit.fitting)
    return Finding(
        rule="code-override",
        severity=Severity.WARNING,
        components={component: version.partition(",")[0]},
        needs={component: spec},
        message=f"{place.where} stands in the place of {there.path} and {verb} {names}, which {component} {version}"
        f" {'has' if misfit.is_given else 'does not have'} there: it is as in {component} {spec}",
        evidence=evidence,
        fix=f"Let it {change}, or install {component} {spec}.",
        where=place.where,
    )
