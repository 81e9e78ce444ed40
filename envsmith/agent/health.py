"""What NVML and sysfs say of the GPUs' health, of the links between them, and of InfiniBand cards.

Names, numbers and layouts are those of nvml.h, API version 13 (NVIDIA/go-nvml, gen/nvml/nvml.h), which promises that a
field's number never changes. What an older driver does not have is left out. None of it creates a CUDA context.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from envsmith.agent.processes import fork_bound, read_text
from envsmith.agent.protocol import Row

# NVML_FI_DEV_ECC_DBE_VOL_TOTAL, _REMAPPED_PENDING, _REMAPPED_FAILURE, _GET_GPU_RECOVERY_ACTION, _POWER_DEFAULT_LIMIT,
# _POWER_CURRENT_LIMIT, then for how long clocks were held down: _PERF_POLICY_POWER, _PERF_POLICY_THERMAL and
# _CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, _HW_THERM_SLOWDOWN, _HW_POWER_BRAKE_SLOWDOWN.
_FIELDS = {
    "uncorrectable_ecc": 4, "remap_pending": 144, "remap_failure": 145, "recovery_action": 230,
    "default_mw": 189, "limit_mw": 190, "power_cap_ns": 74, "thermal_ns": 75, "sw_thermal_ns": 269,
    "hw_thermal_ns": 270, "power_brake_ns": 271,
}  # fmt: skip
# Of each NVLink: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC before Blackwell, from it on
# NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS.
_LINK_FIELDS = {"nvlink_replay": 161, "nvlink_recovery": 162, "nvlink_crc": 163, "nvlink_recoveries": 215}
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_NVLINK_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
# Bytes of nvmlValue_t that are set, by nvmlValueType_t: unsigned int, signed int and unsigned short are short.
_VALUE_BYTES = {1: 4, 5: 4, 6: 2}
# nvmlGpuP2PCapsIndex_t and, from nvmlGpuP2PStatus_t, why there is none.
_P2P_READ, _P2P_NVLINK = 0, 2
_NO_P2P = {1: "chipset", 2: "gpu", 3: "topology", 4: "disabled by registry key", 5: "not supported"}
_XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
_GPU_IS_LOST = 15  # nvmlReturn_t


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong), ("kind", ctypes.c_int), ("result", ctypes.c_int), ("value", ctypes.c_ulonglong),
    ]  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p), ("kind", ctypes.c_ulonglong), ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint),
    ]  # fmt: skip


class Nvml:
    """The driver's management library, for as long as :func:`nvml` holds it open."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint()
        if not self.call("nvmlInit_v2"):
            raise OSError("NVML does not start")
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices: dict[int, ctypes.c_void_p] = {}
        self.lost: list[int] = []
        # NVML counts GPUs as well that this user, container or job may not open. Those are left out.
        for index in range(count.value):
            device = ctypes.c_void_p()
            result = self.result("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            if result == 0:
                self.devices[index] = device
            elif result == _GPU_IS_LOST:
                self.lost.append(index)

    def result(self, name: str, *arguments: Any) -> int:
        """Return the nvmlReturn_t of a call, or -1 where the driver does not have it."""
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:
            return -1

    def call(self, name: str, *arguments: Any) -> bool:
        """Return whether the call succeeded."""
        return self.result(name, *arguments) == 0

    def text(self, name: str, *arguments: Any) -> str:
        """Return what a call writes into its buffer."""
        buffer = ctypes.create_string_buffer(96)
        return buffer.value.decode(errors="replace") if self.call(name, *arguments, buffer, 96) else ""

    def number(self, name: str, *arguments: Any) -> int | None:
        """Return what a call writes through its last pointer."""
        value = ctypes.c_int()
        return value.value if self.call(name, *arguments, ctypes.byref(value)) else None

    def inventory(self) -> Row:
        """Return the driver and its GPUs: what takes no time."""
        gpus = [self._gpu(index, device) for index, device in self.devices.items()]
        gpus += [{"index": index, "lost": True} for index in self.lost]
        report = {"driver": self.text("nvmlSystemGetDriverVersion"), "gpus": gpus}
        return {**report, "cuda_level": self.number("nvmlSystemGetCudaDriverVersion_v2")}

    def report(self) -> Row:
        """Return the inventory with each GPU's health, and how each pair of GPUs reaches the other."""
        report = self.inventory()
        for gpu in report["gpus"]:
            device = self.devices.get(gpu["index"])
            if device and self.result("nvmlDeviceGetUUID", device, ctypes.create_string_buffer(96), 96) == _GPU_IS_LOST:
                gpu["lost"] = True
            elif device:
                gpu["health"] = self._health(device)
        pairs: dict[str, list[list[int]]] = {}
        for (first, device), (second, peer) in itertools.combinations(self.devices.items(), 2):
            pairs.setdefault(self._way(device, peer), []).append([first, second])
        return {**report, "pairs": pairs}

    def _gpu(self, index: int, device: ctypes.c_void_p) -> Row:
        gpu: Row = {"index": index}
        gpu["name"] = self.text("nvmlDeviceGetName", device)
        gpu["uuid"] = self.text("nvmlDeviceGetUUID", device)
        memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
        if self.call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)):
            gpu["memory_bytes"] = memory.total
        if self.call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor)):
            gpu["arch"] = f"sm_{major.value}{minor.value}"
        return gpu

    def _health(self, device: ctypes.c_void_p) -> dict[str, int]:
        states = [self.number("nvmlDeviceGetNvLinkState", device, link) for link in range(_MAX_LINKS)]
        links = [link for link, state in enumerate(states) if state]
        names = [(name, number, 0) for name, number in _FIELDS.items()]
        names += [(name, number, link) for name, number in _LINK_FIELDS.items() for link in links]
        values = (_FieldValue * len(names))(*(_FieldValue(number, scope) for _, number, scope in names))
        health: dict[str, int] = {}
        if self.call("nvmlDeviceGetFieldValues", device, len(names), values):
            for (name, _, _), row in zip(names, values):
                if row.result == 0:
                    mask = (1 << 8 * _VALUE_BYTES.get(row.kind, 8)) - 1
                    health[name] = health.get(name, 0) + (row.value & mask)
        if links:
            remote = self.number("nvmlDeviceGetNvLinkRemoteDeviceType", device, links[0])
            health.update(nvlinks=len(links), nvswitch=int(remote == _NVLINK_SWITCH))
        return health

    def _way(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> str:
        if self.number("nvmlDeviceGetP2PStatus", first, second, _P2P_NVLINK) == 0:
            return "nvlink"
        status = self.number("nvmlDeviceGetP2PStatus", first, second, _P2P_READ)
        return "pci" if status == 0 else f"none ({_NO_P2P.get(status or 0, 'not known')})"

    def register_xids(self) -> ctypes.c_void_p | None:
        """Begin to note the Xid events of every GPU."""
        events = ctypes.c_void_p()
        if not self.call("nvmlEventSetCreate", ctypes.byref(events)):
            return None
        for device in self.devices.values():
            self.call("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(_XID_EVENT), events)
        return events

    def xids(self, events: ctypes.c_void_p | None) -> list[list[int]]:
        """Return ``[GPU, Xid]`` of each event since the registration."""
        rows: list[list[int]] = []
        row = _Event()
        indexes = {device.value: index for index, device in self.devices.items()}
        while events and len(rows) < 64 and self.call("nvmlEventSetWait_v2", events, ctypes.byref(row), 0):
            rows.append([indexes.get(row.device, -1), int(row.data)])
        return rows


@contextlib.contextmanager
def nvml() -> Iterator[Nvml | None]:
    """Open the library. Yields ``None`` without a driver."""
    try:
        library = Nvml()
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield library
    finally:
        library.call("nvmlShutdown")


def inventory() -> Row:
    """Return :meth:`Nvml.inventory`, or nothing without a driver."""
    with nvml() as library:
        return library.inventory() if library else {}


def report_apart(limit: float) -> Row:
    """Return :meth:`Nvml.report` from a process of its own, so that a driver that hangs cannot hold up the caller."""
    watch = HealthWatch()
    try:
        return watch.report(limit)
    finally:
        watch.end()


def infiniband(sys: str = "/sys") -> Row:
    """Return the cards with an active port, by their link layer, and what lets them reach a GPU's memory.

    ``peer_memory`` is one of the kernel modules that NCCL asks for (src/transport/net_ib.cc, ncclIbGdrSupport).
    ``devices`` says whether this container has the files through which verbs are called.
    """
    folder = f"{sys}/class/infiniband"
    cards: dict[str, list[str]] = {}
    for card in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        for port in sorted(os.listdir(f"{folder}/{card}/ports")) if os.path.isdir(f"{folder}/{card}/ports") else ():
            if "ACTIVE" in read_text(f"{folder}/{card}/ports/{port}/state"):
                layer = read_text(f"{folder}/{card}/ports/{port}/link_layer").strip()
                cards.setdefault("RoCE" if layer == "Ethernet" else "InfiniBand", []).append(f"{card}:{port}")
    modules = ("kernel/mm/memory_peers/nv_mem", "kernel/mm/memory_peers/nv_mem_nc", "module/nvidia_peermem")
    peer_memory = any(os.path.exists(f"{sys}/{module}/version") for module in modules)
    return {"active": cards, "peer_memory": peer_memory, "devices": os.path.isdir("/dev/infiniband")}


def used_gpus(report: Row, visible: str | None, devices: Iterable[int] | None) -> list[int]:
    """Return the GPUs of a run by their number in NVML: those of ``devices`` among what CUDA_VISIBLE_DEVICES names.

    Other GPUs of the machine may be another user's. Where there are several kinds, whose order in CUDA is its own, and
    for parts of GPUs, these are all.
    """
    every: list[int] = [gpu["index"] for gpu in report.get("gpus", ())]
    if len({gpu.get("name") for gpu in report.get("gpus", ())}) > 1 or "MIG" in (visible or ""):
        return every
    chosen: list[int] = []
    for part in (part.strip() for part in visible.split(",")) if visible is not None else map(str, range(len(every))):
        named = [
            gpu["index"] for gpu in report["gpus"] if part.startswith("GPU-") and str(gpu.get("uuid")).startswith(part)
        ]
        chosen += every[int(part) : int(part) + 1] if part.isdecimal() else named
    return chosen if devices is None else [chosen[device] for device in sorted(set(devices)) if device < len(chosen)]


class HealthWatch:
    """A process that reads NVML before and after a run, and notes Xids between.

    It is a process of its own because a call for a sick GPU may never return, and because what NVML opens must not be
    inherited by ranks.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self.before: Row = {}
        self._began = time.monotonic()
        self._pid = fork_bound()
        if self._pid == 0:
            _watch(theirs)
        theirs.close()
        self._rows = self._socket.makefile("r")

    def begin(self, limit: float = 60.0) -> Row:
        """Return the report before the run. It may take seconds where no process keeps the driver awake."""
        self.before = self.report(limit)
        return self.before

    def report(self, limit: float) -> Row:
        """Return the next report: :meth:`Nvml.report`, nothing without a driver, ``{"silent": seconds}`` when late."""
        if select.select([self._socket], [], [], limit)[0]:
            with contextlib.suppress(OSError, ValueError):
                return dict(json.loads(self._rows.readline()))
            return {}
        return {"silent": limit}

    def finish(self, devices: Iterable[int] | None = None, limit: float = 5.0) -> Row:
        """End the process. Return what the run did: two reports, the later one with ``xids``, cards, variables.

        ``devices`` are the GPUs of the run as CUDA counts them, all unless given. Without a driver there is nothing.
        """
        after = self.before
        if self.before.get("gpus"):
            with contextlib.suppress(OSError):
                self._socket.sendall(b"\n")
            after = self.report(limit)
        self.end()
        if not self.before:
            return {}
        names = sorted(name for name in os.environ if name.startswith("NCCL_"))
        seconds = round(time.monotonic() - self._began, 1)
        used = used_gpus(self.before, os.environ.get("CUDA_VISIBLE_DEVICES"), devices)
        facts = {"before": self.before, "after": after, "seconds": seconds, "used": used}
        return {**facts, "network": infiniband(), "variables": names}

    def end(self) -> None:
        """End the process. One that the kernel does not let go is left to it."""
        if not self._pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        until = time.monotonic() + 1.0
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self._pid, os.WNOHANG)[0] and time.monotonic() < until:
                time.sleep(0.005)
        self._pid = 0
        self._rows.close()
        self._socket.close()


def _watch(ours: socket.socket) -> NoReturn:
    """Be the process of a :class:`HealthWatch`, until the other end is closed."""
    try:
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        os.dup2(ours.fileno(), 3)
        os.closerange(4, 1 << 16)
        for descriptor in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        with nvml() as library, socket.socket(fileno=3) as talk:
            events = library.register_xids() if library else None
            talk.sendall(json.dumps(library.report() if library else {}).encode() + b"\n")
            if talk.recv(1):
                after = {**library.report(), "xids": library.xids(events)} if library else {}
                talk.sendall(json.dumps(after).encode() + b"\n")
    finally:
        os._exit(0)
