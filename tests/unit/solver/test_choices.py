"""The golden cases in tests/golden/choices: what an experienced person would choose, and whether `solve` agrees."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from envsmith.cli.solve import solve
from envsmith.model.cell import Machine, Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.solver import solve as api_solve

FOLDER = Path(__file__).parents[2] / "golden" / "choices"
CASES = [case for path in sorted(FOLDER.glob("*.yaml")) for case in yaml.safe_load(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["ask"]) for case in CASES])
def test_the_choice_is_one_that_an_experienced_person_would_make(case):
    result = CliRunner().invoke(solve, [*shlex.split(case["ask"]), "--json"], standalone_mode=False)

    answer = json.loads(result.stdout)
    assert answer["status"] == "solved", answer
    releases = answer["cell"]["components"]
    misfits = {name: releases.get(name) for name, spec in case["take"].items() if not _admits(spec, releases.get(name))}
    assert not misfits, f"{answer['cell']['id']}: {case['because']}"
    assert answer["cell"].get("index", "default") == case.get("index", answer["cell"].get("index", "default")), case[
        "because"
    ]


# A machine, what is asked there, and what its glibc leaves: since 2.7 all wheels of torch need 2.28.
MACHINES = [
    ("2.17", {"torch": "<2.7", "python": "*"}, [], None),
    ("2.17", {"torch": "<2.7", "deepspeed": ">=0.14"}, ["deepspeed"], "535.183.01"),
    ("2.17", {"torch": "<2.7", "accelerate": "*"}, ["accelerate"], "550.54.15"),
    ("2.26", {"torch": "<2.7"}, ["lightning"], None),
    ("2.28", {"torch": ">=2.14"}, [], None),
    ("2.31", {"torch": ">=2.10"}, ["deepspeed"], "535.183.01"),
    ("2.36", {"torch": ">=2.14"}, ["accelerate"], "580.65.06"),
]


@pytest.mark.parametrize(("glibc", "take", "frameworks", "driver"), MACHINES)
def test_a_release_whose_wheels_need_a_newer_glibc_is_not_chosen(glibc, take, frameworks, driver):
    machine = Machine(glibc=glibc, driver=driver, architectures=("sm_80",) if driver else ())
    cell = api_solve(Request(frameworks=frameworks, machine=machine)).cell
    assert not {
        name: cell.components.get(name) for name, spec in take.items() if not _admits(spec, cell.components.get(name))
    }
    assert ("glibc" in cell.components) == (glibc < "2.28")


def test_a_release_that_is_asked_for_and_needs_a_newer_glibc_is_warned_of():
    solution = api_solve(Request(constraints={"torch": "2.10.0"}, machine=Machine(glibc="2.17")))
    assert solution.cell.components["torch"].startswith("2.10.0")
    assert "glibc 2.17" in solution.warnings[0].message
    assert solution.warnings[0].message.startswith("This machine cannot run it")


# The Pythons of a machine, what is asked there, and what follows. Written before the interpreters counted.
PYTHONS = [
    (("3.13",), {"python": "3.13", "deepspeed": ">=0.19", "torch": ">=2.13"}, ["deepspeed"], None),
    (("3.13",), {"python": "3.13", "deepspeed": ">=0.19", "torch": "2.10"}, ["deepspeed"], "535.183.01"),
    (("3.14", "3.13"), {"python": "3.13", "torch": ">=2.13"}, [], None),
    (("3.13", "3.12"), {"python": "3.12"}, ["accelerate"], None),
    (("3.11", "3.10"), {"python": "3.11", "lightning": ">=2.5"}, ["lightning"], None),
    (("3.11",), {"python": "3.11", "megatron-core": ">=0.14,<0.17"}, ["megatron-core"], None),
    (("3.13",), {"python": "3.13", "megatron-core": ">=0.19"}, ["megatron-core"], None),
    (("3.10",), {"python": "3.10", "megatron-core": ">=0.14,<0.17"}, ["megatron-core"], None),
    (("3.14",), {"python": "3.12 || 3.11", "colossalai": ">=0.4"}, ["colossalai"], None),
    ((), {"python": "3.12"}, ["deepspeed"], None),
]


@pytest.mark.parametrize(("pythons", "take", "frameworks", "driver"), PYTHONS)
def test_the_pythons_of_the_machine_come_before_those_that_are_not_there(pythons, take, frameworks, driver):
    machine = Machine(pythons=pythons, driver=driver, architectures=("sm_80",) if driver else ())
    cell = api_solve(Request(frameworks=frameworks, machine=machine)).cell
    assert not {
        name: cell.components.get(name) for name, spec in take.items() if not _admits(spec, cell.components.get(name))
    }


def test_a_python_that_is_missing_is_named_and_the_driver_still_counts():
    machine = Machine(pythons=("3.14",), driver="470.256.02", architectures=("sm_80",))
    solution = api_solve(Request(frameworks=["colossalai"], machine=machine))
    assert solution.cell.components["cuda"].startswith("11.")
    assert "the machine has Python 3.14" in solution.warnings[0].message
    assert f"Install Python {solution.cell.components['python']}" in solution.warnings[0].fix


@pytest.mark.parametrize(("required", "python"), [(">=3.10", "3.11"), (">=3.12", "3.12")])
def test_a_python_that_a_project_admits_is_taken_of_the_machine_where_it_is_there(required, python):
    narrowed = {"python": (Spec.parse(required), "pyproject.toml:4")}
    request = Request(frameworks=["accelerate"], narrowed=narrowed, machine=Machine(pythons=("3.11",)))

    solution = api_solve(request)

    assert solution.cell.components["python"] == python
    assert bool(solution.warnings) == (python != "3.11")


def test_a_python_that_is_asked_for_is_taken_though_the_machine_lacks_it():
    solution = api_solve(Request(constraints={"python": "3.12"}, machine=Machine(pythons=("3.13",))))
    assert solution.cell.components["python"] == "3.12"
    assert not solution.warnings


def test_there_are_forty_cases_and_more_each_with_its_reason():
    assert len(CASES) >= 40
    assert all(case["because"] and case["take"] for case in CASES)
    assert len({case["ask"] for case in CASES}) == len(CASES)


def _admits(spec, version):
    return version is not None and Spec.parse(spec).contains(version)


def test_what_works_instead_is_what_its_wish_gives_on_the_machine():
    machine = Machine(pythons=("3.11",))
    with pytest.raises(UnsatisfiableError) as refused:
        api_solve(Request(constraints={"torch": "2.15.0"}, driver="525.60.13", machine=machine))
    (repair,) = refused.value.refusal.repairs

    (change,) = repair.changes
    again = api_solve(Request(constraints={"torch": change.new}, driver="525.60.13", machine=machine))

    assert repair.cell.components["python"] == "3.11"
    assert again.cell.id == repair.cell.id


def test_a_gpu_that_no_torch_was_built_for_is_answered_with_the_nearest():
    with pytest.raises(UnsatisfiableError) as refused:
        api_solve(Request(frameworks=["torch"], gpus=("sm_35",)))

    assert refused.value.refusal.repairs[0].message == "gpu sm_37 instead of sm_35"
