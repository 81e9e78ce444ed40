"""Estimators of a published release whose tags the stated scikit-learn cannot ask for.

From 1.6 on, each mixin of ``sklearn.base`` asks what stands behind it for ``__sklearn_tags__``: ``BaseEstimator`` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from envsmith.knowledge.names.module_uses import Use
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import Ancestors
from envsmith.knowledge.names.scopes import Chain
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.project.code.judge_uses import component_name, has
from envsmith.project.code.reading import UsePlace

_ROOT, _TAGS = ("sklearn", "base"), "__sklearn_tags__"
_BEFORE = "<1.6"
# In 1.6 alone, a class with tags of the old kind has every class that it descends from asked by itself.
_OLD_TAGS = frozenset({"_more_tags", "_get_tags"})
_ASKS_ALL = "sklearn.utils._tags._find_tags_provider"


class Descent(NamedTuple):
    """A class, its place, and what it descends from."""

    where: str
    name: str
    ancestors: Ancestors

    @property
    def mixin(self) -> Chain:
        """Return the last mixin of scikit-learn that it descends from, if it gives no tags itself."""
        mixins = [c for c in self.ancestors.chains if c[:2] == _ROOT and c[-1].endswith("Mixin")]
        return mixins[-1] if mixins and _TAGS not in self.ancestors.hidden else ()


def tags_asked(descents: Iterable[Descent]) -> Iterator[UsePlace]:
    """Yield the tags of the mixins that classes descend from, as uses whose names are to be read."""
    for descent in descents:
        if mixin := descent.mixin:
            yield UsePlace(use=Use(chain=(*mixin, _TAGS), line=0, function=descent.name), where=descent.where)


def judge_tags(descents: Iterable[Descent], releases: Mapping[str, str], index: NameIndex) -> Iterator[Finding]:
    """Yield a warning for the first class that has a mixin whose tags nothing behind it gives."""
    for descent in descents:
        if not (mixin := descent.mixin):
            continue
        tags, asks_all = index.ask(".".join((*mixin, _TAGS))), index.ask(_ASKS_ALL)
        version = releases.get(tags.distribution) if tags else None
        if not (tags and version and has(tags, version)):
            continue
        is_old = asks_all is not None and has(asks_all, version) and _OLD_TAGS & descent.ancestors.hidden
        if reason := _without_tags(descent.ancestors.chains, mixin, is_old=bool(is_old)):
            component = component_name(tags.distribution)
            yield Finding(
                rule="code-tags",
                severity=Severity.WARNING,
                components={component: version},
                needs={component: _BEFORE},
                message=f"{descent.where} defines {descent.name} with {'.'.join(mixin)} and {reason}: "
                f"{component} {version} asks it for {_TAGS}, which nothing gives",
                evidence=index.evidence(tags.distribution, version),
                fix=f"Install {component}{_BEFORE}.",
                where=descent.where,
            )
            return


def _without_tags(chains: Sequence[Chain], mixin: Chain, *, is_old: bool) -> str:
    """Return why nothing behind a mixin gives tags, ``""`` where something may."""
    if not all(chain[:2] == _ROOT for chain in chains):
        return ""
    if all(chain[-1].endswith("Mixin") for chain in chains):
        return "without BaseEstimator"
    return "BaseEstimator before it" if is_old and chains[-1] == mixin else ""
