"""Estimators of a published release whose tags the stated scikit-learn cannot ask for.

From 1.6 on, each mixin of ``sklearn.base`` asks what stands behind it for ``__sklearn_tags__``: ``BaseEstimator`` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import Ancestors
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.project.code.judge_uses import component_name, has

_ROOT, _TAGS = ("sklearn", "base"), "__sklearn_tags__"
_BEFORE = "<1.6"


class Descent(NamedTuple):
    """A class, its place, and what it descends from."""

    where: str
    name: str
    ancestors: Ancestors


def judge_tags(descents: Iterable[Descent], releases: Mapping[str, str], index: NameIndex) -> Iterator[Finding]:
    """Yield a warning for the first class that has a mixin whose tags nothing behind it gives."""
    for descent in descents:
        chains, hidden = descent.ancestors.chains, descent.ancestors.hidden
        mixins = [".".join(chain) for chain in chains if chain[:2] == _ROOT and chain[-1].endswith("Mixin")]
        if not mixins or len(mixins) < len(chains) or _TAGS in hidden:
            continue
        tags = index.ask(f"{mixins[0]}.{_TAGS}")
        version = releases.get(tags.distribution) if tags else None
        if tags and version and has(tags, version):
            component = component_name(tags.distribution)
            yield Finding(
                rule="code-tags",
                severity=Severity.WARNING,
                components={component: version},
                needs={component: _BEFORE},
                message=f"{descent.where} defines {descent.name} with {mixins[0]} and without BaseEstimator: "
                f"{component} {version} asks it for {_TAGS}, which nothing gives",
                evidence=index.evidence(tags.distribution, version),
                fix=f"Install {component}{_BEFORE}.",
                where=descent.where,
            )
            return
