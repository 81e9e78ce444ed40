"""Ready wheels held against a cell: the best one, the policy, and the answer of ``envsmith wheel``."""

from __future__ import annotations

import pytest

from envsmith.model.cell import Cell, Platform, WheelPolicy
from envsmith.model.version import Spec
from envsmith.wheels.offers import answer, best_wheel, offers, target_of

PUBLISHERS = """
distributions: [ext]
evidence:
  own: {kind: documented, source: "its setup.py", date: 2026-11-22}
publishers:
- {name: its/project, releases: "https://host.test/its/project", official: [ext], evidence: own}
- {name: somebody/else, releases: "https://host.test/else", evidence: own}
"""
HEAD = """
distribution: ext
evidence:
  lock: {kind: declared, source: "a lock", date: 2026-11-22}
  second: {kind: declared, source: "another lock", date: 2026-11-22}
requires:
- {versions: ["1.0", "1.1", "1.1+cu128", "1.2+cu128"], requires: [torch], evidence: lock}
wheels:
"""


def line(version: str, *, by: str = "its/project", python: str = "cp311", cuda: str = "12", evidence: str = "[lock]"):
    file = f"ext-{version}-{python}-{python}-linux_x86_64.whl"
    return (
        f'- {{by: {by}, tag: "v{cuda}{version}", file: "{file}", version: "{version}", torch: "2.8", cuda: "{cuda}", '
        f'cxx11_abi: true, sha256: "{"a" * 64}", evidence: {evidence}}}\n'
    )


@pytest.fixture
def catalogue(tmp_path):
    """Write a catalogue of these lines and return its root."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/publishers.yaml").write_text(PUBLISHERS)

    def write(*lines: str):
        (tmp_path / "wheels/ext.yaml").write_text(HEAD + "".join(lines))
        return tmp_path

    return write


CELL = Cell(
    components={"torch": "2.8.0+cu128", "cuda": "12.8", "python": "3.11"},
    chosen=("torch", "cuda", "python"),
    platform=Platform.LINUX_64,
)
EVERY = Spec("*")


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


def test_the_answer_names_what_a_lock_takes_of_each_release(catalogue):
    root = catalogue(line("1.0"), line("1.1"), line("1.1+cu128", by="somebody/else"))

    result = answer("ext", EVERY, CELL, policy=WheelPolicy.LISTED, root=root)

    assert [w.version for w in result.fitting] == ["1.1", "1.0", "1.1+cu128"]
    assert [w.version for w in result.locked] == ["1.1", "1.0"]
    assert [w["origin"] for w in result.to_json()["wheels"]] == ["official", "official", "listed"]


def test_where_nothing_fits_each_kind_of_difference_is_shown_once(catalogue):
    root = catalogue(line("1.1", python="cp312"), line("1.0", python="cp312"), line("1.1", cuda="13"))

    result = answer("ext", EVERY, CELL, root=root)

    assert result.fitting == ()
    assert [offer.against for offer in result.nearest] == [
        ("built for Python cp312, not for 3.11",),
        ("built for CUDA 13, not for 12.8",),
    ]


def test_a_spec_narrows_the_releases(catalogue):
    root = catalogue(line("1.0"), line("1.1"))

    assert [w.version for w in answer("ext", Spec.parse("<1.1"), CELL, root=root).fitting] == ["1.0"]
