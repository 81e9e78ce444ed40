"""One file with all facts of a machine, fit to be sent to somebody else: written without secrets and names, read back, compared between nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts, Launch, Library, Read, Stated
from envsmith.errors import DataError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import version_key
from envsmith.text import redact

KIND = "envsmith doctor snapshot"
SCHEMA = 1
_MAX = 8_000_000
_EVIDENCE = Evidence(kind=EvidenceKind.DOCUMENTED, source="comparison of two snapshots", date="2026-11-21")
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|API_?KEY|PRIVATE|COOKIE|SESSION|_KEY$", re.IGNORECASE
)
# Kept as they are: differing by rank or by node is their purpose.
_OWN = re.compile(
    r"RANK|LOCAL_RANK|NODE_RANK|CUDA_VISIBLE_DEVICES|SLURM_\w+|OMPI_\w*RANK\w*|NCCL_HOSTID|PATH|VIRTUAL_ENV|CONDA_PREFIX|PYTHONPATH|MASTER_\w+"
)
_MUST_AGREE = frozenset({"torch", "cuda", "nccl", *FRAMEWORKS, "transformer-engine", "flash-attn", "python"})


def dump(facts: Facts, texts: tuple[tuple[str, str], ...] = ()) -> str:
    """The snapshot as JSON text, redacted. ``texts`` are short texts to take along (errors of imports)."""
    value = _clean(facts.to_json())
    return (
        json.dumps(
            {"kind": KIND, "schema": SCHEMA, "facts": value, "texts": [[s, redact(t)[:20_000]] for s, t in texts]},
            indent=1,
            sort_keys=True,
            ensure_ascii=False,
        )
        + "\n"
    )


def _clean(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {
            str(k): ("<removed>" if _SECRET_NAME.search(str(k)) and isinstance(v, str) else _clean(v, str(k)))
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_clean(v, name) for v in value]
    return redact(value) if isinstance(value, str) else value


def looks_like_snapshot(text: str) -> bool:
    """True when it is one of ours; the kind may stand anywhere, keys being sorted."""
    return text.lstrip()[:1] == "{" and f'"{KIND}"' in text


def load(text: str, where: str) -> tuple[Facts, tuple[tuple[str, str], ...]]:
    """Facts and texts of a snapshot; :class:`DataError` when it is none of ours or malformed."""
    try:
        data = json.loads(text) if len(text) <= _MAX else None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: not a snapshot of envsmith doctor (not JSON: {error})",
            hint="make one with: envsmith doctor --save FILE",
        ) from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise DataError(
            f"{where}: not a snapshot of envsmith doctor", hint="make one with: envsmith doctor --save FILE"
        )
    if data.get("schema") != SCHEMA:
        raise DataError(
            f"{where}: schema {data.get('schema')!r} is not known ({SCHEMA} is)",
            hint="use an envsmith as new as the one that wrote it",
        )
    try:
        facts = _facts(data["facts"], where)
        texts = tuple((f"{where}: {s}", str(t)) for s, t in data.get("texts", []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: the snapshot is damaged: {error}") from error
    return facts, texts


def _facts(value: Mapping[str, Any], where: str) -> Facts:

    components = {}
    for name, stated in value["components"].items():
        version_key(str(stated["version"]))
        components[str(name)] = Stated(
            version=str(stated["version"]),
            source=str(stated["source"]),
            strength=int(stated["strength"]),
            exact=bool(stated["exact"]),
        )
    facts = Facts(
        components=components,
        distributions=_strings(value["distributions"]),
        variables=_strings(value["variables"]),
        limits={str(k): int(v) for k, v in value["limits"].items()},
        tools={str(k): None if v is None else str(v) for k, v in value["tools"].items()},
        gpus=tuple(str(g) for g in value["gpus"][:1024]),
        gpu_count=None if value["gpu_count"] is None else int(value["gpu_count"]),
        libraries=tuple(
            Library(
                name=str(r["name"]),
                path=str(r["path"]),
                version=None if r["version"] is None else str(r["version"]),
                how=str(r["how"]),
                first=bool(r["first"]),
            )
            for r in value["libraries"]
        ),
        launches=tuple(
            Launch(tool=str(r["tool"]), options=_strings(r["options"]), text=str(r["text"])) for r in value["launches"]
        ),
        host=_strings(value["host"]),
        interfaces=tuple(str(i) for i in value["interfaces"]),
        disagreements=tuple(str(d) for d in value["disagreements"]),
    )
    return dataclasses.replace(
        facts, read=(Read(source=where, kinds=("snapshot",), lines=0, characters=0, facts=facts.count),)
    )


def _strings(value: Mapping[Any, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()}


def read_snapshot(path: Path) -> Facts:
    """The facts of a snapshot file; :class:`UsageError` when it cannot be read."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    return load(text, str(path))[0]


def compare(a: Facts, b: Facts, names: tuple[str, str] = ("a", "b")) -> list[Diagnosed]:
    """What differs between two nodes, the gravest first: what must be equal for one job is an error, what may hurt a warning, the rest a note."""
    found = [
        *_versions(a, b, names),
        *_variables(a, b, names),
        *_limits(a, b, names),
        *_libraries(a, b, names),
        *_others(a, b, names),
    ]
    return sorted(found, key=lambda d: -d.score)


def _differ(  # noqa: PLR0917 - the parts of one sentence
    rule: str,
    severity: Severity,
    what: str,
    left: object,
    right: object,
    names: tuple[str, str],
    component: str | None = None,
) -> Diagnosed:
    taxonomy = Taxonomy(
        stage="comm-setup",
        group="comm-or-launch-setup",
        cause="nccl-version-differs" if component == "nccl" else "nodes-differ",
        pattern="version-and-dependency-management" if component else "environment-or-toolchain-setup",
    )
    finding = Finding(
        rule=rule,
        severity=severity,
        components={component: f"{left} / {right}"} if component else {},
        message=f"{what}: {names[0]} has {_shown(left)}, {names[1]} has {_shown(right)}.",
        evidence=(_EVIDENCE,),
        fix="Install the same lock on every node." if component else "Make both nodes alike.",
        stage=taxonomy.stage,
    )
    return Diagnosed(finding=finding, confidence="high", score=Weight.of(severity), taxonomy=taxonomy)


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)[:120]


def _versions(a: Facts, b: Facts, names: tuple[str, str]) -> Iterator[Diagnosed]:
    for name in sorted({*a.components, *b.components}):
        left, right = a.version(name), b.version(name)
        if left != right:
            severity = (
                Severity.ERROR
                if name in _MUST_AGREE
                else Severity.WARNING
                if name in {"driver", "gpu", "cudnn", "triton", "toolkit"}
                else Severity.NOTE
            )
            yield _differ("node-version-differs", severity, name, left, right, names, name)
    known = set(a.components) | set(b.components)
    for name in sorted({*a.distributions, *b.distributions} - known):
        left, right = a.distributions.get(name), b.distributions.get(name)
        if left != right:
            yield _differ("node-distribution-differs", Severity.NOTE, name, left, right, names, name)


def _variables(a: Facts, b: Facts, names: tuple[str, str]) -> Iterator[Diagnosed]:
    for name in sorted({*a.variables, *b.variables}):
        left, right = a.variables.get(name), b.variables.get(name)
        if left != right and not _OWN.fullmatch(name):
            severity = (
                Severity.WARNING if name.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_", "LD_")) else Severity.NOTE
            )
            yield _differ("node-variable-differs", severity, name, left, right, names)


def _limits(a: Facts, b: Facts, names: tuple[str, str]) -> Iterator[Diagnosed]:
    for name in sorted({*a.limits, *b.limits} - {"shm_free"}):
        left, right = a.limits.get(name), b.limits.get(name)
        if left != right:
            yield _differ("node-limit-differs", Severity.WARNING, f"limit {name}", left, right, names)


def _libraries(a: Facts, b: Facts, names: tuple[str, str]) -> Iterator[Diagnosed]:
    for name in ("libnccl", "libcudart", "libcudnn"):
        left = next((lib.version or lib.path for lib in a.libraries if lib.name == name and lib.first), None)
        right = next((lib.version or lib.path for lib in b.libraries if lib.name == name and lib.first), None)
        if left != right:
            yield _differ("node-library-differs", Severity.WARNING, f"{name} that is loaded first", left, right, names)


def _others(a: Facts, b: Facts, names: tuple[str, str]) -> Iterator[Diagnosed]:
    if sorted(a.gpus) != sorted(b.gpus):
        yield _differ(
            "node-gpus-differ",
            Severity.WARNING,
            "GPUs",
            f"{len(a.gpus)} x {a.gpus[0] if a.gpus else '-'}",
            f"{len(b.gpus)} x {b.gpus[0] if b.gpus else '-'}",
            names,
        )
    for name in ("infiniband", "fabric_manager", "driver_cuda", "in_container", "machine", "os"):
        if a.host.get(name) != b.host.get(name):
            severity = Severity.WARNING if name in {"infiniband", "fabric_manager", "machine"} else Severity.NOTE
            yield _differ("node-host-differs", severity, name, a.host.get(name), b.host.get(name), names)
    shared = set(a.interfaces) & set(b.interfaces) - {"lo"}
    if a.interfaces and b.interfaces and not shared:
        yield _differ(
            "node-interfaces-differ",
            Severity.WARNING,
            "network interfaces (none has the same name; NCCL_SOCKET_IFNAME needs both)",
            ", ".join(a.interfaces[:6]),
            ", ".join(b.interfaces[:6]),
            names,
        )
