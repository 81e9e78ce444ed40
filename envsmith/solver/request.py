"""A :class:`Request` -> the problem it poses: which components are in the cell, and what is wished of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from envsmith.errors import UsageError
from envsmith.knowledge.graph.compile import Compiled
from envsmith.model.cell import Request
from envsmith.model.component import Role
from envsmith.model.version import Spec, public, version_key
from envsmith.solver.prefer import OfDate, Preference
from envsmith.solver.problem import KeptProblems, Problem, Wish, pose

CORE = ("torch", "cuda", "python", "nccl", "cudnn", "triton")
# Who names or has one of these means to use CUDA.
MEANS_CUDA = frozenset({"driver", "gpu", "toolkit"})


class Posed(NamedTuple):
    """A problem with its preference and the wish to avoid what was not asked for.

    ``chosen`` are the names of a cell's id.
    """

    request: Request
    problem: Problem
    preference: Preference
    chosen: tuple[str, ...]
    pre: tuple[tuple[int, int], ...]
    yanked: tuple[tuple[int, int], ...]

    def with_wishes(self, wishes: Iterable[Wish]) -> Posed:
        """Return the same with other wishes."""
        return self._replace(problem=self.problem.with_wishes(wishes))


def on_machine(request: Request, compiled: Compiled) -> Request:
    """Return the request with what its machine says. A glibc that every wheel of torch loads with says nothing."""
    here, machine = request.here, request.machine
    if machine is None or machine.platform is not request.platform:
        return here
    if machine.pythons and "python" not in here.constraints:
        here = here.on_pythons(machine.pythons, f"the machine has Python {', '.join(machine.pythons)}")
    own, *floors = map(version_key, (machine.glibc or "none", *compiled.versions.get("glibc", ())[-1:]))
    if own and "glibc" not in here.constraints and not all(floor is None or own >= floor for floor in floors):
        return here.narrow("glibc", Spec.parse(f"<={machine.glibc}"), f"the machine has glibc {machine.glibc}")
    return here


def elsewhere(request: Request, compiled: Compiled) -> Iterator[Request]:
    """Yield a request that is for a machine for that machine with any Python, then for any machine."""
    if request.machine is not None:
        yield on_machine(replace(request, machine=replace(request.machine, pythons=())), compiled)
        yield replace(request, machine=None)


def pose_request(compiled: Compiled, request: Request, problems: KeptProblems, *, gaps: bool = True) -> Posed:
    """Return the problem of a request. ``UsageError`` when it names what is not a component.

    ``gaps`` are those of :func:`~envsmith.solver.problem.pose`.

    ``problems`` keeps problems without their wishes, so that many requests over the same components share their tables.
    """
    specs = dict(request.constraints)
    for name, spec in request.frameworks.items():
        specs[name] = specs[name].meet(spec) if name in specs else spec
    _check_names(compiled, [*specs, *request.narrowed])
    specs = {name: _present(compiled, name, spec) for name, spec in specs.items()}
    frameworks = tuple(n for n in {**request.frameworks, **specs} if compiled.roles[n] is Role.FRAMEWORK)
    companions = tuple(n for n in specs if compiled.roles[n] is Role.COMPANION)
    hosts = [n for n in specs if compiled.roles[n] is Role.HOST]
    core = [n for n in CORE if n in specs or compiled.versions.get(n)]
    names = {n: n for n in (*frameworks, *core, *companions, *request.narrowed, *hosts)}
    extras = _extras(compiled, specs)
    if request.driver is not None:
        names["driver"] = "driver"
        extras.setdefault("driver", []).append(request.driver)
    for number, gpu in enumerate(request.gpus):
        names["gpu" if number == 0 else f"gpu#{number + 1}"] = "gpu"
        extras.setdefault("gpu", []).append(gpu)
    policy = request.wheels if request.lockable else None
    key = (gaps, request.platform, policy, tuple(names.items()), tuple((n, tuple(v)) for n, v in extras.items()))
    listed = {n: tuple(v) for n, v in extras.items()}
    bare = problems.get(key, lambda: pose(compiled, request.platform, names, listed, gaps=gaps, lockable=policy))
    problem = bare.with_wishes(_wishes(bare, request, specs))
    pre, yanked = avoided(problem, specs)
    chosen = tuple(n for n in (*frameworks, "torch", "cuda", "python", *companions) if n in names)
    # What is compiled against torch decides on the age of torch where only a file asks for it, too.
    parts = dict.fromkeys((*companions, *(n for n in compiled.built_on_torch if n in request.narrowed)))
    companions = tuple(n for n in parts if n not in frameworks)
    preference = Preference(problem, frameworks, companions)
    if request.date:
        preference = OfDate(problem, frameworks, companions, date=request.date)
    return Posed(request, problem, preference, chosen, pre, yanked)


def _check_names(compiled: Compiled, names: Iterable[str]) -> None:
    for name in names:
        if name not in compiled.roles:
            import difflib

            near = difflib.get_close_matches(name, compiled.roles, n=3, cutoff=0.5)
            raise UsageError(
                f"Cannot use {name!r}: it is not a component that envsmith knows.",
                hint=f"Try {' or '.join(near)}." if near else "Run envsmith explain for the components.",
            )


def _present(compiled: Compiled, name: str, spec: Spec) -> Spec:
    """Return a spec where ``none`` for CUDA is the build without it. What a lock installs cannot be absent."""
    if spec.text == "none" and compiled.roles[name] in (Role.COMPANION, Role.FRAMEWORK):
        raise UsageError(f"Cannot solve with {name} none: only a part of the host can be absent.", hint="Leave it out.")
    return Spec("cpu") if (name, spec.text) == ("cuda", "none") else spec


def _extras(compiled: Compiled, specs: Mapping[str, Spec]) -> dict[str, list[str]]:
    """Return exactly named releases that the knowledge does not list, of the host and of companions."""
    extras: dict[str, list[str]] = {}
    for name, spec in specs.items():
        exact = spec.exact
        open_to_any = compiled.roles[name] in (Role.HOST, Role.COMPANION)
        if exact and open_to_any and not any(map(spec.contains, compiled.versions.get(name, ()))):
            extras.setdefault(name, []).append(exact)
    return extras


def _wishes(problem: Problem, request: Request, specs: Mapping[str, Spec]) -> list[Wish]:
    wishes = []
    with_cuda = problem.with_cuda()
    # A build without CUDA is not an answer to a driver, GPU or toolkit, unless `cuda` itself was asked for.
    cuda = (with_cuda,) if with_cuda and "cuda" not in specs else ()
    for name, spec in specs.items():
        if not spec.is_any:
            wish = problem.wish(name, spec)
            also = cuda if name in MEANS_CUDA and spec.text != "none" else ()
            host = problem.compiled.roles[name] is Role.HOST
            wishes.append(wish._replace(masks=(*wish.masks, *also), host=host))
    wishes += [problem.wish(name, spec, reason=reason) for name, (spec, reason) in request.narrowed.items()]
    named = {} if request.driver is None else {"driver": ("driver", request.driver)}
    gpus = [n for n, c in zip(problem.names, problem.components, strict=False) if c == "gpu" and n not in specs]
    named |= {n: ("gpu", g) for n, g in zip(gpus, request.gpus, strict=False)}
    for name, (component, version) in named.items():
        variable = problem.names.index(name)
        mask = (variable, problem.bit(variable, version))
        wishes.append(Wish(component, version, (mask,) if version == "none" else (mask, *cuda), host=True))
    absent = [w.component for w in wishes if w.component in ("gpu", "driver") and w.text == "none"]
    if cuda and (absent or request.lockable) and "+" not in specs.get("torch", Spec("*")).text:
        variable, builds = cuda[0]
        reason = f"the host has no {'GPU' if 'gpu' in absent else 'driver'}"
        without = Wish("cuda", "cpu", ((variable, problem.full[variable] & ~builds),), reason=reason)
        wishes.append(without if absent else _no_stealth(problem))
    if request.exclude_newer:
        masks = _published(problem, request.exclude_newer)
        wishes.append(Wish("exclude-newer", request.exclude_newer, masks))
    return wishes


def _no_stealth(problem: Problem) -> Wish:
    """Return the wish against a torch without CUDA whose release has a build with it: nobody asked for that variant."""
    variable = problem.names.index("torch")
    here = problem.compiled.torch_index.get(problem.platform.value, {})
    without = {v: i for i, v in enumerate(problem.values[variable]) if v in here and str(v).endswith("+cpu")}
    with_cuda = {public(v) for v in here if not v.endswith("+cpu")}
    mask = problem.full[variable] & ~sum(1 << i for v, i in without.items() if public(v) in with_cuda)
    return Wish("cuda", "!=cpu", ((variable, mask),), reason="no build without it was asked for")


def _published(problem: Problem, day: str) -> tuple[tuple[int, int], ...]:
    """Return per variable the releases that were published on ``day`` or before (or whose date is unknown)."""
    masks = []
    for variable, component in enumerate(problem.components):
        if problem.compiled.roles.get(component) is Role.HOST:
            continue
        late = sum(1 << i for i, d in enumerate(problem.compiled.dates.get(component, ())) if d > day)
        if late:
            masks.append((variable, problem.full[variable] & ~late))
    return tuple(masks)


def avoided(
    problem: Problem, specs: Mapping[str, Spec]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return masks without pre-releases and without yanked releases, except where the request names one."""
    pre, yanked = [], []
    for variable, component in enumerate(problem.components[: len(problem.names)]):
        full = problem.full[variable]
        spec = specs.get(component)
        exact = spec is not None and spec.exact is not None
        marked = problem.compiled.pre.get(component, 0)
        if marked and not exact and not (spec is not None and _names_pre(spec)):
            pre.append((variable, full & ~marked))
        marked = problem.compiled.yanked.get(component, 0)
        if marked and not exact:
            yanked.append((variable, full & ~marked))
    return tuple(pre), tuple(yanked)


def _names_pre(spec: Spec) -> bool:
    """Return whether a spec mentions a pre-release: by PEP 440 it then admits pre-releases."""
    return bool(re.search(r"\d(?:\.?(?:a|b|rc|dev|alpha|beta|pre))\d*", spec.text))
