"""What is wrong with the machine's GPUs, links and network, in words: before a run, during it, and by what NCCL used.

Pure: from the reports of :mod:`envsmith.agent.health`. An unhealthy machine says nothing about a cell.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envsmith.agent.protocol import Exit
from envsmith.base.schema import AsJson, parse_json, parse_value, strict
from envsmith.smoke.health import HealthReport, LimitFinding, RdmaCards

if TYPE_CHECKING:
    from envsmith.smoke.events import Events
    from envsmith.smoke.nccl_text import Transports

# nvmlDeviceGpuRecoveryAction_t (nvml.h), and what NVIDIA says to do about each ("Error Recovery and Response Flags",
# docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
_RECOVERY = {
    1: ("asks for a reset", "End what runs there, then run nvidia-smi --gpu-reset -i {gpus}."),
    2: ("asks for a reboot of the machine", "Reboot the machine."),
    3: ("asks that all peer-to-peer traffic ends", "End what runs on the GPUs that it talks to."),
    4: ("asks for a reset when its work has ended", "End what runs there, then run nvidia-smi --gpu-reset -i {gpus}."),
    5: ("asks for a recovery of its IMEX domain", "Restart the IMEX service of the domain."),
}
# Xids after which a GPU, its links or its memory need a reset or a repair, and 94, a memory error that hit one program
# (NVIDIA's Xid catalog, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: RESET_GPU, RESTART_BM,
# CHECK_MECHANICALS and the workflows of Xid 48 and of NVLink). Left out are 155, a link that was taken down on purpose,
# and 109, which a kernel of an application causes as well (NVIDIA/k8s-device-plugin, internal/rm/health.go).
_OF_HARDWARE = frozenset({
    46, 48, 54, 62, 64, 74, 79, 94, 95, 110, 119, 120, 136, 140, 143, *range(144, 151), 156, 158, 171, 172,
})  # fmt: skip
# The chips whose cards NVIDIA sells with GPUDirect RDMA in mind: A100, H100 and H200, B200, B300.
_DATA_CENTER = frozenset({"sm_80", "sm_90", "sm_100", "sm_103"})
_SLOWING = frozenset({"clocks-held-down", "nvlink-down", "nvlink-errors", "pair-without-nvlink", "no-gpudirect-rdma"})
_RESET = "End what runs there, then run nvidia-smi --gpu-reset -i {gpus}. If it comes back, have the GPU replaced."
_RDMA_FIX = (
    "Give the container the cards: docker run --device=/dev/infiniband --ulimit memlock=-1, in Kubernetes --rdma RESOURCE "
    "of envsmith smoke --emit, and unset NCCL_IB_DISABLE and NCCL_NET."
)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFault(AsJson):
    """Something that is wrong with the machine.

    ``severity`` is ``error``, ``warning`` or ``note``. ``faulty`` says that the hardware itself is broken, so that a
    failure of a run beside it proves nothing against the cell.
    """

    kind: str
    where: str
    severity: str
    message: str
    fix: str
    faulty: bool = False

    @property
    def finding(self) -> LimitFinding:
        """Return it as a finding about limits."""
        return LimitFinding(limit=self.where, severity=self.severity, message=self.message, fix=self.fix)

    @property
    def sentence(self) -> str:
        """Return what is wrong and what to do about it."""
        return f"{self.where}: {self.message}. {self.fix}"


def problems_text(problems: Iterable[MachineFault]) -> str:
    """Return problems as a fact of a host: one JSON object a line, which :func:`problems_in` reads."""
    return "\n".join(json.dumps(problem.to_json()) for problem in problems)


def problems_in(text: str) -> list[MachineFault]:
    """Return the problems of such a fact. What does not look like one is left out."""
    problems = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            problems.append(parse_value(MachineFault, parse_json(line)))
    return problems


def _of_gpus(
    kind: str, gpus: Iterable[int], severity: str, message: str, fix: str = _RESET, *, faulty: bool = False
) -> list[MachineFault]:
    numbers = sorted(gpus)
    where = ("GPU " if len(numbers) == 1 else "GPUs ") + ", ".join(map(str, numbers))
    fix = fix.replace("{gpus}", ",".join(map(str, numbers)))
    problem = MachineFault(kind=kind, where=where, severity=severity, message=message, fix=fix, faulty=faulty)
    return [problem] if numbers else []


def state_problems(report: HealthReport) -> list[MachineFault]:
    """Return what one report shows."""
    if report.silent:
        text = f"NVML does not answer within {report.silent:g} s"
        fix = "Look for Xid messages with dmesg, end processes that hang on a GPU, and reboot the machine."
        return [
            MachineFault(kind="driver-silent", where="driver", severity="error", message=text, fix=fix, faulty=True)
        ]
    health = report.counters

    def having(name: str) -> list[int]:
        return [index for index, values in health.items() if values.get(name)]

    lost = [gpu.index for gpu in report.gpus if gpu.is_lost]
    text = "the driver has lost it: it has fallen off the bus"
    problems = _of_gpus("gpu-lost", lost, "error", text, "Reboot the machine.", faulty=True)
    for action, (text, fix) in _RECOVERY.items():
        gpus = [index for index, values in health.items() if values.get("recovery_action") == action]
        problems += _of_gpus("gpu-needs-recovery", gpus, "error", text, fix, faulty=True)
    text = "a row of its memory could not be remapped"
    problems += _of_gpus(
        "row-remap-failed", having("remap_failure"), "error", text, "Have the GPU replaced.", faulty=True
    )
    text = "rows of its memory wait for a reset to be remapped"
    problems += _of_gpus("row-remap-pending", having("remap_pending"), "warning", text)
    text = "its memory had uncorrectable errors since the driver was loaded"
    problems += _of_gpus("uncorrectable-ecc", having("uncorrectable_ecc"), "warning", text)
    powers = {index: (values.get("limit_mw", 0), values.get("default_mw", 0)) for index, values in health.items()}
    limited = [index for index, (limit, default) in powers.items() if 0 < limit < 0.95 * default]
    limits = ", ".join(f"{powers[index][0] // 1000} of {powers[index][1] // 1000} W" for index in limited)
    fix = "Run nvidia-smi -i {gpus} --power-limit=WATTS, if the limit is not wanted."
    problems += _of_gpus("power-limited", limited, "note", f"its power limit is lowered: {limits}", fix)
    return problems + _link_problems(report, health)


def _link_problems(report: HealthReport, health: Mapping[int, Mapping[str, int]]) -> list[MachineFault]:
    """Hold each GPU and each pair against the others, for a machine has one kind of GPU almost always."""
    most = max((values.get("nvlinks", 0) for values in health.values()), default=0)
    alike = {gpu.name for gpu in report.gpus}
    fewer = [index for index, values in health.items() if values.get("nvlinks", 0) < most] if len(alike) == 1 else []
    counts = ", ".join(str(health[index].get("nvlinks", 0)) for index in fewer)
    text = f"{counts} of its NVLinks are active, the other GPUs have {most}"
    fix = "Run nvidia-smi nvlink --status and look for Xid 74 with dmesg. Reset all GPUs, or have the cable or GPU replaced."
    problems = _of_gpus("nvlink-down", fewer, "warning", text, fix)
    pairs = report.pairs
    if (
        len(pairs) > 1
        and len(alike) == 1
        and "nvlink" in pairs
        and len(pairs["nvlink"]) * 2 > sum(map(len, pairs.values()))
    ):
        text = "they reach most other GPUs over NVLink, but not all: " + "; ".join(
            f"{', '.join(f'{first}-{second}' for first, second in members)} by {way}"
            for way, members in pairs.items()
            if way != "nvlink"
        )
        odd = {index for way, members in pairs.items() if way != "nvlink" for pair in members for index in pair}
        problems += _of_gpus("pair-without-nvlink", odd, "warning", text, fix)
    return problems


def run_problems(before: HealthReport, after: HealthReport, seconds: float) -> list[MachineFault]:
    """Return what happened to the GPUs between two reports, and what the later one shows."""
    problems: list[MachineFault] = []
    for faulty in (True, False):
        rows = [(gpu, xid) for gpu, xid in after.xids if (xid in _OF_HARDWARE) is faulty]
        numbers = ", ".join(map(str, sorted({xid for _, xid in rows})))
        text = f"the driver reported Xid {numbers} during the run" + (
            "" if faulty else ", which does not say that the GPU is broken"
        )
        fix = _RESET if faulty else "Look the number up in NVIDIA's Xid catalog."
        problems += _of_gpus("xid", {gpu for gpu, _ in rows}, "error" if faulty else "note", text, fix, faulty=faulty)
    old, new = before.counters, after.counters
    grown = {
        name: {
            index: growth for index in new if (growth := new[index].get(name, 0) - old.get(index, {}).get(name, 0)) > 0
        }
        for name in sorted({name for values in new.values() for name in values})
    }
    text = "its memory had uncorrectable errors during the run"
    problems += _of_gpus("uncorrectable-ecc", grown.get("uncorrectable_ecc", ()), "error", text, faulty=True)
    for name, what in (
        ("nvlink_recovery", "went down and came back"), ("nvlink_recoveries", "went down and came back"),
        ("nvlink_crc", "had checksum errors"), ("nvlink_replay", "sent packets again"),
    ):  # fmt: skip
        counts = grown.get(name, {})
        severity = "warning" if "recover" in name else "note"
        text = f"an NVLink {what} during the run ({sum(counts.values())} times)"
        problems += _of_gpus("nvlink-errors", counts, severity, text, "Run nvidia-smi nvlink --errorcounters.")
    for name, what, severity, least in (
        ("power_brake_ns", "by the power supply's brake", "warning", 0.0),
        ("hw_thermal_ns", "by half or more because it was too hot", "warning", 0.0),
        ("sw_thermal_ns", "because it was too hot", "warning", 0.05),
        ("thermal_ns", "because it was too hot", "warning", 0.05),
        ("power_cap_ns", "by its power limit", "note", 0.5),
    ):
        slowed = {index: ns / 1e9 for index, ns in grown.get(name, {}).items() if ns / 1e9 > max(0.1, least * seconds)}
        text = f"its clocks were held down {what} for {max(slowed.values(), default=0):.1f} of {seconds:.0f} s"
        fix = "Look at the machine's cooling and power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER)."
        problems += _of_gpus("clocks-held-down", slowed, severity, text, fix)
    return _last_of_each([*problems, *state_problems(after)])


def machine_problems(log: Events, ways: Transports, *, nodes: int, ranks: int) -> list[MachineFault]:
    """Return everything that a run shows to be wrong with its machines."""
    problems: list[MachineFault] = []
    reports = [_of(event.before, event.used) for event in log.healths if event.before.gpus]
    for event in log.healths:
        name = f"{event.node}, " if nodes > 1 else ""
        before, after = _of(event.before, event.used), _of(event.after, event.used)
        problems += [replace(p, where=name + p.where) for p in run_problems(before, after, event.seconds)]
    cards = next((event.cards for event in log.healths if event.cards.active), RdmaCards())
    # What the placement set for ranks that share a GPU counts like the user's own.
    variables = {name for event in log.healths for name in event.variables} | set(log.placement.variables)
    return problems + transport_problems(ways, reports, cards, nodes=nodes, ranks=ranks, variables=variables)


def fault_of(problems: Iterable[MachineFault], code: Exit) -> str:
    """Return the sentence of the problem for which the machine is to blame, or nothing.

    Broken hardware explains any failure, a slow way or clocks that were held down a floor that was missed. An error is
    said also where nothing failed.
    """
    for problem in problems:
        explains_slowness = code is Exit.SLOW and problem.severity != "note" and problem.kind in _SLOWING
        if problem.faulty or explains_slowness or (problem.severity == "error" and code in {Exit.OK, Exit.SLOW}):
            return problem.sentence
    return ""


def _of(report: HealthReport, used: Iterable[int] | None) -> HealthReport:
    """Return the part of a report about the GPUs that the run used. The others may be another user's."""
    if used is None:
        return report
    mine = set(used)
    pairs = {way: tuple(pair for pair in pairs if mine >= set(pair)) for way, pairs in report.pairs.items()}
    return replace(
        report,
        gpus=tuple(gpu for gpu in report.gpus if gpu.index in mine),
        pairs={way: members for way, members in pairs.items() if members},
        xids=tuple(row for row in report.xids if row[0] in mine),
    )


def _last_of_each(problems: Iterable[MachineFault]) -> list[MachineFault]:
    """Say a thing of a GPU once. What the run did to it comes first."""
    unique: dict[tuple[str, str], MachineFault] = {}
    for problem in problems:
        unique.setdefault((problem.kind, problem.where), problem)
    return list(unique.values())


def transport_problems(
    ways: Transports, reports: Sequence[HealthReport], cards: RdmaCards, *, nodes: int, ranks: int,
    variables: Iterable[str] = (),
) -> list[MachineFault]:  # fmt: skip
    """Return where NCCL took a slower way than the machine has. What a user's variable of NCCL chose is not judged."""
    if not ways.pairs or not reports:
        return []
    chosen = set(variables)
    if "NCCL_MULTI_RANK_GPU_ENABLE" in chosen:
        return []
    problems = _inside(ways, reports, nodes, ranks, chosen)
    if nodes == 1 or not cards.active or chosen & {"NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA"}:
        return problems
    names = ", ".join(card for members in cards.active.values() for card in members)
    if any(way.startswith("NET/Socket") for way in ways.pairs):
        lacking = "" if cards.has_devices else "; /dev/infiniband is not there"
        severity = "error" if "InfiniBand" in cards.active else "warning"
        text = f"NCCL talks between the nodes over sockets, though {names} is active{lacking}"
        return [
            *problems,
            MachineFault(kind="sockets-beside-rdma", where="network", severity=severity, message=text, fix=_RDMA_FIX),
        ]
    over_ib = {way: "GDRDMA" in way.split("/") for way in ways.pairs if way.startswith("NET/IB")}
    if not over_ib or all(over_ib.values()) or not _arches(reports) <= _DATA_CENTER or "NCCL_NET_GDR_LEVEL" in chosen:
        return problems
    text = f"NCCL copies through the host's memory on its way to {names}: no GPUDirect RDMA"
    text += " on some of the pairs" if any(over_ib.values()) else ""
    fix = "Run modprobe nvidia-peermem on every node, " if not cards.has_peer_memory else ""
    fix = fix + "check with nvidia-smi topo -m that each GPU has a card near it, and turn off PCI access control (ACS)."
    severity = "warning" if any(over_ib.values()) else "error"
    fix = fix[0].upper() + fix[1:]
    return [
        *problems,
        MachineFault(kind="no-gpudirect-rdma", where="network", severity=severity, message=text, fix=fix),
    ]


def _arches(reports: Sequence[HealthReport]) -> set[str]:
    return {gpu.arch for report in reports for gpu in report.gpus}


def _inside(
    ways: Transports, reports: Sequence[HealthReport], nodes: int, ranks: int, chosen: set[str]
) -> list[MachineFault]:
    """Judge the ways inside a node, where every GPU reaches every other over NVLink. Only there is memory shared."""
    if any(set(report.pairs) != {"nvlink"} for report in reports):
        return []
    slow = sorted(way for way in ways.pairs if way.startswith("SHM" if nodes > 1 else ("SHM", "NET")))
    if slow and not chosen & {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"}:
        text = f"NCCL went by {', '.join(slow)}, though every pair of GPUs has NVLink"
        fix = "Look at the P2P lines of NCCL_DEBUG=INFO. In a container, share /dev/shm and /proc of all ranks."
        return [MachineFault(kind="nvlink-not-used", where="NVLink", severity="error", message=text, fix=fix)]
    switched = all(counters.get("nvswitch") for report in reports for counters in report.counters.values())
    # NCCL leaves NVLink SHARP out for two GPUs and fewer (src/transport/nvls.cc, ncclNvlsInit).
    expected = (
        switched
        and ranks > 2 * nodes
        and _arches(reports) <= _DATA_CENTER - {"sm_80"}
        and "NCCL_NVLS_ENABLE" not in chosen
    )
    if not expected or ways.nvls_channels != 0:
        return []
    text = "NCCL does not use NVLink SHARP (NVLS), though the GPUs are behind an NVSwitch"
    fix = "Start nvidia-fabricmanager in the version of the driver: systemctl enable --now nvidia-fabricmanager."
    return [MachineFault(kind="nvls-not-used", where="NVLink", severity="error", message=text, fix=fix)]
