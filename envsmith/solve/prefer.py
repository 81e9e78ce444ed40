"""Which of many valid cells comes first. The order is stated here and nowhere else.

1. The newest release of each framework, in the order of the request. A release that nobody is known to have tested
   comes after those that somebody has.
2. A build with CUDA before one without.
3. A torch release that is tested with the chosen framework release before one that is not. A framework release without
   a line of its own has those of its minor series. Among tested ones the newest comes first. Of one torch release the
   default build comes first, then the newest CUDA.
4. Python 3.12, 3.11, 3.13, 3.10, 3.14, 3.9, 3.8, then the others, newest first.
5. Companions, newest first, then whatever else is open, newest first. Of driver and glibc the oldest that will do comes
   first, because they are demands.

Before all of this: no warning, no pre-release, no yanked release, as long as there is an answer without.
See :data:`PHASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.model.version import minor_of, public, version_key
from envsmith.solve.kernel import Domains, Step, bits
from envsmith.solve.problem import Problem

Parts = Callable[[Domains], Iterable[int]]


PYTHON_ORDER = ("3.12", "3.11", "3.13", "3.10", "3.14", "3.9", "3.8")
# Facts of a host of which an answer names the oldest that will do: they are demands, not choices.
_DEMANDS = frozenset({"driver", "glibc"})
# What is avoided in each pass; the first pass with an answer decides.
PHASES: tuple[frozenset[str], ...] = (
    frozenset({"warning", "pre", "yanked"}),
    frozenset({"pre", "yanked"}),
    frozenset({"yanked"}),
    frozenset(),
)


@dataclass(frozen=True, slots=True)
class Support:
    """Which torch releases are known to be tested with a framework."""

    lines: tuple[tuple[int, int], ...]
    series: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, framework: str) -> Support:
        """Return the tested lines of a framework. ``series`` holds for each release the mask of its minor series."""
        lines = tuple((f, t) for name, f, t in problem.compiled.tested if name == framework)
        variable = problem.variable(framework)
        values = problem.values[variable] if variable is not None else ()
        minors: dict[tuple[int, ...], int] = {}
        keys = []
        for index, value in enumerate(values):
            version = version_key(value) if value else None
            key = version.release[:2] if version else ()
            keys.append(key)
            minors[key] = minors.get(key, 0) | 1 << index
        return cls(lines, tuple(minors[key] for key in keys))

    def torch(self, release: int) -> int:
        """Return the mask of torch releases tested with release number ``release``.

        Its own lines, else those of its series.
        """
        series = self.series[release] if release < len(self.series) else 0
        return self.tested_with(1 << release) or self.tested_with(series)

    def tested_with(self, releases: int) -> int:
        """Return the mask of torch releases tested with one of these releases of the framework."""
        tested = 0
        for frameworks, torches in self.lines:
            if frameworks & releases:
                tested |= torches
        return tested

    @property
    def releases(self) -> int:
        """The mask of releases that somebody tested, by line or by series."""
        mask = 0
        for frameworks, _ in self.lines:
            for value in bits(frameworks):
                mask |= self.series[value]
        return mask


@dataclass
class Preference:
    """The order of answers for one problem, with frameworks and companions in the order of the request."""

    problem: Problem
    frameworks: tuple[str, ...]
    companions: tuple[str, ...] = ()
    supported_first: bool = True
    support: dict[str, Support] = field(init=False)

    def __post_init__(self) -> None:
        self.support = {name: Support.of(self.problem, name) for name in self.frameworks}

    def steps(self) -> list[Step]:
        """Return the decisions of the search, in order."""
        problem = self.problem
        steps: list[Step] = []
        for name in self.frameworks:
            variable = problem.names.index(name)
            tested = self.support[name].releases if self.supported_first else 0
            if tested:
                steps.append((variable, _tiers(variable, tested)))
            steps.append((variable, _listed(variable, self._newest(variable))))
        if with_cuda := problem.with_cuda():
            steps.append((with_cuda[0], _tiers(*with_cuda)))
        torch = problem.variable("torch")
        if torch is not None:
            if self.supported_first:
                steps.append((torch, self._tested_torch(torch)))
            steps.append((torch, _listed(torch, self._torch_order(torch))))
        return steps + self._others()

    def _others(self) -> list[Step]:
        problem = self.problem
        decided = {*self.frameworks, "torch"}
        first = [n for n in ("cuda", "python", *self.companions) if n in problem.names]
        steps: list[Step] = []
        for name in dict.fromkeys([*first, *problem.names]):
            if name in decided:
                continue
            variable = problem.names.index(name)
            order = self._newest(variable)
            if name == "python":
                order = sorted(order, key=lambda i, v=variable: self._python_rank(v, i))  # type: ignore[misc]
            elif problem.components[variable] in _DEMANDS:
                order = order[::-1]
            steps.append((variable, _listed(variable, order)))
        return steps

    def _newest(self, variable: int) -> list[int]:
        """Return values newest first: stable, then pre-releases, then yanked. *not known* last."""
        component = self.problem.components[variable]
        pre, yanked = self.problem.compiled.pre.get(component, 0), self.problem.compiled.yanked.get(component, 0)
        values = self.problem.values[variable]
        return sorted(
            range(len(values) - 1, -1, -1), key=lambda i: (values[i] is None, bool(yanked >> i & 1), bool(pre >> i & 1))
        )

    def _python_rank(self, variable: int, index: int) -> tuple[int, int]:
        value = str(self.problem.values[variable][index])
        minor = minor_of(value)
        return (PYTHON_ORDER.index(minor) if minor in PYTHON_ORDER else len(PYTHON_ORDER), -index)

    def _torch_order(self, variable: int) -> list[int]:
        """Return the newest release first.

        Of one release comes the default build, then the newest CUDA, then the one without.
        """
        values = self.problem.values[variable]
        index = self.problem.compiled.torch_index.get(self.problem.platform.value, {})
        newest = self._newest(variable)
        places: dict[str, int] = {}
        for place, value in enumerate(newest):
            places.setdefault(public(values[value]), place)
        return sorted(newest, key=lambda i: (places[public(values[i])], index.get(str(values[i])) != "default"))

    def tested_torch(self, domains: Domains) -> list[int]:
        """Masks of torch releases for the frameworks chosen in ``domains``.

        Tested with all of them, with all but one, and so on.
        """
        tiers: list[int] = []
        for name in self.frameworks:
            support = self.support[name]
            if not support.lines:
                continue
            torches = support.torch(domains[self.problem.names.index(name)].bit_length() - 1)
            if not tiers:
                tiers = [torches]
                continue
            raised = [tiers[0] & torches]
            raised += [(tiers[i] & torches) | tiers[i - 1] for i in range(1, len(tiers))]
            tiers = [*raised, tiers[-1] | torches]
        return tiers

    def _tested_torch(self, torch: int) -> Parts:
        def parts(domains: Domains) -> Iterator[int]:
            covered = 0
            for mask in self.tested_torch(domains):
                if domains[torch] & mask & ~covered:
                    yield mask & ~covered
                covered |= mask
            if domains[torch] & ~covered:
                yield ~covered

        return parts


@dataclass
class Nearest(Preference):
    """The order for a repair: near to what somebody has, newer before older.

    ``start`` is the place of each given release.

    A framework that moves goes first to releases that were tested with the torch that is there (a mask of ``torches``).
    A torch that moves keeps its build tag where it can.
    """

    start: Mapping[str, int] = field(default_factory=dict)
    torches: int = 0

    def steps(self) -> list[Step]:
        """Return the decisions of the search, in order."""
        steps: list[Step] = []
        for name in self.frameworks:
            support, variable = self.support[name], self.problem.names.index(name)
            count = len(self.problem.values[variable])
            tested = sum(1 << i for i in range(count) if support.torch(i) & self.torches)
            if tested:
                steps.append((variable, _tiers(variable, tested)))
        return [*steps, *super().steps()]

    def _newest(self, variable: int) -> list[int]:
        order = super()._newest(variable)
        start = self.start.get(self.problem.names[variable])
        if start is None or self.problem.names[variable] == "torch":
            return order
        return sorted(order, key=lambda i: (i < start, abs(i - start)))

    def _tested_torch(self, torch: int) -> Parts:
        if "torch" in self.start:
            return _tiers(torch, -1)
        return super()._tested_torch(torch)

    def _torch_order(self, variable: int) -> list[int]:
        order = super()._torch_order(variable)
        start = self.start.get("torch")
        if start is None:
            return order
        values = [str(v) for v in self.problem.values[variable]]
        versions = list(dict.fromkeys(public(v) for v in values))
        version, _, tag = values[start].partition("+")
        here = versions.index(version)
        single = not self.torches & (self.torches - 1)

        def far(index: int) -> tuple[int, bool, bool]:
            release, _, build = values[index].partition("+")
            place = versions.index(release)
            return abs(place - here), place < here, single and build != tag

        return sorted(order, key=far)


def _tiers(variable: int, first: int) -> Parts:
    def parts(domains: Domains) -> Iterable[int]:
        domain = domains[variable]
        return [part for part in (domain & first, domain & ~first) if part]

    return parts


def _listed(variable: int, order: Sequence[int]) -> Parts:
    masks = [1 << index for index in order]

    def parts(domains: Domains) -> Iterator[int]:
        domain = domains[variable]
        return (mask for mask in masks if mask & domain)

    return parts
