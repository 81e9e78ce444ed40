"""The NVIDIA driver and the GPUs, through ``/proc`` and NVML, without torch."""

# ruff: noqa: PTH110, PTH118
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from envsmith.sources.host.libraries import SYSTEM
from envsmith.sources.host.looking import output_of, text_of
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.logs import read_log
from envsmith.sources.reports.names import gpu_table
from envsmith.sources.reports.words import cuda_of_level, first_version, gpu_architecture

__all__ = ["driver", "gpus"]


def driver(draft: Draft) -> None:
    """The version of the kernel driver."""
    text = text_of("/proc/driver/nvidia/version", 4000)
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d{3}\.\d+(?:\.\d+)?)", text)
    if match:
        draft.component("driver", match[1], "/proc/driver/nvidia/version", 4)


def gpus(draft: Draft) -> None:
    """NVML first (milliseconds), then the banner of nvidia-smi, old or new."""
    draft.host["gpu_number"] = "known"
    if _nvml(draft):
        return
    smi = shutil.which("nvidia-smi")
    if smi:
        read_log(output_of([smi], 4.0) + "\n" + output_of([smi, "-L"], 4.0), draft, "nvidia-smi")
    if not draft.gpus and not Path("/dev/nvidia0").exists():
        draft.gpu_count = None
        draft.host["gpu_absent"] = "yes"


def _nvml(draft: Draft) -> bool:
    import ctypes

    library = next((name for name in ("libnvidia-ml.so.1", "libnvidia-ml.so") if _loadable(name)), None)
    if library is None:
        return False
    try:
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2() != 0:
            return False
        buffer = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(buffer, 96) == 0 and (
            version := first_version(buffer.value.decode(errors="replace"))
        ):
            draft.component("driver", version, "NVML", 4)
        level = ctypes.c_int()
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(level)) == 0 and (
            told := cuda_of_level(str(level.value))
        ):
            draft.host["driver_cuda"] = told
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(min(count.value, 64)):
            _nvml_device(draft, nvml, index)
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return False
    return bool(draft.gpus)


def _nvml_device(draft: Draft, nvml: object, index: int) -> None:
    import ctypes

    device, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    major, minor = ctypes.c_int(), ctypes.c_int()
    call = nvml
    call.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))  # type: ignore[attr-defined]
    if call.nvmlDeviceGetName(device, buffer, 96) == 0:  # type: ignore[attr-defined]
        draft.gpu(buffer.value.decode(errors="replace"))
    if call.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0:  # type: ignore[attr-defined]
        draft.component("gpu", f"sm_{major.value}{minor.value}", "NVML", 4)
    elif draft.gpus and (sm := gpu_architecture(draft.gpus[-1], gpu_table())):
        draft.component("gpu", sm, "NVML", 3)


def _loadable(name: str) -> bool:
    """True when a usual folder of the loader holds it: ``CDLL`` of what is absent costs a search of everything."""
    folders = [*SYSTEM, *os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/local/nvidia/lib64"]
    return any(folder and os.path.exists(os.path.join(folder, name)) for folder in folders)
