"""Facts that logs and tracebacks tell by the way: NCCL lines, paths, limits, nvidia-smi tables, variables."""

# ruff: noqa: S108
# /dev/shm is read about, not written to.

from __future__ import annotations

import re

from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import (
    OWN_MODULES,
    OWN_PREFIXES,
    bytes_of,
    cuda_of_level,
    first_version,
    fold,
    gpu_architecture,
    is_distribution,
    note_distribution,
    note_present,
    version_in,
)
from envsmith.doctor.vocabulary import words
from envsmith.model.version import local_cuda

_VARIABLES = re.compile(
    rf"(?<![\w$/.-])(?<!with )((?:NCCL|TORCH|CUDA|GLOO|DS|PDSH|MASTER|LD|NVTE|UCX|OMPI|PYTORCH|ACCELERATE|TRITON"
    rf"|{OWN_PREFIXES})_[A-Z0-9_]{{2,60}}"
    r"|WORLD_SIZE|RANK|LOCAL_RANK|CPATH|LIBRARY_PATH)=([\"']?)([^\s\"'\\;&|]{0,400})\2"
)
_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{2,60}) set by environment to ([^\s.]{1,200})")
_BANNER_CUDA = re.compile(r"CUDA (?:UMD )?Version:\s{0,8}(\d{1,2}\.\d{1,2})")
_SMI_GPU = re.compile(
    r"^\|\s{1,8}\d{1,3}\s{1,6}(\S[^|]{3,60}?)\s{1,30}(?:On|Off|N/A|Enabled|Disabled)\s{0,4}\|", re.MULTILINE
)
_SMI_LIST = re.compile(r"^\s{0,8}(?:\[\d\] )?GPU \d{1,3}: ([^\n(]{3,80}?)(?: \(UUID|[ \t]{0,80}$)", re.MULTILINE)
_MEMLOCK = re.compile(r"max locked memory\s{1,40}\(kbytes, -l\)\s{1,8}(\d{1,14}|unlimited)")
_TOLD_MEMLOCK = re.compile(r"\bmemlock\b[^\n,;.]{0,40}? set to (\d{1,8} ?[KM])\b", re.IGNORECASE)
_NOFILE = re.compile(r"open files\s{1,40}\(-n\)\s{1,8}(\d{1,12}|unlimited)")
_SHM = re.compile(r"^\S{1,40}\s{1,40}(\d[\d.]{0,12}[KMGT]?)\s[^\n]{0,80}\s/dev/shm[ \t]{0,80}$", re.MULTILINE)
_PYTHON = re.compile(
    r"[/\\]python(3\.\d{1,2})[/\\](?:site|dist)-packages|\bcpython-3(\d{1,2})-|\bpy3(\d{1,2})_c(?:u|pu)"
)
_CACHE = re.compile(r"\bpy3\d{1,2}_cu(\d{2})(\d)\b")
_TOPO = re.compile(r"^\s{0,4}GPU\d{1,2}\s{1,12}(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b", re.MULTILINE)
_FEW = 400_000


def kinds_of_log(text: str) -> list[str]:
    """Return which kinds of log and report the text is, by their marks."""
    head = text if len(text) < 2_000_000 else text[:1_000_000] + text[-1_000_000:]
    return [kind for kind, mark in words().kinds.items() if re.search(mark, head, re.MULTILINE)]


def read_log(text: str, draft: Draft, source: str) -> None:
    """Read every fact the text tells by the way. Each pattern is bounded, so the time is linear in the length."""
    _variables(text, draft)
    for line in words().versions:
        if match := re.search(line.pattern, text, re.MULTILINE):
            draft.component(line.component, match[1], f"{source}: {line.origin}", line.strength)
    _nccl(text, draft)
    _smi(text, draft, source)
    _limits(text, draft)
    if re.search(r"^[ \t]{0,60}ninja \.{4,60} ?\S{0,12}\[FAIL\]", text, re.MULTILINE):
        draft.tools["ninja"] = None
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


def _nccl(text: str, draft: Draft) -> None:
    for pattern in (r"cudaDriverVersion (\d{4,5})\b", r"too old \(found version (\d{4,5})\)"):
        if (match := re.search(pattern, text)) and (level := cuda_of_level(match[1])):
            draft.host["driver_cuda"] = level
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
    if "SMI" in text and (match := _BANNER_CUDA.search(text)):
        draft.host["driver_cuda"] = match[1]
    if draft.gpus:
        return
    names = _SMI_GPU.findall(text[: _FEW * 4]) or _SMI_LIST.findall(text[: _FEW * 4])
    for name in names[:64]:
        if architecture := gpu_architecture(name):
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
    elif (match := _TOLD_MEMLOCK.search(text)) and (size := bytes_of(match[1])):
        draft.limits["memlock"] = size
    if match := _NOFILE.search(text):
        draft.limits["nofile"] = -1 if match[1] == "unlimited" else int(match[1])
    if "/dev/shm" in text and (match := _SHM.search(text)) and (size := bytes_of(match[1])) is not None:
        draft.limits["shm"] = size if not match[1].isdigit() else size * 1024


_PRESENT = re.compile(
    rf"[/\\]({OWN_MODULES}|transformer_engine|flash_attn|apex|transformers|accelerate)[/\\][\w/\\]{{1,80}}\.py"
)


def _paths(text: str, draft: Draft, source: str) -> None:
    for name in dict.fromkeys(_PRESENT.findall(text[:_FEW])):
        note_present(draft, name)
    if match := _PYTHON.search(text):
        version = match[1] or f"3.{match[2] or match[3]}"
        if first_version(version):
            draft.component("python", version, f"{source}: a path in it", 1)
    if match := _CACHE.search(text):
        draft.component("cuda", f"{match[1]}.{match[2]}", f"{source}: folder of compiled extensions", 1)


# Versions that stand in the names of files and folders: wheels, source archives, metadata folders, packages of Conda,
# toolkits.


_VERSION = r"(\d[\w.]{0,30}(?:\+[\w.]{1,60})?)"
_NAME = r"([A-Za-z][\w.]{0,60})"
# What is installed: its folder of metadata, what pip says that it found or put there. What is only offered or fetched
# is weaker.
_INSTALLED = re.compile(rf"(?<=packages[/\\]){_NAME}-{_VERSION}\.(?:dist|egg)-info\b")
_SATISFIED = re.compile(
    r"Requirement already satisfied: ([\w.-]{1,60})\S{0,80} in \S{1,300} (?:\([^)\n]{1,120}\) )?\((\d[\w.+]{0,40})\)"
)
_PUT = re.compile(r"^Successfully installed ([\w.+ -]{3,4000})$", re.MULTILINE)
_CONDA = re.compile(r"(?<![\w.])(pytorch)-(\d{1,2}\.\d{1,3}\.\d{1,3})-py3\.\d{1,2}_cuda(\d{1,2}\.\d{1,2})_cudnn")
_WHEEL = re.compile(
    rf"(?<![\w.-]){_NAME}-{_VERSION}(?:-\d\w{{0,20}})?-(?:cp|py|pp)\d[\w.]{{0,40}}-[\w.]{{1,40}}-[\w.]{{1,80}}\.whl\b"
)
_ARCHIVE = re.compile(rf"(?:Using cached|Downloading) (?:\S{{0,300}}/)?{_NAME}-{_VERSION}\.(?:tar\.gz|zip)\b")
_NVCC = re.compile(r"/cuda-(\d{1,2}\.\d{1,2})(?:\.\d{1,2})?/bin/nvcc\b")
_MOST = 400


def read_files(text: str, draft: Draft, source: str) -> None:
    """Read every version in the names of files. Each pattern is bounded, and of a long text the beginning is read."""
    text = text[:_FEW]
    if "packages" in text or "already satisfied" in text:
        for pattern in (_INSTALLED, _SATISFIED):
            for name, version in pattern.findall(text)[:_MOST]:
                note_distribution(draft, name, version, source, 2)
    if "Successfully installed" in text:
        for line in _PUT.findall(text)[:20]:
            for name, version in re.findall(r"([\w.-]{1,60})-(\d[\w.+]{0,40})(?:\s|$)", line)[:_MOST]:
                note_distribution(draft, name, version, source, 2)
    for _, version, cuda in _CONDA.findall(text)[:1]:
        draft.component("torch", version, f"{source}: package of Conda", 2)
        draft.component("cuda", cuda, f"{source}: package of Conda", 2)
    for pattern in (_WHEEL, _ARCHIVE):
        for name, version in pattern.findall(text)[:_MOST] if ".whl" in text or ".tar.gz" in text else ():
            _offered(draft, name, version, source)
    if match := _NVCC.search(text):
        draft.component("toolkit", match[1], f"{source}: path of nvcc", 1)


def _offered(draft: Draft, name: str, version: str, source: str) -> None:
    """Add the version of a file that is fetched and may be installed or not, the weakest kind of fact."""
    component, parsed = is_distribution(fold(name)), version_in(version)
    if component is None or parsed is None:
        return
    draft.component(component, parsed[0], f"{source}: {name}-{version[:60]}", 1)
    if component == "torch" and (cuda := local_cuda(parsed[0])):
        draft.component("cuda", cuda, f"{source}: {name}-{version[:60]}", 1)
