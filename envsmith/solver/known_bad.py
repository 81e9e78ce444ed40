"""Known-bad cells: what every rule forbids, with releases in the place of specs and the text that a user would see.

A rule says ``deepspeed <0.8.2 with torch >=2.0``; a known-bad cell is one pair of releases that it forbids. For each
row the releases next to the bounds are taken, for these are what people have: the newest that a ``when`` admits and,
for a need, the newest that does not meet it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsmith.model.rule import Knowledge, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, public, version_key


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBad:
    """Releases that do not work together, the rule that says so, at which stage it shows and how."""

    components: Mapping[str, str]
    rule: str
    stage: str | None
    symptom: str


def stated_by_metadata(rule: Rule) -> bool:
    """Tell whether package metadata or the tags of files say it.

    Declared requirements, and what torch wheels carry and exist for.
    """
    return rule.is_declared or rule.is_extra or rule.kind is RuleKind.BUNDLES or rule.id.startswith("torch-wheels-")


def known_bad(knowledge: Knowledge, *, worst: bool = False) -> Iterator[KnownBad]:
    """Return known-bad cells of all rules that metadata does not state and that say what a user sees, each set once.

    ``worst`` leaves warnings out.
    """
    keys: set[tuple[tuple[str, str], ...]] = set()
    for rule in knowledge.rules:
        if stated_by_metadata(rule):
            continue
        for row in rule.rows:
            symptom = row.symptom or rule.symptom
            if symptom is None or row.severity is Severity.NOTE or (worst and row.severity is not Severity.ERROR):
                continue
            for components in _sets(knowledge, row):
                key = tuple(sorted(components.items()))
                if key not in keys:
                    keys.add(key)
                    yield KnownBad(components=components, rule=rule.id, stage=rule.stage, symptom=symptom)


def _sets(knowledge: Knowledge, row: Row) -> Iterator[dict[str, str]]:
    """Return one set per need that is not met, or the set of ``when`` itself.

    There is none where no listed release fits.
    """
    newest = {name: _newest_known(knowledge, name, spec, row.needs.get(name)) for name, spec in row.when.items()}
    versions = {name: version for name, version in newest.items() if version is not None}
    if len(versions) < len(newest):
        return
    if not row.needs:
        yield versions
    for name, spec in row.needs.items():
        if name in versions:
            yield versions
        elif (version := _newest_known(knowledge, name, None, spec)) is not None:
            yield {**versions, name: version}


def _newest_known(knowledge: Knowledge, name: str, admitted: Spec | None, unmet: Spec | None) -> str | None:
    """Return the newest stable release that ``admitted`` admits and ``unmet`` does not."""
    for release in reversed(knowledge.releases.get(name, ())):
        version = release.version
        key = version_key(version)
        if key is None or key.is_prerelease or release.yanked:
            continue
        if (admitted is None or admitted.contains(version)) and (unmet is None or not unmet.contains(version)):
            return public(version) if name == "torch" else version
    return None
