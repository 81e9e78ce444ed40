"""``releases/<component>.yaml`` of everything that is a distribution: which releases there are, and what each declares.

Every release is read, METADATA or PKG-INFO of one file each. A line whose ``sha256`` names a file of the index was read
already and is not read again, so what people corrected by hand stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from envsmith.errors import NetworkError
from envsmith.frameworks import FRAMEWORKS
from envsmith.lock.index.component_needs import ComponentNeeds
from envsmith.lock.index.distribution import ReleaseFacts, best_file, read_release
from envsmith.lock.index.index import IndexFile, yanked_text
from envsmith.lock.index.torch_wheel import linux_wheels, pythons_of
from envsmith.matrix.refresh.line_table import LineTable
from envsmith.matrix.refresh.shared import RefreshRun, in_parallel, same_spec
from envsmith.model.project_name import normal_name
from envsmith.model.version import WORDS
from envsmith.net.http import NotFoundError

_KIND = "release"
_METADATA_SOURCE = (
    "package index: release list of the project and METADATA, PKG-INFO or requires.txt of one file of each release"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How a file is kept.

    ``finals``: no pre-releases. ``joins``: distributions of the same version whose requirements belong to it.
    ``cuda_core``: a hard requirement on ``<name>-cuNN`` bounds CUDA to that major. ``ignore``: requirements that depend
    on the machine that made the metadata. ``since``: the day of the oldest release that belongs into the file.
    """

    finals: bool = True
    joins: tuple[str, ...] = ()
    cuda_core: str | None = None
    ignore: frozenset[str] = frozenset()
    sdist_facts: bool = False
    since: str | None = None


# What projects of these days still pin in releases that are years old, and those that belong to torch from the first
# release on that pins it.
_OLD = Policy(since="2020-11-01")
_PINNING_TORCH = Policy(since="2019-08-01")
_POLICIES: Mapping[str, Policy] = {
    "transformer-engine": Policy(joins=("transformer-engine-torch",), cuda_core="transformer-engine"),
    "flash-attn": Policy(sdist_facts=True),
    "horovod": Policy(sdist_facts=True),
    **dict.fromkeys(("torchaudio", "torchvision"), _PINNING_TORCH),
    **dict.fromkeys(
        ("datasets", "fsspec", "huggingface-hub", "tokenizers", "torchmetrics", "torchtext", "transformers"), _OLD
    ),
}
# A file of releases that is new begins with what was published since then: torch 1.11 was the newest in that month.
_SINCE = "2022-04-01"


def policy_of(component: str) -> Policy:
    """Return how the file of a component is kept."""
    framework = FRAMEWORKS.get(component)
    if framework is None:
        return _POLICIES.get(component, Policy())
    return Policy(finals=False, ignore=framework.ignored_requirements, sdist_facts=framework.reads_sdist)


def _wanted(
    table: LineTable, policy: Policy, releases: Mapping[str, tuple[IndexFile, ...]]
) -> dict[str, tuple[IndexFile, ...]]:
    """Return the releases that belong into a file: not older than its oldest line, or than the day of its policy."""
    published = {v: files for v, files in releases.items() if not policy.finals or not Version(v).is_prerelease}
    listed = [Version(r["version"]) for r in table.records if r["version"] not in WORDS]
    since = policy.since or (_SINCE if not listed else "9999")
    listed += [Version(v) for v, files in published.items() if (_published(files) or "") >= since]
    return {v: files for v, files in published.items() if listed and Version(v) >= min(listed)}


def _published(files: Iterable[IndexFile]) -> str | None:
    return min((f.day for f in files if f.day), default=None)


def _line(version: str, files: tuple[IndexFile, ...]) -> dict[str, Any]:
    """Return what the file list alone tells."""
    wheels = linux_wheels(files)
    usable = [f for f in files if f.is_wheel and ("linux" in f.filename or f.filename.endswith("-any.whl"))]
    pure = any(f.filename.endswith("-any.whl") for f in files)
    has_sdist = any(not f.is_wheel for f in files)
    tags = ["-".join(f.filename.removesuffix(".whl").split("-")[-3:]) for fs in wheels.values() for f in fs]
    pythons = pythons_of(tags) or None
    listed = pythons if isinstance(pythons, list) and not pure else None
    line = {
        "version": version,
        "date": _published(files),
        "yanked": yanked_text(files),
        "python": None if has_sdist else listed,
        "ready_python": listed if has_sdist else None,
        "sdist_only": True if has_sdist and not usable else None,
    }
    return {k: v for k, v in line.items() if v is not None}


_FIELDS = (
    "version",
    "date",
    "yanked",
    "requires",
    "requires_where",
    "extras",
    "python",
    "ready_python",
    "sdist_only",
    "build_imports",
    "cuda_majors",
    "sha256",
    "evidence",
)


# Fields of a line that end with the artifact they were read from.
_READ_AGAIN = frozenset({"yanked", "requires", "requires_where", "extras", "python", "ready_python", "sdist_only"})
# Of those the file list alone tells these.
_LISTED = ("date", "yanked", "ready_python")


def ordered(record: Mapping[str, Any], fields: Sequence[str] = _FIELDS) -> dict[str, Any]:
    """Return fields in the order in which they stand in a file: others come last."""
    return {k: record[k] for k in fields if k in record} | {k: v for k, v in record.items() if k not in fields}


def by_version(record: Mapping[str, Any]) -> Version:
    """Return the sort key of a file of releases. The words ``cpu`` and ``none`` come last."""
    return Version("9999!0") if record["version"] in WORDS else Version(record["version"])


def _read(context: RefreshRun, file: IndexFile) -> ReleaseFacts:
    return context.read_once(ReleaseFacts, _KIND, file, lambda: read_release(context.index.fetcher, file))


def _pinned(requires: Iterable[str], name: str) -> str | None:
    """Return the version of ``name`` that a release pins in an extra: parts of 1.9.0.post1 may be 1.9.0."""
    for line in requires:
        match = re.match(r"([A-Za-z0-9._-]+)\s*\(?==\s*([^\s;,)]+)", line)
        if match and normal_name(match[1]) == name:
            return match[2]
    return None


def _of(releases: Mapping[str, tuple[IndexFile, ...]], version: str) -> tuple[IndexFile, ...]:
    return next((files for v, files in releases.items() if Version(v) == Version(version)), ())


def _joined(context: RefreshRun, policy: Policy, version: str, facts: ReleaseFacts) -> list[str]:
    """Return the requirements of the distributions that belong to a release, where they have that version."""
    requires: list[str] = []
    for name in policy.joins:
        file = best_file(_of(context.project(name).releases(), _pinned(facts.requires, name) or version))
        listed = _read(context, file).requires if file else ()
        parts = rf"{policy.cuda_core}-cu\d" if policy.cuda_core else r"(?!)"
        requires += [r for r in listed if not re.match(parts, r.replace("_", "-"))]
    return requires


def update_releases(table: LineTable, context: RefreshRun, component: str) -> list[str]:
    """Bring one file up to date and return what changed. ``NetworkError`` when the index does not answer."""
    policy = policy_of(component)
    entry = context.components.by_name.get(component)
    if entry is None or not entry.distributions:
        raise NetworkError(f"Cannot read the releases of {component}: it has no distribution on the package index.")
    try:
        releases = _wanted(table, policy, context.project(entry.distributions[0]).releases())
    except NotFoundError:
        context.problems.append(f"{component}: the index has no project {entry.distributions[0]}")
        return []
    lines = {Version(r["version"]): r for r in table.records if r["version"] not in WORDS}
    for name in policy.joins:
        context.project(name)
    files: dict[str, IndexFile] = {}
    for version, listed in releases.items():
        line = lines.get(Version(version))
        file = best_file(listed, sdist=policy.sdist_facts)
        measured = line is not None and line.get("sha256") in {f.sha256 for f in listed}
        if file and (context.again or not measured):
            files[version] = next((f for f in listed if line and f.sha256 == line.get("sha256")), file)
    tasks = {v: f"{component} {v}" for v in files}

    def work(version: str) -> tuple[ReleaseFacts, list[str]]:
        facts = _read(context, files[version])
        return facts, _joined(context, policy, version, facts)

    read = in_parallel(context, component, tasks, work)
    context.read[component] = {version: facts for version, (facts, _) in read.items()}
    summary = []
    for version, listed in releases.items():
        line = lines.get(Version(version))
        fresh = _line(version, listed)
        if version in read:
            facts, joined = read[version]
            summary += _merge(table, context, component, line=line, fresh=fresh, facts=facts, joined=joined)
        elif line is not None:
            summary += _touch(table, component, line, fresh)
    key = next(
        (k for k, e in table.named.items() if k.startswith("index_") and str(e.get("date")) == context.today), "index"
    )
    table.fold_evidence("index", key)
    return summary


def _evidence(table: LineTable, context: RefreshRun) -> str:
    """Return the key under which what was read today is filed."""
    source = str(table.named.get("index", {}).get("source", ""))
    reads_metadata = "METADATA" in source
    return table.evidence_key("index", "declared", source if reads_metadata else _METADATA_SOURCE, context.today)


def _merge(
    table: LineTable,
    context: RefreshRun,
    component: str,
    *,
    line: dict[str, Any] | None,
    fresh: dict[str, Any],
    facts: ReleaseFacts,
    joined: list[str],
) -> list[str]:
    """Put a release that was read into the table."""
    policy = policy_of(component)
    needs = ComponentNeeds(
        requires=(*facts.requires, *joined),
        requires_python=facts.requires_python,
        components=context.components,
        own=component,
        ignore=policy.ignore,
        cuda_core=policy.cuda_core,
    )
    requires, where = needs.everywhere(), needs.somewhere()
    demands = {"requires": requires, "requires_where": where, "extras": needs.of_extras()}
    fresh = {**fresh, "sha256": facts.sha256, **{name: value for name, value in demands.items() if value}}
    if line is None:
        if "torch" in facts.setup_imports:
            fresh["build_imports"] = ["torch"]
        table.insert(ordered({**fresh, "evidence": _evidence(table, context)}), by_version)
        return [f"{component} {fresh['version']}: new"]
    before = line.get("requires", {})
    if before and before.keys() == requires.keys() and all(same_spec(before[k], requires[k]) for k in before):
        fresh["requires"] = before
    stable_fields = {k: v for k, v in line.items() if k not in _READ_AGAIN}
    new = ordered({**stable_fields, **fresh, "version": line["version"]})
    if new == line:
        return []  # read again, and nothing is new: the day on which it was first read stays
    key = _evidence(table, context)
    named = line["evidence"] if isinstance(line["evidence"], list) else [line["evidence"]]
    keys = list(dict.fromkeys(key if re.fullmatch(r"index(_[\d_]+)?", str(k)) else k for k in named))
    new["evidence"] = keys if len(keys) > 1 else keys[0]
    changed = [k for k in sorted({*line, *new} - {"evidence", "sha256"}) if line.get(k) != new.get(k)]
    table.replace(line, new)
    words = ", ".join(f"{k}: {line.get(k)} -> {new.get(k)}" for k in changed)
    return [f"{component} {line['version']}: {words or 'read, the same'}"]


def _touch(table: LineTable, component: str, line: dict[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Bring up to date what the file list tells of a release that was not read: that is the evidence already."""
    new = {k: v for k, v in line.items() if k not in _LISTED[1:]} | {k: fresh[k] for k in _LISTED if k in fresh}
    changed = table.replace(line, ordered(new))
    names = [k for k in _LISTED if line.get(k) != new.get(k)]
    return (
        [f"{component} {line['version']}: " + ", ".join(f"{k}: {line.get(k)} -> {new.get(k)}" for k in names)]
        if changed and names
        else []
    )
