"""Ready wheels as rules: what need not be compiled, for which torch, Python, platform and policy."""

from __future__ import annotations

import pytest

from envsmith.knowledge.graph.ready import Readiness
from envsmith.knowledge.graph.torch_builds import Build
from envsmith.model.cell import Platform, Request, WheelPolicy
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.model.wheel import ReadyWheel
from envsmith.solver import solve

EVERY = Spec("*")


def build(version: str, cuda: str, *, abi: bool = True, platform: Platform = Platform.LINUX_64) -> Build:
    return Build(version=version, platform=platform, index="default", evidence=(), cuda=cuda, cxx11_abi=abi)


def wheel(release: str = "1.0", python: str = "cp311", **facts) -> ReadyWheel:
    name = f"ext-{release}-{python}-{python}-linux_x86_64.whl"
    settings = {"torch": "2.8", "cuda": "12", "cxx11_abi": True, "requires": ("torch",), "official": True} | facts
    return ReadyWheel(
        distribution="ext",
        version=release,
        address=f"https://host.test/{name}",
        sha256="a" * 64,
        publisher="its/project",
        evidence=(),
        **settings,
    )


BUILDS = [build("2.8.0+cu128", "12.8"), build("2.9.0+cu128", "12.8"), build("2.8.0+cpu", "cpu")]


def unready(*wheels: ReadyWheel, versions: dict[str, str], policy: WheelPolicy = WheelPolicy.OFFICIAL) -> bool:
    """Tell whether one of the conditions holds for a cell."""
    places = Readiness({"ext": wheels}, BUILDS).unready("ext", "ext", EVERY)
    return any(
        all(name in versions and spec.contains(versions[name]) for name, spec in place.when.items())
        for place in places
        if not place.policies or policy in place.policies
        if not place.platforms or Platform.LINUX_64 in place.platforms
    )


CELL = {"ext": "1.0", "python": "3.11", "torch": "2.8.0+cu128"}


def test_where_a_wheel_fits_nothing_must_be_compiled():
    assert not unready(wheel(), versions=CELL)


@pytest.mark.parametrize(
    "change", [{"ext": "1.1"}, {"python": "3.12"}, {"torch": "2.9.0+cu128"}, {"torch": "2.8.0+cpu"}]
)
def test_every_difference_means_compiling(change):
    assert unready(wheel(), versions=CELL | change)


def test_each_python_has_its_own_builds_of_torch():
    wheels = (wheel(), wheel(python="cp312", torch="2.9"))

    assert not unready(*wheels, versions=CELL | {"python": "3.12", "torch": "2.9.0+cu128"})
    assert unready(*wheels, versions=CELL | {"python": "3.12"})


def test_a_listed_wheel_counts_under_its_own_policy_only():
    wheels = (wheel(official=False),)

    assert unready(*wheels, versions=CELL)
    assert not unready(*wheels, versions=CELL, policy=WheelPolicy.LISTED)
    assert unready(wheel(), versions=CELL, policy=WheelPolicy.NONE)


def test_a_host_whose_glibc_is_too_old_for_the_wheel_means_compiling():
    wheels = (wheel(glibc="2.32"),)

    assert unready(*wheels, versions=CELL | {"glibc": "2.28"})
    assert not unready(*wheels, versions=CELL | {"glibc": "2.36"})


def test_without_any_wheel_there_is_one_condition_for_every_policy_and_platform():
    (place,) = Readiness({}, BUILDS).unready("ext", "ext", EVERY)

    assert (place.when, place.platforms, place.policies) == ({"ext": EVERY}, (), ())


def test_flash_attn_on_cuda_12_is_solved_with_a_ready_wheel_and_compiles_nothing():
    request = Request(constraints={"flash-attn": "*", "torch": "2.8", "cuda": "12.8", "python": "3.11"})

    solution = solve(request)

    assert solution.cell.components["cuda"] == "12.8"
    assert not [w.rule for w in solution.warnings if "compiled" in w.rule]


def test_flash_attn_for_a_torch_without_a_ready_wheel_says_once_what_compiling_takes():
    solution = solve(Request(constraints={"flash-attn": "*", "torch": "2.13"}))

    assert [w.rule for w in solution.warnings] == ["flash-attn-compiled"]
    assert "3 to 5 minutes on 64 cores" in solution.warnings[0].message


def test_a_refusal_says_in_one_sentence_that_there_is_no_ready_wheel():
    request = Request(constraints={"flash-attn": "*", "torch": "2.8", "cuda": "12.8", "glibc": "==2.28"})

    with pytest.raises(UnsatisfiableError) as error:
        solve(request)

    (message,) = [m.message for m in error.value.refusal.conflict if m.rule == "flash-attn-nvcc"]
    assert message.startswith("flash-attn without a ready wheel needs CUDA 13.* (a lock compiles flash-attn with nvcc")
