"""``releases/<component>.yaml`` of everything that is a distribution: which releases there are, and what each declares.

Frameworks are read release by release, METADATA or PKG-INFO of one file each; a line whose ``sha256`` names a file of
the index was read already and is not read again, so what people corrected by hand stays. Companions take dates and
yanks from the file list, and only a release that is new has its METADATA read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from envsmith.errors import NetworkError
from envsmith.frameworks import FRAMEWORKS
from envsmith.http import NotFoundError
from envsmith.matrix.refresh.shared import Context, in_parallel, same_spec, spec_text, yanked_text
from envsmith.matrix.refresh.table import Table
from envsmith.model.cell import Platform
from envsmith.model.component import ComponentTable, Role
from envsmith.model.version import WORDS
from envsmith.python.distribution import ReleaseFacts, best_file, read_release
from envsmith.python.index import IndexFile
from envsmith.python.metadata import active
from envsmith.python.torch_wheel import linux_wheels, pythons_of

_KIND = "release"
# The minors among which a marker must hold everywhere before a requirement becomes a rule; wide enough for every
# release that is listed.
_MINORS = tuple(f"3.{n}" for n in range(6, 16))
_METADATA_SOURCE = "METADATA, PKG-INFO or requires.txt of one file of the release on the package index"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How a file is kept.

    ``read_all``: every release was opened, not only new ones. ``finals``: no pre-releases. ``joins``: distributions of
    the same version whose requirements belong to it. ``cuda_core``: a hard requirement on ``<name>-cuNN`` bounds CUDA
    to that major. ``ignore``: requirements that depend on the machine that made the metadata.
    """

    read_all: bool = False
    finals: bool = True
    joins: tuple[str, ...] = ()
    cuda_core: str | None = None
    ignore: frozenset[str] = frozenset()
    sdist_facts: bool = False


# Companions that require other components: what an older release declares decides as much as the newest.
_READ = (
    "accelerate", "bitsandbytes", "datasets", "diffusers", "lightning", "nvidia-modelopt", "peft", "tensorstore",
    "tokenizers", "transformers", "trl",
)  # fmt: skip
_POLICIES: Mapping[str, Policy] = {
    **dict.fromkeys(_READ, Policy(read_all=True)),
    "transformer-engine": Policy(read_all=True, joins=("transformer-engine-torch",), cuda_core="transformer-engine"),
    "flash-attn": Policy(read_all=True, sdist_facts=True),
    "horovod": Policy(read_all=True, sdist_facts=True),
}


def policy_of(component: str) -> Policy:
    """Return how the file of a component is kept."""
    framework = FRAMEWORKS.get(component)
    if framework is None:
        return _POLICIES.get(component, Policy())
    return Policy(read_all=True, finals=False, ignore=framework.ignored_requirements, sdist_facts=framework.reads_sdist)


def _minors(requires_python: str | None) -> list[str]:
    """Return the minors that ``Requires-Python`` admits with at least one patch release."""
    try:
        specifier = SpecifierSet(requires_python or "")
    except InvalidSpecifier:
        return list(_MINORS)
    return [m for m in _MINORS if any(specifier.contains(f"{m}.{patch}") for patch in range(25))] or list(_MINORS)


def declared(
    requires: Iterable[str],
    requires_python: str | None,
    components: ComponentTable,
    *,
    own: str,
    policy: Policy = Policy(),
) -> dict[str, str]:
    """Return a spec by component: what a release asks for on every platform and every Python it admits.

    Requirements of extras, of one platform or of some Pythons only are left out, alternatives are joined. One without a bound is kept for core
    components only.
    """
    specs: dict[str, str] = {}
    python_spec = spec_text(requires_python or "", drop_patch=True)
    if python_spec != "*":
        specs["python"] = python_spec
    for name, text in _everywhere(list(requires), _minors(requires_python)).items():
        core = re.fullmatch(r"(.+)-cu(\d+)", name)
        if policy.cuda_core and core and core[1] == policy.cuda_core:
            specs["cuda"] = f"=={core[2]}.*"
            continue
        component = components.find(name)
        if component is None or component.name == own or component.name in policy.ignore:
            continue
        if text != "*" or component.role is Role.CORE:
            specs[component.name] = text
    return _first(specs, ("python", "cuda", "torch"))


def _everywhere(requires: list[str], pythons: Iterable[str]) -> dict[str, str]:
    """Return what is required on every platform and for every one of ``pythons``: where that differs, any of it."""
    each = [
        {name: spec_text(r.specifier) for name, r in active(requires, python=python, platform=platform).items()}
        for python in pythons
        for platform in Platform
    ]
    names = [n for n in each[0] if all(n in specs for specs in each)] if each else []
    specs = {n: list(dict.fromkeys(specs[n] for specs in each)) for n in names}
    return {n: "*" if "*" in texts else " || ".join(texts) for n, texts in specs.items()}


def _first(specs: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    head = [n for n in names if n in specs]
    return {n: specs[n] for n in [*head, *(s for s in specs if s not in head)]}


def _wanted(
    table: Table, policy: Policy, releases: Mapping[str, tuple[IndexFile, ...]]
) -> dict[str, tuple[IndexFile, ...]]:
    """Return the releases that belong into a file: not older than its oldest line."""
    listed = [Version(r["version"]) for r in table.records if r["version"] not in WORDS]
    oldest = min(listed, default=Version("0.dev0"))
    return {
        v: files
        for v, files in releases.items()
        if Version(v) >= oldest and (not policy.finals or not Version(v).is_prerelease)
    }


def _line(version: str, files: tuple[IndexFile, ...]) -> dict[str, Any]:
    """Return what the file list alone tells."""
    wheels = linux_wheels(files)
    usable = [f for f in files if f.is_wheel and ("linux" in f.filename or f.filename.endswith("-any.whl"))]
    pure = any(f.filename.endswith("-any.whl") for f in files)
    has_sdist = any(not f.is_wheel for f in files)
    tags = ["-".join(f.filename.removesuffix(".whl").split("-")[-3:]) for fs in wheels.values() for f in fs]
    pythons = pythons_of(tags) or None
    line = {
        "version": version,
        "date": min((f.day for f in files if f.day), default=None),
        "yanked": yanked_text(files),
        "python": pythons if isinstance(pythons, list) and not pure and not has_sdist else None,
        "sdist_only": True if has_sdist and not usable else None,
    }
    return {k: v for k, v in line.items() if v is not None}


_FIELDS = (
    "version",
    "date",
    "yanked",
    "requires",
    "python",
    "sdist_only",
    "build_imports",
    "cuda_majors",
    "sha256",
    "evidence",
)


def ordered(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in the order in which they stand in a file."""
    return {k: record[k] for k in _FIELDS if k in record} | {k: v for k, v in record.items() if k not in _FIELDS}


def by_version(record: Mapping[str, Any]) -> Version:
    """Return the sort key of a file of releases. The words ``cpu`` and ``none`` come last."""
    return Version("9999!0") if record["version"] in WORDS else Version(record["version"])


def _read(context: Context, file: IndexFile) -> ReleaseFacts:
    return context.read_once(ReleaseFacts, _KIND, file, lambda: read_release(context.index.fetcher, file))


def _pinned(requires: Iterable[str], name: str) -> str | None:
    """Return the version of ``name`` that a release pins in an extra: parts of 1.9.0.post1 may be 1.9.0."""
    for line in requires:
        match = re.match(r"([A-Za-z0-9._-]+)\s*\(?==\s*([^\s;,)]+)", line)
        if match and re.sub(r"[-_.]+", "-", match[1]).lower() == name:
            return match[2]
    return None


def _of(releases: Mapping[str, tuple[IndexFile, ...]], version: str) -> tuple[IndexFile, ...]:
    return next((files for v, files in releases.items() if Version(v) == Version(version)), ())


def _joined(context: Context, policy: Policy, version: str, facts: ReleaseFacts) -> list[str]:
    """Return the requirements of the distributions that belong to a release, where they have that version."""
    requires: list[str] = []
    for name in policy.joins:
        file = best_file(_of(context.project(name).releases(), _pinned(facts.requires, name) or version))
        listed = _read(context, file).requires if file else ()
        parts = rf"{policy.cuda_core}-cu\d" if policy.cuda_core else r"(?!)"
        requires += [r for r in listed if not re.match(parts, r.replace("_", "-"))]
    return requires


def update_releases(table: Table, context: Context, component: str) -> list[str]:
    """Bring one file up to date and return what changed. ``NetworkError`` when the index does not answer."""
    policy = policy_of(component)
    entry = context.components.by_name.get(component)
    if entry is None or not entry.distributions:
        raise NetworkError(f"{component} has no distribution on the package index")
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
        if file and (line is None or (policy.read_all and (context.again or not measured))):
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


def _evidence(table: Table, context: Context, policy: Policy) -> str:
    """Return the key under which what was read today is filed."""
    if not policy.read_all:
        return table.evidence_key("metadata", "declared", _METADATA_SOURCE, context.today)
    named = table.named.get("index", {})
    kind, source = str(named.get("kind", "declared")), str(named.get("source", _METADATA_SOURCE))
    return table.evidence_key("index", kind, source, context.today)


def _merge(
    table: Table,
    context: Context,
    component: str,
    *,
    line: dict[str, Any] | None,
    fresh: dict[str, Any],
    facts: ReleaseFacts,
    joined: list[str],
) -> list[str]:
    """Put a release that was read into the table."""
    policy = policy_of(component)
    listed = [*facts.requires, *joined]
    requires = declared(listed, facts.requires_python, context.components, own=component, policy=policy)
    key = _evidence(table, context, policy)
    fresh = {**fresh, "sha256": facts.sha256, **({"requires": requires} if requires else {})}
    if line is None:
        if "torch" in facts.setup_imports:
            fresh["build_imports"] = ["torch"]
        table.insert(ordered({**fresh, "evidence": key}), by_version)
        return [f"{component} {fresh['version']}: new"]
    before = line.get("requires", {})
    if before and before.keys() == requires.keys() and all(same_spec(before[k], requires[k]) for k in before):
        fresh["requires"] = before
    stable_fields = {k: v for k, v in line.items() if k not in {"yanked", "requires", "python", "sdist_only"}}
    named = line["evidence"] if isinstance(line["evidence"], list) else [line["evidence"]]
    keys = [key if re.fullmatch(r"index(_[\d_]+)?", str(k)) else k for k in named]
    keys = list(dict.fromkeys(keys))
    new = ordered(
        {**stable_fields, **fresh, "version": line["version"], "evidence": keys if len(keys) > 1 else keys[0]}
    )
    if {k: v for k, v in line.items() if k != "evidence"} == {k: v for k, v in new.items() if k != "evidence"}:
        return []  # read again, and nothing is new: the day on which it was first read stays
    changed = [k for k in sorted({*line, *new} - {"evidence", "sha256"}) if line.get(k) != new.get(k)]
    table.replace(line, new)
    words = ", ".join(f"{k}: {line.get(k)} -> {new.get(k)}" for k in changed)
    return [f"{component} {line['version']}: {words or 'read, the same'}"]


def _touch(table: Table, component: str, line: dict[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """Return date and withdrawal of a release that was not read: the file list is the evidence already."""
    new = dict(line)
    for name in ("date", "yanked"):
        if name in fresh:
            new[name] = fresh[name]
    if "yanked" not in fresh:
        new.pop("yanked", None)
    changed = table.replace(line, ordered(new))
    names = [k for k in ("date", "yanked") if line.get(k) != new.get(k)]
    return (
        [f"{component} {line['version']}: " + ", ".join(f"{k}: {line.get(k)} -> {new.get(k)}" for k in names)]
        if changed and names
        else []
    )
