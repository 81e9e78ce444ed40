"""`matrix/collectives.yaml`: which line speaks of a case, and that a broken file is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.agent.cases import OPERATIONS
from envsmith.errors import DataError
from envsmith.smoke.cases import GPU_ONLY, full_cases
from envsmith.smoke.expect import WORKS, Expect, load_expectations
from envsmith.smoke.plan import Plan

GOOD = """
evidence:
  own: {kind: measured, source: a run, date: 2026-11-21}
expectations:
- {id: a, when: {backend: gloo, op: all_reduce, dtype: [int16]}, expect: refused, evidence: own}
- {id: b, when: {backend: gloo, op: all_reduce, dtype: [int16], torch: ">=2.14"}, expect: ok, evidence: own}
"""


def _write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "collectives.yaml").write_text(text)
    return tmp_path


def test_last_matching_line_wins_and_an_unknown_version_matches_no_range(tmp_path) -> None:
    lines = load_expectations(_write(tmp_path, GOOD))
    case = {"op": "all_reduce", "dtype": "int16"}
    assert lines.under("gloo", "", {"torch": "2.13.0+cpu"}).of(case).expect is Expect.REFUSED
    assert lines.under("gloo", "", {"torch": "2.14.1"}).of(case).expect is Expect.OK
    assert lines.under("gloo", "", {}).of(case).expect is Expect.REFUSED
    assert lines.under("nccl", "", {"torch": "2.13.0"}).of(case) is WORKS
    assert lines.under("gloo", "", {}).of({"op": "reduce", "dtype": "int16"}) is WORKS


def test_collectives_of_objects_are_left_out_where_numpy_is_known_to_be_absent() -> None:
    objects = "all_gather_object"
    without, unknown = (Plan.build({"torch": "2.13.0", **more}) for more in ({"numpy": "none"}, {}))

    assert without.expect(objects, "gloo").expect is without.expect(objects, "nccl").expect is Expect.AVOID
    assert "numpy is not installed" in str(without.expect(objects, "gloo").note)
    assert unknown.expect(objects, "gloo") is WORKS


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("evidence: own}\n- {id: b", "}\n- {id: b"), "`evidence` is missing"),
        (("expect: refused", "expect: perhaps"), "perhaps"),
        (("id: b", "id: a"), "stands in this file twice"),
        (("op: all_reduce, dtype: [int16]}", "operation: all_reduce}"), "operation"),
        (('">=2.14"', '">=x"'), "not a version spec"),
        (("source: a run, ", ""), "evidence.own: `source` is missing"),
        (("expectations:", "expectation:"), "`expectations` is missing"),
    ],
)
def test_broken_file_is_refused_with_the_place_of_the_problem(tmp_path, change, problem) -> None:
    assert change[0] in GOOD
    with pytest.raises(DataError) as caught:
        load_expectations(_write(tmp_path, GOOD.replace(*change)))
    assert problem in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path) -> None:
    text = GOOD.replace("expect: refused", "expect: perhaps").replace("expect: ok", "expect: never")
    with pytest.raises(DataError) as caught:
        load_expectations(_write(tmp_path, text))
    assert len(caught.value.details) == 2


def test_shipped_file_speaks_only_of_operations_that_exist_and_of_every_backend() -> None:
    lines = load_expectations().expectations
    named = set().union(*(line.when.op or frozenset() for line in lines))
    assert named <= set(OPERATIONS)
    assert {backend for line in lines for backend in line.when.backend} == {"gloo", "nccl"}
    assert all(line.evidence for line in lines)


def test_known_corruption_of_strided_tensors_is_expected_wrong_and_never_ok() -> None:
    lines = load_expectations()
    for op in ("strided_all_reduce", "strided_broadcast", "strided_reduce", "strided_scatter"):
        assert lines.under("gloo", "", {"torch": "2.13.0"}).of({"op": op, "dtype": "float32"}).expect is Expect.WRONG


# What torch's older engine does with a dtype that its map lacks, read in torch/csrc/cuda/nccl.cpp and ProcessGroupNCCL.cpp: these operations
# open NCCL's group first and raise inside it.
OPENING = {"scatter", "all_to_all", "send_recv", "batch_isend_irecv"}
UNMAPPED = {"int16", "uint16", "uint32", "uint64"}


@pytest.mark.parametrize(
    ("torch", "engine", "expected"),
    [
        ("2.6.0+cu124", None, Expect.AVOID),
        ("2.14.1", None, Expect.AVOID),
        ("2.15.0", "legacy", Expect.AVOID),
        (None, None, Expect.AVOID),
        ("2.15.0+cu132", None, Expect.REFUSED),
        ("2.15.0", "2", Expect.REFUSED),
    ],
)
def test_no_case_leaves_a_group_open_on_the_older_engine_and_the_newer_one_is_asked(torch, engine, expected) -> None:
    versions = {"torch": torch} if torch else {}
    plan = Plan.build(versions, tier="full", ranks=4, backend="nccl", engine=engine, steps=False)
    risky = [case for case in plan.cases if case.op in OPENING and case.dtype in UNMAPPED]
    assert {case.op for case in risky} == OPENING
    for case in risky:
        due = Expect.AVOID if case.op == "batch_isend_irecv" else expected
        assert plan.expect(case.id, "nccl").expect == due, case.id
    # What converts the dtype before it opens a group is refused alike on both.
    for case in plan.cases:
        if case.op in {"gather", "all_to_all_single", "broadcast", "all_gather"} and case.dtype in UNMAPPED:
            assert plan.expect(case.id, "nccl").expect == Expect.REFUSED, case.id


def test_what_needs_a_gpu_stands_behind_all_that_a_hang_of_it_would_take_away() -> None:
    ops = [case.op for case in full_cases(4)]
    first = min(ops.index(op) for op in GPU_ONLY)
    assert set(ops[first:-1]) == set(GPU_ONLY)
    assert ops[-1] == "reinit"
    assert ops[-2] == "symmetric_memory"
