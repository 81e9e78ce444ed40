"""What times mean, floors, the table and the plot: pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from envsmith.agent.cases import OPERATIONS
from envsmith.errors import DataError, UsageError
from envsmith.model.record import Verdict
from envsmith.smoke.bandwidth import FACTORS, PREFIX, bandwidth_cases, measurements, peaks
from envsmith.smoke.bandwidth_floors import below, floors_of, load_floors
from envsmith.smoke.bandwidth_plot import rows_of, svg
from envsmith.smoke.events import CaseRow
from envsmith.smoke.parse_events import parse_events
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import judge

GIB = 1 << 30


def _row(case: int, rank: int, us: list[float]) -> dict[str, Any]:
    return {
        "event": "row",
        "run": "collectives",
        "row": "case",
        "rank": rank,
        "case": case,
        "status": "ok",
        "ms": 1.0,
        "measured": {"bytes": 0, "us": us},
    }


def _parsed(rows: list[Any]) -> tuple[CaseRow, ...]:
    return parse_events(rows).rows.cases


def test_every_operation_of_the_tier_is_one_of_the_agent() -> None:
    assert {case.op for case in bandwidth_cases(4)} == {PREFIX + op for op in FACTORS}
    assert {PREFIX + op for op in FACTORS} <= set(OPERATIONS)


@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
def test_sizes_can_be_shared_out(ranks: int) -> None:
    assert all(case.n % ranks == 0 and case.n for case in bandwidth_cases(ranks))
    assert max(case.n * 4 for case in bandwidth_cases(ranks, gpu=False)) <= 64 << 20


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather_single", 0.75),
        ("reduce_scatter_single", 0.75),
        ("all_to_all_single", 0.75),
        ("broadcast", 1),
        ("send_recv", 1),
    ],
)
def test_bus_bandwidth_is_the_algorithm_bandwidth_times_the_factor_of_nccl_tests(op: str, factor: float) -> None:
    cases = [case for case in bandwidth_cases(4) if case.op == PREFIX + op and case.n * 4 == 4 << 20]
    found = measurements(_parsed([_row(0, rank, [1000.0] * 20) for rank in range(4)]), cases, 4)
    assert found[0].algbw == pytest.approx((4 << 20) / 1e-3 / 1e9, rel=1e-3)
    assert found[0].busbw == pytest.approx(found[0].algbw * factor, rel=1e-3)


def test_a_round_is_as_long_as_its_slowest_rank() -> None:
    cases = bandwidth_cases(2)[:1]
    rows = [_row(0, 0, [10.0] * 99 + [500.0]), _row(0, 1, [20.0] * 100)]
    found = measurements(_parsed(rows), cases, 2)[0]
    assert (found.median_us, found.p99_us, found.rounds) == (20.0, 20.0, 100)
    assert measurements(_parsed(rows)[:1], cases, 2) == ()  # the other rank did not report


def test_nonsense_in_a_row_is_no_measurement() -> None:
    cases = bandwidth_cases(2)[:1]
    rows = [
        _row(0, 0, [float("nan"), float("inf")]),
        _row(0, 1, []),
        _row(99, 0, [1.0]),
        {**_row(0, 0, []), "measured": 3},
    ]
    assert measurements(_parsed(rows), cases, 2) == ()


def _judged(busbw_seconds: float, machine: str = "azure-nd96isr-h100-v5") -> Any:
    plan = Plan.build({"torch": "2.9.1"}, tier="bandwidth", ranks=8).on_machine(machine)
    events: list[dict[str, Any]] = [
        {"event": "hello"},
        {"event": "placement", "backend": "nccl", "ranks": 8, "sentence": "8 ranks on 8 GPUs"},
    ]
    events += [_row(i, rank, [busbw_seconds * 1e6] * 20) for i in range(len(plan.cases)) for rank in range(8)]
    events.append({"event": "bye", "seconds": {}})
    return judge(plan, events)


def test_below_a_floor_is_a_verdict_with_the_source() -> None:
    result = _judged(16 * GIB * 2 * 7 / 8 / 400e9)
    assert (result.passed, result.exit_code) == (False, 9)
    assert [c.verdict for c in result.cases].count(Verdict.BELOW_FLOOR) == 1
    assert (
        "bus bandwidth 400.0 GB/s, below the floor of 460 GB/s (https://github.com/Azure/azurehpc-health-checks"
        in result.summary
    )
    assert result.to_json()["bandwidth"]


def test_above_the_floor_passes() -> None:
    assert _judged(16 * GIB * 2 * 7 / 8 / 480e9).passed


def test_a_record_keeps_the_peak_of_every_operation() -> None:
    kept = peaks(_judged(0.05).bandwidth)
    assert set(kept) == set(FACTORS)
    measured = [m for m in _judged(0.05).bandwidth if m.op == "all_reduce"]
    assert kept["all_reduce"]["peak_busbw"] == max(m.busbw for m in measured)
    assert kept["all_reduce"]["bytes"] == 16 * GIB
    assert kept["all_reduce"]["least_us"] == 50_000.0
    assert peaks(()) == {}


def test_floor_of_another_number_of_nodes_is_a_note() -> None:
    result = _judged(10.0, "gcp-a3-highgpu-8g")
    assert result.passed
    assert any("set for 2 node(s) of 8 GPUs, not asked here" in note for note in result.notes)


def test_floor_without_the_size_says_so() -> None:
    short = below(floors_of("azure-nd96isr-h200-v5"), (), nodes=1)
    assert [(s.missed, "not measured here" in s.sentence) for s in short] == [(False, True)]


def test_unknown_machine_lists_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        Plan.build({}, tier="bandwidth").on_machine("toaster")
    assert "azure-nd96isr-h100-v5" in str(caught.value)
    with pytest.raises(UsageError):
        Plan.build({}, tier="quick").on_machine("azure-nd96isr-h100-v5")


def test_shipped_floors_load_and_have_sources() -> None:
    assert len({f.machine for f in load_floors()}) == len(load_floors())
    assert all(f.source.startswith("https://") for f in load_floors())


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "evidence: {}\nmachines: [3]",
        "evidence: {}\nmachines: [{name: x, title: x, gpu: x, gpus: 8, nodes: 1, op: all_reduce, min_bytes: 1, max_bytes: 1, busbw: 4.0, evidence: none}]",
        "evidence: {a: {source: s}}\nmachines: [{name: x, title: x, gpu: x, gpus: true, nodes: 1, op: sum, min_bytes: 1, max_bytes: 1, busbw: -4.0, evidence: a}]",
        "evidence: {",
    ],
)
def test_broken_floors_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bandwidth.yaml").write_text(text)
    with pytest.raises(DataError):
        load_floors(tmp_path)


def test_plot_is_wellformed_and_escapes_its_title() -> None:
    cases = bandwidth_cases(4, gpu=False)
    found = measurements(
        _parsed([_row(i, r, [10.0 * (i + 1)] * 20) for i in range(len(cases)) for r in range(4)]), cases, 4
    )
    text = svg(found, title="<gloo> & co")
    root = ET.fromstring(text)
    said = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(FACTORS) <= set(said)
    assert "<gloo> & co" in said
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == len(found)
    ET.fromstring(svg((), title="none"))
    assert len(rows_of(found)) == len(found) + 1
