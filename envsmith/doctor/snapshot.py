"""One file with all facts of a machine, without secrets and names: written, read back, compared between nodes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.base.files import read_text
from envsmith.base.schema import Problems, UnreadableError, check, parse_json
from envsmith.base.text import redact
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts, Read
from envsmith.errors import DataError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.model.version import version_key

KIND = "envsmith doctor snapshot"
SCHEMA = 1
_HINT = "Make one with: envsmith doctor --save FILE."
_MAX = 8_000_000
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|API_?KEY|PRIVATE|COOKIE|SESSION|_KEY$", re.IGNORECASE
)
# Kept as they are: differing by rank or by node is their purpose.
_OWN = re.compile(
    r"RANK|LOCAL_RANK|NODE_RANK|CUDA_VISIBLE_DEVICES|SLURM_\w+|OMPI_\w*RANK\w*|NCCL_HOSTID|PATH|VIRTUAL_ENV"
    r"|CONDA_PREFIX|PYTHONPATH|MASTER_\w+"
)
_MUST_AGREE = frozenset({"torch", "cuda", "nccl", *FRAMEWORKS, "transformer-engine", "flash-attn", "python"})
_SHOULD_AGREE = frozenset({"driver", "gpu", "cudnn", "triton", "toolkit"})


def dump(facts: Facts, texts: tuple[tuple[str, str], ...] = ()) -> str:
    """Return the snapshot as JSON text, redacted. ``texts`` are short texts to take along (errors of imports)."""
    short = [[source, redact(text)[:20_000]] for source, text in texts]
    snapshot = {"kind": KIND, "schema": SCHEMA, "facts": _clean(facts.to_json()), "texts": short}
    return json.dumps(snapshot, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "<removed>" if isinstance(each, str) and _SECRET_NAME.search(name) else _clean(each)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return redact(value) if isinstance(value, str) else value


def looks_like_snapshot(text: str) -> bool:
    """Return whether envsmith wrote it. The kind may stand anywhere, keys being sorted."""
    return text.lstrip()[:1] == "{" and f'"{KIND}"' in text


def load(text: str, where: str) -> tuple[Facts, tuple[tuple[str, str], ...]]:
    """Return the facts and texts of a snapshot. ``DataError`` when it is not one, or is damaged."""
    try:
        data = parse_json(text) if len(text) <= _MAX else None
    except UnreadableError as error:
        raise DataError(
            f"Cannot read {where}: it is not a snapshot of envsmith doctor ({error}).", hint=_HINT
        ) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise DataError(f"Cannot read {where}: it is not a snapshot of envsmith doctor.", hint=_HINT)
    if data.get("schema") != SCHEMA:
        hint = "Use an envsmith as new as the one that wrote it."
        raise DataError(
            f"Cannot read {where}: its schema {data.get('schema')!r} is not the one that this envsmith reads "
            f"({SCHEMA}).",
            hint=hint,
        )
    problems = Problems()
    facts = check(Facts, data.get("facts"), where, problems, root="facts")
    texts = check(_Texts, {"texts": data.get("texts", [])}, where, problems)
    for name in sorted(set(Facts().to_json()) - set(data["facts"])) if facts else ():
        problems.add(f"{where}: facts", f"`{name}` is missing")
    for name, stated in facts.components.items() if facts else ():
        if not _is_version(stated.version):
            problems.add(f"{where}: facts.components.{name}.version", f"{stated.version[:60]!r} is not a version")
    problems.refuse(f"Cannot read {where}: the snapshot is damaged.", hint=_HINT)
    assert facts is not None  # noqa: S101 - there were no problems
    assert texts is not None  # noqa: S101 - as above
    read = Read(source=where, kinds=("snapshot",), lines=0, characters=0, facts=facts.count)
    return dataclasses.replace(facts, read=(read,)), tuple((f"{where}: {s}", t) for s, t in texts.texts)


@dataclass(frozen=True, slots=True)
class _Texts:
    texts: tuple[tuple[str, str], ...]


def _is_version(text: str) -> bool:
    try:
        version_key(text)
    except ValueError:
        return False
    return True


def read_snapshot(path: Path) -> Facts:
    """Return the facts of a snapshot file. ``UsageError`` when it cannot be read."""
    return load(read_text(path, _MAX, failure=UsageError, errors="replace"), str(path))[0]


# Rule, severity, what differs, what each of the nodes has, the component if it is one.
_Difference = tuple[str, Severity, str, object, object, str | None]


def compare(a: Facts, b: Facts, names: tuple[str, str] = ("a", "b")) -> list[Diagnosed]:
    """Return what differs between two nodes, the gravest first."""
    pairs = [*_versions(a, b), *_mappings(a, b), *_libraries(a, b), *_host(a, b)]
    differences = [_differ(pair, names) for pair in pairs if pair[3] != pair[4]]
    return sorted(differences, key=lambda d: -d.score)


def _differ(difference: _Difference, names: tuple[str, str]) -> Diagnosed:
    rule, severity, what, a, b, component = difference
    taxonomy = Taxonomy(
        stage="comm-setup",
        group="comm-or-launch-setup",
        cause="nccl-version-differs" if component == "nccl" else "nodes-differ",
        pattern="version-and-dependency-management" if component else "environment-or-toolchain-setup",
    )
    finding = Finding(
        rule=rule,
        severity=severity,
        components={component: f"{a} / {b}"} if component else {},
        message=f"{what}: {names[0]} has {_shown(a)}, {names[1]} has {_shown(b)}.",
        fix="Install the same lock on every node." if component else "Make both nodes alike.",
        stage=taxonomy.stage,
    )
    return Diagnosed(finding=finding, confidence="high", score=Weight.of(severity), taxonomy=taxonomy)


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)[:120]


def _versions(a: Facts, b: Facts) -> Iterator[_Difference]:
    names = {*a.components, *b.components}
    for name in sorted(names):
        severity = Severity.WARNING if name in _SHOULD_AGREE else Severity.NOTE
        severity = Severity.ERROR if name in _MUST_AGREE else severity
        yield "node-version-differs", severity, name, a.version(name), b.version(name), name
    for name in sorted({*a.distributions, *b.distributions} - names):
        versions = a.distributions.get(name), b.distributions.get(name)
        yield "node-distribution-differs", Severity.NOTE, name, *versions, name


def _mappings(a: Facts, b: Facts) -> Iterator[_Difference]:
    """Give environment variables and limits."""
    for name in sorted({*a.variables, *b.variables}):
        if not _OWN.fullmatch(name):
            of_library = name.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_", "LD_"))
            severity = Severity.WARNING if of_library else Severity.NOTE
            yield "node-variable-differs", severity, name, a.variables.get(name), b.variables.get(name), None
    for name in sorted({*a.limits, *b.limits} - {"shm_free"}):
        yield "node-limit-differs", Severity.WARNING, f"limit {name}", a.limits.get(name), b.limits.get(name), None


def _libraries(a: Facts, b: Facts) -> Iterator[_Difference]:
    for name in ("libnccl", "libcudart", "libcudnn"):
        first = [
            next((lib.version or lib.path for lib in facts.libraries if lib.name == name and lib.first), None)
            for facts in (a, b)
        ]
        yield "node-library-differs", Severity.WARNING, f"{name} that is loaded first", first[0], first[1], None


def _host(a: Facts, b: Facts) -> Iterator[_Difference]:
    """Give GPUs, the machine and its network."""
    gpus = [", ".join(f"{n} x {name}" for name, n in sorted(Counter(f.gpus).items())) or "0 x -" for f in (a, b)]
    yield "node-gpus-differ", Severity.WARNING, "GPUs", gpus[0], gpus[1], None
    for name in ("infiniband", "fabric_manager", "driver_cuda", "in_container", "machine", "os"):
        severity = Severity.WARNING if name in {"infiniband", "fabric_manager", "machine"} else Severity.NOTE
        yield "node-host-differs", severity, name, a.host.get(name), b.host.get(name), None
    if a.interfaces and b.interfaces and not set(a.interfaces) & set(b.interfaces) - {"lo"}:
        what = "network interfaces (none has the same name; NCCL_SOCKET_IFNAME needs both)"
        interfaces = [", ".join(facts.interfaces[:6]) for facts in (a, b)]
        yield "node-interfaces-differ", Severity.WARNING, what, interfaces[0], interfaces[1], None
