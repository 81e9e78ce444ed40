"""Methods of a project that stand in the place of a package's, held against what the releases of the package give them.

A release that gives a method what it does not take, or does not give what it wants, calls it in vain: what its own
method has without a default, what is known to be given (``matrix/given.yaml``), and less than is wanted by position.
Only a method that fits other releases is told: what it leaves out in all of them, its author left out. What it takes by
position under a name of its own may be what is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsmith.knowledge.graph.given_arguments import GivenArguments, given_arguments
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.knowledge.names.signature_text import positional
from envsmith.knowledge.names.walk import named
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, Severity
from envsmith.project.code.judge_uses import Assumed, component_name, has, is_guarded
from envsmith.project.code.reading import OverridePlace, ProjectUses


@dataclass(frozen=True, kw_only=True, slots=True)
class _Misfit:
    """What a release gives a method and it does not take, or it wants and is not given, and the releases that it fits."""

    arguments: tuple[str, ...]
    is_given: bool
    fitting: frozenset[str]


def judge_overrides(
    uses: ProjectUses, releases: Mapping[str, str], index: NameIndex, assumed: Mapping[str, Assumed]
) -> Iterator[Finding]:
    """Yield a warning for each method that a release calls with other arguments than it takes.

    What Python itself calls, and what stands under a condition, is left out.
    """
    for place in uses.overrides:
        override = place.override
        method = None if override.chain[-1].startswith("__") else index.ask(".".join(override.chain))
        version = releases.get(method.distribution) if method else None
        if method is None or version is None or is_guarded(override.guard) or override.guard.branch:
            continue
        if has(method, version) and (misfit := _misfit(override.text, method, version, index)):
            one = assumed.get(method.distribution)
            words = f"{version}, {one.words}," if one else version
            row = _given(method.path, index)
            calls = row.evidence if row and misfit.is_given else ()
            yield _finding(place, misfit, method, words, (*calls, *index.evidence(method.distribution, version)))


def _given(path: str, index: NameIndex) -> GivenArguments | None:
    """Return what is known to be given to a method, by the path that code takes it by or by that of its definition."""
    rows = given_arguments()
    return rows.get(path) or rows.get(index.definition(path))


def _misfit(text: str, method: Presence, version: str, index: NameIndex) -> _Misfit | None:
    """Return how a method with that text does not fit a release, ``None`` where it does or fits no other one either."""
    if not text.startswith("("):
        return None
    words = text.removeprefix("(").split(",")
    answers = {argument: index.ask(method.path, argument) for argument in index.arguments(method.path)}
    states = {argument: (answer, has(answer, version)) for argument, answer in answers.items() if answer}
    own, required = named(text), [word for word in positional(words) if not word.endswith("=")]
    lacking = {name: answer.absent for name, (answer, state) in states.items() if state and name not in own}
    row = _given(method.path, index)
    must = {name for name in lacking if (row and name in row.gives) or version not in index.optional(method.path, name)}
    renamed = {word.removesuffix("=") for word in positional(words)} - states.keys()
    if len(must) > len(renamed) and not {"*", "**"} & {*words}:
        return _fitting(lacking, method, is_given=True)
    capacity = index.ask(method.path, f"#{len(required)}")
    if capacity and has(capacity, version) is False:
        beyond = {name: states[name][0].present for name in required if name in states and states[name][1] is False}
        return _fitting(beyond, method, is_given=False)
    return None


def _fitting(arguments: Mapping[str, frozenset[str]], method: Presence, *, is_given: bool) -> _Misfit | None:
    fitting = method.present.intersection(*arguments.values()) if arguments else frozenset()
    return _Misfit(arguments=tuple(arguments), is_given=is_given, fitting=fitting) if fitting else None


def _finding(
    place: OverridePlace, misfit: _Misfit, method: Presence, version: str, evidence: tuple[Evidence, ...]
) -> Finding:
    component, names = component_name(method.distribution), ", ".join(misfit.arguments)
    verb, change = ("does not take", f"take {names}") if misfit.is_given else ("wants", f"do without {names}")
    spec = short_spec_of(method.releases, misfit.fitting)
    return Finding(
        rule="code-override",
        severity=Severity.WARNING,
        components={component: version.partition(",")[0]},
        needs={component: spec},
        message=f"{place.where} stands in the place of {method.path} and {verb} {names}, which {component} {version}"
        f" {'has' if misfit.is_given else 'does not have'} there: it is as in {component} {spec}",
        evidence=evidence,
        fix=f"Let it {change}, or install {component} {spec}.",
        where=place.where,
    )
