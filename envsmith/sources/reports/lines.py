"""Lines of the form KEY: VALUE, as ``ds_report``, ``collect_env``, ``colossalai check``, ``transformers-cli env`` and people write them."""

# ruff: noqa: RUF001 - people write full-width colons and multiplication signs
from __future__ import annotations

import re

from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.line_values import read_gpus, read_version, value_reader
from envsmith.sources.reports.names import gpu_table, is_distribution, note_present
from envsmith.sources.reports.words import fold, gpu_architecture, version_in

__all__ = ["read_lines"]

_PAIR = re.compile(
    r"^[\s>*|#-]{0,12}[`'\"]?([A-Za-z][\w ()?/.`,\[\]\-]{0,60}?)[`'\"]?\s{0,8}(?:[:=：]|\.{4,200}|\t|\s\|)\s{0,20}[`'\"]?(\S.{0,600})$"
)
# `CUDA 11.4`, `Python 3.8`, `flash-attn 2.8.3`: a name and a version alone on a line.
_BARE = re.compile(r"^[\s>*#-]{0,12}([A-Za-z][A-Za-z-]{2,24})\s{1,3}[vV]?(\d[\w.+]{0,40})\s*$")
# `nvcc 11.5.119, pytorch 2.1.0+cu121`: an enumeration. A line that speaks of what would be needed or tried states nothing.
_NAMED = re.compile(
    r"(?<![\w/.=<>~-])(torch|pytorch|nvcc|cuda|python|gcc|nccl|cudnn|triton|deepspeed|megatron-core|colossalai|flash[-_]attn|transformer[-_]engine|transformers|accelerate|peft|apex)(?: version)?(?:\s{1,2}|\s?[:=]{1,2}\s?|-)[vV]?(\d{1,3}\.\d{1,3}(?:\.\d{1,4})?(?:\+cu\d{2,3}|\+cpu)?)(?![\w./-]*\w)",
    re.IGNORECASE,
)
# `4xRTX 4090`, `multiple RTX 4090 GPUs` in a sentence; the table of GPU names decides whether it is one.
_MANY_GPUS = re.compile(
    r"(?<![\w.])(?:(\d{1,2})\s{0,2}[x×*]\s{0,2}|(?:multiple|several|dual|two|four|eight|both)\s{1,2})((?:(?:NVIDIA|GeForce|Tesla|Quadro)\s)?(?:RTX|GTX|A|H|V|B|L|P|T)\s?\d{1,4}[\w ]{0,14})"
)
# `training with NVIDIA GeForce RTX 5090`: the maker's name before it leaves no doubt that a GPU is meant.
_ONE_GPU = re.compile(
    r"\b(?:NVIDIA|GeForce|Tesla|Quadro) ((?:GeForce |Tesla |Quadro )?(?:RTX|GTX|A|H|V|B|L|P|T) ?\d{1,4}(?: Ti| SUPER)?)\b"
)
_CONDITIONAL = re.compile(
    r"requir|need|support|later|newer|older|below|above|than|since|until|only|upgrad|downgrad|instead|compatib|tried|works?\b|fixed|change|\bor\b|→|->",
    re.IGNORECASE,
)
_TORCH = ("torch", "pytorch", "torch version", "pytorch version", "pytorch version gpu")
_KEYS = {
    **dict.fromkeys(_TORCH, "torch"),
    **dict.fromkeys(
        (
            "torch cuda version",
            "torch cuda",
            "torch_cuda",
            "cuda used to build pytorch",
            "cuda version required by pytorch",
            "torch.version.cuda",
            "pytorch cuda version",
            "pytorch cuda",
        ),
        "cuda",
    ),
    **dict.fromkeys(
        (
            "nvcc version",
            "nvcc",
            "system_cuda",
            "system cuda",
            "system cuda version",
            "cuda runtime version",
            "cuda toolkit",
            "cuda toolkit version",
            "installed cuda version",
        ),
        "toolkit",
    ),
    **dict.fromkeys(
        ("nvidia driver version", "nvidia driver", "driver version", "driver", "gpu driver", "cuda driver version"),
        "driver",
    ),
    **dict.fromkeys(("gcc version", "gcc", "g++", "cxx", "compiler"), "gcc"),
    **dict.fromkeys(("libc version", "glibc", "libc", "glibc version"), "glibc"),
    **dict.fromkeys(("python version", "python", "python3"), "python"),
    **dict.fromkeys(("colossal-ai version", "colossalai version", "colossalai", "colossal-ai"), "colossalai"),
    **dict.fromkeys(("deepspeed info", "deepspeed version", "deepspeed"), "deepspeed"),
    **dict.fromkeys(("cudnn version", "cudnn"), "cudnn"),
    **dict.fromkeys(("nccl version", "nccl"), "nccl"),
    **dict.fromkeys(("megatron", "megatron-lm", "megatron-core", "megatron core", "mcore"), "megatron-core"),
}
_FRAMEWORKS = frozenset({"deepspeed", "megatron-core", "colossalai"})
# What `collect_env` writes before each package of its lists: those lines are read as packages.
_INSTALLER = re.compile(r"pip[0-9 ]*|conda[0-9 ]*")
_VARIABLE = re.compile(
    r"(?:NCCL|TORCH|CUDA|GLOO|DS|PDSH|MASTER|LD|NVTE|UCX|OMPI|FI|NV|PYTORCH|XDG|HF|TRITON|DEEPSPEED|ACCELERATE)_[A-Z0-9_]{1,60}|RANK|WORLD_SIZE|LOCAL_RANK|CPATH|LIBRARY_PATH|PATH"
)


def read_lines(text: str, draft: Draft, source: str) -> None:
    """Every line that states something; unknown keys are passed over. Linear in the length of the text."""
    for line in text.split("\n"):
        if not 3 < len(line) < 800:
            continue
        _one_gpu(draft, line, source)
        pair = _PAIR.match(line)
        if pair:
            _pair(draft, pair[1].strip(), pair[2].strip(" `'\"|,"), source)
        elif bare := _BARE.match(line):
            _bare(draft, bare[1], bare[2], source)
        else:
            _enumeration(draft, line, source)


def _one_gpu(draft: Draft, line: str, source: str) -> None:
    """A GPU named in a sentence or a title, where no list names them."""
    if draft.gpus or "gpu" in draft.components or not (one := _ONE_GPU.search(line)) or _CONDITIONAL.search(line):
        return
    if architecture := gpu_architecture(one[1], gpu_table()):
        draft.component("gpu", architecture, f"{source}: {one[1]}", 1)


def _enumeration(draft: Draft, line: str, source: str) -> None:
    """Versions of two or more components named in one sentence, as people describe what they have."""
    if not draft.gpus and (many := _MANY_GPUS.search(line)) and gpu_architecture(many[2], gpu_table()):
        read_gpus(draft, f"{many[1] or 2} x {many[2].strip()}", single=False)
    named = _NAMED.findall(line)
    if len({name.lower() for name, _ in named}) < 2 or _CONDITIONAL.search(line):
        return
    for name, version in named[:12]:
        if name.lower() == "cuda":
            draft.host.setdefault("cuda_stated", version)
            continue
        component = _KEYS.get(name.lower()) or is_distribution(fold(name))
        if component and (found := version_in(version)):
            read_version(draft, component, found[0], f"{source}: {name} {version}", 2)


def _bare(draft: Draft, name: str, version: str, source: str) -> None:
    found = version_in(version)
    component = _KEYS.get(name.lower()) or is_distribution(fold(name))
    if found and component:
        draft.component(component, found[0], f"{source}: {name} {version}", 2, exact=found[1])
    elif found and name.lower() == "cuda":
        draft.host.setdefault("cuda_stated", found[0])


def _pair(draft: Draft, raw: str, value: str, source: str) -> None:
    if _VARIABLE.fullmatch(raw):
        draft.variable(raw, value)
        return
    key = re.sub(r"[`?()\[\]]", "", raw.lower()).strip()
    key = re.sub(r"\s+", " ", key)
    where = f"{source}: {raw}"
    if key in _KEYS:
        read_version(draft, _KEYS[key], value, where)
    elif reader := value_reader(key):
        reader(draft, key, value, where)
    elif not _INSTALLER.fullmatch(key):
        _other(draft, key, value, where)


def _other(draft: Draft, key: str, value: str, where: str) -> None:
    name = key.removesuffix(" version").strip()
    if " " in name or len(name) > 40:
        return
    component = is_distribution(fold(name))
    if component in _FRAMEWORKS and not re.match(r"[vV=<>~! ]*\d", value):
        note_present(draft, component)
    elif component and value[:1].isdigit() | value.startswith(("v", "=", "<", ">", "~")):
        read_version(draft, component, value, where)
