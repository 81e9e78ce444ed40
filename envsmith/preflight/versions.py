"""Versions: the same on all ranks, those that were expected, the NCCL that is loaded, the driver under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envsmith.preflight.finding import ERROR, WARNING, Facts, Finding, has, name_of, odd_ones
from envsmith.preflight.known import Known, version_key

__all__ = ["drivers", "expected", "nccl", "versions"]

# Ranks of one job that differ here compute different things or do not understand each other.
_MUST_AGREE = ("torch", "torch_git", "cuda", "nccl", "nccl_runtime")
_PACKAGES = ("deepspeed", "megatron-core", "colossalai", "transformer-engine", "flash-attn", "apex")
_NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


def versions(facts: Sequence[Facts]) -> list[Finding]:
    """Releases that some ranks have and others do not."""
    found = []
    names: list[tuple[str, Callable[[Facts], Any], str]] = [(k, lambda f, k=k: f.get(k), ERROR) for k in _MUST_AGREE]  # type: ignore[misc]
    names += [(p, lambda f, p=p: f.get("installed", {}).get(p), ERROR) for p in _PACKAGES]  # type: ignore[misc]
    names += [("python", lambda f: f.get("python"), WARNING), ("numpy", lambda f: f.get("numpy"), WARNING)]
    told: set[tuple[int, ...]] = set()
    for name, value, severity in names:
        for ranks, theirs, common in odd_ones(facts, value):
            if name == "torch_git" and tuple(ranks) in told:
                continue  # another release is another commit
            told.add(tuple(ranks))
            text = f"{name_of(facts, ranks)} {has(ranks)} {name} {theirs or 'not at all'}, the others {common or 'do not have it'}"
            found.append(
                Finding(
                    check="versions",
                    severity=severity,
                    ranks=tuple(ranks),
                    message=text,
                    fix="install the same lock on every node",
                )
            )
    return found


def expected(facts: Sequence[Facts], expect: Mapping[str, str]) -> list[Finding]:
    """Ranks that have another release of a component than ``expect`` names."""
    found = []
    for name, wanted in expect.items():
        bad: dict[str, list[int]] = {}
        for f in facts:
            have = (f.get("nccl_runtime") or f.get("nccl")) if name == "nccl" else f.get(name)
            have = have or f.get("installed", {}).get(name)
            same = have is not None and (
                str(have) == wanted or ("+" not in wanted and str(have).partition("+")[0] == wanted)
            )
            if not same:
                bad.setdefault(str(have), []).append(int(f["rank"]))
        for have, ranks in bad.items():
            text = f"{name_of(facts, ranks)} {has(ranks)} {name} {have}, but {wanted} is expected"
            found.append(
                Finding(
                    check="expected",
                    severity=ERROR,
                    ranks=tuple(ranks),
                    message=text,
                    fix="is this the environment that was meant? look at PATH and PYTHONPATH",
                )
            )
    return found


def nccl(facts: Sequence[Facts]) -> list[Finding]:
    """The NCCL that is loaded is the one that the environment declares, and not older than the one torch was compiled with."""
    by_text: dict[tuple[str, str, str], list[int]] = {}
    for f in facts:
        runtime = f.get("nccl_runtime")
        if not runtime:
            continue
        declared = {p: v for p, v in f.get("installed", {}).items() if p in _NCCL_PACKAGES}
        path = f.get("nccl_path") or "its library"
        if declared and version_key(runtime) not in {version_key(v) for v in declared.values()}:
            package, version = next(iter(declared.items()))
            text = f"loaded NCCL {runtime} from {path}, but the environment declares {package} {version}"
            by_text.setdefault((ERROR, text, "look at LD_LIBRARY_PATH and LD_PRELOAD"), []).append(int(f["rank"]))
        elif len({version_key(v) for v in declared.values()}) > 1:
            text = f"found several NCCL packages ({', '.join(f'{p} {v}' for p, v in sorted(declared.items()))}); {runtime} was loaded"
            by_text.setdefault((WARNING, text, "uninstall the one of the other CUDA major"), []).append(int(f["rank"]))
        if version_key(runtime) < version_key(f.get("nccl")):
            text = f"loaded NCCL {runtime}, older than the {f['nccl']} that torch was compiled with"
            by_text.setdefault((ERROR, text, "look at LD_LIBRARY_PATH and LD_PRELOAD"), []).append(int(f["rank"]))
    return [
        Finding(check="nccl", severity=severity, ranks=tuple(ranks), message=f"{name_of(facts, ranks)} {text}", fix=fix)
        for (severity, text, fix), ranks in by_text.items()
    ]


def drivers(facts: Sequence[Facts], data: Known) -> list[Finding]:
    """Drivers that differ between nodes, or are too old for the CUDA of torch."""
    found = []
    for ranks, theirs, common in odd_ones(facts, lambda f: f.get("driver") or None):
        found.append(
            Finding(
                check="driver",
                severity=WARNING,
                ranks=tuple(ranks),
                message=f"{name_of(facts, ranks)} {has(ranks)} driver {theirs}, the others {common}",
            )
        )
    low: dict[tuple[str, str, str], list[int]] = {}
    for f in facts:
        driver, cuda = f.get("driver"), str(f.get("cuda") or "")
        floor = data.drivers.get(cuda.partition(".")[0])
        if driver and floor and version_key(driver) < version_key(floor):
            low.setdefault((str(driver), cuda, floor), []).append(int(f["rank"]))
    for (driver, cuda, floor), ranks in low.items():
        text = f"{name_of(facts, ranks)} {has(ranks)} driver {driver}, but CUDA {cuda} needs at least {floor}"
        fix = "update the driver of that node, or take a torch of an older CUDA major"
        found.append(Finding(check="driver", severity=ERROR, ranks=tuple(ranks), message=text, fix=fix))
    return found
