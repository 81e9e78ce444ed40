"""What is said of the machine: of one report of NVML, of two, and of the way that NCCL took."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.agent.protocol import Exit
from envsmith.base.schema import parse_value
from envsmith.model.record import Rung
from envsmith.smoke.failure import failure_of
from envsmith.smoke.health import HealthReport, RdmaCards
from envsmith.smoke.machine_faults import (
    MachineFault,
    fault_of,
    problems_in,
    problems_text,
    transport_problems,
)
from envsmith.smoke.machine_faults import run_problems as problems_of_run
from envsmith.smoke.machine_faults import state_problems as problems_of_state
from envsmith.smoke.nccl_text import Transports
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge


def gpu(index: int = 0, *, arch: str = "sm_90", **health: int) -> dict[str, Any]:
    return {"index": index, "name": "NVIDIA H100", "uuid": f"GPU-{index}", "arch": arch, "health": health}


def report(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"driver": "570.86.15", "gpus": list(gpus), "pairs": {}, **more}


def state_problems(shown: dict[str, Any]) -> list[MachineFault]:
    return problems_of_state(parse_value(HealthReport, shown))


def run_problems(before: dict[str, Any], after: dict[str, Any], seconds: float) -> list[MachineFault]:
    return problems_of_run(parse_value(HealthReport, before), parse_value(HealthReport, after), seconds)


def kinds(problems: Any) -> list[tuple[str, str, str]]:
    return [(problem.kind, problem.where, problem.severity) for problem in problems]


HEALTHY = gpu(uncorrectable_ecc=0, remap_pending=0, remap_failure=0, recovery_action=0, nvlinks=18)


def test_a_healthy_machine_has_no_problem() -> None:
    assert state_problems(report(HEALTHY, {**HEALTHY, "index": 1})) == []
    assert state_problems({}) == []


@pytest.mark.parametrize(
    ("health", "kind", "severity", "faulty"),
    [
        ({"recovery_action": 1}, "gpu-needs-recovery", "error", True),
        ({"recovery_action": 2}, "gpu-needs-recovery", "error", True),
        ({"remap_failure": 1}, "row-remap-failed", "error", True),
        ({"remap_pending": 1}, "row-remap-pending", "warning", False),
        ({"uncorrectable_ecc": 3}, "uncorrectable-ecc", "warning", False),
        ({"limit_mw": 500_000, "default_mw": 700_000}, "power-limited", "note", False),
    ],
)
def test_each_state_of_a_gpu_is_said_with_what_to_do(health, kind, severity, faulty) -> None:
    (problem,) = state_problems(report(gpu(), gpu(3, **health)))
    assert (problem.kind, problem.where, problem.severity, problem.faulty) == (kind, "GPU 3", severity, faulty)
    assert problem.fix[0].isupper()
    assert "{" not in problem.fix + problem.message


def test_gpus_with_the_same_problem_are_named_together() -> None:
    (problem,) = state_problems(report(gpu(0, recovery_action=1), gpu(1), gpu(2, recovery_action=1)))
    assert problem.where == "GPUs 0, 2"
    assert "-i 0,2" in problem.fix


def test_a_gpu_that_fell_off_the_bus_is_said() -> None:
    assert kinds(state_problems(report(gpu(), {"index": 1, "lost": True}))) == [("gpu-lost", "GPU 1", "error")]


def test_a_driver_that_does_not_answer_is_an_error_of_the_machine() -> None:
    (problem,) = state_problems({"silent": 60.0})
    assert (problem.kind, problem.severity, problem.faulty) == ("driver-silent", "error", True)


def test_a_gpu_with_fewer_links_than_the_others_is_named() -> None:
    assert kinds(state_problems(report(gpu(0, nvlinks=18), gpu(1, nvlinks=16)))) == [
        ("nvlink-down", "GPU 1", "warning")
    ]


def test_gpus_of_two_kinds_may_have_different_links() -> None:
    assert state_problems(report(gpu(0, nvlinks=18), {**gpu(1, nvlinks=0), "name": "NVIDIA L4"})) == []


def test_the_pair_without_nvlink_is_named() -> None:
    pairs = {"nvlink": [[0, 1], [1, 2]], "pci": [[0, 2]]}
    assert kinds(state_problems(report(gpu(0), gpu(1), gpu(2), pairs=pairs))) == [
        ("pair-without-nvlink", "GPUs 0, 2", "warning")
    ]


def test_bridged_pairs_of_gpus_are_how_the_machine_was_built() -> None:
    pairs = {"nvlink": [[0, 1], [2, 3]], "pci": [[0, 2], [0, 3], [1, 2], [1, 3]]}
    assert state_problems(report(*map(gpu, range(4)), pairs=pairs)) == []


@pytest.mark.parametrize(("xid", "severity"), [(79, "error"), (48, "error"), (94, "error"), (119, "error")])
def test_an_xid_of_the_hardware_is_the_machines(xid, severity) -> None:
    problems = run_problems(report(gpu()), report(gpu(), xids=[[0, xid]]), 60.0)
    assert kinds(problems) == [("xid", "GPU 0", severity)]
    assert problems[0].faulty


@pytest.mark.parametrize("xid", [13, 31, 32, 43, 45, 63, 68, 69, 109, 137, 999])
def test_an_xid_of_an_application_or_of_a_repair_is_not_the_machines_fault(xid) -> None:
    problems = run_problems(report(gpu()), report(gpu(), xids=[[0, xid]]), 60.0)
    assert kinds(problems) == [("xid", "GPU 0", "note")]
    assert not problems[0].faulty


def test_a_power_limit_that_the_driver_does_not_tell_is_not_a_low_one() -> None:
    assert state_problems(report(gpu(default_mw=700_000))) == []


def test_memory_errors_before_the_run_are_a_warning_and_during_it_an_error() -> None:
    old = report(gpu(uncorrectable_ecc=2))
    assert kinds(run_problems(old, old, 60.0)) == [("uncorrectable-ecc", "GPU 0", "warning")]
    assert kinds(run_problems(old, report(gpu(uncorrectable_ecc=3)), 60.0)) == [("uncorrectable-ecc", "GPU 0", "error")]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("nvlink_recovery", "warning"),
        ("nvlink_recoveries", "warning"),
        ("nvlink_crc", "note"),
        ("nvlink_replay", "note"),
    ],
)
def test_errors_of_links_count_only_where_they_grew(name, severity) -> None:
    before, after = report(gpu(**{name: 7})), report(gpu(**{name: 9}))
    assert run_problems(before, before, 60.0) == []
    (problem,) = run_problems(before, after, 60.0)
    assert (problem.kind, problem.severity) == ("nvlink-errors", severity)
    assert "2 times" in problem.message


@pytest.mark.parametrize(
    ("name", "seconds", "severity"),
    [
        ("power_brake_ns", 1, "warning"),
        ("hw_thermal_ns", 1, "warning"),
        ("sw_thermal_ns", 10, "warning"),
        ("thermal_ns", 10, "warning"),
        ("power_cap_ns", 40, "note"),
    ],
)
def test_clocks_that_were_held_down_are_said_with_the_reason(name, seconds, severity) -> None:
    (problem,) = run_problems(report(gpu(**{name: 5})), report(gpu(**{name: 5 + seconds * 10**9})), 60.0)
    assert (problem.kind, problem.severity) == ("clocks-held-down", severity)
    assert f"{seconds}.0 of 60 s" in problem.message


def test_a_moment_of_heat_in_a_long_run_is_not_worth_a_word() -> None:
    assert run_problems(report(gpu(thermal_ns=0)), report(gpu(thermal_ns=10**9)), 60.0) == []


NVLINKED = report(*(gpu(index, nvlinks=18, nvswitch=1) for index in range(8)), pairs={"nvlink": [[0, 1]]})
IB = {"active": {"InfiniBand": ["mlx5_0:1"]}, "peer_memory": True, "devices": True}
ROCE = {**IB, "active": {"RoCE": ["mlx5_0:1"]}}


def ways(*names: str, nvls_channels: int = 16) -> Transports:
    return Transports(pairs=dict.fromkeys(names, 8), nvls_channels=nvls_channels)


@pytest.mark.parametrize(
    ("facts", "variables", "kind"),
    [
        (ways("P2P/CUMEM"), [], None),
        (ways("P2P/CUMEM", "SHM/direct/direct"), [], "nvlink-not-used"),
        (ways("NET/Socket"), [], "nvlink-not-used"),
        (ways("SHM/direct/direct"), ["NCCL_P2P_DISABLE"], None),
        (ways("P2P/CUMEM", nvls_channels=0), [], "nvls-not-used"),
        (ways("P2P/CUMEM", nvls_channels=0), ["NCCL_NVLS_ENABLE"], None),
        (Transports(nvls_channels=0), [], None),
    ],
)
def test_inside_a_node_nccl_uses_the_nvlinks(facts, variables, kind) -> None:
    problems = transport_problems(
        facts, [parse_value(HealthReport, NVLINKED)], RdmaCards(), nodes=1, ranks=8, variables=variables
    )
    assert [(problem.kind, problem.severity) for problem in problems] == ([(kind, "error")] if kind else [])


def test_two_gpus_have_no_nvlink_sharp() -> None:
    facts = ways("P2P/CUMEM", nvls_channels=0)
    assert transport_problems(facts, [parse_value(HealthReport, NVLINKED)], RdmaCards(), nodes=1, ranks=2) == []


@pytest.mark.parametrize(
    ("facts", "network", "variables", "expected"),
    [
        (ways("P2P/CUMEM", "NET/IB/GDRDMA"), IB, [], None),
        (ways("P2P/CUMEM", "NET/Socket"), IB, [], ("sockets-beside-rdma", "error")),
        (ways("NET/Socket"), ROCE, [], ("sockets-beside-rdma", "warning")),
        (ways("NET/Socket"), {"active": {}}, [], None),
        (ways("NET/Socket"), IB, ["NCCL_IB_DISABLE"], None),
        (ways("NET/IB"), IB, [], ("no-gpudirect-rdma", "error")),
        (ways("NET/IB", "NET/IB/GDRDMA"), IB, [], ("no-gpudirect-rdma", "warning")),
        (ways("NET/IB"), IB, ["NCCL_NET_GDR_LEVEL"], None),
        (ways("NET/AWS Libfabric"), IB, [], None),
    ],
)
def test_between_nodes_nccl_uses_the_cards_and_reaches_the_gpus_memory(facts, network, variables, expected) -> None:
    problems = transport_problems(
        facts,
        [parse_value(HealthReport, NVLINKED)],
        parse_value(RdmaCards, network),
        nodes=2,
        ranks=16,
        variables=variables,
    )
    assert [(problem.kind, problem.severity) for problem in problems] == ([expected] if expected else [])


def test_cards_of_gamers_have_no_gpudirect_and_nobody_misses_it() -> None:
    desk = parse_value(HealthReport, report(gpu(arch="sm_89")))
    assert transport_problems(ways("NET/IB"), [desk], parse_value(RdmaCards, IB), nodes=2, ranks=2) == []


def test_a_container_without_the_device_files_is_told_what_to_give_it() -> None:
    network = {**IB, "devices": False}
    (problem,) = transport_problems(
        ways("NET/Socket"), [parse_value(HealthReport, NVLINKED)], parse_value(RdmaCards, network), nodes=2, ranks=16
    )
    assert "/dev/infiniband is not there" in problem.message
    assert "--device=/dev/infiniband" in problem.fix


@pytest.mark.parametrize(
    ("counter", "code", "blamed"),
    [
        ("sw_thermal_ns", Exit.SLOW, True),
        ("nvlink_recovery", Exit.SLOW, True),
        ("power_cap_ns", Exit.SLOW, False),
        ("sw_thermal_ns", Exit.WRONG, False),
        ("sw_thermal_ns", Exit.OK, False),
    ],
)
def test_heat_explains_a_floor_that_was_missed_and_nothing_else(counter, code, blamed) -> None:
    problems = run_problems(report(gpu(**{counter: 0})), report(gpu(**{counter: 40 * 10**9})), 60.0)
    assert problems
    assert bool(fault_of(problems, code)) is blamed


def test_problems_survive_being_written_as_a_fact() -> None:
    problems = state_problems(report(gpu(0, recovery_action=1), gpu(1, remap_pending=1)))
    assert problems_in(problems_text(problems)) == problems
    assert problems_in('anything else\n{"kind": 1}\n[]') == []


def judged(
    *healths: dict[str, Any], wrong: bool = False, log: str = "", nodes: int = 1, backend: str = "nccl"
) -> SmokeResult:
    """A run on eight GPUs with these health events, and NCCL's log."""
    plan = Plan.build({"torch": "2.13.0"}, tier="quick", ranks=8, backend=backend, steps=False).with_(nodes=nodes)
    events: list[dict[str, Any]] = [
        {"event": "hello", "pid": 1},
        {"event": "placement", "backend": backend, "ranks": 8, "sentence": "8 ranks", "env": {}},
    ]
    for index, case in enumerate(plan.cases):
        expected = plan.expect(case.id, backend).expect.value
        status = {"refused": "refused"}.get(expected, "ok")
        if wrong and case.op == "all_reduce":
            status = "wrong"
        row = {"event": "row", "run": "collectives", "row": "case", "case": index, "ms": 1.0, "status": status}
        events += [{**row, "rank": rank, "detail": "read 1 where 2 was due"} for rank in range(8)]
    exits = [{"rank": rank, "code": 0} for rank in range(8)]
    events += [{"event": "end", "run": "collectives", "exits": exits, "output": {"0": log}}]
    events += [{"event": "health", "seconds": 30.0, **health} for health in healths]
    return judge(plan, [*events, {"event": "bye", "seconds": {}, "code": 0}])


def health_event(after: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"before": NVLINKED, "after": after, "network": {"active": {}}, "variables": [], **more}


def test_a_run_on_a_healthy_machine_passes() -> None:
    result = judged(health_event({**NVLINKED, "xids": []}))
    assert (result.passed, result.host_fault, result.limits) == (True, "", ())


def test_a_wrong_value_beside_an_xid_of_the_hardware_is_not_booked_as_the_cells() -> None:
    result = judged(health_event({**NVLINKED, "xids": [[3, 79]]}), wrong=True)
    failure = failure_of(result, [Rung.IMPORTED])
    assert result.exit_code == Exit.HOST
    assert result.summary.startswith("this machine is at fault, not the cell: GPU 3: the driver reported Xid 79")
    assert failure is not None
    assert failure.of_host


def test_a_wrong_value_beside_a_mere_warning_is_the_cells() -> None:
    old = report(gpu(remap_pending=1))
    result = judged(health_event(old, before=old), wrong=True)
    failure = failure_of(result, [Rung.IMPORTED])
    assert result.exit_code == Exit.WRONG
    assert failure is not None
    assert not failure.of_host
    assert any("wait for a reset" in note for note in result.notes)


def test_a_sick_gpu_that_the_run_did_not_use_is_no_excuse() -> None:
    result = judged(health_event({**NVLINKED, "xids": [[3, 79]]}, used=[0, 1]), wrong=True)
    assert (result.exit_code, result.host_fault) == (Exit.WRONG, "")


def test_a_run_without_a_gpu_does_not_care_for_a_sick_one() -> None:
    assert judged(health_event({**NVLINKED, "xids": [[3, 79]]}), backend="gloo").passed


def test_a_run_that_passed_over_sockets_beside_infiniband_fails_the_machine() -> None:
    log = "NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/Socket/0\nNCCL INFO Using network Socket\n"
    result = judged(health_event(NVLINKED, network=IB, node="a"), log=log, nodes=2)
    assert result.exit_code == Exit.HOST
    assert "mlx5_0:1 is active" in result.summary
    assert not result.passed


def test_a_run_of_two_nodes_names_the_node_of_the_sick_gpu() -> None:
    sick = health_event({**NVLINKED, "xids": [[3, 48]]}, node="b")
    result = judged(health_event(NVLINKED, node="a"), sick, nodes=2)
    assert "b, GPU 3: the driver reported Xid 48" in result.summary
    assert len(result.to_json()["host"]["health"]) == 2  # type: ignore[index]


def test_an_event_of_health_that_is_none_is_left_out() -> None:
    assert judged({"before": {"gpus": 7}, "after": {}}).passed
