"""Which node is it? Two passes: nodes in pairs, then every node of a failing pair with one that is known to be good.

The idea is that of Google's cluster-health-scanner: as many runs as nodes, in two rounds, where all pairs would be a quadratic number.
Planning and conclusion are pure; a run of a group is somebody else's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envsmith.errors import DataError

__all__ = ["Narrowed", "Outcome", "conclude", "first_pass", "narrow", "second_pass"]

Group = tuple[str, ...]
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a run on a group of nodes; ``summary`` is its sentence."""

    group: Group
    passed: bool
    summary: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowed:
    """``bad`` fail with a node that works with others; ``links`` are groups whose nodes work with others but not together."""

    bad: tuple[str, ...]
    good: tuple[str, ...]
    links: tuple[Group, ...]
    sentence: str
    first: tuple[Outcome, ...] = ()
    second: tuple[Outcome, ...] = ()

    @classmethod
    def parse(cls, row: object) -> Narrowed:
        """What :meth:`to_json` wrote, from somewhere else. Raises :class:`~envsmith.errors.DataError`."""
        if not isinstance(row, dict):
            raise DataError("an object is due")
        sentence = row.get("sentence")
        if not isinstance(sentence, str):
            raise DataError("sentence: a string is due")
        return cls(
            bad=_names(row.get("bad"), "bad"),
            good=_names(row.get("good"), "good"),
            links=tuple(_names(group, "links") for group in _rows(row.get("links"), "links")),
            sentence=sentence,
            first=tuple(_outcome(o, "first") for o in _rows(row.get("first"), "first")),
            second=tuple(_outcome(o, "second") for o in _rows(row.get("second"), "second")),
        )

    def to_json(self) -> dict[str, object]:
        """One object."""

        def rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
            return [{"nodes": list(o.group), "passed": o.passed, "summary": o.summary} for o in outcomes]

        return {
            "bad": list(self.bad),
            "good": list(self.good),
            "links": [list(group) for group in self.links],
            "sentence": self.sentence,
            "first": rows(self.first),
            "second": rows(self.second),
        }


def _rows(value: object, key: str) -> list[object]:
    if not isinstance(value, list):
        raise DataError(f"{key}: a list is due")
    return value


def _names(value: object, key: str) -> tuple[str, ...]:
    names = _rows(value, key)
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"{key}: names are due")
    return tuple(map(str, names))


def _outcome(row: object, key: str) -> Outcome:
    if not isinstance(row, dict) or not isinstance(row.get("passed"), bool) or not isinstance(row.get("summary"), str):
        raise DataError(f"{key}: nodes, passed and summary are due")
    return Outcome(group=_names(row.get("nodes"), f"{key}.nodes"), passed=row["passed"], summary=row["summary"])


def first_pass(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Disjoint pairs, in order; the last of an odd number makes a group of three."""
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - len(nodes) % 2, 2)]
    if len(nodes) % 2 and groups:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def second_pass(first: Sequence[Outcome]) -> tuple[tuple[Group, ...], ...]:
    """Waves of disjoint pairs (suspect, good): more than one wave only where suspects outnumber the good.

    Where no group passed there is no good node: suspects are paired with those of the next group instead, so that one bad node shows itself by
    failing twice.
    """
    good = [node for o in first if o.passed for node in o.group]
    suspects = [node for o in first if not o.passed for node in o.group]
    if not suspects:
        return ()
    if good:
        pairs = [(suspect, good[i % len(good)]) for i, suspect in enumerate(suspects)]
        return tuple(tuple(pairs[i : i + len(good)]) for i in range(0, len(pairs), len(good)))
    if len(first) < 2:
        group = first[0].group
        return tuple(((a, b),) for i, a in enumerate(group) for b in group[i + 1 :]) if len(group) > 2 else ()
    turned = [o.group for o in first]
    pairs = []
    for one, other in zip(turned, [*turned[1:], turned[0]], strict=True):
        pairs.append((one[0], other[-1]))
    return (tuple(pairs),) if len(first) > 2 else tuple((pair,) for pair in pairs)


def conclude(first: Sequence[Outcome], second: Sequence[Outcome]) -> Narrowed:
    """Names the bad nodes, or says what the passes do show."""
    good = {node for o in (*first, *second) if o.passed for node in o.group}
    everyone = [node for o in first for node in o.group]
    suspects = [node for node in everyone if node not in good]
    # A failure beside nodes that all passed elsewhere convicts; a failure among suspects proves nothing of either.
    failed = [set(o.group) for o in (*first, *second) if not o.passed]
    bad = [n for n in suspects if any(n in group and group - {n} <= good for group in failed)]
    links = [o.group for o in (*first, *second) if not o.passed and set(o.group) <= good]
    if bad:
        others = "every other node works" if len(bad) + len(good) == len(everyone) else "the others are not cleared"
        reason = next(o.summary for o in (*second, *first) if not o.passed and bad[0] in o.group)
        sentence = f"node {', '.join(bad)} is bad: it fails with nodes that work with others ({others}): {reason}"
    elif links:
        names = "; ".join(" and ".join(group) for group in links)
        sentence = f"{names} fail only together: look at the path between them, each works with another node"
    elif not suspects:
        sentence = "every pair passes: the failure needs more than two nodes, or it has gone"
    else:
        sentence = (
            "every group fails: this is no single node; look at the environment, the interface and the network of all"
        )
    return Narrowed(
        bad=tuple(bad),
        good=tuple(n for n in everyone if n in good),
        links=tuple(links),
        sentence=sentence,
        first=tuple(first),
        second=tuple(second),
    )


def narrow(
    nodes: Sequence[str],
    run: Callable[[Group], Outcome],
    *,
    say: Callable[[str], None] | None = None,
    at_once: int = _AT_ONCE,
) -> Narrowed:
    """Both passes; the groups of a wave are disjoint and run at the same time, ``at_once`` of them at most."""
    talk = say or (lambda _: None)
    first = _wave(first_pass(nodes), run, talk, "pass 1", at_once)
    second = [o for wave in second_pass(first) for o in _wave(wave, run, talk, "pass 2", at_once)]
    return conclude(first, second)


def _wave(
    groups: Sequence[Group], run: Callable[[Group], Outcome], talk: Callable[[str], None], name: str, at_once: int
) -> list[Outcome]:
    if not groups:
        return []
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(groups), at_once)))
    try:
        outcomes = list(pool.map(run, groups))
    finally:
        # Not waited for: after Ctrl-C it is for the caller to close what the threads listen to.
        pool.shutdown(wait=False, cancel_futures=True)
    for outcome in outcomes:
        talk(f"{name}: {' and '.join(outcome.group)}: {'passed' if outcome.passed else outcome.summary}")
    return outcomes
