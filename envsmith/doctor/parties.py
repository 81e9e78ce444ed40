"""Whose a class or a symbol is, and which package asks for what another does not have.

The names that a package gives its own classes (``owners`` of ``matrix/signatures.yaml``), the names in a symbol and the
calls of the traceback say who they are.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass
from functools import lru_cache

from envsmith.doctor.diagnosis import Taxonomy
from envsmith.doctor.facts import Facts
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.read.tracebacks import frames_before
from envsmith.doctor.signatures import Hit, catalogue
from envsmith.doctor.vocabulary import words

# Those where the name is known to be gone, so that the package that imports it is too old.
_REMOVED = frozenset({"torch-six", "triton-attribute", "numpy-alias-removed"})
# Ray prints the releases of the cluster, then those of the process.
_RAY = re.compile(r"\b(Ray|Python|Cloudpickle): (\d[\w.]{1,30})")


# An address in the messages of torch, gloo and NCCL: `(10.0.0.1, 29500)`, `remote=[10.0.0.1]:29500`, `10.0.0.1<29500>`.
_PEER = re.compile(
    r"\((?P<pair>[\w.-]{3,80}), (?P<of_pair>\d{2,5})\)|(?:\b(?:to|on|at|host|address|peer) |remote=)\[?"
    r"(?P<host>(?:\d{1,3}\.){3}\d{1,3}|[A-Za-z][\w-]*(?:\.[\w-]+)*|[0-9a-f:]{2,40})\]?(?::|<)(?P<port>\d{2,5})\b"
)
_PORT = re.compile(r"\bport`?:? `?(\d{2,5})\b")
_BESIDE = 400
_OF_NETWORK = frozenset({"port-in-use", "rendezvous-address", "gloo-wrong-interface", "nccl-wrong-interface"})


def with_peer(hit: Hit, text: str) -> Hit:
    """Return a message about the network with the address that its line names, or one of the lines beside it."""
    if hit.signature.cause not in _OF_NETWORK:
        return hit
    around = text[max(0, hit.position - _BESIDE) : hit.position + _BESIDE]
    match, port = _PEER.search(hit.text) or _PEER.search(around), _PORT.search(hit.text)
    if match:
        host, number = match["pair"] or match["host"], match["of_pair"] or match["port"]
        return hit.naming(peer=f"{host}:{number}", peer_host=host, peer_port=number)
    return hit.naming(peer_port=port[1]) if port else hit


def with_parties(hit: Hit, text: str) -> Hit:
    """Return the hit with the packages or releases that it is about."""
    if hit.signature.id == "ray-cluster-versions":
        return _of_cluster(hit, text[hit.position : hit.position + 800])
    if package := words().header_packages.get(hit.groups.get("library", "")):
        return hit.naming(header_package=package)
    if hit.signature.id not in _REMOVED:
        return hit
    frames = frames_before(text, hit.position)
    root = hit.groups.get("package", "").split(".")[0]
    owner = (component_of(root) or root) if root else None
    user = next((f.package for f in reversed(frames) if f.package and f.package != owner), None)
    return hit.naming(**{"owner": owner, "user": user, **hit.groups})


def _of_cluster(hit: Hit, message: str) -> Hit:
    """Return the hit with the releases of the cluster and of the process, and the one that ends it, if one does."""
    cluster: dict[str, str] = {}
    own: dict[str, str] = {}
    for name, version in _RAY.findall(message):
        (own if name in cluster else cluster).setdefault(name, version)
    if not {"Ray", "Python"} <= own.keys():
        return hit
    ends = [f"{name.lower()}=={cluster[name]}" for name, version in own.items() if version != cluster.get(name)]
    releases = {side: ", ".join(map(" ".join, parts.items())) for side, parts in (("cluster", cluster), ("own", own))}
    requirements = " and ".join([f"ray=={cluster['Ray']}", *(each for each in ends if each.startswith("cloudpickle"))])
    needs = ends[0] if len(ends) == 1 else None
    return hit.naming(requirements=requirements, cluster_python=cluster["Python"], needs=needs, **releases)


def owner_of(name: str) -> str | None:
    """Return the package that a class, or an attribute that a package puts into the objects of others, belongs to."""
    return next((owner for owner, pattern in _owners() if pattern.fullmatch(name)), None)


@lru_cache(maxsize=1)
def _owners() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((owner, re.compile("|".join(names))) for owner, names in catalogue().owners.items())


def class_of(hit: Hit) -> Taxonomy | None:
    """Return the failure class, where the owner has one of its own."""
    if (hit.signature.tells, hit.signature.cause) != ("need", "package-version-pair"):
        return None
    named = component_of(hit.groups.get("need", "")) or ""
    cause = words().own_causes.get(named)
    return None if cause is None else dataclasses.replace(hit.signature.taxonomy, cause=cause)


def fix_of_parties(hit: Hit) -> str | None:
    """Return what to do about a name that was removed, where the package that asks for it is known."""
    user = hit.groups.get("user")
    if hit.signature.id not in _REMOVED or user is None or user in words().own_fixes:
        return None
    return f"{hit.signature.fix} Here it is {user} that asks for it: or take a release of {user} that does not."


def caller_fix(owner: str | None, user: str | None, facts: Facts) -> str:
    """Return what to do where it is not known which releases have a name. No release is recommended then."""
    if owner in sys.stdlib_module_names:
        return f"{owner} is a part of Python: use a Python that {user or 'its caller'} was written for."
    if owner is None:
        return "Install the versions that the project pins. pip check lists requirements that are not met."
    installed = facts.version(owner) or {fold(name): v for name, v in facts.distributions.items()}.get(owner)
    caller = f"{user} {facts.version(user) or ''}".strip() if user else "its caller"
    lacking = f"{owner} {installed} does not have it" if installed else f"the installed {owner} does not have it"
    return (
        f"Install the {owner} that {caller} was written for: {lacking}, and which release does is not known here."
        f" pip check lists requirements that are not met, the release notes of {owner} what was removed."
    )


# Symbols that the loader does not find: whose they are, and how they read.


_MISSING = re.compile(r"undefined symbol: [\"'`]?([A-Za-z_]\w{2,400})[\"'`]?(?:, version (\S{1,60}))?")
# First name of a C++ symbol, or beginning of a C one -> (component, failure class of a symbol of it that is not found).
_TORCH = ("torch", "extension-built-for-other-torch")
_CUDA = ("cuda", "wrong-cuda-library-loaded")
_NAMESPACES = {
    "c10": _TORCH,
    "c10d": _TORCH,
    "at": _TORCH,
    "torch": _TORCH,
    "caffe2": _TORCH,
    "std": ("gcc", "libstdcxx-too-old"),
}
_PREFIXES = (
    ("THP", _TORCH),
    ("aoti_torch", _TORCH),
    ("nccl", ("nccl", "wrong-nccl-loaded")),
    *((prefix, _CUDA) for prefix in ("cuda", "cublas", "cudnn", "cusparse", "cusolver", "cufft", "curand", "nvrtc")),
    *((prefix, _CUDA) for prefix in ("nvJitLink", "__nvJitLink", "__cuda")),
)
# Libraries of CUDA -> the wheel that brings them, without its suffix of the major.
_WHEELS = {
    "cublas": "nvidia-cublas",
    "cudnn": "nvidia-cudnn",
    "cusparse": "nvidia-cusparse",
    "cusolver": "nvidia-cusolver",
    "nvJitLink": "nvidia-nvjitlink",
    "cudart": "nvidia-cuda-runtime",
    "nvrtc": "nvidia-cuda-nvrtc",
    "nccl": "nvidia-nccl",
}


# The failure classes of a symbol that is not found; a message about one is about its owner only.
OWNED = frozenset(cause for _, cause in [*_NAMESPACES.values(), *(who for _, who in _PREFIXES)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """A symbol with its demangled name, whose it is, the failure class, and the library where the loader wanted it."""

    name: str
    readable: str
    component: str
    cause: str
    library: str = ""

    @property
    def wheel(self) -> str | None:
        """Return the distribution that brings the library, with ``-cu12`` for CUDA 12."""
        text = self.library or self.name
        base = next((wheel for key, wheel in _WHEELS.items() if key.lower() in text.lower()), None)
        if base is None:
            return None
        major = re.search(r"\.so\.(1[0-9])\b", self.library)
        if base == "nvidia-cudnn" or (major and major[1] == "12"):
            return f"{base}-cu12"
        return base


def symbol_in(line: str) -> Symbol | None:
    """Return the symbol that ``line`` says is undefined, or ``None`` without one or when its owner is not known."""
    match = _MISSING.search(line)
    if match is None:
        return None
    name, library = match[1], (match[2] or "").strip("'\"`).,")
    parts = _nested(name)
    owner = _NAMESPACES.get(parts[0]) if parts else None
    if owner is None and not parts:
        owner = next((who for prefix, who in _PREFIXES if name.startswith(prefix)), None)
    if owner is None:
        return None
    return Symbol(name=name, readable="::".join(parts) or name, component=owner[0], cause=owner[1], library=library)


def _nested(symbol: str) -> list[str]:
    """Return the names of an Itanium-mangled symbol, outermost first: ``["c10", "cuda"]`` of ``_ZN3c104cuda…``."""
    head = re.match(r"_Z(?:T[ISV]|GV)?(N)?(?:[rVK]{0,3}[RO]?)", symbol)
    if head is None:
        return []
    at, names = head.end(), []
    if symbol.startswith("St", at):
        names, at = ["std"], at + 2
    while match := re.compile(r"[1-9]\d{0,2}").match(symbol, at):
        size = int(match[0])
        names.append(symbol[match.end() : match.end() + size])
        at = match.end() + size
        if head[1] is None:
            break
    return names
