"""Lines of the form KEY: VALUE, as reporting tools of PyTorch and the frameworks, and people, write them."""

# ruff: noqa: RUF001, S108
# People write full-width colons and multiplication signs; /dev/shm is read about, not written to.

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache

from envsmith.doctor.facts import Draft
from envsmith.doctor.vocabulary import words
from envsmith.frameworks import added_frameworks
from envsmith.knowledge.graph.load import components, gpu_names
from envsmith.knowledge.symbols.system_libraries import system_libraries
from envsmith.model.component import Role
from envsmith.model.project_name import normal_name
from envsmith.model.version import local_cuda, version_key

_PAIR = re.compile(
    r"^[\s>*|#-]{0,12}[`'\"]?([A-Za-z][\w ()?/.`,\[\]\-]{0,60}?)[`'\"]?\s{0,8}(?:[:=：]|\.{4,200}|\t"
    r"|\s\|)\s{0,20}[`'\"]?(\S.{0,600})$"
)
# `CUDA 11.4`, `Python 3.8`, `flash-attn 2.8.3`, `transformers-4.49.0`: a name and a version alone on a line.
_BARE = re.compile(
    r"^[\s>*#-]{0,12}([A-Za-z][A-Za-z-]{2,24}?)(?:\s{1,3}|(?<!NCCL)\sversion\s|-(?=\d+\.\d))[vV]?(\d[\w.+]{0,40})\s*$"
)
# Using `timm-0.3.2`, with `mmcv==1.3.9`: a release in a sentence, marked as a piece of code.
_MARKED = re.compile(
    r"\b(?:[Uu]sing|[Ww]ith|[Oo]n|[Ii]nstalled|have) `([A-Za-z][A-Za-z-]{2,24})(?:-|==| )v?(\d[\w.+]{0,40})`"
)
# `4xRTX 4090`, `multiple RTX 4090 GPUs` in a sentence; the table of GPU names decides whether it is one.
_MANY_GPUS = re.compile(
    r"(?<![\w.])(?:(\d{1,2})\s{0,2}[x×*]\s{0,2}|(?:multiple|several|dual|two|four|eight|both)\s{1,2})((?:(?:NVIDIA"
    r"|GeForce|Tesla|Quadro)\s)?(?:RTX|GTX|A|H|V|B|L|P|T)\s?\d{1,4}[\w ]{0,14})"
)
# `training with NVIDIA GeForce RTX 5090`: the maker's name, or RTX and four digits, leave no doubt that a GPU is meant.
_ONE_GPU = re.compile(
    r"(?:\b(?:NVIDIA|GeForce|Tesla|Quadro) (?:GeForce |Tesla |Quadro )?(?=(?:RTX|GTX|A|H|V|B|L|P|T) ?\d)"
    r"|(?<![\w-])(?=[RG]TX ?\d{4}))([A-Z]{1,3} ?\d{1,4}(?:D| ?Ti| SUPER)?)\b"
)
# A line that speaks of what would be needed or tried states nothing.
_CONDITIONAL = re.compile(
    r"requir|need|support|later|newer|older|below|above|than|since|until|only|upgrad|downgrad|instead|compatib"
    r"|tried|works?\b|fixed|change|\bor\b|→|->",
    re.IGNORECASE,
)
# What tools write of a package that is not there: transformers-cli env and trl env say `not installed`.
_ABSENT = re.compile(r"not installed|not found|n/?a\b|none\b|no\b|missing", re.IGNORECASE)
# What `collect_env` writes before each package of its lists: those lines are read as packages.
_INSTALLER = re.compile(r"pip[0-9 ]*|conda[0-9 ]*")
_FRAMEWORKS = frozenset(added_frameworks())
# The top modules of frameworks, as a pattern.
OWN_MODULES = "|".join(framework.module.partition(".")[0] for framework in added_frameworks().values())
# What variables of frameworks begin with.
OWN_PREFIXES = "|".join(name.partition("-")[0].upper() for name in added_frameworks())
_VARIABLE = re.compile(
    rf"(?:NCCL|TORCH|CUDA|GLOO|DS|PDSH|MASTER|LD|NVTE|UCX|OMPI|FI|NV|PYTORCH|XDG|HF|TRITON|ACCELERATE"
    rf"|{OWN_PREFIXES})_[A-Z0-9_]{{1,60}}"
    "|RANK|WORLD_SIZE|LOCAL_RANK|CPATH|LIBRARY_PATH|PATH"
)


@lru_cache(maxsize=1)
def _component_keys() -> dict[str, str]:
    return {key: component for component, keys in words().keys.items() for key in keys}


@lru_cache(maxsize=1)
def _enumerated() -> re.Pattern[str]:
    """Return the pattern of ``nvcc 11.5.119, pytorch 2.1.0+cu121``: names of an enumeration with their versions."""
    return re.compile(
        rf"(?<![\w/.=<>~-])({'|'.join(words().enumerated)})(?: version)?(?:\s{{1,2}}|\s?[:=]{{1,2}}\s?|-)[vV]?"
        r"(\d{1,3}\.\d{1,3}(?:\.\d{1,4})?(?:\+cu\d{2,3}|\+cpu)?)(?![\w./-]*\w)",
        re.IGNORECASE,
    )


def read_lines(text: str, draft: Draft, source: str) -> None:
    """Read every line that states something, in time linear in the length of the text. Unknown keys are passed over."""
    for line in text.split("\n"):
        if not 3 < len(line) < 800:
            continue
        _one_gpu(draft, line, source)
        if "`" in line and (marked := _MARKED.search(line)) and not _CONDITIONAL.search(line):
            _bare(draft, marked[1], marked[2], source)
        pair = _PAIR.match(line)
        if pair:
            _pair(draft, pair[1].strip(), pair[2].strip(" `'\"|,"), source)
        elif bare := _BARE.match(line):
            _bare(draft, bare[1], bare[2], source)
        else:
            _enumeration(draft, line, source)


def _one_gpu(draft: Draft, line: str, source: str) -> None:
    """Read a GPU named in a sentence or a title, where no list names them."""
    if draft.gpus or "gpu" in draft.components or not (one := _ONE_GPU.search(line)) or _CONDITIONAL.search(line):
        return
    if architecture := gpu_architecture(one[1]):
        draft.component("gpu", architecture, f"{source}: {one[1]}", 1)


def _enumeration(draft: Draft, line: str, source: str) -> None:
    """Read versions of two or more components named in one sentence, as people describe what they have, or of CUDA alone."""
    if not draft.gpus and (many := _MANY_GPUS.search(line)) and gpu_architecture(many[2]):
        read_gpus(draft, f"{many[1] or 2} x {many[2].strip()}", single=False)
    named = _enumerated().findall(line)
    names = {name.lower() for name, _ in named}
    if (len(names) < 2 and names != {"cuda"}) or _CONDITIONAL.search(line):
        return
    for name, version in named[:12]:
        if name.lower() == "cuda":
            draft.host.setdefault("cuda_stated", version)
            continue
        component = _component_keys().get(name.lower()) or is_distribution(fold(name))
        if component and (parsed := version_in(version)):
            read_version(draft, component, parsed[0], f"{source}: {name} {version}", 2)


def _bare(draft: Draft, name: str, version: str, source: str) -> None:
    parsed = version_in(version)
    component = _component_keys().get(name.lower()) or is_distribution(fold(name))
    if parsed and component:
        draft.component(component, parsed[0], f"{source}: {name} {version}", 2, exact=parsed[1])
    elif parsed and name.lower() == "cuda":
        draft.host.setdefault("cuda_stated", parsed[0])


def _pair(draft: Draft, raw: str, value: str, source: str) -> None:
    if _VARIABLE.fullmatch(raw):
        draft.variable(raw, value)
        return
    key = re.sub(r"[`?()\[\]]", "", raw.lower()).strip()
    key = re.sub(r"\s+", " ", key)
    where = f"{source}: {raw}"
    if component := _component_keys().get(key):
        read_version(draft, component, value, where)
    elif reader := value_reader(key):
        reader(draft, key, value, where)
    elif not _INSTALLER.fullmatch(key):
        _other(draft, key, value, where)


def _other(draft: Draft, key: str, value: str, where: str) -> None:
    name = key.removesuffix(" version").strip()
    if " " in name or len(name) > 40:
        return
    value = value[len(name) :].lstrip(" -") if value.lower().startswith(name) else value
    component = is_distribution(fold(name))
    if component in _FRAMEWORKS and not re.match(r"[vV=<>~! ]*\d", value):
        if not _ABSENT.match(value):
            note_present(draft, component)
    elif component and value[:1].isdigit() | value.startswith(("v", "=", "<", ">", "~")):
        read_version(draft, component, value, where)


def glibc_of(system: str) -> str | None:
    """Return ``2.31`` of ``Ubuntu 20.04.6 LTS (x86_64)``, or ``None`` where no known release is named."""
    named = system_libraries().named_in(system)
    return named[1].glibc if named else None


# What stands behind the colon of a line KEY: VALUE: one reader for each kind of value, found by its key.


# Takes the draft, the key as it was folded, the value, and where both stand.
_Reader = Callable[[Draft, str, str, str], None]
# `8 x V100`, `8xH100`, `RTX 3090 x2 per node`, `4 GPUs`; never the X of `RTX 4090`.
_COUNT = re.compile(
    r"(?<![\w.])(\d{1,3})\s{0,2}[xX×*]\s{0,2}(?=[A-WYZa-wyz])|(?<=\s)[xX×]\s?(\d{1,3})(?!\d)|(?<![\w.])"
    r"(\d{1,3})\s?GPUs?\b"
)


def value_reader(key: str) -> _Reader | None:
    """Return the reader of a key (lower case, single blanks) that names no component, or ``None``."""
    if reader := _readers().get(key):
        return reader
    if re.fullmatch(r"gpu \d+", key):
        return _numbered_gpu
    if key.startswith("ulimit"):
        return _ulimit
    return _shared_memory if "/dev/shm" in key else None


def read_version(draft: Draft, component: str, value: str, where: str, most: int = 3) -> None:
    """Add the version of a component.

    ``most`` is the strength of an exact one, and a framework without a number is present.
    """
    value = _without_frills(component, value)
    if component in _FRAMEWORKS and not re.match(r"[vV=<>~! ]*\d", value):
        if not _ABSENT.match(value):
            note_present(draft, component)
        return
    parsed = version_in(value)
    if parsed is None:
        if component == "toolkit" and value.lower().startswith(("n/a", "none", "no nvcc", "not found", "could not")):
            draft.tools["nvcc"] = None
        return
    version, exact = parsed
    if component == "driver" and int(version.split(".")[0]) < 300:
        return
    strength = most if exact else 1
    draft.component(component, version, where, strength, exact=exact)
    if component == "torch" and (cuda := local_cuda(version) or _build_word(value)):
        draft.component("cuda", cuda, where, strength, exact=exact)


def _without_frills(component: str, value: str) -> str:
    """Return the part of ``value`` in which the version stands. Tools wrap each component's in words of their own."""
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
    return value.split(",", maxsplit=1)[0] if component in _FRAMEWORKS else value


def _build_word(value: str) -> str | None:
    """Return the CUDA of `2.1.0 cu118`, where the build stands beside the version."""
    build = re.search(r"\bcu(\d{2})(\d)\b", value)
    return f"{build[1]}.{build[2]}" if build else None


def read_gpus(draft: Draft, value: str, *, single: bool) -> None:
    """Add GPUs by name, and how many: ``8 x V100``. ``single`` where the key has already said that it is one."""
    if value.lower().startswith(("none", "no", "n/a")):
        draft.host["gpu"] = "none"
        return
    name = re.sub(r"^GPU \d+:\s*", "", value)
    architecture = gpu_architecture(name)
    number = 1 if single else _number_of(name)
    is_gpu = architecture is not None or re.search(r"nvidia|geforce|tesla|rtx|quadro|gtx", name, re.IGNORECASE)
    if is_gpu:
        for _ in range(min(max(number, 1), 64)):
            draft.gpu(name[:120])
    elif number > 1:
        draft.gpu_count = number
    if architecture:
        draft.component("gpu", architecture, f"GPU {name[:60]}", 3)


def _number_of(name: str) -> int:
    """Return how many GPUs a name speaks of. Two stands for any number above one that is not said."""
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


def _numbered_gpu(draft: Draft, _key: str, value: str, _where: str) -> None:
    """Read `GPU 0: name`, but not where a tool has already said how many there are."""
    if draft.host.get("gpu_number") != "known":
        read_gpus(draft, value, single=True)


def _capability(draft: Draft, _key: str, value: str, where: str) -> None:
    if match := re.search(r"(\d{1,2})\.(\d)", value):
        draft.component("gpu", f"sm_{match[1]}{match[2]}", where, 3)


def _stated_cuda(draft: Draft, _key: str, value: str, _where: str) -> None:
    """Read CUDA without a word of whose it is: torch's, the toolkit's or the driver's."""
    if (parsed := version_in(value)) and parsed[1]:
        draft.host.setdefault("cuda_stated", parsed[0])


def _cuda_available(draft: Draft, _key: str, value: str, _where: str) -> None:
    if value.lower().startswith(("false", "no")):
        draft.host["cuda_available"] = "no"


def _shared_memory(draft: Draft, _key: str, value: str, _where: str) -> None:
    if (size := bytes_of(value)) is not None:
        draft.limits["shm"] = size


_OF_VALUES: dict[str, _Reader] = {
    "gpus": lambda draft, _key, value, _where: read_gpus(draft, value, single=False),
    "capability": _capability,
    "framework": lambda draft, _key, value, _where: note_present(draft, value.split(maxsplit=1)[0]),
    "container": lambda draft, _key, value, where: note_container(draft, value, where),
    "system": _platform,
    "cuda": _stated_cuda,
    "machine": lambda draft, _key, value, _where: draft.host.update(machine=value[:40]),
    "cuda_available": _cuda_available,
}


@lru_cache(maxsize=1)
def _readers() -> dict[str, _Reader]:
    return {key: _OF_VALUES[kind] for kind, keys in words().values.items() for key in keys}


# Distributions and spelled-out names -> components, with the tables of the graph loaded once.


_components, _gpu_names = cache(components), cache(gpu_names)
# Distributions whose component is not of a role that a distribution may stand for otherwise.
_CORE = frozenset({"torch", "nccl", "cudnn", "triton"})


def component_of(name: str) -> str | None:
    """Return the component that people mean by ``name``, or ``None``."""
    component = _components().find(name)
    return component.name if component else None


def is_distribution(name: str) -> str | None:
    """Return the component that a *distribution* of that name is.

    Components of the host never are: ``cuda-toolkit`` is not nvcc.
    """
    component = _components().find(name)
    if component is None:
        return None
    if component.name in _CORE or component.role in (Role.FRAMEWORK, Role.COMPANION):
        return component.name
    return None


def note_distribution(draft: Draft, name: str, version: str, source: str, strength: int = 3) -> None:
    """Record an installed distribution, its component, and what torch's local version says of CUDA."""
    parsed = version_in(version)
    if parsed is None:
        return
    folded = fold(name)
    draft.distribution(folded, parsed[0])
    component = is_distribution(folded)
    if component is None or (
        folded in {"transformer-engine-cu12", "transformer-engine-cu13"} and "transformer-engine" in draft.distributions
    ):
        return
    draft.component(component, parsed[0], f"{source}: {folded}", strength)
    cuda = local_cuda(parsed[0]) if component == "torch" else None
    if cuda:
        draft.component("cuda", cuda, f"{source}: {folded} {parsed[0]}", strength)


def note_container(draft: Draft, image: str, source: str) -> None:
    """Record the image that somebody works in. Of NVIDIA's PyTorch and NeMo images the release is a component."""
    draft.host["container"] = image[:200]
    if match := re.search(r"\b(pytorch|nvidia/nemo)[:_-](2\d\.(?:0[1-9]|1[0-2]))(?:-py3|\b)", image):
        draft.component("ngc-pytorch" if match[1] == "pytorch" else "ngc-nemo", match[2], source, 3)


def note_present(draft: Draft, name: str) -> None:
    """Record that a component is in use, its version unknown (``host["present"]``)."""
    component = component_of(name.split(".", maxsplit=1)[0])
    if component:
        present = [p for p in draft.host.get("present", "").split(",") if p]
        draft.host["present"] = ",".join(dict.fromkeys([*present, component]))


# Versions, sizes and GPU names as people and tools write them.


_VERSION = re.compile(
    r"(?<![\w.])[vV]?(\d{1,5}(?:\.\d{1,9}){1,4}(?:\.?(?:a|b|rc|dev|post)\d{0,12})?(?:\+[A-Za-z0-9][\w.]{0,40})?)"
    r"(?![\w])"
)
_BOUND = re.compile(r"[<>~!]=?|\bor\b|\btried\b|\d\s*/\s*\d|\bnightly\b|[*x]\b")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(i?)[Bb]?\b")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def fold(name: str) -> str:
    """Return a distribution's normalised name (PEP 503)."""
    return normal_name(name).strip("-")


def version_in(text: str) -> tuple[str, bool] | None:
    """Return the first version of a text and whether the text says exactly that: ``(1.24, False)`` of ``>=1.24``."""
    match = _VERSION.search(text[:400])
    if match is None:
        single = re.fullmatch(r"\s*[vV=]*(\d{1,5})\s*", text[:40])
        return (single[1], True) if single else None
    version = match[1].rstrip(".")
    try:
        version_key(version)
    except ValueError:
        return None
    return version, _BOUND.search(text[:400]) is None


def first_version(text: str) -> str | None:
    """Return the first version of a text, or ``None``."""
    parsed = version_in(text)
    return parsed[0] if parsed else None


def cuda_of_level(level: str) -> str | None:
    """Return the driver's CUDA level from the runtime's number: ``12.2`` of ``12020``."""
    number = int(level) if level.isdecimal() and len(level) <= 6 else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 6000 else None


def bytes_of(text: str) -> int | None:
    """Return ``64M``, ``31.32 GB``, ``65536k`` in bytes, and -1 for ``unlimited``."""
    if "unlimited" in text.lower():
        return -1
    match = _SIZE.search(text.upper()[:80])
    return int(float(match[1]) * _UNIT[match[2]]) if match else None


_NOISE = re.compile(
    r"nvidia|geforce|tesla|graphics|laptop|gpu|generation|edition|workstation|server|max-q|\b\d+\s*gb\b"
    r"|[-_]?\d+g[bi]b?\b|pcie|sxm\d?|hbm\w*|nvl\d*|\(.{0,80}?\)|\b\d+\s*x\b|\bx\s*\d+\b"
)


def gpu_architecture(name: str) -> str | None:
    """Return ``sm_80`` of ``8x NVIDIA A100-SXM4-80GB (p4d)``, or ``None`` for a GPU that the table does not know."""
    direct = re.search(r"\bsm_?(\d{2,3})[af]?\b", name, re.IGNORECASE)
    if direct:
        return f"sm_{direct[1]}"
    table = _gpu_names()
    short = _NOISE.sub(" ", name[:200].lower())
    words = [w for w in re.split(r"[\s,/_:;-]+", short) if w]
    for size in (4, 3, 2, 1):
        for start in range(len(words) - size + 1):
            joined = "".join(words[start : start + size])
            for spelling in (joined, f"rtx{joined}", re.sub(r"^\d{1,2}x?(?=[a-z])|(?<=\d{4})d$", "", joined)):
                if spelling in table and (size > 1 or not spelling.isdigit() or len(spelling) == 4):
                    return table[spelling]
    series = re.search(r"\brtx\s*(20|30|40|50)(?:00|xx)?\b", name[:200], re.IGNORECASE)
    return {"20": "sm_75", "30": "sm_86", "40": "sm_89", "50": "sm_120"}[series[1]] if series else None
