"""What a later release of the same series bars: a release of another package that came out between the two.

Who publishes a patch that bars a release which was not there before says that the releases before the patch break with
it. Their own METADATA cannot say so any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from packaging.version import Version

from envsmith.knowledge.graph.releases import ReleaseLine, evidence_of, run_of
from envsmith.model.rule import Release, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, public, version_key

# Such a clause bars what is newer. Any other one may only say what the later release itself was written for.
CAPS = ("<", "!=")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bound:
    """What a release works with by the word of ``later``, the release that says so."""

    later: ReleaseLine
    spec: Spec
    first: str


def later_rules(
    component: str, lines: Sequence[ReleaseLine], releases: Mapping[str, Sequence[Release]]
) -> Iterator[Rule]:
    """Yield the rules ``<component>-later-<target>``, a warning for each run of releases that a later one speaks of.

    ``lines`` are in order. ``releases`` are those of every component.
    """
    for target in dict.fromkeys(name for line in lines for name in line.requires):
        days = {public(r.version): r.date for r in releases.get(target, ()) if r.date and version_key(r.version)}
        bounds = [
            (line, bound)
            for _, series in groupby(lines, key=_series)
            for line, bound in _bounds(target, list(series), days)
        ]
        rows = [
            Row(
                when=run_of(component, run := [line for line, _ in group]),
                needs={target: bound.spec},
                severity=Severity.WARNING,
                cause=f"{component} {bound.later.version}, a later release of the same series, bars {target} "
                f"{bound.first}, which came out between the two",
                fix=f"Use such a release of {target}, or a later one of {component}.",
                evidence=evidence_of([*run, bound.later]),
            )
            for bound, group in groupby(bounds, key=lambda pair: pair[1])
            if bound is not None
        ]
        if rows:
            yield Rule(id=f"{component}-later-{target}", kind=RuleKind.REQUIRES, rows=tuple(rows), stage="import")


def _bounds(
    target: str, series: Sequence[ReleaseLine], days: Mapping[str, str]
) -> Iterator[tuple[ReleaseLine, _Bound | None]]:
    """Yield each release of a series with what the first later one bars that could, and that came out between the two."""
    barred = [_barred(line.declares(target), days) for line in series]
    for at, release in enumerate(series):
        own = release.declares(target)
        # Without a bound it may not take the target at all. The release right before the one that has it does.
        last = len(series) if own else at + 2
        bound = None
        for place in range(at + 1, min(last, len(series))):
            later = series[place]
            between = [
                v
                for v in barred[place]
                if (release.date or "~") < days[v] <= (later.date or "") and (own is None or own.contains(v))
            ]
            if between:
                first, newest = min(between, key=Version), max(between, key=Version)
                above = {v for v, day in days.items() if day > (release.date or "") and Version(v) >= Version(first)}
                stays = all(above <= versions for versions in barred[place:])
                spec = Spec.parse(f"<{first}" if stays else f"<{first} || >{newest}")
                bound = _Bound(later=later, spec=spec, first=first)
                break
        yield release, bound


@lru_cache(maxsize=64)
def _barred_of(spec: Spec, versions: tuple[str, ...]) -> frozenset[str]:
    caps = [clause for clause in spec.clauses if clause.text.startswith(CAPS)]
    return frozenset(v for v in versions if not all(clause.contains(v) for clause in caps) and not spec.contains(v))


def _barred(spec: Spec | None, days: Mapping[str, str]) -> frozenset[str]:
    """Return the versions that a bound bars because they are too new, or by name."""
    return _barred_of(spec, tuple(days)) if spec is not None else frozenset()


def _series(line: ReleaseLine) -> tuple[int, ...]:
    return Version(line.version).release[:2]
