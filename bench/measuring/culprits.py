"""What a record calls its culprit -> what was there: versions inside its ranges, facts, and the names that a finding must have.

People write culprits in prose (``ssh keys``, ``pybind11/python3-config missing``, ``RTX 40xx, NCCL_P2P_DISABLE unset``). One table of words says what
state of which fact they mean; it knows kinds of things, not records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envsmith.doctor.read.lines import component_of, gpu_architecture
from envsmith.doctor.stated_environment import note_unset, read_fact
from envsmith.solver import default_solver
from measuring.environments import KEYS, Told, release_before, versions_in

# What people call components in prose, longest first where one contains another; `megatron` alone stands for its library.
PROSE = {
    "cuda toolkit": "toolkit",
    "system cuda": "toolkit",
    "nvcc": "toolkit",
    "toolkit": "toolkit",
    "nvidia driver": "driver",
    "driver": "driver",
    "transformer_engine": "transformer-engine",
    "transformer-engine": "transformer-engine",
    "flash-attn": "flash-attn",
    "flash_attn": "flash-attn",
    "deepspeed": "deepspeed",
    "colossalai": "colossalai",
    "megatron": "megatron-core",
    "torch": "torch",
    "gcc": "gcc",
    "apex": "apex",
    "nccl": "nccl",
    "cudnn": "cudnn",
    "triton": "triton",
    "python": "python",
    "numpy": "numpy",
    "accelerate": "accelerate",
    "transformers": "transformers",
}


@dataclass(frozen=True, slots=True)
class Words:
    """A pattern over a culprit's prose, the fact it stands for, and the name that a finding must have (its key where nothing else is said)."""

    pattern: str
    key: str
    value: str
    subject: str = ""


# States that such words mean. 64 MB is Docker's default of /dev/shm, 64 kB that of locked memory, 256 a common soft limit of macOS and services.
WORDS = (
    Words(r"/dev/shm|\bshm\b|shm-size|shared memory", "limit.shm", "64M"),
    Words(r"memlock|ulimit -l|locked.memory", "limit.memlock", "64k"),
    Words(r"nofile|ulimit -n|open.files", "limit.nofile", "256"),
    Words(r"\bssh\b|passwordless", "ssh", "refused"),
    Words(r"/etc/hosts|host ?name|name resolution|\bDNS\b", "hostname", "unresolved"),
    Words(r"torch_extensions|extensions? cache|stale .{0,20}(?:cache|extension)", "extensions_cache", "stale"),
    Words(r"nvhpc|hpc[_ ]sdk", "toolkit_vendor", "nvhpc"),
    Words(r"\blib64\b", "cuda_home.lib64", "no"),
    Words(r"link path|l?curand", "library.libcurand", "none"),
    Words(r"without .{0,12}(?:cuda_ext|cpp_ext|extensions?)|python-only", "module.fused_layer_norm_cuda", "none"),
    Words(r"\bbf16\b|bfloat16", "config.bf16.enabled", "true", "gpu"),
)
# Cards whose peer access is the trouble: the variable that turns it off is not set, and there are two of them.
_PEER = re.compile(r"\bP2P\b(?!_)|peer.to.peer|peer access", re.IGNORECASE)
_LAUNCHER = re.compile(r"launcher (?:environment )?variables|\brank variables|RANK\b", re.IGNORECASE)
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b(?:\s*=\s*(\S+))?")
_GONE = r"(?:missing|not installed|not found|not there|absent|unavailable)"
_MISSING = re.compile(
    rf"((?:cuda toolkit)|[A-Za-z][\w.+-]*(?:/[A-Za-z][\w.+-]*)*)(?: \w+){{0,1}}? (?:is |was |are )?{_GONE}"
)
_NO = re.compile(r"^(?:no|without)\s+([A-Za-z][\w+-]*)(?: installed)?$")
_OTHER_TORCH = re.compile(r"(?:built|compiled|binary).{0,20}(?:older|other|another|different|wrong) torch")
_OTHER_TREE = re.compile(
    r"(?:example|checkout|source|script|main)\b.{0,30}(?:differ|mismatch|newer|older|other|different)"
)


def ranges(culprit: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """``(component, text with its range)`` of a culprit, from its keys and from its prose."""
    for key, value in culprit.items():
        name = KEYS.get(key) or PROSE.get(key) or component_of(key)
        if name and key not in {"component", "range"}:
            yield name, _newest(name) if value == "any" else value
    prose = culprit.get("component", "")
    low = prose.lower()
    for words, name in PROSE.items():
        if match := re.search(rf"\b{words}\b\s*((?:[<>=]{{1,2}}\s*)?\d[\w.+]*)", low):
            yield name, match[1]
    if match := re.search(r"\bcu(\d{2})(\d)\b", low):
        yield "cuda", f"{match[1]}.{match[2]}"
    both = f"{prose} {culprit.get('range', '')}"
    if re.search(r"\b(?:sm|compute)_\d", both):
        yield "gpu", both
    named = [name for words, name in PROSE.items() if re.search(rf"\b{words}\b", low)]
    if named and "range" in culprit:
        yield named[0], re.sub(r"\bwith (?:sm|compute)_\d+", "", culprit["range"])


def _newest(component: str) -> str:
    listed = default_solver().compiled.versions.get(component, ())
    return listed[-1] if listed else ""


def _told(culprit: Mapping[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in culprit.items()}


def prose_of(culprit: Mapping[str, str]) -> str:
    """All of a culprit that is written in words."""
    return " ".join(v for k, v in culprit.items() if k in {"component", "range"} or not re.search(r"\d", v))


def missing_in(prose: str) -> tuple[list[str], list[str]]:
    """Components and other programs that the prose calls missing."""
    if re.search(r"_(?:EXT|HOME|PATH)\b.{0,3}missing", prose):
        return [], []
    spelt = [n for m in _MISSING.finditer(prose) for n in m[1].split("/")]
    if alone := _NO.match(prose.strip()):
        spelt.append(alone[1])
    names = [n.strip(",.") for n in spelt if not n.isupper()]
    known = {n: PROSE.get(n.lower()) or component_of(n) for n in names}
    return [c for c in known.values() if c], [n for n, c in known.items() if not c]


def variables_in(prose: str, *, alone: bool) -> dict[str, str | None]:
    """Variables that the prose names with the value they have, ``None`` for unset; without either only where nothing else is the culprit."""
    found: dict[str, str | None] = {}
    unset = re.search(r"\b(?:unset|not set|missing|undefined)\b", prose)
    if _LAUNCHER.search(prose) and unset:
        found |= dict.fromkeys(_RANKS)
    for match in _VARIABLE.finditer(prose):
        name, value = match[1], match[2]
        if name.startswith(("RLIMIT_", "GLIBCXX_", "CUDA_EXT")) or re.fullmatch(r"[A-Z]+_\d.*", name):
            continue
        if alone or unset:
            found[name] = value
    return found


def culprits(record: Mapping[str, Any]) -> frozenset[str]:
    """The names that a finding must have: components (torch and the CUDA it is built with count as one) and facts."""
    culprit = _told(record.get("culprit") or {})
    names = {KEYS.get(k) or PROSE.get(k) or component_of(k) for k in culprit if k not in {"component", "range"}}
    prose = f"{culprit.get('component', '')} {culprit.get('range', '')}"
    low = prose.lower()
    names |= {PROSE.get(low.strip())}
    facts = facts_in(culprit)
    if re.search(r"\d|[<>=]", low) and not facts:
        names |= {name for words, name in PROSE.items() if re.search(rf"\b{words}\b", low)}
        names |= {"cuda"} if re.search(r"\bcu\d{3}\b", low) else set()
        names |= {"gpu"} if re.search(r"\b(?:sm|compute)_\d", low) else set()
    return frozenset("torch" if n == "cuda" else n for n in {*names, *facts} if n)


def facts_in(culprit: Mapping[str, str]) -> list[str]:
    """The names of the facts that a culprit is about."""
    prose = prose_of(culprit)
    found = [w.subject or w.key for w in WORDS if re.search(w.pattern, prose, re.IGNORECASE)]
    found += ["glibcxx"] if "GLIBCXX" in prose else []
    found += ["NCCL_P2P_DISABLE"] if _PEER.search(prose) else []
    found += ["gpu"] if not found and _gpu_in(prose) else []
    components, tools = missing_in(prose)
    found += [*components, *(f"tool.{t}" for t in tools)]
    found += variables_in(prose, alone=not found)
    if set(_RANKS) <= set(found):
        found = [n for n in found if n not in _RANKS] + ["RANK"]
    return list(dict.fromkeys(found))


def add_culprit(told: Told, culprit: Mapping[str, Any]) -> tuple[str, ...]:
    """Fill what was left unsaid with a version inside the culprit's ranges and with the facts it names; the names that were filled."""
    text = _told(culprit)
    filled = []
    for name, spelt in ranges(text):
        found = versions_in(name, spelt)
        if found and told.versions.get(name, ("*",)) == ("*",):
            told.versions[name] = found[:1]
            filled.append(name)
        elif name == "gpu" and found and found != told.versions["gpu"]:
            told.facts.variable("TORCH_CUDA_ARCH_LIST", re.sub(r"^sm_(\d+)(\d)$", r"\1.\2", found[0]))
    _add_facts(told, prose_of(text))
    for word in re.findall(r"[A-Za-z][\w-]{2,}", prose_of(text)):  # a partner that is named without a release
        if (name := component_of(word)) and default_solver().compiled.roles[name].value == "companion":
            told.versions.setdefault(name, ("*",))
    for name in culprits({"culprit": text}) - {"torch", "gpu", "cuda"}:
        if name in default_solver().compiled.roles:
            told.versions.setdefault(name, ("*",))
    _add_pairs(told, text)
    return tuple(filled)


def _add_facts(told: Told, prose: str) -> None:
    facts = told.facts
    for words in WORDS:
        kind, _, name = words.key.partition(".")
        stated = words.key in facts.host or (kind == "limit" and name in facts.limits)
        if re.search(words.pattern, prose, re.IGNORECASE) and not stated:
            read_fact(facts, words.key, words.value)
    if (match := re.search(r"GLIBCXX_3\.4\.(\d{1,2})", prose)) and int(match[1]):
        read_fact(facts, "glibcxx", f"3.4.{int(match[1]) - 1}")
    if _PEER.search(prose):
        note_unset(facts, "NCCL_P2P_DISABLE")
        facts.gpu_count = max(facts.gpu_count or len(facts.gpus), 2)
    if not facts.gpus and (name := _gpu_in(prose)):
        facts.gpu(name)
    components, tools = missing_in(prose)
    for name in components:
        told.versions[name] = ("none",)
    for name in tools:
        read_fact(facts, f"tool.{name}", "none")
    for name, value in variables_in(prose, alone=not facts_in({"component": _VARIABLE.sub("", prose)})).items():
        if name not in facts.variables:
            facts.variable(name, value) if value else note_unset(facts, name)
        if name.endswith("_IFNAME"):
            read_fact(facts, "nodes", "2")  # it is of no account on one
    if "ParallelFileCacheManager" in prose:
        facts.variable("TRITON_CACHE_MANAGER", "megatron.core.ssm.triton_cache_manager:ParallelFileCacheManager")


def _gpu_in(prose: str) -> str | None:
    """The GPU that the prose calls by the name of its card."""
    match = re.search(r"\b(?:RTX|GTX|GeForce|Tesla|Quadro)\s?[\w-]+(?: \w+)?", prose)
    return match[0] if match and gpu_architecture(match[0]) else None


def _add_pairs(told: Told, culprit: Mapping[str, str]) -> None:
    """A binary or a source tree that is of another release than what is installed."""
    for key, value in culprit.items():
        name = PROSE.get(key) or component_of(key)
        if name and _OTHER_TORCH.search(value) and (torch := told.versions.get("torch")):
            told.facts.host[f"built_for.{name}"] = _neighbour("torch", torch[0])
        if name and _OTHER_TREE.search(value) and told.versions.get(name, ("*",)) != ("*",):
            told.facts.host[f"checkout.{name}"] = _neighbour(name, told.versions[name][0])


def _neighbour(component: str, version: str) -> str:
    """Another minor series of a component: the one before, else the one after."""
    series = [".".join(v.split(".")[:2]) for v in default_solver().compiled.versions.get(component, ())]
    listed = list(dict.fromkeys(s for s in series if re.fullmatch(r"\d+\.\d+", s)))
    own = ".".join(version.split(".")[:2])
    place = listed.index(own) if own in listed else 0
    return next((s for s in (*reversed(listed[:place]), *listed[place + 1 :]) if s != own), "0.0")


def newest_then(component: str, record: Mapping[str, Any]) -> str | None:
    """The newest release of a component on the day of the report: what a reporter who names no version most likely had."""
    return release_before(component, str(record.get("date") or "2100-01-01"))
