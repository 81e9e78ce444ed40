"""The search for the culprits: pure, over a function that tries a set of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envsmith.doctor.bisect.outcome import TrialOutcome

# More culprits than this are not searched for: each costs a search of its own.
MOST_CULPRITS = 3

# Tries the set in which the groups of these numbers stand at their bad versions, and all others at their good ones.
Try = Callable[[frozenset[int]], TrialOutcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """Groups that break the command together, with the error that they cause.

    ``alone`` says that they were tried with everything else good and broke it. ``is_in_the_way`` says that their error
    is not that of the bad end: it shows when another culprit is put back.
    """

    groups: tuple[int, ...]
    error: str
    alone: bool
    is_in_the_way: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprits:
    """The culprits. ``explains`` says that with them put back the command was tried and works.

    ``within`` are the groups among which sets that could not be judged leave the answer open.
    """

    culprits: tuple[Culprit, ...] = ()
    within: tuple[int, ...] = ()
    explains: bool = False


def find_culprits(weights: Sequence[float], attempt: Try, error: str) -> Culprits:
    """Return which of the groups break the command, by a weighted binary search over their order.

    The empty set passes, and the whole set fails with ``error``. A set that fails with another error is passed over,
    because it says nothing of this one, unless too many do: then the culprit of the other error is searched for first.
    Each culprit is confirmed twice: it alone fails, and everything without it passes. What still fails then has another
    culprit, whatever its error. Groups that only fail together are one culprit.
    """
    remaining, first_error = list(range(len(weights))), error
    culprits: list[Culprit] = []
    while remaining and len(culprits) < MOST_CULPRITS:
        search = _Search(weights=weights, attempt=attempt, error=error)
        members, within = search.sufficient(remaining)
        if within:
            search = _Search(weights=weights, attempt=attempt, error=None)
            members, within = search.sufficient(remaining)
        if within:
            return Culprits(culprits=tuple(culprits), within=within)
        alone = attempt(frozenset(members))
        own = alone.error if search.error is None and alone.passed is False else error
        culprits.append(
            Culprit(
                groups=members,
                error=own,
                alone=search.is_bad(alone) is True,
                is_in_the_way=not TrialOutcome(passed=False, error=own).is_like(first_error),
            )
        )
        # Of several groups that only fail together, one that is put back is enough.
        remaining = [number for number in remaining if number != members[0]]
        without = attempt(frozenset(remaining)) if remaining else TrialOutcome(passed=True)
        if without.passed is not False:
            return Culprits(culprits=tuple(culprits), explains=without.passed is True)
        error = without.error
    return Culprits(culprits=tuple(culprits))


@dataclass(kw_only=True, slots=True)
class _Search:
    """One search, for one error, or with ``None`` for any."""

    weights: Sequence[float]
    attempt: Try
    error: str | None

    def is_bad(self, outcome: TrialOutcome) -> bool | None:
        """Return whether the set fails in the way that is searched for, ``None`` where that cannot be judged."""
        is_other = outcome.passed is False and self.error is not None and not outcome.is_like(self.error)
        return None if outcome.passed is None or is_other else not outcome.passed

    def sufficient(self, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return groups that fail together, or none and the range where sets that cannot be judged leave it.

        Where the first one that is found passes alone, it needs another that stands before it. That one is searched for
        with the first one changed.
        """
        members: tuple[int, ...] = ()
        while len(members) < MOST_CULPRITS:
            candidates = order if not members else [n for n in order[: order.index(members[0])] if n not in members]
            if not candidates:
                break
            group, within = self._first_bad(candidates, frozenset(members))
            if group is None:
                return (), within
            members = (*members, group)
            if self.is_bad(self.attempt(frozenset(members))) is not False:
                break
        return members, ()

    def _first_bad(self, order: Sequence[int], fixed: frozenset[int]) -> tuple[int | None, tuple[int, ...]]:
        """Return the group whose change makes a beginning of the order fail, or ``None`` and the range that it is in."""
        good, bad = narrow(
            [self.weights[number] for number in order],
            lambda length: self.is_bad(self.attempt(fixed | set(order[:length]))),
        )
        return (order[bad - 1], ()) if bad - good == 1 else (None, tuple(order[good:bad]))


def narrow(weights: Sequence[float], is_bad: Callable[[int], bool | None]) -> tuple[int, int]:
    """Return the last good and the first bad position of ``0 … len(weights)``, whose ends are good and bad.

    ``weights[n]`` says how likely the step from ``n`` to ``n + 1`` is the one. Each question halves the weight. Positions
    that cannot be judged are passed over, so that the two may be further apart than one.
    """
    chain = _Chain(weights=weights)
    good, bad = 0, len(weights)
    while bad - good > 1:
        position = chain.middle(good, bad)
        if position is None:
            break
        verdict = is_bad(position)
        if verdict is None:
            chain.skipped.add(position)
        elif verdict:
            bad = position
        else:
            good = position
    return good, bad


def narrow_past(
    weights: Sequence[float], is_bad: Callable[[int], bool | None], is_another: Callable[[int], bool]
) -> tuple[int, int]:
    """Return what :func:`narrow` does, beyond positions that fail with another error and whose next one passes."""
    good, bad = narrow(weights, is_bad)
    while bad + 1 < len(weights) and is_another(bad) and is_bad(bad + 1) is False:
        start = bad + 1

        def is_bad_past(step: int, start: int = start) -> bool | None:
            return is_bad(start + step)

        good, bad = (start + step for step in narrow(weights[start:], is_bad_past))
    return good, bad


@dataclass(kw_only=True, slots=True)
class _Chain:
    weights: Sequence[float]
    skipped: set[int] = field(default_factory=set)

    def middle(self, good: int, bad: int) -> int | None:
        """Return the position that halves the weight between two. Of those that were skipped it is the nearest other."""
        half = sum(self.weights[good:bad]) / 2
        running, positions = 0.0, []
        for position in range(good + 1, bad):
            running += self.weights[position - 1]
            if position not in self.skipped:
                positions.append((abs(running - half), position))
        return min(positions)[1] if positions else None
