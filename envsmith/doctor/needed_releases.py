"""Which releases end a finding: what its message asks for, and what the rules over versions leave of a component.

Each answer maps components to specs of which one alone is enough. ``environment`` are versions by component.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envsmith.base.packed import Lazy
from envsmith.doctor.facts import Facts
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.rule_conditions import below, key_of
from envsmith.doctor.signatures import Hit
from envsmith.knowledge.graph.load import components, knowledge
from envsmith.knowledge.graph.location import DataFiles, find_matrix, list_files
from envsmith.knowledge.graph.tables import Table
from envsmith.knowledge.names.presence import short_spec_of
from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.finding import Finding
from envsmith.model.rule import Row, Severity
from envsmith.model.version import Spec, local_cuda, public, version_key

# What torch is compiled for: a build for the CPU obeys rules over these, and nobody is helped by it.
_OF_GPU = frozenset({"gpu", "driver", "cuda"})
# The rule that says with which driver each CUDA came.
_DRIVERS = "toolkit-ptx-driver"
# The last release of sources that says nothing but that there are no wheels here.
_PLACEHOLDERS = {"torch": "0.1.2.post2"}
_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*)((?:[<>=!~]=?=?[\w.*+]+,?)+)")


@dataclass(frozen=True, slots=True)
class _Table:
    """What is asked of the knowledge: the components of each rule, rows by the components of their rule, builds by name.

    Rows are without their words: the knowledge itself takes as long to open as everything else that is done here.
    ``askers`` maps a name (``transformers.HybridCache``) to the packages that import it, with their releases.
    """

    components: Mapping[str, tuple[str, ...]]
    rows: Mapping[frozenset[str], Lazy[tuple[Row, ...]]]
    builds: Mapping[str, tuple[str, ...]]
    askers: Mapping[str, tuple[tuple[str, str], ...]]


def _table() -> _Table:
    return ROWS.load()


def _read_table(_files: DataFiles) -> _Table:
    rows: dict[frozenset[str], tuple[Row, ...]] = {}
    for rule in knowledge().rules:
        bare = (dataclasses.replace(row, evidence=(), cause=None, fix=None, symptom=None) for row in rule.rows)
        rows[frozenset(rule.components)] = (*rows.get(frozenset(rule.components), ()), *bare)
    builds = {name: tuple(release.version for release in each) for name, each in knowledge().releases.items()}
    components_of = {rule.id: rule.components for rule in knowledge().rules}
    return _Table(components_of, {names: Lazy(each) for names, each in rows.items()}, builds, _read_askers())


_ASKED = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'|No module named '(?P<path>[\w.]+)'")


def _read_askers() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return which releases import a name, of the rules over two packages that have such a symptom."""
    askers: dict[str, tuple[tuple[str, str], ...]] = {}
    for rule in knowledge().rules:
        for row in rule.rows if len(rule.components) == 2 else ():
            match = _ASKED.search(row.symptom or "")
            name = match and (match["path"] or f"{match['module']}.{match['name']}")
            user = next((n for n in row.when if name and component_of(name.partition(".")[0]) != n), None)
            if name and user:
                askers[name] = (*askers.get(name, ()), (user, row.when[user].text))
    return askers


def asker_of(name: str, users: Mapping[str, str | None]) -> tuple[str, str] | None:
    """Return the first of ``users`` that imports ``name``, with its releases after those, else before: empty if none.

    ``users`` have a release each, or ``None`` where it is not known.
    """
    ranges = _table().askers.get(name, ())
    for user, release in users.items():
        specs = [Spec.parse(text) for asker, text in ranges if asker == user]
        if not specs or (release and key_of(release) and not any(spec.contains(release) for spec in specs)):
            continue
        releases = {public(version) for version in _table().builds.get(user, ())}
        keyed = [(key, text) for text in releases if (key := version_key(text))]
        builds = [text for _, text in sorted(keyed)]
        asking = [number for number, build in enumerate(builds) if any(spec.contains(build) for spec in specs)]
        if not asking:
            continue
        newer = builds[asking[-1] + 1 :]
        return user, f">={newer[0]}" if newer else f"<{builds[asking[0]]}" if asking[0] else ""
    return None


ROWS = Table("rows", lambda: list_files(find_matrix()), _Table, _read_table)


def _rows_of(names: Iterable[str]) -> tuple[Row, ...]:
    rows = _table().rows.get(frozenset(names))
    return rows.value if rows else ()


def releases_for_message(hit: Hit, requirement: str | None, facts: Facts, platform: Platform) -> dict[str, str]:
    """Return what ends the fault of a message: what it says itself, else what rules over the same components leave."""
    names = hit.signature.components
    if requirement or "needs" in hit.groups:
        return _agreed([requirement] if requirement else hit.groups["needs"].split("; "))
    if hit.signature.needs:
        return {name: spec.format(**hit.groups) for name, spec in hit.signature.needs.items()}
    if "cuda_floor" in hit.groups:
        return {"driver": floor} if (floor := _driver_of(hit.groups["cuda_floor"])) else {}
    if bound := _bound_of_compiler(hit):
        return {"gcc": bound}
    if "pin" in hit.groups:
        name, pin = component_of(hit.groups["need"]), hit.groups["pin"]
        return _pythons_of(name, pin, environment_of(facts)) | _nearest_of(name, pin, hit.groups.get("offered", ""))
    if "python" in names and "nothing" not in hit.groups and (needed := component_of(hit.groups.get("need", ""))):
        return left_by_rules((needed, "python"), environment_of(facts), platform)
    if len(names) < 2 or hit.signature.kind != "cause" or hit.signature.severity is Severity.NOTE:
        return {}
    gpu = {"gpu": f"sm_{hit.groups['gpu']}"} if "gpu" in hit.groups else {}
    environment = environment_of(facts) | gpu
    return left_by_rules(names, environment, platform) | _cuda_left(names, environment, platform)


def releases_for_finding(finding: Finding, facts: Facts, platform: Platform) -> dict[str, str]:
    """Return what ends a finding of a rule over versions."""
    names = _table().components.get(finding.rule, ())
    return _left(_rows_over(names, platform), names, environment_of(facts) | _exact(finding.components))


def left_by_rules(names: Collection[str], environment: Mapping[str, str], platform: Platform) -> dict[str, str]:
    """Return what the rules over exactly these components leave of each that a message says to be wrong."""
    rows = _rows_over(names, platform)
    return _next_floor(rows, environment) | _left(rows, names, environment)


def _cuda_left(names: Collection[str], environment: Mapping[str, str], platform: Platform) -> dict[str, str]:
    """Return the CUDA from which on builds of torch have code for the GPU, where the stated one is below that."""
    stated = key_of(environment.get("cuda", ""))
    if set(names) != {"torch", "gpu"} or "gpu" not in environment or stated is None:
        return {}
    builds = {build: cuda for build in _table().builds["torch"] if (cuda := local_cuda(build))}
    broken = set(_broken(_rows_over(names, platform), "torch", environment, set(builds)))
    keyed = sorted((key, cuda) for b, cuda in builds.items() if b not in broken and (key := version_key(cuda)))
    return {"cuda": f">={keyed[0][1]}"} if keyed and keyed[0][0] > stated else {}


def sentence_of(needs: Mapping[str, str], facts: Facts) -> str:
    """Return which releases end a fault in words, with a space behind, or nothing.

    A component is named where its stated release is another one, where it must reach a floor, or where it is Python:
    what the rules merely leave of one whose release nobody stated says nothing of the cause.
    """
    stated = environment_of(facts)
    causes = [
        f"{name} {spec}"
        for name, spec in needs.items()
        if (
            not Spec.parse(spec).contains(stated[name])
            if name in stated
            else name == "python" or (spec.startswith(">=") and "," not in spec)
        )
    ]
    # A build of torch is for one CUDA: where both are named, both are asked.
    joint = " and " if {"torch", "cuda"} <= needs.keys() and "gpu" not in needs else " or "
    return f"With {joint.join(causes)} this does not happen. " if causes else ""


def environment_of(facts: Facts) -> dict[str, str]:
    """Return the versions that are stated. A CUDA that the driver supports stands for the driver that came with it."""
    environment = _exact({name: stated.version for name, stated in facts.components.items() if stated.exact})
    if "driver" not in environment and (cuda := facts.host.get("driver_cuda")):
        environment["driver"] = (_driver_of(cuda) or "0").removeprefix(">=")
    return environment


def _driver_of(cuda: str) -> str | None:
    """Return the spec of the driver that came with a CUDA."""
    rows = _rows_of(_table().components[_DRIVERS])
    return next(
        (r.needs["driver"].text for r in rows if "toolkit" in r.when and r.when["toolkit"].contains(cuda)), None
    )


def _exact(versions: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if key_of(version)}


def _bound_of_compiler(hit: Hit) -> str | None:
    """Return what a message says of the compiler: the newest release that works, or the oldest."""
    if "gcc" not in hit.signature.components:
        return None
    if hit.groups.get("limit", "").isdecimal():
        return f"<{int(hit.groups['limit']) + 1}"
    return f">={hit.groups['floor']}" if "floor" in hit.groups else None


def _pythons_of(name: str | None, pin: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Pythons that a pinned release has wheels for, unless the stated one is among them."""
    minors = _minors_of(name, pin)
    if (
        not minors
        or minors != list(range(minors[0], minors[-1] + 1))
        or has_wheel(name, pin, environment.get("python"))
    ):
        return {}
    return {"python": f">=3.{minors[0]},<3.{minors[-1] + 1}"}


def has_wheel(name: str | None, pin: str, python: str | None) -> bool:
    """Return whether a release of a component is known to have a wheel for a Python on Linux."""
    key = key_of(python or "")
    return key is not None and key.minor in _minors_of(name, pin)


def _minors_of(name: str | None, pin: str) -> list[int]:
    """Return the minors of Python 3 that a pinned release has wheels for, empty where they are not known."""
    specs = [row.needs["python"].text for row in _rows_of_wheels(name, pin)] if name else []
    return sorted({int(text.strip()[2:]) for spec in specs for text in spec.split("||")})


def _nearest_of(name: str | None, pin: str, offered: str) -> dict[str, str]:
    """Return the releases from the first on that an index offers above a pinned one, else up to the last below it."""
    texts = {public(text) for text in offered.replace(",", " ").split()}
    keys = sorted((key, text) for text in texts if (key := version_key(text)))
    pinned = version_key(pin)
    if name is None or not keys or not pinned:
        return {}
    if "+" in pin and public(pin) in texts:
        return {name: f"=={public(pin)}"}
    above = next((text for key, text in keys if key > pinned), None)
    if above is None and keys[-1][1] == _PLACEHOLDERS.get(name):
        return {}
    return {name: f">={above}" if above else f"<={keys[-1][1]}"}


def _rows_of_wheels(name: str, pin: str) -> list[Row]:
    """Return the rows that list the Pythons of the wheels of a release, one for each of its builds."""
    rows = [row for row in _rows_of({name, "python"}) if "python" in row.needs]
    listed = [row for row in rows if re.fullmatch(r"3\.\d+(?: \|\| 3\.\d+)*", row.needs["python"].text)]
    return [row for row in listed if public(row.when[name].text.removeprefix("==")) == public(pin)]


def release_that_takes(name: str, release: str, needed: str, spec: str) -> str | None:
    """Return the release of ``name`` of which a rule says that it needs exactly a version in ``spec`` of another one.

    It is the newest for a pin. For a range it is the nearest after ``release``, else the newest.
    """
    range_asked = Spec.parse(spec)
    takers: dict[str, str] = {}
    for row in _rows_of({name, needed}):
        pin = row.needs[needed].exact if name in row.when and needed in row.needs else None
        match = re.search(r"(?:^|[<=]=)(\d[\w.]*)$", row.when[name].text) if pin else None
        if pin and match and (range_asked.contains(pin) or public(pin) == public(range_asked.exact)):
            takers[match[1]] = pin
    keyed = sorted((key, text) for text in takers if (key := version_key(text)))
    own = key_of(release)
    later = [text for key, text in keyed if own and key > own and not range_asked.exact]
    return later[0] if later else keyed[-1][1] if keyed else None


def _agreed(requirements: Sequence[str]) -> dict[str, str]:
    """Return the specs of packages of which all ``requirements`` say the same."""
    specs: dict[str, list[Spec]] = {}
    for name, text in (match.groups() for each in requirements if (match := _REQUIREMENT.fullmatch(each))):
        with contextlib.suppress(ValueError):
            specs.setdefault(name, []).append(Spec.parse(text))
    return {name: str(every[0]) for name, every in specs.items() if len({spec.meaning for spec in every}) == 1}


def _rows_over(names: Collection[str], platform: Platform) -> tuple[Row, ...]:
    rows = (row for row in _rows_of(names) if row.severity is not Severity.NOTE)
    return tuple(row for row in rows if not row.platforms or platform in row.platforms)


def _left(rows: Sequence[Row], names: Collection[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return for each component that can be changed which of its releases obey the rows, and the present one does not."""
    answers = {
        name: _demanded(rows, name, environment) or _obeying(rows, names, name, environment)
        for name in names
        if name != "gpu"
    }
    return {n: s for n, s in answers.items() if s and not (n in environment and Spec.parse(s).contains(environment[n]))}


def _demanded(rows: Iterable[Row], name: str, environment: Mapping[str, str]) -> str | None:
    """Return what a row demands of a component, where its rest is met and that is not: the first floor below a ceiling."""
    demands = list(_demands(rows, name, environment))
    floor = next(iter(demands), "")
    ceilings = (text for text in demands if floor[:2] == ">=" and text[:1] == "<" and below(floor[2:], text[1:]))
    return ",".join([floor, *itertools.islice(ceilings, 1)]) or None


def _demands(rows: Iterable[Row], name: str, environment: Mapping[str, str]) -> Iterator[str]:
    for row in rows:
        spec = row.needs.get(name)
        if spec is None or "||" in spec.text or (name in environment and spec.contains(environment[name])):
            continue
        if all(n in environment and each.contains(environment[n]) for n, each in row.when.items()):
            yield spec.text


def _obeying(rows: Iterable[Row], names: Collection[str], name: str, environment: Mapping[str, str]) -> str | None:
    """Return the releases of a component that break none of ``rows``, or ``None`` where that says nothing."""
    if components().by_name[name].role is Role.HOST or any(n not in environment for n in names if n != name):
        return None
    builds: dict[str, list[str]] = {}
    for version in _table().builds.get(name, ()):
        if not (version.endswith("+cpu") and _OF_GPU & set(names)):
            builds.setdefault(public(version), []).append(version)
    broken = set(_broken(rows, name, environment, {build for each in builds.values() for build in each}))
    obeying = [release for release, each in builds.items() if set(each) - broken]
    return short_spec_of(tuple(builds), obeying) if obeying and len(obeying) < len(builds) else None


def _broken(rows: Iterable[Row], name: str, environment: Mapping[str, str], builds: set[str]) -> Iterator[str]:
    """Give the builds of a component with which a row is broken, beside the rest of the environment."""
    for row in rows:
        own, demand = row.when.get(name), row.needs.get(name)
        if own is None or not all(spec.contains(environment[n]) for n, spec in row.when.items() if n != name):
            continue
        unmet = any(not spec.contains(environment[n]) for n, spec in row.needs.items() if n != name)
        exact = own.text.removeprefix("==")
        for build in [exact] if exact in builds else [each for each in builds if own.contains(each)]:
            if unmet or not row.needs or (demand is not None and not demand.contains(build)):
                yield build


def _may_be_met(row: Row, environment: Mapping[str, str]) -> bool:
    """Return whether a floor may be meant: one of the host always, one of a package beside the releases that are stated."""
    hosts = {name for name, component in components().by_name.items() if component.role is Role.HOST}
    if row.needs.keys() <= hosts:
        return True
    stated = row.when.keys() & environment.keys()
    return bool(stated or row.when.keys() & hosts) and all(row.when[n].contains(environment[n]) for n in stated)


def _next_floor(rows: Sequence[Row], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the lowest floor that a component does not reach: the message says that it is too old."""
    for name in {name: None for row in rows for name in row.needs if name in environment and name != "gpu"}:
        demanding = [row for row in rows if name in row.needs and row.severity is Severity.ERROR]
        specs = [row.needs[name] for row in demanding if _may_be_met(row, environment)]
        floors = [spec.text for spec in specs if spec.text[:2] == ">=" and not spec.contains(environment[name])]
        if ordered := sorted((key, text) for text in floors if (key := key_of(text[2:]))):
            return {name: ordered[0][1]}
    return {}
