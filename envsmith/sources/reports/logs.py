"""Facts that logs and tracebacks tell by the way: NCCL lines, paths of interpreters, limits, nvidia-smi tables, variables."""

# ruff: noqa: S108
# /dev/shm is read about, not written to.
from __future__ import annotations

import re

from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.names import gpu_table, note_present
from envsmith.sources.reports.words import bytes_of, cuda_of_level, first_version, gpu_architecture

__all__ = ["kinds_of_log", "read_log"]

_VARIABLES = re.compile(
    r"(?<![\w$/.-])(?<!with )((?:NCCL|TORCH|CUDA|GLOO|DS|PDSH|MASTER|LD|NVTE|UCX|OMPI|PYTORCH|DEEPSPEED|ACCELERATE|TRITON)_[A-Z0-9_]{2,60}|WORLD_SIZE|RANK|LOCAL_RANK|CPATH|LIBRARY_PATH)=([\"']?)([^\s\"'\\;&|]{0,400})\2"
)
_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{2,60}) set by environment to ([^\s.]{1,200})")
_BANNER = re.compile(r"(?:Driver|KMD) Version:\s{0,8}(\d{3}\.\d{1,4}(?:\.\d{1,4})?)")
_BANNER_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s{0,8}(\d{1,2}\.\d{1,2})")
_SMI_GPU = re.compile(
    r"^\|\s{1,8}\d{1,3}\s{1,6}(\S[^|]{3,60}?)\s{1,30}(?:On|Off|N/A|Enabled|Disabled)\s{0,4}\|", re.MULTILINE
)
_SMI_LIST = re.compile(r"^\s{0,8}(?:\[\d\] )?GPU \d{1,3}: ([^\n(]{3,80}?)(?: \(UUID|[ \t]{0,80}$)", re.MULTILINE)
_MEMLOCK = re.compile(r"max locked memory\s{1,40}\(kbytes, -l\)\s{1,8}(\d{1,14}|unlimited)")
_NOFILE = re.compile(r"open files\s{1,40}\(-n\)\s{1,8}(\d{1,12}|unlimited)")
_SHM = re.compile(r"^\S{1,40}\s{1,40}(\d[\d.]{0,12}[KMGT]?)\s[^\n]{0,80}\s/dev/shm[ \t]{0,80}$", re.MULTILINE)
_PYTHON = re.compile(
    r"[/\\]python(3\.\d{1,2})[/\\](?:site|dist)-packages|\bcpython-3(\d{1,2})-|\bpy3(\d{1,2})_c(?:u|pu)"
)
_CACHE = re.compile(r"\bpy3\d{1,2}_cu(\d{2})(\d)\b")
_TOPO = re.compile(r"^\s{0,4}GPU\d{1,2}\s{1,12}(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b", re.MULTILINE)
_FEW = 400_000


def kinds_of_log(text: str) -> list[str]:
    """Which kinds of log and report the text is, by its own marks."""
    marks = (
        (
            "ds_report",
            r"DeepSpeed general environment info|DeepSpeed C\+\+/CUDA extension op report|deepspeed info \.{4,}|torch cuda version \.{4,}",
        ),
        (
            "collect_env",
            r"Collecting environment information|CUDA used to build PyTorch:|Is debug build:|Versions of relevant libraries:",
        ),
        (
            "colossalai check",
            r"#### Installation Report ####|CUDA version required by PyTorch:|System and PyTorch CUDA version match|CUDA Extensions AOT Compilation",
        ),
        ("nvidia-smi", r"NVIDIA-SMI \d|Driver Version:\s|KMD Version:"),
        ("nvidia-smi -L", r"^GPU \d+: [^\n]{3,80} \(UUID"),
        ("nvidia-smi topo", r"^\s{0,4}GPU0[ \t]{1,80}(?:X|GPU1)\b"),
        ("nvcc --version", r"Cuda compilation tools, release \d"),
        ("gcc --version", r"^(?:gcc|g\+\+|cc|c\+\+) \([^)\n]{0,80}\) \d"),
        ("traceback", r"Traceback \(most recent call last\)|^\w*(?:Error|Exception): "),
        ("NCCL log", r"NCCL (?:INFO|WARN|version)\b"),
        ("compiler output", r"fatal error: |error: #error|nvcc fatal|ninja: build stopped|: error: "),
        ("pip output", r"^(?:ERROR|Collecting|Requirement already satisfied|error: subprocess)\b"),
        ("ulimit", r"max locked memory\s|open files[ \t]{1,80}\(-n\)"),
        ("df", r"/dev/shm[ \t]{0,80}$"),
        (
            "training log",
            r"\[INFO\] \[|\[rank\d+\]|torch\.distributed\.run|step[ \t]{0,8}[=:][ \t]{0,8}\d|iteration[ \t]{1,80}\d+",
        ),
    )
    head = text if len(text) < 2_000_000 else text[:1_000_000] + text[-1_000_000:]
    return [kind for kind, mark in marks if re.search(mark, head, re.MULTILINE)]


def read_log(text: str, draft: Draft, source: str) -> None:
    """Every fact the text tells by the way; each pattern is bounded, so the time is linear in the length."""
    _variables(text, draft)
    _nccl(text, draft, source)
    _smi(text, draft, source)
    _limits(text, draft)
    _compilers(text, draft, source)
    _paths(text, draft, source)


def _variables(text: str, draft: Draft) -> None:
    if "=" in text:
        for count, match in enumerate(_VARIABLES.finditer(text)):
            if count > 5000:
                break
            draft.variable(match[1], match[3])
    if "set by environment to" in text:
        for name, value in _SET.findall(text[: _FEW * 5])[:400]:
            draft.variable(name, value)


def _nccl(text: str, draft: Draft, source: str) -> None:
    if match := re.search(r"NCCL (?:version |INFO NCCL version )(2\.\d{1,2}\.\d{1,2})(?:\+cuda(\d{1,2}\.\d))?", text):
        draft.component("nccl", match[1], f"{source}: NCCL's own line", 2)
    if (match := re.search(r"cudaDriverVersion (\d{4,5})\b", text)) and (level := cuda_of_level(match[1])):
        draft.host["driver_cuda"] = level
    if (match := re.search(r"too old \(found version (\d{4,5})\)", text)) and (level := cuda_of_level(match[1])):
        draft.host["driver_cuda"] = level
    if match := re.search(r"DeepSpeed info: version=(\d[\w.+]{0,40})", text):
        draft.component("deepspeed", match[1].rstrip("."), f"{source}: DeepSpeed's own line", 2)
    for name in re.findall(
        r"(?:Bootstrap ?: Using|NET/Socket ?: Using) ?(?:\[\d\])?([a-z][\w.-]{0,30}):[\d.]", text[:_FEW]
    )[:40]:
        draft.interfaces.append(name)
        draft.host["nccl_interface"] = name
    if re.search(r"NET/IB ?: Using", text):
        draft.host["infiniband"] = "used"
    elif re.search(r"NET/IB ?: No device found", text):
        draft.host["infiniband"] = "none"


def _smi(text: str, draft: Draft, source: str) -> None:
    if match := _BANNER.search(text):
        draft.component("driver", match[1], f"{source}: nvidia-smi", 3)
    if "SMI" in text and (match := _BANNER_CUDA.search(text)):
        draft.host["driver_cuda"] = match[1]
    if match := re.search(r"[Dd]river(?: [Vv]ersion)?[:= ]{1,4}(\d{3}\.\d{2,3}(?:\.\d{2})?)\b", text):
        draft.component("driver", match[1], f"{source}: driver", 2)
    if draft.gpus:
        return
    names = _SMI_GPU.findall(text[: _FEW * 4]) or _SMI_LIST.findall(text[: _FEW * 4])
    for name in names[:64]:
        if architecture := gpu_architecture(name, gpu_table()):
            draft.gpu(name.strip())
            draft.host["gpu_number"] = "known"
            draft.component("gpu", architecture, f"{source}: {name.strip()[:60]}", 3)
    if not names and (rows := len(_TOPO.findall(text[:_FEW]))) > 1:
        draft.gpu_count = rows
    if links := re.findall(
        r"^\s{0,4}GPU\d[ \t]{1,80}[^\n]{0,200}\b(NV\d+|PIX|PXB|PHB|NODE|SYS)\b", text[:_FEW], re.MULTILINE
    ):
        draft.host["gpu_links"] = ",".join(sorted(set(links)))


def _limits(text: str, draft: Draft) -> None:
    if match := _MEMLOCK.search(text):
        draft.limits["memlock"] = -1 if match[1] == "unlimited" else int(match[1]) * 1024
    if match := _NOFILE.search(text):
        draft.limits["nofile"] = -1 if match[1] == "unlimited" else int(match[1])
    if "/dev/shm" in text and (match := _SHM.search(text)) and (size := bytes_of(match[1])) is not None:
        draft.limits["shm"] = size if not match[1].isdigit() else size * 1024


def _compilers(text: str, draft: Draft, source: str) -> None:
    if match := re.search(r"Cuda compilation tools, release (\d{1,2}\.\d{1,2}), V(\d{1,2}\.\d{1,2}\.\d{1,4})", text):
        draft.component("toolkit", match[1], f"{source}: nvcc --version", 3)
    if match := re.search(
        r"^(?:gcc|g\+\+|cc|c\+\+) \([^)\n]{0,80}\) (\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)", text, re.MULTILINE
    ):
        draft.component("gcc", match[1], f"{source}: gcc --version", 3)
    if re.search(r"^[ \t]{0,60}ninja \.{4,60} ?\S{0,12}\[FAIL\]", text, re.MULTILINE):
        draft.tools["ninja"] = None


_PRESENT = re.compile(
    r"[/\\](deepspeed|colossalai|megatron|transformer_engine|flash_attn|apex|transformers|accelerate)[/\\][\w/\\]{1,80}\.py"
)


def _paths(text: str, draft: Draft, source: str) -> None:
    for name in dict.fromkeys(_PRESENT.findall(text[:_FEW])):
        note_present(draft, name)
    match = _PYTHON.search(text)
    if match:
        version = match[1] or f"3.{match[2] or match[3]}"
        if first_version(version):
            draft.component("python", version, f"{source}: a path in it", 1)
    if match := _CACHE.search(text):
        draft.component("cuda", f"{match[1]}.{match[2]}", f"{source}: folder of compiled extensions", 1)
