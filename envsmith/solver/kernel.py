"""The search: sets of releases as bits of integers, arc consistency, and what is built on them.

Knows nothing of versions.

A *variable* has the values ``0..n-1``. A *domain* is an integer with a bit for each value still possible. A *nogood* is
a tuple of ``(variable, mask)``: not all of these variables may take a value of their mask at once. Nogoods over one
variable narrow its domain, those over two become tables whose supports are memoised, longer ones are watched: when all
but one hold, the last may not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Nogood = tuple[tuple[int, int], ...]
Domains = list[int]
# One decision of a search: a variable, and the parts of its domain in the order in which they are wanted. The parts are
# disjoint and cover the domain; the function sees the domains as they are when the decision is due.
Step = tuple[int, Callable[[Domains], Iterable[int]]]


# Seconds of the processor that one search for reasons and for what works instead may take.
PATIENCE = 2.0


def _out_of_patience() -> Callable[[], bool]:
    end = time.process_time() + PATIENCE
    return lambda: time.process_time() > end


@dataclass(slots=True)
class Effort:
    """How long a search for the smallest or the nearest may go on: until ``is_over`` says so.

    ``stopped`` tells that one was cut short, so that what it gave is an answer but perhaps not the best.
    """

    is_over: Callable[[], bool] = field(default_factory=_out_of_patience)
    stopped: bool = False

    def is_spent(self) -> bool:
        """Return whether the search must end with what it has."""
        self.stopped = self.stopped or self.is_over()
        return self.stopped


def bits(mask: int) -> Iterator[int]:
    """Return the values of a mask, highest first."""
    while mask:
        top = mask.bit_length() - 1
        yield top
        mask ^= 1 << top


class _Arc:
    """What the values of one variable leave for another.

    ``classes`` are disjoint sets of values, each with the mask over the values of ``target`` that all of them leave.
    Releases come in runs that are under the same rules, so there are far fewer classes than values.
    """

    __slots__ = ("classes", "full", "memo", "target")

    def __init__(self, target: int, classes: list[tuple[int, int]], full: int) -> None:
        self.target = target
        self.classes = classes
        self.full = full
        self.memo: dict[int, int] = {}

    def support(self, domain: int) -> int:
        """Return the values of ``target`` that some value of ``domain`` allows."""
        union = self.memo.get(domain)
        if union is None:
            union, full = 0, self.full
            for values, row in self.classes:
                if values & domain:
                    union |= row
                    if union == full:
                        break
            self.memo[domain] = union
        return union


def _refine(classes: list[tuple[int, int]], mask: int, keep: int) -> None:
    """Split the classes so that the values of ``mask`` leave no more than ``keep``."""
    for number, (values, row) in enumerate(classes):
        inside = values & mask
        if not inside:
            continue
        if row & keep != row:
            classes[number] = inside, row & keep
            if inside != values:
                classes.append((values ^ inside, row))
        mask ^= inside
        if not mask:
            break


def _merged(classes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the classes with one for each row."""
    by_row: dict[int, int] = {}
    for values, row in classes:
        by_row[row] = by_row.get(row, 0) | values
    return [(values, row) for row, values in by_row.items()]


class Net:
    """Variables and a set of nogoods over them, ready to propagate."""

    __slots__ = ("arcs", "full", "long", "narrowed", "stale", "start", "touched")

    def __init__(self, full: Sequence[int], nogoods: Iterable[Nogood] = ()) -> None:
        self.full = list(full)
        self.start: Domains = list(full)
        self.arcs: list[list[_Arc]] = [[] for _ in full]
        self.long: list[list[Nogood]] = [[] for _ in full]
        self.touched: set[int] = set()
        self._add(nogoods)
        self.stale = set(self.touched)  # where ``start`` is not consistent yet
        # What ``start`` leaves of each variable that it narrows.
        self.narrowed = [(v, mask) for v, mask in enumerate(self.start) if mask != self.full[v]]

    @classmethod
    def within(cls, full: Sequence[int], masks: Iterable[tuple[int, int]]) -> Net:
        """Return the net in which these variables have a value of their mask."""
        return cls(full, [((variable, full[variable] & ~mask),) for variable, mask in masks])

    def _add(self, nogoods: Iterable[Nogood]) -> None:
        tables: dict[tuple[int, int], list[tuple[int, int]]] = {}
        full = self.full
        for nogood in nogoods:
            if len(nogood) == 1:
                ((variable, mask),) = nogood
                self.start[variable] &= ~mask
            elif len(nogood) == 2:
                for (a, mask), (b, second) in (nogood, nogood[::-1]):
                    classes = tables.setdefault((a, b), [(full[a], full[b])])
                    _refine(classes, mask & full[a], ~second)
            else:
                for variable, _ in nogood:
                    self.long[variable].append(nogood)
        for (a, b), classes in tables.items():
            self.arcs[a].append(_Arc(b, _merged(classes), full[b]))
        self.touched = {v for v in range(len(full)) if self.arcs[v] or self.long[v]}

    def joined(self, nets: Sequence[Net]) -> Net:
        """Return all nogoods of this and of ``nets``. The tables are shared, not copied."""
        net = Net(self.full)
        net.take(self)
        net.start, net.stale = list(self.start), set(self.stale)
        for part in nets:
            net.take(part)
        return net

    def take(self, part: Net) -> None:
        """Add the nogoods of ``part`` (which has the same variables)."""
        for variable, mask in part.narrowed:
            self.start[variable] &= mask
            self.stale.add(variable)
        self.narrowed += part.narrowed
        self.touched |= part.touched
        self.stale |= part.touched
        for variable in part.touched:
            self.arcs[variable] += part.arcs[variable]
            self.long[variable] += part.long[variable]

    def drop(self, part: Net) -> None:
        """Take back the tables of the part that was added last. What it took from ``start`` is gone for good."""
        for variable in part.touched:
            arcs, longer = len(part.arcs[variable]), len(part.long[variable])
            if arcs:
                del self.arcs[variable][-arcs:]
            if longer:
                del self.long[variable][-longer:]

    def propagate(self, domains: Domains, todo: set[int]) -> bool:
        """Make ``domains`` arc consistent, beginning with the changed variables ``todo``.

        False when one becomes empty.
        """
        arcs, longer = self.arcs, self.long
        while todo:
            source = todo.pop()
            domain = domains[source]
            for arc in arcs[source]:
                support = arc.memo.get(domain)
                if support is None:
                    support = arc.support(domain)
                target = arc.target
                old = domains[target]
                new = old & support
                if new != old:
                    if not new:
                        return False
                    domains[target] = new
                    todo.add(target)
            for nogood in longer[source]:
                open_variable, open_mask = -1, 0
                for variable, mask in nogood:
                    if domains[variable] & ~mask:
                        if open_variable >= 0:
                            break
                        open_variable, open_mask = variable, mask
                else:
                    if open_variable < 0:
                        return False
                    new = domains[open_variable] & ~open_mask
                    if new != domains[open_variable]:
                        domains[open_variable] = new
                        todo.add(open_variable)
        return True

    def begin(self, wishes: Iterable[tuple[int, int]] = ()) -> Domains | None:
        """Return the arc consistent domains under unary ``wishes`` (variable, mask of what is wanted), or ``None``."""
        if self.stale:
            if not (all(self.start) and self.propagate(self.start, self.stale)):
                self.start = [0] * len(self.full)
            self.stale = set()
        domains, todo = self.start.copy(), set()
        for variable, mask in wishes:
            if domains[variable] & ~mask:
                domains[variable] &= mask
                todo.add(variable)
        return domains if all(domains) and self.propagate(domains, todo) else None

    def narrow(self, domains: Domains, variable: int, mask: int) -> Domains | None:
        """Return a consistent copy of ``domains`` with ``variable`` in ``mask``, or ``None``."""
        new = domains[variable] & mask
        if not new:
            return None
        if new == domains[variable]:
            return domains
        child = domains.copy()
        child[variable] = new
        return child if self.propagate(child, {variable}) else None

    def solvable(self, domains: Domains | None) -> Domains | None:
        """Return a full assignment within consistent ``domains``, or ``None``."""
        return None if domains is None else self._assigned(domains, range(len(domains)), {})

    def _assigned(self, domains: Domains, among: Sequence[int], failures: dict[int, int]) -> Domains | None:
        """Return a full assignment. What is not ``among`` is decided already.

        The smallest domain comes first, and before it what ended a branch: elsewhere a search would meet the same
        contradiction again and again.
        """
        among = [v for v in among if domains[v] & (domains[v] - 1)]
        if not among:
            return domains
        chosen = min(among, key=lambda v: domains[v].bit_count() / (1 + failures.get(v, 0)))
        for value in bits(domains[chosen]):
            child = domains.copy()
            child[chosen] = 1 << value
            if self.propagate(child, {chosen}):
                solution = self._assigned(child, among, failures)
                if solution:
                    return solution
        failures[chosen] = failures.get(chosen, 0) + 1
        return None

    def search(
        self, domains: Domains, steps: Sequence[Step], at: int = 0, *, past: Sequence[tuple[int, int]] = ()
    ) -> Iterator[Domains]:
        """Return every assignment within consistent ``domains``, best first: lexicographic over ``steps[at:]``.

        What lies within the masks of the ``past`` is left out: an earlier search returned it.
        """
        if past and not any(domains[variable] & ~mask for variable, mask in past):
            return
        while at < len(steps) and not domains[steps[at][0]] & (domains[steps[at][0]] - 1):
            at += 1
        if at == len(steps):
            solution = self.solvable(domains)
            if solution is not None:
                yield solution
            return
        variable, parts = steps[at]
        for part in parts(domains):
            child = self.narrow(domains, variable, part)
            if child is not None:
                yield from self.search(child, steps, at + 1, past=past)


def nearest(
    net: Net, wishes: Sequence[tuple[tuple[int, int], ...]], effort: Effort | None = None, *, limit: int = 8
) -> list[tuple[int, ...]]:
    """Return the smallest sets of wishes to give up so that the rest can be had.

    ``[()]`` when all can, ``[]`` when not even none. When the effort is spent, the smallest that were met until then.

    A wish is a tuple of ``(variable, mask)`` that hold together. Sets are in the order of ``wishes``: those given up
    last come last.
    """
    effort, base = effort or Effort(), net.begin()
    start = net.solvable(base)
    if start is None or base is None:
        return []
    best: list[tuple[int, ...]] = []
    bound = [len(wishes) + 1]

    def walk(domains: Domains, example: Domains, index: int, given_up: tuple[int, ...]) -> None:
        if best and effort.is_spent():
            return
        impossible = sum(1 for wish in wishes[index:] if any(not domains[v] & m for v, m in wish))
        cost = len(given_up) + impossible
        if cost > bound[0] or (cost == bound[0] and len(best) >= limit):
            return
        if index == len(wishes):
            if cost < bound[0]:
                best.clear()
                bound[0] = cost
            best.append(given_up)
            return
        child: Domains | None = domains
        for variable, mask in wishes[index]:
            child = net.narrow(child, variable, mask) if child else None
        fits = all(example[variable] & mask for variable, mask in wishes[index])
        solution = example if fits else net.solvable(child)
        if child is not None and solution is not None:
            walk(child, solution, index + 1, given_up)
        walk(domains, example, index + 1, (*given_up, index))

    walk(base, start, 0, ())
    return best


def minimal_conflict(parts: Sequence[Net], full: Sequence[int]) -> list[int]:
    """Return indices of ``parts`` that cannot all hold, while any proper subset of them can.

    QuickXplain, so early parts are preferred.

    Empty when all parts can hold together.
    """

    def fails(chosen: list[int]) -> bool:
        net = Net(full).joined([parts[i] for i in chosen])
        return net.solvable(net.begin()) is None

    def explain(background: list[int], *, delta: bool, candidates: list[int]) -> list[int]:
        if delta and fails(background):
            return []
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        in_second = explain(background + first, delta=bool(first), candidates=second)
        in_first = explain(background + in_second, delta=bool(in_second), candidates=first)
        return in_first + in_second

    if fails([]) or not fails(list(range(len(parts)))):
        return []
    return sorted(explain([], delta=False, candidates=list(range(len(parts)))))


def smallest_conflict(parts: Sequence[Net], full: Sequence[int], effort: Effort | None = None) -> list[int]:
    """Do as :func:`minimal_conflict`, with the fewest members there are, or that were met when the effort was spent.

    Every conflict shares a member with every correction (a set of parts without which the rest can hold). So the
    smallest set that hits all corrections known so far is a lower bound. When it cannot hold itself, it is the answer,
    else it shows one more correction.
    """
    conflict, effort = minimal_conflict(parts, full), effort or Effort()
    corrections: list[frozenset[int]] = []
    while len(conflict) > 1 and not effort.is_spent():
        candidate = _smallest_hitting(corrections, len(conflict))
        if candidate is None:
            break
        correction = _correction(parts, full, candidate, conflict, effort)
        if correction is None:
            return sorted(candidate)
        corrections.append(correction)
    return conflict


def _correction(
    parts: Sequence[Net], full: Sequence[int], parts_in: Sequence[int], first: Sequence[int], effort: Effort
) -> frozenset[int] | None:
    """Return what must go so that ``parts_in`` and as much else as possible holds.

    ``None`` when ``parts_in`` itself cannot hold.

    Parts of ``first`` are tried last, so that corrections speak of what the known conflict does not name as little as
    possible.
    """
    net = Net(full).joined([parts[i] for i in parts_in])
    domains = net.begin()
    if net.solvable(domains) is None or domains is None:
        return None
    late = set(first)
    order = sorted(set(range(len(parts))) - set(parts_in), key=lambda i: (i in late, i))
    return excess(net, domains, parts, order, effort.is_spent)


def excess(
    net: Net,
    domains: Domains,
    parts: Sequence[Net],
    order: Sequence[int],
    is_spent: Callable[[], bool] = lambda: False,
) -> frozenset[int]:
    """Return the parts that do not fit when they are added to ``net`` in order, within solvable ``domains``.

    What is not tried yet when the effort ``is_spent`` is among them.
    """

    def fits(grown: Net, domains: Domains) -> bool:
        return not is_spent() and grown.solvable(domains) is not None

    # Consistency is nearly always enough to tell whether more parts fit, and much cheaper than a search each time.
    for fitting in (lambda _net, _domains: True, fits):
        out: list[int] = []
        grown = Net(net.full).joined([net])
        end = _grow(grown, domains, [(number, parts[number]) for number in order], out, fitting)
        if fitting is fits or grown.solvable(end) is not None:
            return frozenset(out)
    raise AssertionError("what was searched for does not hold")


def _grow(
    net: Net,
    domains: Domains,
    parts: Sequence[tuple[int, Net]],
    out: list[int],
    fits: Callable[[Net, Domains], bool],
) -> Domains:
    """Add to ``net`` each part in turn that is consistent and ``fits``, to ``out`` the others. Return what is left.

    Most parts fit: halves are tried whole before their members are.
    """
    child = list(domains)
    todo: set[int] = set()
    for _, part in parts:
        for variable, mask in part.narrowed:
            child[variable] &= mask
            todo.add(variable)
        todo |= part.touched
        net.take(part)
    if all(child) and net.propagate(child, todo) and fits(net, child):
        return child
    for _, part in reversed(parts):
        net.drop(part)
    if len(parts) == 1:
        out.append(parts[0][0])
        return domains
    half = len(parts) // 2
    domains = _grow(net, domains, parts[:half], out, fits)
    return _grow(net, domains, parts[half:], out, fits)


def _smallest_hitting(sets: Sequence[frozenset[int]], below: int) -> tuple[int, ...] | None:
    """Return a smallest set that meets each of ``sets``, or ``None`` when it would need ``below`` members or more."""
    best: list[tuple[int, ...] | None] = [None]
    bound = [below]

    def walk(chosen: tuple[int, ...], remaining: list[frozenset[int]]) -> None:
        if not remaining:
            if len(chosen) < bound[0]:
                best[0], bound[0] = chosen, len(chosen)
            return
        if len(chosen) + 1 >= bound[0]:
            return
        for member in sorted(remaining[0]):
            walk((*chosen, member), [s for s in remaining if member not in s])

    walk((), sorted(sets, key=len))
    return best[0]
