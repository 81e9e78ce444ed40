"""Methods and calls of a project that a release refuses or leaves out, though its names and arguments do not show it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from envsmith.knowledge.graph.refused_names import RefusedUse, refused_uses
from envsmith.knowledge.names.calls import CALLED, TEXT_FIRST
from envsmith.knowledge.names.module_uses import Member, Override, Use
from envsmith.knowledge.names.signature_text import positional
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.project.code.judge_uses import Index, component_name, is_guarded
from envsmith.project.code.reading import MemberPlace, ProjectUses

# What values of Python have that need no import.
_PLAIN = frozenset(
    name for kind in (OrderedDict, bytes, complex, dict, float, list, set, str, tuple) for name in dir(kind)
)


def judge_refused(code: ProjectUses, releases: Mapping[str, str], index: Index) -> Iterator[Finding]:
    """Yield a warning for each method, call and attribute that ``matrix/refused.yaml`` says a stated release refuses.

    Methods under a condition are left out.
    """
    places: list[tuple[Override | Use | Member, str, Iterator[tuple[RefusedUse, str]]]] = [
        *((place.override, place.where, _of_method(place.override)) for place in code.overrides),
        *((place.use, place.where, _of_call(place.use, code, index)) for place in code.uses),
        *((place.member, place.where, _of_member(place, code)) for place in code.members),
    ]
    for use, where, rows in places:
        if is_guarded(use.guard) or (isinstance(use, Override) and use.guard.branch):
            continue
        for row, what in rows:
            path = row.packages[0] if isinstance(use, Member) else ".".join(use.chain)
            distribution = index.distribution_of(path) or normal_name(path)
            version = releases.get(distribution)
            is_other = row.packages and distribution not in row.packages
            if version and row.releases.contains(version) and not is_other:
                component, others = component_name(distribution), _others(row.releases.text)
                yield Finding(
                    rule="code-refused",
                    severity=Severity.WARNING,
                    components={component: version},
                    needs={component: others},
                    message=f"{where} {what}, which {component} {version} {row.effect}",
                    evidence=row.evidence,
                    fix=f"{row.fix} Or install {component} {others}.",
                    where=where,
                )


def _others(spec: str) -> str:
    """Return the releases that one bound leaves out."""
    return spec.replace(">=", "<") if spec.startswith(">=") else spec.replace("==", "!=")


def _of_method(override: Override) -> Iterator[tuple[RefusedUse, str]]:
    """Yield the rows that speak of a method, each with what the method does."""
    owner, name = override.chain[-2:]
    wanted = positional(override.text.removeprefix("(").split(","))
    for row in refused_uses():
        if f"{owner}.{name}" in row.methods and (not row.taking or row.taking in wanted):
            what = f"{name}() with {row.taking}" if row.taking else f"{name}()"
            yield row, f"has {what} in the place of {owner}'s"


def _of_member(place: MemberPlace, code: ProjectUses) -> Iterator[tuple[RefusedUse, str]]:
    """Yield the rows that speak of an attribute, in files that import the package."""
    file = place.where.partition(":")[0]
    imported = {each.use.chain[0] for each in code.uses if each.where.partition(":")[0] == file}
    for row in refused_uses():
        if place.member.name in row.members and imported & {*row.packages}:
            yield row, f"takes .{place.member.name} of something"


def _of_call(use: Use, code: ProjectUses, index: Index) -> Iterator[tuple[RefusedUse, str]]:
    """Yield the rows that speak of a call, each with what the call does."""
    path = ".".join(use.chain)
    for row in refused_uses():
        if path not in row.calls or use.imported:
            continue
        if refused := [name for name in (*use.arguments, *use.values) if name in row.giving]:
            yield row, f"calls {path}() with {refused[0].replace(TEXT_FIRST, 'a text in the first place')}"
        elif not row.without or {*row.without} & {*use.arguments}:
            continue
        elif not row.beyond:
            yield row, f"calls {path}() without {' or '.join(row.without)}"
        elif (further := _beyond(use, row.beyond, index)) and not _is_lifted(row, code):
            what = "calls it" if further == CALLED else f"takes {further} of it"
            yield row, f"calls {path}() without {row.without[0]} and {what}"


def _beyond(use: Use, path: str, index: Index) -> str | None:
    """Return something that is taken of a result, and that neither a class nor a plain value of Python has."""
    further = (name for name in sorted(use.attributes) if not name.startswith("_") and name not in _PLAIN)
    return next((name for name in further if not ((p := index.ask(f"{path}.{name}")) and p.present)), None)


def _is_lifted(row: RefusedUse, code: ProjectUses) -> bool:
    return any(".".join(place.use.chain) in row.lifted_by for place in code.uses)
