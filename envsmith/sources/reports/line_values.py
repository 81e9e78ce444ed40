"""What stands behind the colon of a line KEY: VALUE: one reader for each kind of value, found by its key."""

# ruff: noqa: RUF001, S108
# People write full-width colons and multiplication signs; /dev/shm is read about, not written to.
from __future__ import annotations

import re
from collections.abc import Callable

from envsmith.sources.reports.distributions import glibc_of
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.names import gpu_table, note_container, note_present
from envsmith.sources.reports.words import bytes_of, gpu_architecture, local_cuda, version_in

__all__ = ["read_gpus", "read_version", "value_reader"]

# Takes the draft, the key as it was folded, the value, and where both stand.
_Reader = Callable[[Draft, str, str, str], None]
_FRAMEWORKS = frozenset({"deepspeed", "megatron-core", "colossalai"})
# `8 x V100`, `8xH100`, `RTX 3090 x2 per node`, `4 GPUs`; never the X of `RTX 4090`.
_COUNT = re.compile(
    r"(?<![\w.])(\d{1,3})\s{0,2}[xX×*]\s{0,2}(?=[A-WYZa-wyz])|(?<=\s)[xX×]\s?(\d{1,3})(?!\d)|(?<![\w.])(\d{1,3})\s?GPUs?\b"
)


def value_reader(key: str) -> _Reader | None:
    """The reader of a key (lower case, single blanks) that names no component, or ``None``."""
    if reader := _READERS.get(key):
        return reader
    if re.fullmatch(r"gpu \d+", key):
        return _numbered_gpu
    if key.startswith("ulimit"):
        return _ulimit
    return _shared_memory if "/dev/shm" in key else None


def read_version(draft: Draft, component: str, value: str, where: str, most: int = 3) -> None:
    """The version of a component; ``most`` is the strength of an exact one (:class:`Stated`). A name without a number says that it is there."""
    value = _without_frills(component, value)
    if component in _FRAMEWORKS and not re.match(r"[vV=<>~! ]*\d", value):
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
    if component == "torch" and (cuda := local_cuda(version) or _build_word(value)):
        draft.component("cuda", cuda, where, strength, exact=exact)


def _without_frills(component: str, value: str) -> str:
    """The part of ``value`` in which the version stands; tools wrap each component's in words of their own."""
    if component == "python":
        value = value.split("(", maxsplit=1)[0]
    if tuple_like := re.match(r"\((\d+), ?(\d+), ?(\d+)\)", value):
        value = ".".join(tuple_like.groups())
    if component == "gcc":
        return re.sub(r"\([^)]{0,80}\)", " ", value)
    if component == "glibc":
        return value.replace("glibc-", " ").replace("glibc", " ")
    if component == "cudnn" and (match := re.search(r"so\.(\d+\.\d+\.\d+)", value)):
        return match[1]
    return value.split(",", maxsplit=1)[0] if component == "deepspeed" else value


def _build_word(value: str) -> str | None:
    """CUDA of `2.1.0 cu118`: the build beside the version, not in it."""
    build = re.search(r"\bcu(\d{2})(\d)\b", value)
    return f"{build[1]}.{build[2]}" if build else None


def read_gpus(draft: Draft, value: str, *, single: bool) -> None:
    """GPUs by name, and how many: ``8 x V100``. ``single`` where the key has already said that it is one."""
    if value.lower().startswith(("none", "no", "n/a")):
        draft.host["gpu_absent"] = "yes"
        return
    name = re.sub(r"^GPU \d+:\s*", "", value)
    architecture = gpu_architecture(name, gpu_table())
    number = 1 if single else _number_of(name)
    known = architecture is not None or re.search(r"nvidia|geforce|tesla|rtx|quadro|gtx", name, re.IGNORECASE)
    if known:
        for _ in range(min(max(number, 1), 64)):
            draft.gpu(name[:120])
    elif number > 1:
        draft.gpu_count = number
    if architecture:
        draft.component("gpu", architecture, f"GPU {name[:60]}", 3)


def _number_of(name: str) -> int:
    """How many GPUs a name speaks of; two stands for any number above one that is not told."""
    if counted := _COUNT.search(name):
        return int(next(g for g in counted.groups() if g))
    return 2 if re.search(r"several|multiple|multi|多", name, re.IGNORECASE) else 1


def _platform(draft: Draft, _key: str, value: str, where: str) -> None:
    draft.host.setdefault("os", value[:160])
    if match := re.search(r"glibc(\d+\.\d+)", value):
        draft.component("glibc", match[1], where, 3)
    elif glibc := glibc_of(value):
        draft.component("glibc", glibc, value[:60], 1)
    if "aarch64" in value:
        draft.host["machine"] = "aarch64"


def _ulimit(draft: Draft, key: str, value: str, _where: str) -> None:
    if key.endswith("-l"):
        size = -1 if "unlimited" in value else int(value) * 1024 if value.isdecimal() and len(value) < 15 else None
        if size is not None:
            draft.limits["memlock"] = size
    elif key.endswith("-n") and ((value.isdecimal() and len(value) < 12) or value == "unlimited"):
        draft.limits["nofile"] = -1 if value == "unlimited" else int(value)


def _listed_gpus(draft: Draft, _key: str, value: str, _where: str) -> None:
    read_gpus(draft, value, single=False)


def _numbered_gpu(draft: Draft, _key: str, value: str, _where: str) -> None:
    """`GPU 0: name`; passed over where a tool has already said how many there are."""
    if draft.host.get("gpu_number") != "known":
        read_gpus(draft, value, single=True)


def _capability(draft: Draft, _key: str, value: str, where: str) -> None:
    if match := re.search(r"(\d{1,2})\.(\d)", value):
        draft.component("gpu", f"sm_{match[1]}{match[2]}", where, 3)


def _framework(draft: Draft, _key: str, value: str, _where: str) -> None:
    note_present(draft, value.split(maxsplit=1)[0])


def _container(draft: Draft, _key: str, value: str, where: str) -> None:
    note_container(draft, value, where)


def _stated_cuda(draft: Draft, _key: str, value: str, _where: str) -> None:
    """CUDA without a word of whose: torch's, the toolkit's or the driver's."""
    if (found := version_in(value)) and found[1]:
        draft.host.setdefault("cuda_stated", found[0])


def _machine(draft: Draft, _key: str, value: str, _where: str) -> None:
    draft.host["machine"] = value[:40]


def _shared_memory(draft: Draft, _key: str, value: str, _where: str) -> None:
    if (size := bytes_of(value)) is not None:
        draft.limits["shm"] = size


_READERS: dict[str, _Reader] = {
    **dict.fromkeys(
        (
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
        ),
        _listed_gpus,
    ),
    **dict.fromkeys(("gpu_arch", "gpu arch", "compute capability", "gpu capability"), _capability),
    "framework": _framework,
    **dict.fromkeys(("container", "docker image", "image", "base image"), _container),
    **dict.fromkeys(("os", "operating system", "platform", "system"), _platform),
    **dict.fromkeys(("cuda version", "cuda"), _stated_cuda),
    **dict.fromkeys(("arch", "architecture", "machine"), _machine),
}
