"""Ready wheels held against a cell: their order, the best one, and the policy."""

from __future__ import annotations

import pytest
from wheel_catalogue import CELL, line

from envsmith.knowledge.wheels.offers import best_wheel, offers, target_of
from envsmith.model.cell import Cell, WheelPolicy


def test_the_cell_s_torch_has_the_abi_that_was_measured():
    assert target_of(CELL).cxx11_abi is True
    old = Cell(components={**CELL.components, "torch": "2.5.1+cu124", "cuda": "12.4"}, chosen=CELL.chosen)
    assert target_of(old).cxx11_abi is False


def test_those_that_fit_come_first_and_the_project_s_own_before_others(catalogue):
    root = catalogue(
        line("1.1", python="cp312"), line("1.2+cu128", by="somebody/else"), line("1.0"), line("1.1", cuda="12.8")
    )

    names = [o.wheel.filename for o in offers("ext", target_of(CELL), root=root)]

    assert names == [
        "ext-1.1-cp311-cp311-linux_x86_64.whl",
        "ext-1.0-cp311-cp311-linux_x86_64.whl",
        "ext-1.2+cu128-cp311-cp311-linux_x86_64.whl",
        "ext-1.1-cp312-cp312-linux_x86_64.whl",
    ]


def test_the_same_cuda_minor_and_more_witnesses_come_first_among_equals(catalogue):
    root = catalogue(line("1.1"), line("1.1", cuda="12.8"), line("1.1", cuda="12.6", evidence="[lock, second]"))

    cudas = [o.wheel.cuda for o in offers("ext", target_of(CELL), root=root)]

    assert cudas == ["12.8", "12.6", "12"]


@pytest.mark.parametrize(
    ("policy", "publisher"),
    [(WheelPolicy.NONE, None), (WheelPolicy.OFFICIAL, None), (WheelPolicy.LISTED, "somebody/else")],
)
def test_a_listed_wheel_is_taken_under_its_policy_only(catalogue, policy, publisher):
    root = catalogue(line("1.1+cu128", by="somebody/else"))

    wheel = best_wheel("ext", "1.1", CELL, policy=policy, root=root)

    assert (wheel.publisher if wheel else None) == publisher


def test_a_wheel_of_another_release_is_not_taken(catalogue):
    root = catalogue(line("1.0"), line("1.1"))

    assert best_wheel("ext", "1.0", CELL, root=root).version == "1.0"
    assert best_wheel("ext", "2.0", CELL, root=root) is None
