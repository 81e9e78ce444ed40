"""Which of many valid cells comes first. The order is stated here and in docs/explanation/choices.md, with examples.

1. No yanked release and no pre-release, as long as there is an answer without.
2. No warning, as long as that costs no part more than :data:`A_WARNING`, see :meth:`Preference.floor`.
3. The newest release of each framework, in the order of the request. One that was tested comes before a newer one, as
   long as it is at most :data:`A_PROOF` older.
4. A build with CUDA before one without, which is an answer only where it is asked for, the host has no GPU or driver, or
   the release has no other.
5. The newest torch release of the framework's age that leaves no companion more than :data:`A_PROOF` older than the
   newest of that age. Those that came out up to :data:`A_STEP` after the framework come before those of the next step.
   Within a step a build that was run comes first, then a build of the default index, then a release of which another
   build was run, each as long as it is at most :data:`A_PROOF` older than the newest. A framework release without a
   line of its own has those of its minor series. Of one torch release the default build comes first, then the newest
   CUDA.
6. Python 3.12, 3.11, 3.13, 3.10, 3.14, 3.9, 3.8, then the others, newest first.
7. Companions, those that need not be compiled before others, newest first in the same steps of age. Then whatever else
   is open, newest first. Of driver and glibc the oldest that will do comes first, because they are demands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from typing import ClassVar, NamedTuple

from envsmith.model.version import minor_of, public, version_key
from envsmith.solver.kernel import Domains, Step, bits
from envsmith.solver.problem import Problem

Parts = Callable[[Domains], Iterable[int]]


PYTHON_ORDER = ("3.12", "3.11", "3.13", "3.10", "3.14", "3.9", "3.8")
# Facts of a host of which an answer names the oldest that will do: they are demands, not choices.
_DEMANDS = frozenset({"driver", "glibc"})
# The bounds of what an advantage may cost, in age of a release.
A_WARNING = timedelta(days=2 * 365)
A_PROOF = timedelta(days=365)
A_STEP = timedelta(days=91)


class Support(NamedTuple):
    """Which torch releases are tested with each release of a framework: in any build, and the builds that ran.

    ``is_known`` says that somebody tested the framework at all.
    """

    is_known: bool
    of_release: tuple[int, ...]
    builds: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, framework: str) -> Support:
        """Return for each release of a framework the torch releases tested with it.

        They are those of its own lines, else those of its minor series.
        """
        lines = [line for line in problem.compiled.tested if line[0] == framework]
        variable = problem.variable(framework)
        values = problem.values[variable] if variable is not None else ()
        own, builds = [0] * len(values), [0] * len(values)
        for _, frameworks, torches, ran in lines:
            for release in bits(frameworks):
                own[release] |= torches
                builds[release] |= ran
        keys = [version_key(value) if value else None for value in values]
        minors = [key.release[:2] if key else () for key in keys]
        return cls(bool(lines), _of_series(minors, own), _of_series(minors, builds))

    def torch(self, release: int, *, exact: bool = False) -> int:
        """Return the mask of torch releases tested with release number ``release``, or (``exact``) of builds that ran."""
        masks = self.builds if exact else self.of_release
        return masks[release] if release < len(masks) else 0

    @property
    def releases(self) -> int:
        """Return the mask of releases that somebody tested, by line or by series."""
        return sum(1 << release for release, torches in enumerate(self.of_release) if torches)


class TorchTests(NamedTuple):
    """What tests say of torch beside the frameworks of an answer.

    ``ran`` are the builds that ran with one of them, ``counted`` those that count as run, ``near`` the releases whose
    tests count beside the chosen one.
    """

    ran: int
    counted: int
    near: int


def _of_series(minors: Sequence[tuple[int, ...]], masks: Sequence[int]) -> tuple[int, ...]:
    """Return each release's own mask, else that of its minor series."""
    series: dict[tuple[int, ...], int] = {}
    for minor, mask in zip(minors, masks, strict=True):
        series[minor] = series.get(minor, 0) | mask
    return tuple(mask or series[minor] for minor, mask in zip(minors, masks, strict=True))


@dataclass
class Preference:
    """The order of answers for one problem, with frameworks and companions in the order of the request.

    ``bounded`` says that age counts: a repair, which does without, stays near and leaves no warning behind.
    """

    problem: Problem
    frameworks: tuple[str, ...]
    companions: tuple[str, ...] = ()
    supported_first: bool = True
    bounded: ClassVar[bool] = True
    support: dict[str, Support] = field(init=False)

    def __post_init__(self) -> None:
        self.support = {name: Support.of(self.problem, name) for name in self.frameworks}

    @cached_property
    def decisions(self) -> list[Step]:
        """Return :meth:`steps`, made once."""
        return self.steps()

    def steps(self) -> list[Step]:
        """Return the decisions of the search, in order."""
        problem = self.problem
        steps: list[Step] = []
        for name in self.frameworks:
            variable = problem.names.index(name)
            if self.supported_first and self.support[name].is_known:
                steps.append((variable, self._tested_release(name)))
            steps.append((variable, _listed(variable, self._newest(variable))))
        if with_cuda := problem.with_cuda():
            steps.append((with_cuda[0], _tiers(*with_cuda)))
        torch = problem.variable("torch")
        if torch is not None:
            if self.bounded:
                compiled = {variable for nogood in problem.compiling for variable, _ in nogood}
                beside = [(problem.names.index(name), name) for name in self.companions]
                steps += [(variable, self._current(name)) for variable, name in beside if variable not in compiled]
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
            elif name in self.companions:
                steps += [(variable, self._uncompiled(variable)), (variable, self._in_steps(variable))]
            steps.append((variable, _listed(variable, order)))
        return steps

    def _current(self, name: str) -> Parts:
        """Return first the releases of a companion that are current at the age of torch, then the others."""
        variable = self.problem.names.index(name)

        def parts(domains: Domains) -> list[int]:
            domain, (day, _) = domains[variable], self.age("torch", domains)
            dated = domain & ~self._after(variable, _shifted(day, A_STEP)) if day else domain
            first = domain & self._recent(variable, dated or domain)
            return [first, domain & ~first]

        return parts

    def _uncompiled(self, variable: int) -> Parts:
        """Return first what need not be compiled for the parts that are decided, then the others."""
        combinations = [
            (dict(nogood).get(variable, 0), [(v, mask) for v, mask in nogood if v != variable])
            for nogood in self.problem.compiling
        ]

        def parts(domains: Domains) -> list[int]:
            compiled = 0
            for mask, beside in combinations:
                compiled |= mask if all(not domains[v] & ~m for v, m in beside) else 0
            return [domains[variable] & ~compiled, domains[variable] & compiled]

        return parts

    def _newest(self, variable: int) -> list[int]:
        """Return values newest first: stable, then pre-releases, then yanked. *not known* last."""
        component = self.problem.components[variable]
        pre, yanked = self.problem.compiled.pre.get(component, 0), self.problem.compiled.yanked.get(component, 0)
        values = self.problem.values[variable]
        last = pre | yanked | sum(1 << i for i, value in enumerate(values) if value is None)
        newest = range(len(values) - 1, -1, -1)
        late = (i for i in newest if last >> i & 1)
        return [i for i in newest if not last >> i & 1] + sorted(
            late, key=lambda i: (values[i] is None, bool(yanked >> i & 1), bool(pre >> i & 1))
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

    @cached_property
    def default_builds(self) -> int:
        """Return the mask of the torch builds that the default index has."""
        index = self.problem.compiled.torch_index.get(self.problem.platform.value, {})
        return sum(
            1 << i
            for i, v in enumerate(self.problem.values[self.problem.names.index("torch")])
            if index.get(str(v)) == "default"
        )

    def tested_torch(self, domains: Domains, *, exact: bool = False) -> list[int]:
        """Return masks of torch releases for the frameworks chosen in ``domains``, or (``exact``) of builds that ran.

        Tested with all of them, with all but one, and so on.
        """
        tiers: list[int] = []
        for name in self.frameworks:
            support = self.support[name]
            if not support.is_known:
                continue
            torches = support.torch(domains[self.problem.names.index(name)].bit_length() - 1, exact=exact)
            if not tiers:
                tiers = [torches]
                continue
            raised = [tiers[0] & torches]
            raised += [(tiers[i] & torches) | tiers[i - 1] for i in range(1, len(tiers))]
            tiers = [*raised, tiers[-1] | torches]
        return tiers

    def _tested_release(self, name: str) -> Parts:
        """Return the releases that were tested, as long as they are not much older, then the others."""
        variable, tested = self.problem.names.index(name), self.support[name].releases

        def parts(domains: Domains) -> list[int]:
            first = domains[variable] & tested & self._recent(variable, domains[variable])
            return [first, domains[variable] & ~first]

        return parts

    def run_torch(self, domains: Domains) -> list[int]:
        """Return the builds of :meth:`tested_torch` that count as run.

        Of a release that ran with another CUDA, the default build counts too: it can be had everywhere.
        """
        builds: dict[tuple[str, bool], int] = {}
        for number, build in enumerate(map(str, self.problem.values[self.problem.names.index("torch")])):
            kind = public(build), build.endswith("+cpu")
            builds[kind] = builds.get(kind, 0) | 1 << number
        default = self.default_builds
        return [
            tier | default & sum(mask for mask in builds.values() if mask & tier)
            for tier in self.tested_torch(domains, exact=True)
        ]

    def _tested_torch(self, torch: int) -> Parts:
        """Return the torch builds of each step of age: those that ran, then those of the default index."""
        in_steps, default = self._in_steps(torch), self.default_builds

        def parts(domains: Domains) -> Iterator[int]:
            tiers = [*self.run_torch(domains), default, *self.tested_torch(domains)]
            for step in in_steps(domains):
                remaining, near = step, self._recent(torch, step)
                for mask in tiers:
                    yield remaining & near & mask
                    remaining &= ~(near & mask)
                yield remaining

        return parts

    def _in_steps(self, variable: int) -> Parts:
        """Return first what came out up to one step after :meth:`age`, then what came out in the next step."""
        if not self.bounded:
            return _tiers(variable, -1)
        name = self.problem.names[variable]

        def parts(domains: Domains) -> Iterator[int]:
            remaining, day = domains[variable], self.age(name, domains)[0]
            while remaining and day:
                day = _shifted(day, A_STEP)
                step = remaining & ~self._after(variable, day)
                remaining &= ~step
                yield step
            yield remaining

        return parts

    def age(self, name: str, domains: Sequence[int]) -> tuple[str, str]:
        """Return the day after which the steps of age of a part begin, and the part that came out on it.

        For torch it is the oldest among frameworks and those companions that are compiled against it, for a companion
        the youngest among frameworks and torch.
        """
        users = [n for n in self.companions if n in self.problem.compiled.built_on_torch]
        parts = [*self.frameworks, *(users if name == "torch" else ["torch"])]
        days = [(self._newest_day(v, domains[v]), n) for n in parts if (v := self.problem.variable(n)) is not None]
        return (min if name == "torch" else max)((pair for pair in days if pair[0]), default=("", ""))

    def later(self, name: str, index: int, domains: Sequence[int]) -> tuple[str, str, str]:
        """Return the day of a release, then :meth:`age`, when it came out more than a step after that."""
        start, part = self.age(name, domains) if self.bounded else ("", "")
        day = self._newest_day(self.problem.names.index(name), 1 << index)
        return (day, start, part) if start and day > _shifted(start, A_STEP) else ("", "", "")

    def floor(self, domains: Domains) -> tuple[tuple[int, int], ...]:
        """Return what an answer without a warning must keep to when ``domains`` is the best with warnings.

        No part may be older by more than what a warning may cost, except that no part need be younger than the oldest
        one of ``domains``: who names a release of three years ago gets neighbours of its age.
        """
        if not self.bounded:
            return ()
        variables = map(self.problem.variable, [*self.frameworks, "torch", *self.companions])
        days = {v: day for v in variables if v is not None and (day := self._newest_day(v, domains[v]))}
        oldest = min(days.values(), default="")
        return tuple((v, ~self._before(v, min(oldest, _shifted(day, -A_WARNING)))) for v, day in days.items())

    def untested_with(self, name: str, mask: int, domains: Sequence[int]) -> str | None:
        """Return the framework without a known test of these releases of a part, where the chosen ones are tested."""
        for framework, support in self.support.items():
            tested = support.torch(domains[self.problem.names.index(framework)].bit_length() - 1)
            if name == framework and tested and not support.torch(mask.bit_length() - 1):
                return framework
            if name == "torch" and tested & domains[self.problem.names.index(name)] and not tested & mask:
                return framework
        return None

    def torch_tests(self, domains: Domains) -> TorchTests | None:
        """Return what tests say of torch beside the frameworks chosen in ``domains``, nothing where none is known."""
        if not (tiers := self.tested_torch(domains, exact=True)):
            return None
        counted, torch = self.run_torch(domains)[-1], self.problem.names.index("torch")
        return TorchTests(ran=tiers[-1], counted=counted, near=self._recent(torch, domains[torch]))

    def _recent(self, variable: int, mask: int) -> int:
        """Return the values that are at most :data:`A_PROOF` older than the newest of ``mask``."""
        newest = self._newest_day(variable, mask)
        return ~self._before(variable, _shifted(newest, -A_PROOF)) if newest and self.bounded else -1

    def _newest_day(self, variable: int, mask: int) -> str:
        days = self._days(variable)
        return max((days[i] for i in bits(mask) if i < len(days)), default="")

    def _before(self, variable: int, day: str) -> int:
        return sum(1 << i for i, released in enumerate(self._days(variable)) if released and released < day)

    def _after(self, variable: int, day: str) -> int:
        return sum(1 << i for i, released in enumerate(self._days(variable)) if released > day)

    def _days(self, variable: int) -> Sequence[str]:
        return self.problem.compiled.dates.get(self.problem.components[variable], ())


@dataclass
class Nearest(Preference):
    """The order for a repair: near to what somebody has, newer before older.

    ``start`` is the place of each given release.

    A framework that moves goes first to releases that were tested with the torch that is there (a mask of ``torches``).
    A torch that moves keeps its build tag where it can.
    """

    bounded: ClassVar[bool] = False
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


@dataclass
class OfDate(Preference):
    """The order for ``date``: what was newest on that day, then what came next. Without a day comes last.

    Python is the first of the usual order that was a year old on that day.
    """

    supported_first: bool = False
    bounded: ClassVar[bool] = False
    date: str = ""

    def _newest(self, variable: int) -> list[int]:
        days = self._days(variable)

        def far(index: int) -> tuple[bool, bool]:
            day = days[index] if index < len(days) else ""
            return not day, day > self.date

        order = super()._newest(variable)
        later = [i for i in order[::-1] if far(i) == (False, True)]
        return sorted([i for i in order if i not in later] + later, key=far) if any(days) else order

    def _python_rank(self, variable: int, index: int) -> tuple[int, int]:
        days = self._days(variable)
        day = days[index] if index < len(days) else ""
        rank, place = super()._python_rank(variable, index)
        is_new = bool(day) and _shifted(day, A_PROOF) > self.date
        return (rank + is_new * len(PYTHON_ORDER), place)

    def floor(self, domains: Domains) -> tuple[tuple[int, int], ...]:
        """Return what an answer without a warning must keep to: releases of about the time of those with warnings."""
        variables = map(self.problem.variable, [*self.frameworks, "torch", *self.companions])
        bounds = []
        for variable in (v for v in variables if v is not None):
            if day := self._newest_day(variable, domains[variable]):
                near = ~self._before(variable, _shifted(day, -A_PROOF)) & ~self._after(variable, _shifted(day, A_PROOF))
                bounds.append((variable, near))
        return tuple(bounds)

    def later(self, name: str, index: int, domains: Sequence[int]) -> tuple[str, str, str]:  # noqa: ARG002
        """Return the day of a release that came out after the date, and the date. No part of the cell decides it."""
        day = self._newest_day(self.problem.names.index(name), 1 << index)
        return (day, self.date, "") if day > self.date else ("", "", "")


def _shifted(day: str, span: timedelta) -> str:
    return (date.fromisoformat(day) + span).isoformat()


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
