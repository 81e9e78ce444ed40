"""Lines of the form KEY: VALUE, as ``ds_report``, ``collect_env``, ``colossalai check``, ``transformers-cli env`` and people write them."""

# ruff: noqa: RUF001, S108
# People write full-width colons and multiplication signs; /dev/shm is read about, not written to.
from __future__ import annotations

import re

from envsmith.sources.reports.distributions import glibc_of
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.names import gpu_table, is_distribution, note_container, note_present
from envsmith.sources.reports.words import bytes_of, fold, gpu_architecture, local_cuda, version_in

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
# `8 x V100`, `8xH100`, `RTX 3090 x2 per node`, `4 GPUs`; never the X of `RTX 4090`.
_COUNT = re.compile(
    r"(?<![\w.])(\d{1,3})\s{0,2}[xX×*]\s{0,2}(?=[A-WYZa-wyz])|(?<=\s)[xX×]\s?(\d{1,3})(?!\d)|(?<![\w.])(\d{1,3})\s?GPUs?\b"
)
_FRAMEWORKS = frozenset({"deepspeed", "megatron-core", "colossalai"})
_GPU = (
    "gpu",
    "gpus",
    "gpu type",
    "gpu model",
    "gpu models",
    "gpu name",
    "using gpu in script",
    "gpu count and types",
    "device",
    "gpu models and configuration",
)
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
        _gpus(draft, f"{many[1] or 2} x {many[2].strip()}", single=False)
    named = _NAMED.findall(line)
    if len({name.lower() for name, _ in named}) < 2 or _CONDITIONAL.search(line):
        return
    for name, version in named[:12]:
        if name.lower() == "cuda":
            draft.host.setdefault("cuda_stated", version)
            continue
        component = _KEYS.get(name.lower()) or is_distribution(fold(name))
        if component and (found := version_in(version)):
            _version(draft, component, found[0], f"{source}: {name} {version}", 2)


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
        _version(draft, _KEYS[key], value, where)
    elif re.fullmatch(r"gpu \d+", key) and draft.host.get("gpu_number") == "known":
        return
    elif key in _GPU or re.fullmatch(r"gpu \d+", key):
        _gpus(draft, value, single=key.startswith("gpu ") and key[4:].isdigit())
    elif key in {"gpu_arch", "gpu arch", "compute capability", "gpu capability"}:
        if match := re.search(r"(\d{1,2})\.(\d)", value):
            draft.component("gpu", f"sm_{match[1]}{match[2]}", where, 3)
    elif key == "framework":
        note_present(draft, value.split(maxsplit=1)[0])
    elif key in {"container", "docker image", "image", "base image"}:
        note_container(draft, value, where)
    elif key in {"os", "operating system", "platform", "system"}:
        _platform(draft, value, where)
    elif key.startswith("ulimit"):
        _ulimit(draft, key, value)
    elif "/dev/shm" in key and (size := bytes_of(value)) is not None:
        draft.limits["shm"] = size
    elif key in {"cuda version", "cuda"}:
        if (found := version_in(value)) and found[1]:
            draft.host.setdefault("cuda_stated", found[0])
    elif key in {"arch", "architecture", "machine"}:
        draft.host["machine"] = value[:40]
    elif key.startswith(("pip3", "pip", "conda")) and key.strip("0123456789 ") in {"pip", "conda"}:
        return
    else:
        _other(draft, key, value, where)


def _other(draft: Draft, key: str, value: str, where: str) -> None:
    name = key.removesuffix(" version").strip()
    if " " in name or len(name) > 40:
        return
    component = is_distribution(fold(name))
    if component in _FRAMEWORKS and not re.match(r"[vV=<>~! ]*\d", value):
        note_present(draft, component)
    elif component and value[:1].isdigit() | value.startswith(("v", "=", "<", ">", "~")):
        _version(draft, component, value, where)


def _version(draft: Draft, component: str, value: str, where: str, most: int = 3) -> None:
    if component == "python":
        value = value.split("(", maxsplit=1)[0]
    if tuple_like := re.match(r"\((\d+), ?(\d+), ?(\d+)\)", value):
        value = ".".join(tuple_like.groups())
    if component == "gcc":
        value = re.sub(r"\([^)]{0,80}\)", " ", value)
    if component == "glibc":
        value = value.replace("glibc-", " ").replace("glibc", " ")
    if component == "cudnn" and (match := re.search(r"so\.(\d+\.\d+\.\d+)", value)):
        value = match[1]
    if component in {"deepspeed", "megatron-core", "colossalai"}:
        value = value.split(",", maxsplit=1)[0] if component == "deepspeed" else value
        if not re.match(r"[vV=<>~! ]*\d", value):
            note_present(draft, component)
            return
    found = version_in(value)
    if found is None:
        if component == "toolkit" and value.lower().startswith(("n/a", "none", "no nvcc", "not found", "could not")):
            draft.tools["nvcc"] = None
        return
    version, exact = found
    if component == "driver" and int(version.split(".")[0]) < 300:
        return
    strength = most if exact else 1
    draft.component(component, version, where, strength, exact=exact)
    if component == "torch" and (cuda := local_cuda(version)):
        draft.component("cuda", cuda, where, strength, exact=exact)
    elif component == "torch" and (build := re.search(r"\bcu(\d{2})(\d)\b", value)):
        draft.component("cuda", f"{build[1]}.{build[2]}", where, strength, exact=exact)


def _gpus(draft: Draft, value: str, *, single: bool) -> None:
    if value.lower().startswith(("none", "no", "n/a")):
        draft.host["gpu_absent"] = "yes"
        return
    name = re.sub(r"^GPU \d+:\s*", "", value)
    architecture = gpu_architecture(name, gpu_table())
    number = 1
    if not single:
        counted = _COUNT.search(name)
        several = re.search(r"several|multiple|multi|多", name, re.IGNORECASE)
        number = int(next(g for g in counted.groups() if g)) if counted else 2 if several else 1
    known = architecture is not None or re.search(r"nvidia|geforce|tesla|rtx|quadro|gtx", name, re.IGNORECASE)
    if known:
        for _ in range(min(max(number, 1), 64)):
            draft.gpu(name[:120])
    elif number > 1:
        draft.gpu_count = number
    if architecture:
        draft.component("gpu", architecture, f"GPU {name[:60]}", 3)


def _platform(draft: Draft, value: str, where: str) -> None:
    draft.host.setdefault("os", value[:160])
    if match := re.search(r"glibc(\d+\.\d+)", value):
        draft.component("glibc", match[1], where, 3)
    elif glibc := glibc_of(value):
        draft.component("glibc", glibc, value[:60], 1)
    if "aarch64" in value:
        draft.host["machine"] = "aarch64"


def _ulimit(draft: Draft, key: str, value: str) -> None:
    if key.endswith("-l"):
        size = -1 if "unlimited" in value else int(value) * 1024 if value.isdecimal() and len(value) < 15 else None
        if size is not None:
            draft.limits["memlock"] = size
    elif key.endswith("-n") and ((value.isdecimal() and len(value) < 12) or value == "unlimited"):
        draft.limits["nofile"] = -1 if value == "unlimited" else int(value)
