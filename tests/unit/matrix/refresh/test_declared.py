"""What becomes a rule out of what a release declares; the op builder's table against the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.frameworks.deepspeed import DEEPSPEED
from envsmith.knowledge.graph.read import read_components
from envsmith.lock.index.component_needs import ComponentNeeds, spec_text
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.lock.index.index import IndexFile, yanked_text
from envsmith.matrix.refresh.shared import same_spec
from envsmith.matrix.refresh.toolkit_rule import ToolkitRule, accepts
from envsmith.matrix.refresh.updates import refreshable

MATRIX = Path(__file__).parents[4] / "matrix"
COMPONENTS = read_components(MATRIX)
RULE = ToolkitRule(DEEPSPEED.name, DEEPSPEED.toolkit_table)
# cuda_minor_mismatch_ok as it stood in the sdists of these releases; every other release has the table of the one before it.
TABLES = {
    "0.4.0": {"10": "0 1 2", "11": "0 1 2 3"},
    "0.5.2": {"10": "0 1 2", "11": "0 1 2 3 4"},
    "0.5.7": {"10": "0 1 2", "11": "0 1 2 3 4 5"},
    "0.6.1": {"10": "0 1 2", "11": "0 1 2 3 4 5 6"},
    "0.7.1": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7"},
    "0.7.4": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8"},
    "0.9.3": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1"},
    "0.12.1": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3"},
    "0.14.3": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3 4 5"},
    "0.15.3": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3 4 5 6"},
    "0.16.4": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3 4 5 6 8"},
    "0.17.2": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3 4 5 6 8 9"},
    "0.19.8": {"10": "0 1 2", "11": "0 1 2 3 4 5 6 7 8", "12": "0 1 2 3 4 5 6 8 9"},
}
MINORS = [
    "10.2",
    *(f"11.{n}" for n in range(9)),
    *(f"12.{n}" for n in (0, 1, 2, 3, 4, 5, 6, 8, 9)),
    *(f"13.{n}" for n in range(6)),
]


@pytest.mark.parametrize("release", TABLES)
def test_the_rows_of_the_toolkit_rule_say_what_the_op_builder_of_a_release_does(release):
    rows = [row for _, row in RULE.rows((MATRIX / "rules/toolkit.yaml").read_text(encoding="utf-8").split("\n"))]
    table = {major: {f"{major}.{n}" for n in minors.split()} for major, minors in TABLES[release].items()}
    for cuda in MINORS:
        for toolkit in MINORS:
            alike = table.get(cuda.partition(".")[0], set())
            expected = cuda == toolkit or {cuda, toolkit} <= alike
            assert accepts(rows, release, cuda, toolkit) == expected, (cuda, toolkit)


def test_a_table_in_the_middle_is_not_followed_blindly():
    row = '  - {when: {deepspeed: ">=0.4.0", cuda: "%s"}, needs: {toolkit: "%s"}}\n'
    text = "rules:\n- id: deepspeed-toolkit-cuda\n  rows:\n" + row % ("12.4", "12.4") + row % ("12.8", "12.8")
    facts = ReleaseFacts(filename="deepspeed-0.5.0.tar.gz", sha256="a" * 64, cuda_minors={"12": ("12.4", "12.8")})
    same, summary, doubts = RULE.update(text, {"0.5.0": facts}, ["0.5.0", "0.6.0"], ["12.4", "12.8"], "2026-12-01")
    assert (same, summary) == (text, [])
    assert "0.5.0" in doubts[0]


def _needs(requires, python, *, own, **further):
    return ComponentNeeds(requires=tuple(requires), requires_python=python, components=COMPONENTS, own=own, **further)


def _declared(*requires, python=None, own="deepspeed", **policy):
    return _needs(requires, python, own=own, **policy).everywhere()


def test_bounds_become_specs_by_component_oldest_clause_first():
    assert _declared("Torch<=2.5.1,>=2.2.0", "pydantic>=2", "unknown-thing==1") == {
        "torch": ">=2.2.0,<=2.5.1",
        "pydantic": ">=2",
    }


def test_a_requirement_without_a_bound_is_kept_for_core_components_only():
    assert _declared("torch", "numpy") == {"torch": "*"}


@pytest.mark.parametrize(
    "marker", ['extra == "dev"', 'platform_machine == "x86_64"', 'python_version < "3.11"', 'sys_platform == "win32"']
)
def test_what_holds_only_somewhere_is_no_rule(marker):
    assert _declared(f"torch>=2; {marker}") == {}


def test_a_marker_that_holds_for_every_python_the_release_admits_is_one():
    assert _declared('torch>=2; python_version >= "3.10"', python=">=3.10") == {"python": ">=3.10", "torch": ">=2"}


def test_cuda_is_bounded_by_a_hard_requirement_on_a_core_for_one_major():
    assert _declared("transformer_engine_cu12==2.8.0", own="transformer-engine", cuda_core="transformer-engine") == {
        "cuda": "==12.*"
    }


def test_what_depends_on_the_machine_of_the_maker_is_ignored():
    assert _declared("nvidia-ml-py>=11", ignore=frozenset({"nvidia-ml-py"})) == {}


def _of_extras(*requires, python=None):
    return _needs(requires, python, own="deepspeed").of_extras()


def test_of_several_extras_the_one_that_asks_least_counts():
    lines = ('transformers>=4.40,<5; extra == "inf"', 'transformers>=4.30; extra == "sd"', 'numpy<2; extra == "sd"')
    assert _of_extras(*lines) == {"transformers": ">=4.30"}


def test_extras_of_developers_are_left_out():
    assert _of_extras('torch>=2.4; extra == "dev"', 'torch>=2.5; extra == "gpu-testing"') == {}


def test_an_extra_that_asks_no_more_than_the_release_itself_says_nothing():
    assert _of_extras("torch>=2.1", 'torch>=2.0; extra == "sd"', 'pydantic>=2; extra == "sd"') == {"pydantic": ">=2"}
    assert _of_extras("torch>=1.4", 'torch>=2.6; extra == "sd"') == {"torch": ">=2.6"}


def test_what_an_extra_asks_on_some_pythons_only_is_no_rule():
    assert _of_extras('pydantic>=2.13; python_version >= "3.14" and extra == "serve"', python=">=3.10") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (">=3.7.1", ">=3.7"),
        (">=3.8,<3.13", ">=3.8,<3.13"),
        ("<4,>=3.9", ">=3.9"),
        ("<3.12.1", "<3.13"),
        (">=3.6,!=3.7.*", ">=3.6,!=3.7.*"),
        ("", "*"),
        ("junk", "*"),
    ],
)
def test_bounds_of_python_are_by_minor(text, expected):
    assert spec_text(text, drop_patch=True) == expected


def test_specs_are_compared_by_meaning():
    assert same_spec(">=1,<2", "<2,>=1")
    assert not same_spec(">=1", ">=2")
    assert not same_spec("sm_90", "sm_80")


def test_a_release_is_withdrawn_when_every_file_is():
    def files(*reasons):
        return [IndexFile(filename=f"{i}.whl", url="", version="1", yanked=r) for i, r in enumerate(reasons)]

    assert [yanked_text(files(*r)) for r in ([], [None, "x"], ["x", "x"], ["", ""])] == [None, None, "x", True]


def test_every_component_with_a_file_and_a_distribution_has_an_updater():
    found = refreshable(MATRIX, COMPONENTS)
    assert {
        "torch",
        "nccl",
        "cudnn",
        "cuda",
        "triton",
        "deepspeed",
        "megatron-core",
        "colossalai",
        "transformer-engine",
        "numpy",
    } <= set(found)
    assert {"driver", "gpu", "gcc", "python"}.isdisjoint(found)


def test_a_requirement_that_differs_between_pythons_is_one_of_its_alternatives():
    requires = [
        "transformers>=4.56.1,!=4.57.0; python_version < '3.10'",
        "transformers>=4.56.1; python_version >= '3.10'",
    ]
    specs = _needs(requires, ">=3.9", own="trl").everywhere()
    assert specs["transformers"] == ">=4.56.1,!=4.57.0 || >=4.56.1"
    assert "transformers" not in _needs(requires[1:], ">=3.9", own="trl").everywhere()


def _where(*requires, python=">=3.10"):
    return _needs(requires, python, own="vllm").somewhere()


def test_a_requirement_of_an_extra_counts_where_the_extra_is_named():
    line = "torch==2.9.1; extra == 'sglang'"
    assert _needs([line], None, own="verl").everywhere() == {}
    assert _needs([line], None, own="verl", extras=("sglang",)).everywhere() == {"torch": "==2.9.1"}


def test_a_requirement_of_one_platform_is_kept_with_the_platform():
    pinned = "xformers==0.0.32; platform_system == 'Linux' and platform_machine == 'x86_64'"
    assert _where(pinned) == [{"platform": "linux-64", "requires": {"xformers": "==0.0.32"}}]


def test_requirements_that_differ_between_pythons_are_kept_with_the_pythons():
    lines = ["numpy>=1.26; python_version >= '3.12'", "numpy>=1.22; python_version < '3.12'"]
    assert _where(*lines) == [
        {"python": "<3.12", "requires": {"numpy": ">=1.22"}},
        {"python": ">=3.12", "requires": {"numpy": ">=1.26"}},
    ]


def test_the_pythons_between_two_bounds_are_one_range_and_others_are_listed():
    between = "numpy>=1.23; python_version >= '3.11' and python_version < '3.13'"
    around = "numpy>=1.23; python_version != '3.11'"
    assert [entry["python"] for entry in _where(between)] == [">=3.11,<3.13"]
    assert [entry["python"] for entry in _where(around, python=">=3.10,<3.13")] == ["==3.10.* || ==3.12.*"]


@pytest.mark.parametrize("line", ["numpy>=1; sys_platform == 'win32'", "numpy; python_version < '3.12'", "numpy>=1"])
def test_what_bars_nothing_here_or_holds_everywhere_has_no_place(line):
    assert _where(line) == []


def test_what_an_extra_asks_for_is_not_asked_of_the_release():
    assert _where("numpy>=2; extra == 'audio' and platform_machine == 'x86_64'") == []
