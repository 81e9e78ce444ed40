"""``releases/torch.yaml``: a line for the default build of every release and platform, measured in its wheel.

Lines of builds that the default index does not carry (``index: pytorch``) are written by people and stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from envsmith.base.files import read_bounded
from envsmith.base.schema import parse_json, parse_value, to_json
from envsmith.errors import DataError, NetworkError
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import IndexFile, yanked_text
from envsmith.lock.index.metadata import active
from envsmith.lock.index.torch_wheel import TorchFacts, glibc_floor, linux_wheels, pythons_of, read_torch_wheel
from envsmith.matrix.refresh.distribution_releases import by_version, ordered
from envsmith.matrix.refresh.line_table import LineTable
from envsmith.matrix.refresh.shared import RefreshRun, in_parallel
from envsmith.model.cell import Platform
from envsmith.model.version import WORDS, public
from envsmith.net.http import NotFoundError

# The first release that envsmith knows; older ones have neither an NCCL nor a cuDNN of their own.
OLDEST = Version("1.13.0")
_WHEEL = (
    "wheel",
    "measured",
    "torch wheel of the oldest CPython of this version and platform on the package index: METADATA, torch/version.py and the flag string of libtorch_python.so, read by range requests",
)
_FILES = ("files", "declared", "package index: file list of the release (Python and platform tags)")
_KIND = "torch"


def _pin(requires: Mapping[str, Any], pattern: str, releases: Iterable[str]) -> str | None:
    """Return the version that a requirement names: exactly, or the newest release that it admits."""
    requirement = next((r for name, r in requires.items() if re.fullmatch(pattern, name)), None)
    if requirement is None:
        return None
    clauses = list(requirement.specifier)
    if len(clauses) == 1 and clauses[0].operator in {"==", "==="} and not clauses[0].version.endswith(".*"):
        return str(clauses[0].version)
    admitted = [Version(r) for r in releases if requirement.specifier.contains(r)]
    return str(max(admitted)) if admitted else None


def torch_record(facts: TorchFacts, *, triton: Iterable[str] = ()) -> dict[str, Any]:
    """Return the line of a wheel, without evidence. A range of Triton is resolved among ``triton``.

    The glibc is the newer one of what the platform tag promises and what the libraries ask for (``manylinux1`` wheels
    need 2.17).
    """
    platform = Platform(facts.platform)
    pythons = pythons_of(facts.tags)
    first = _CPYTHON_MINOR.search(facts.filename)
    requires = active(facts.requires_dist, python=f"3.{first[1]}" if first else "3.10", platform=platform)
    build = facts.local_version.partition("+")[2] or ("cu" + facts.cuda.replace(".", "") if facts.cuda else "cpu")
    floor = glibc_floor(t for t in facts.tags)
    symbol = tuple(int(n) for n in facts.glibc.split(".")) if facts.glibc else None
    glibc = max((v for v in (floor, symbol) if v), default=None)
    record: dict[str, Any] = {
        "version": f"{Version(facts.version).public}+{build}",
        "platform": platform.value,
        "date": facts.date,
        "index": "default",
        "cuda": facts.cuda or "cpu",
        "nccl": _pin(requires, r"nvidia-nccl-cu\d+", ()) if facts.cuda else "none",
        "cudnn": _pin(requires, r"nvidia-cudnn-cu\d+", ()) if facts.cuda else "none",
        "triton": _pin(requires, r"triton|pytorch-triton", triton),
        "python": pythons or None,
        "gpu": [f for f in facts.arch_flags if f.startswith("sm_")] or None,
        "ptx": [f for f in facts.arch_flags if f.startswith("compute_")] if facts.arch_flags else None,
        "glibc": ".".join(map(str, glibc)) if glibc else None,
        "cxx11_abi": facts.cxx11_abi,
        "sha256": facts.sha256,
    }
    return {k: v for k, v in record.items() if v is not None}


_CPYTHON_MINOR = re.compile(r"-cp3(\d+)-")


def _order(record: Mapping[str, Any]) -> tuple[Version, int, bool, bool, Version]:
    """Sort the oldest release first, then linux-64, the default build, CPU before CUDA."""
    version = Version(record["version"])
    platform = [p.value for p in Platform].index(record["platform"])
    cuda = record.get("cuda", "cpu")
    return (
        Version(version.public),
        platform,
        record.get("index") != "default",
        cuda != "cpu",
        Version("0" if cuda == "cpu" else cuda),
    )


def _releases(context: RefreshRun) -> dict[str, dict[Platform, tuple[IndexFile, ...]]]:
    """Return the wheels of each final release from :data:`OLDEST` on, by platform."""
    wheels = {}
    for version, files in context.project("torch").releases().items():
        if Version(version) >= OLDEST and not Version(version).is_prerelease:
            wheels[version] = linux_wheels(files)
    return wheels


def _facts(
    context: RefreshRun,
    memory: Mapping[str, TorchFacts],
    file: IndexFile,
    wheels: tuple[IndexFile, ...],
    platform: Platform,
) -> TorchFacts:
    """Read a wheel, unless it was read before."""
    stored = memory.get(file.sha256 or "") if not context.again else None
    if stored and stored.filename == file.filename:
        return stored
    fetcher = context.index.fetcher
    return context.read_once(TorchFacts, _KIND, file, lambda: read_torch_wheel(fetcher, file, wheels, platform))


def read_recorded(path: Path | None) -> dict[str, TorchFacts]:
    """Return recorded facts by sha256. ``DataError`` when the file is there and broken."""
    if path is None or not path.exists():
        return {}
    try:
        rows = parse_json(read_bounded(path, 64 << 20))["wheels"]
        return {facts.sha256: facts for facts in (parse_value(TorchFacts, row) for row in rows)}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Cannot read {path}: it is not a record of torch wheels ({error}).",
            hint="Restore it from version control.",
        ) from None


def record_facts(facts: Iterable[TorchFacts]) -> str:
    """Return the text of ``tests/cases/wheels/torch.json``: one wheel a line, oldest release first."""
    ordered = sorted(facts, key=lambda f: (Version(f.version), f.platform != Platform.LINUX_64.value, f.filename))
    lines = ",\n".join(" " + json.dumps(to_json(f), ensure_ascii=False) for f in ordered)
    return '{"wheels": [\n' + lines + "\n]}\n"


def update_torch(table: LineTable, context: RefreshRun, recorded: dict[str, TorchFacts] | None = None) -> list[str]:
    """Bring the table up to date. ``recorded`` (by sha256) receives every wheel that a line rests on."""
    memory = recorded if recorded is not None else {}
    lines = {(public(r["version"]), r["platform"]): r for r in table.records if r.get("index") == "default"}
    tasks: dict[tuple[str, Platform], str] = {}
    wheels = _releases(context)
    for version, platforms in wheels.items():
        for platform, files in platforms.items():
            line = lines.get((version, platform.value))
            hashes = {f.sha256 for f in files}
            measured = line is not None and line.get("sha256") in hashes
            if context.again or not measured or (recorded is not None and line and line["sha256"] not in memory):
                tasks[version, platform] = f"torch {version} for {platform.value}"

    def measure(task: tuple[str, Platform]) -> TorchFacts:
        files = wheels[task[0]][task[1]]
        line = lines.get((task[0], task[1].value), {})
        file = next((f for f in files if f.sha256 == line.get("sha256")), files[0])
        return _facts(context, memory, file, files, task[1])

    read = in_parallel(context, "torch wheels", tasks, measure)
    memory.update({f.sha256: f for f in read.values()})
    summary = []
    for (version, platform), facts in read.items():
        summary += _merge(table, context, facts, lines.get((version, platform.value)))
    for key, line in lines.items():
        platform = Platform(key[1])
        if (key[0], platform) not in tasks:
            summary += _retag(table, context, line, wheels.get(key[0], {}).get(platform, ()))
    for base, kind, source in (_WHEEL, _FILES):
        table.fold_evidence(base, table.find_evidence(kind, source, context.today) or base)
    return summary


def _merge(table: LineTable, context: RefreshRun, facts: TorchFacts, line: dict[str, Any] | None) -> list[str]:
    """Put what a wheel says into the table. Fields that an updater does not know (notes of people) are kept."""
    try:
        triton = [v for v in context.project("triton").releases() if not Version(v).is_prerelease]
    except NetworkError:
        triton = []
    fresh = torch_record(facts, triton=triton)
    build = f"torch {fresh['version']} {fresh['platform']}"
    if line is None:
        # A person may have listed the same build as one of the other index.
        line = next(
            (r for r in table.records if (r["version"], r["platform"]) == (fresh["version"], fresh["platform"])), None
        )
    if line is not None and "triton" in line and "triton" in fresh and line.get("sha256") == fresh["sha256"]:
        # A range was resolved when the wheel was read; a later patch release of Triton does not change what was
        # measured.
        fresh["triton"] = line["triton"]
    changed = [k for k, v in fresh.items() if line is None or line.get(k) != v]
    gone = [k for k in ("nccl", "cudnn", "triton", "gpu", "ptx") if line is not None and k in line and k not in fresh]
    if not changed and not gone:
        return []
    if line is not None and line.get("sha256") == fresh["sha256"] and {*changed, *gone} <= {"python", "date"}:
        named = line["evidence"] if isinstance(line["evidence"], list) else [line["evidence"]]
        keys = [*(k for k in named if str(k).startswith(_WHEEL[0])), table.evidence_key(*_FILES, context.today)]
    else:
        keys = [table.evidence_key(base, kind, source, context.today) for base, kind, source in (_WHEEL, _FILES)]
    if line is None:
        table.insert({**fresh, "evidence": keys}, _order)
        return [f"{build}: new"]
    stable_fields = {k: v for k, v in line.items() if k not in {*gone, "evidence", "evidence_of"}}
    table.replace(line, ordered({**stable_fields, **fresh, "evidence": keys}, _FIELDS))
    words = ", ".join(f"{k}: {line.get(k, '-')} -> {fresh.get(k, '-')}" for k in [*changed, *gone] if k != "sha256")
    return [f"{build}: {words or 'another wheel was read'}"]


_FIELDS = (
    "version", "platform", "date", "yanked", "index", "cuda", "nccl", "cudnn", "triton", "python", "gpu", "ptx", "glibc", "cxx11_abi", "sha256",
    "evidence", "evidence_of",
)  # fmt: skip


def _retag(table: LineTable, context: RefreshRun, line: dict[str, Any], files: tuple[IndexFile, ...]) -> list[str]:
    """Update what the file list tells of a measured build: Pythons that came later, and a withdrawal."""
    build = f"torch {line['version']} {line['platform']}"
    if not files:
        context.problems.append(f"{build}: the index lists no wheel of it any more; the line was left as it is")
        return []
    pythons = pythons_of("-".join(f.filename.removesuffix(".whl").split("-")[-3:]) for f in files)
    yanked = yanked_text(files)
    fresh = {**line, "python": pythons}
    if yanked:
        fresh["yanked"] = yanked
    else:
        fresh.pop("yanked", None)
    if fresh == line:
        return []
    key = table.evidence_key(*_FILES, context.today)
    named = line["evidence"] if isinstance(line["evidence"], list) else [line["evidence"]]
    fresh["evidence"] = [*(k for k in named if k == "wheel" or k.startswith("wheel_")), key]
    table.replace(line, ordered(fresh, _FIELDS))
    return [f"{build}: file list changed"]


# ``releases/nccl.yaml``, ``cudnn.yaml`` and ``cuda.yaml``: what torch carries; ``toolkit.yaml``: the component wheels
# of CUDA.
#
# NCCL is listed as the index has it, one project for each CUDA major; cuDNN and CUDA only as far as a build of torch
# carries them: a build that names a release outside the list brings it in. A toolkit release comes with the runtime it
# pins; drivers and compilers are written by people.


# The project whose releases pin the component wheels of one toolkit release.
TOOLKIT_PROJECT = "cuda-toolkit"
_TOOLKIT_SOURCE = "METADATA of cuda-toolkit of that version on the package index: the runtime that it pins"
_TORCH_WHEELS = "torch/version.py and METADATA of the torch wheels on the package index"


def carried(torch: LineTable, component: str) -> set[str]:
    """Return the releases of a component that the builds in ``torch.yaml`` name."""
    return {str(r[component]) for r in torch.records if component in r and r[component] not in WORDS}


def _by_major(context: RefreshRun, component: str) -> dict[Version, dict[str, tuple[IndexFile, ...]]]:
    """Return files of every release by CUDA major, out of the projects ``nvidia-<component>-cuNN``."""
    releases_of: dict[Version, dict[str, tuple[IndexFile, ...]]] = {}
    for name in context.components.by_name[component].distributions:
        major = name.rpartition("-cu")[2]
        try:
            releases = context.project(name).releases()
        except NotFoundError:
            continue
        for version, files in releases.items():
            releases_of.setdefault(Version(version), {})[major] = files
    return releases_of


def _line(majors: Mapping[str, tuple[IndexFile, ...]]) -> dict[str, Any]:
    files = [f for listed in majors.values() for f in listed]
    line = {
        "version": max((f.version for f in files), key=len),
        "date": min((f.day for f in files if f.day), default=None),
        "yanked": yanked_text(files),
        "cuda_majors": sorted(majors, key=int),
    }
    return {k: v for k, v in line.items() if v is not None}


def update_cuda_wheels(table: LineTable, context: RefreshRun, component: str, torch: LineTable | None) -> list[str]:
    """Update NCCL or cuDNN. With ``torch`` only what its builds carry is added (that is how cuDNN is kept)."""
    lines = {Version(r["version"]): r for r in table.records if r["version"] not in WORDS}
    oldest = min(lines, default=Version("0"))
    versions = {Version(v) for v in carried(torch, component)} if torch is not None else None
    named = table.named.get("index", {})
    summary = []
    for version, majors in sorted(_by_major(context, component).items()):
        fresh = _line(majors)
        line = lines.get(version)
        if line is None:
            if version < oldest or version.is_prerelease or (versions is not None and version not in versions):
                continue
            key = table.evidence_key("index", "declared", str(named.get("source")), context.today)
            table.insert(ordered({**fresh, "evidence": key}), by_version)
            summary.append(f"{component} {fresh['version']}: new, for CUDA {' and '.join(fresh['cuda_majors'])}")
            continue
        new = ordered({**{k: v for k, v in line.items() if k != "yanked"}, **fresh, "version": line["version"]})
        if table.replace(line, new):
            summary.append(f"{component} {line['version']}: {_shown(line, new)}")
    return summary


def _shown(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    return ", ".join(f"{k}: {old.get(k, '-')} -> {new.get(k, '-')}" for k in names)


def update_cuda(table: LineTable, context: RefreshRun, torch: LineTable) -> list[str]:
    """Add the CUDA series of builds that no line names yet."""
    listed = {r["version"] for r in table.records}
    summary = []
    for series in sorted(carried(torch, "cuda") - listed, key=Version):
        key = table.evidence_key("torch", "measured", _TORCH_WHEELS, context.today)
        table.insert({"version": series, "evidence": key}, by_version)
        summary.append(f"cuda {series}: new, a build of torch is made with it")
    return summary


def update_toolkit(table: LineTable, context: RefreshRun) -> list[str]:
    """Add the toolkit releases that came as component wheels. Lines that are there stay as people wrote them."""
    lines = {Version(r["version"]) for r in table.records}
    newest = max(lines, default=Version("0"))
    releases = {
        v: best_file(files)
        for v, files in context.project(TOOLKIT_PROJECT).releases().items()
        if Version(v) not in lines and not Version(v).is_prerelease and Version(v) > Version(newest.base_version)
    }
    files = {v: f for v, f in releases.items() if f is not None}
    read = in_parallel(
        context,
        "toolkit",
        {v: f"{TOOLKIT_PROJECT} {v}" for v in files},
        lambda v: read_release(context.index.fetcher, files[v]),
    )
    summary = []
    for version, facts in read.items():
        pinned = active(facts.requires, python="3.12", platform=Platform.LINUX_64, extras=["cudart"])
        runtime = next((r for n, r in pinned.items() if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", n)), None)
        clause = next(iter(runtime.specifier), None) if runtime else None
        key = table.evidence_key("cuda_toolkit", "declared", _TOOLKIT_SOURCE, context.today)
        number = ".".join(str(n) for n in Version(version).release[:3])
        line: dict[str, Any] = {"version": number}
        if files[version].day:
            line["date"] = files[version].day
        if clause is not None and clause.operator == "==":
            line["cudart"] = clause.version.removesuffix(".*")
        table.insert({**line, "sha256": facts.sha256, "evidence": key}, by_version)
        summary.append(f"toolkit {number}: new")
    return summary
