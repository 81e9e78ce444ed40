"""For which cells a component has a ready wheel, as conditions for rules about what must be compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from envsmith.knowledge.graph.torch_builds import Build
from envsmith.model.cell import Platform, WheelPolicy
from envsmith.model.version import Spec
from envsmith.model.wheel import ReadyWheel, glibc_of

_PYTHONS = tuple(f"3.{minor}" for minor in range(7, 20))
# By release and Python: the torch builds that a ready wheel fits.
_Ready = Mapping[str, Mapping[str, frozenset[str]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unready:
    """A place without a ready wheel: all of ``when`` hold, on these platforms (everywhere), under these policies (all)."""

    when: Mapping[str, Spec]
    platforms: tuple[Platform, ...] = ()
    policies: tuple[WheelPolicy, ...] = ()


def everywhere(component: str, _distribution: str, releases: Spec) -> tuple[Unready, ...]:
    """Return the one place of a component that has no ready wheel at all."""
    return (Unready(when={component: releases}),)


class Readiness:
    """The ready wheels of some distributions, laid over the builds of torch."""

    def __init__(self, wheels: Mapping[str, Sequence[ReadyWheel]], builds: Sequence[Build]) -> None:
        self._wheels, self._builds = wheels, builds
        self._fitting: dict[object, frozenset[str]] = {}
        self._pythons: dict[str, tuple[str, ...]] = {}

    def unready(self, component: str, distribution: str, releases: Spec) -> Iterator[Unready]:
        """Yield where those releases of a component have no ready wheel. Policies that admit the same are one."""
        ready = {policy: self._ready(distribution, releases, policy) for policy in WheelPolicy}
        if not any(group for by_platform in ready.values() for group in by_platform.values()):
            yield from everywhere(component, distribution, releases)
            return
        for policy, by_platform in ready.items():
            if by_platform in [ready[earlier] for earlier in list(WheelPolicy)[: list(WheelPolicy).index(policy)]]:
                continue
            policies = tuple(each for each in WheelPolicy if ready[each] == by_platform)
            old_hosts = _below_glibc(component, self._admitted(distribution, releases, policy))
            for platform, group in by_platform.items():
                for when in (*_outside(component, releases, group), *(old_hosts if group else ())):
                    yield Unready(when=when, platforms=(platform,), policies=policies)

    def _admitted(self, distribution: str, releases: Spec, policy: WheelPolicy) -> list[ReadyWheel]:
        wheels = self._wheels.get(distribution, ())
        return [wheel for wheel in wheels if wheel.admitted(policy) and releases.contains(wheel.release)]

    def _ready(self, distribution: str, releases: Spec, policy: WheelPolicy) -> dict[Platform, _Ready]:
        admitted = self._admitted(distribution, releases, policy)
        return {platform: self._by_release(admitted, platform) for platform in Platform}

    def _by_release(self, wheels: Iterable[ReadyWheel], platform: Platform) -> _Ready:
        ready: dict[str, dict[str, frozenset[str]]] = {}
        for wheel in wheels:
            builds = self._builds_for(wheel, platform)
            for python in self._pythons_of(wheel) if builds else ():
                by_python = ready.setdefault(wheel.release, {})
                by_python[python] = by_python.get(python, frozenset()) | builds
        return ready

    def _builds_for(self, wheel: ReadyWheel, platform: Platform) -> frozenset[str]:
        """Return the builds of torch that a wheel fits. Thousands of wheels differ in a few facts only."""
        if wheel.against_platform(platform):
            return frozenset()
        facts = platform, wheel.torch, wheel.cuda, wheel.cxx11_abi
        if facts not in self._fitting:
            builds = (build for build in self._builds if build.platform is platform)
            self._fitting[facts] = frozenset(build.version for build in builds if _fits_build(wheel, build))
        return self._fitting[facts]

    def _pythons_of(self, wheel: ReadyWheel) -> tuple[str, ...]:
        if wheel.address not in self._pythons:
            self._pythons[wheel.address] = tuple(p for p in _PYTHONS if not wheel.against_python(p))
        return self._pythons[wheel.address]


def _fits_build(wheel: ReadyWheel, build: Build) -> bool:
    return not (wheel.against_torch(build.version, build.cxx11_abi) or wheel.against_cuda(build.cuda or "cpu"))


def _outside(component: str, releases: Spec, ready: _Ready) -> Iterator[dict[str, Spec]]:
    """Yield conditions that hold where nothing is ready: other releases, other Pythons, other builds of torch."""
    yield {component: releases.meet(_none_of(ready)) if ready else releases}
    alike: dict[tuple[tuple[str, frozenset[str]], ...], list[str]] = {}
    for release, by_python in ready.items():
        alike.setdefault(tuple(sorted(by_python.items())), []).append(release)
    for pairs, same in alike.items():
        which = {component: Spec(" || ".join(f"=={release}" for release in sorted(same)))}
        yield {**which, "python": Spec(",".join(f"!={python}.*" for python, _ in pairs))}
        for builds in sorted({builds for _, builds in pairs}, key=sorted):
            pythons = " || ".join(f"=={python}.*" for python, each in pairs if each == builds)
            yield {**which, "python": Spec(pythons), "torch": _none_of(builds)}


def _below_glibc(component: str, wheels: Iterable[ReadyWheel]) -> tuple[dict[str, Spec], ...]:
    """Return the hosts on which the wheels of a release do not load: those below the newest glibc that one needs."""
    floors: dict[str, str] = {}
    for wheel in wheels:
        if needed := wheel.glibc or glibc_of(wheel.filename):
            floors[wheel.release] = max(floors.get(wheel.release, needed), needed, key=Version)
    alike: dict[str, list[str]] = {}
    for release, floor in floors.items():
        alike.setdefault(floor, []).append(f"=={release}")
    return tuple({component: Spec(" || ".join(same)), "glibc": Spec(f"<{floor}")} for floor, same in alike.items())


def _none_of(versions: Iterable[str]) -> Spec:
    return Spec(",".join(f"!={version}" for version in sorted(versions)))
