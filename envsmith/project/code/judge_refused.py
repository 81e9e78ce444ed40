"""Methods and calls of a project that a release refuses or leaves out, though its names and arguments do not show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envsmith.knowledge.graph.refused_names import RefusedUse, refused_uses
from envsmith.knowledge.names.uses import Override, Use
from envsmith.knowledge.names.walk import positional
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.project.code.judge_uses import Index, component_name, is_guarded
from envsmith.project.code.reading import ProjectUses


def judge_refused(code: ProjectUses, releases: Mapping[str, str], index: Index) -> Iterator[Finding]:
    """Yield a warning for each method and call that ``matrix/refused.yaml`` says a stated release refuses.

    What stands under a condition is left out.
    """
    taken_at: list[tuple[Override | Use, str, Iterator[tuple[RefusedUse, str]]]] = [
        *((place.override, place.where, _of_method(place.override)) for place in code.overrides),
        *((place.use, place.where, _of_call(place.use)) for place in code.uses),
    ]
    for taken, where, rows in taken_at:
        if taken.guard.branch or is_guarded(taken.guard):
            continue
        for row, what in rows:
            distribution = index.distribution_of(".".join(taken.chain)) or ""
            version = releases.get(distribution)
            is_other = row.packages and distribution not in row.packages
            if version and Spec.parse(f">={row.since}").contains(version) and not is_other:
                component = component_name(distribution)
                yield Finding(
                    rule="code-refused",
                    severity=Severity.WARNING,
                    components={component: version},
                    needs={component: f"<{row.since}"},
                    message=f"{where} {what}, which {component} {version} {row.effect}",
                    evidence=row.evidence,
                    fix=f"{row.fix} Or install {component} <{row.since}.",
                    where=where,
                )


def _of_method(override: Override) -> Iterator[tuple[RefusedUse, str]]:
    """Yield the rows that speak of a method, each with what the method does."""
    owner, name = override.chain[-2:]
    wanted = positional(override.text.removeprefix("(").split(","))
    for row in refused_uses():
        if f"{owner}.{name}" in row.methods and (not row.taking or row.taking in wanted):
            what = f"{name}() with {row.taking}" if row.taking else f"{name}()"
            yield row, f"has {what} in the place of {owner}'s"


def _of_call(use: Use) -> Iterator[tuple[RefusedUse, str]]:
    """Yield the rows that speak of a call, each with what the call does."""
    path = ".".join(use.chain)
    for row in refused_uses():
        if path not in row.calls or use.imported:
            continue
        given = [name for name in use.arguments if name in row.giving]
        if given:
            yield row, f"calls {path}() with {given[0]}"
        elif row.without and not {*row.without} & {*use.arguments}:
            yield row, f"calls {path}() without {' or '.join(row.without)}"
