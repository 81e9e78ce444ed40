"""Which releases end a finding: what its message asks for, and what the rules over versions leave of a component.

Each answer maps components to specs of which one alone is enough.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from envsmith.doctor.facts import Facts
from envsmith.doctor.rule_conditions import key_of
from envsmith.doctor.signatures import Hit
from envsmith.graph.load import components, knowledge
from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.finding import Finding
from envsmith.model.rule import Row, Severity
from envsmith.model.version import Spec, public
from envsmith.names.presence import short_spec_of

# What torch is compiled for: a build for the CPU obeys rules over these, and nobody is helped by it.
_OF_GPU = frozenset({"gpu", "driver", "cuda"})
# The rule that says with which driver each CUDA came.
_DRIVERS = "toolkit-ptx-driver"
_REQUIREMENT = re.compile(r"([A-Za-z][\w.-]*)((?:[<>=!~]=?=?[\w.*]+,?)+)")


def releases_for_message(hit: Hit, requirement: str | None, facts: Facts, platform: Platform) -> dict[str, str]:
    """Return what ends the fault of a message: what it says itself, else what rules over the same components leave."""
    names = hit.signature.components
    if requirement or "needs" in hit.groups:
        return _agreed([requirement] if requirement else hit.groups["needs"].split("; "))
    if bound := _bound_of_compiler(hit):
        return {"gcc": bound}
    if len(names) < 2 or hit.signature.kind != "cause" or hit.signature.severity is Severity.NOTE:
        return {}
    known = _known(facts) | ({"gpu": f"sm_{hit.groups['gpu']}"} if "gpu" in hit.groups else {})
    return left_by_rules(names, known, platform)


def releases_for_finding(finding: Finding, facts: Facts, platform: Platform) -> dict[str, str]:
    """Return what ends a finding of a rule over versions."""
    names = next((rule.components for rule in knowledge().rules if rule.id == finding.rule), ())
    return _left(_rows_over(names, platform), names, _known(facts) | _exact(finding.components))


def left_by_rules(names: Collection[str], known: Mapping[str, str], platform: Platform) -> dict[str, str]:
    """Return what the rules over exactly these components leave of each, beside the versions that are known."""
    rows = _rows_over(names, platform)
    return _next_floor(rows, known) | _left(rows, names, known)


def _bound_of_compiler(hit: Hit) -> str | None:
    """Return what a message says of the compiler: the newest release that works, or the oldest."""
    if "gcc" not in hit.signature.components:
        return None
    if hit.groups.get("limit", "").isdecimal():
        return f"<{int(hit.groups['limit']) + 1}"
    return f">={hit.groups['floor']}" if "floor" in hit.groups else None


def sentence_of(needs: Mapping[str, str]) -> str:
    """Return which releases end a fault in words, with a space behind, or nothing."""
    return (
        f"With {' or '.join(f'{name} {spec}' for name, spec in needs.items())} this does not happen. " if needs else ""
    )


def _rows_over(names: Collection[str], platform: Platform) -> list[Row]:
    """Return what the rules say that speak of exactly these components."""
    rows = [row for rule in knowledge().rules if set(rule.components) == set(names) for row in rule.rows]
    stated = [row for row in rows if row.severity is not Severity.NOTE]
    return [row for row in stated if not row.platforms or platform in row.platforms]


def _known(facts: Facts) -> dict[str, str]:
    """Return the versions that are known, and the driver with which the CUDA came that the driver is said to support."""
    known = _exact({name: stated.version for name, stated in facts.components.items() if stated.exact})
    if "driver" not in known and (cuda := facts.host.get("driver_cuda")):
        rows = next((rule.rows for rule in knowledge().rules if rule.id == _DRIVERS), ())
        floors = [row.needs["driver"].text for row in rows if row.when["toolkit"].contains(cuda)]
        known["driver"] = floors[0].removeprefix(">=") if floors else "0"
    return known


def _exact(versions: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if key_of(version)}


def _agreed(requirements: Sequence[str]) -> dict[str, str]:
    """Return the specs of packages of which all ``requirements`` can be met at once by a release of one of them."""
    specs: dict[str, list[Spec]] = {}
    for name, text in (match.groups() for each in requirements if (match := _REQUIREMENT.fullmatch(each))):
        with contextlib.suppress(ValueError):
            specs.setdefault(name, []).append(Spec.parse(text))
    return {name: str(all_of[0]) for name, all_of in specs.items() if len({spec.meaning for spec in all_of}) == 1}


def _left(rows: Sequence[Row], names: Collection[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return for each component that can be changed which of its releases obey the rows beside the known versions."""
    changeable = [name for name in names if name != "gpu"]
    answers = {name: _demanded(rows, name, known) or _obeying(rows, names, name, known) for name in changeable}
    return {n: spec for n, spec in answers.items() if spec and not (n in known and Spec.parse(spec).contains(known[n]))}


def _demanded(rows: Iterable[Row], name: str, known: Mapping[str, str]) -> str | None:
    """Return what the first row demands of a component, where the rest of the row is met and that is not."""
    for row in rows:
        spec = row.needs.get(name)
        if (
            spec
            and "||" not in spec.text
            and _is_met(row, known)
            and not (name in known and spec.contains(known[name]))
        ):
            return spec.text
    return None


def _is_met(row: Row, known: Mapping[str, str]) -> bool:
    return all(name in known and spec.contains(known[name]) for name, spec in row.when.items())


def _obeying(rows: Iterable[Row], names: Collection[str], name: str, known: Mapping[str, str]) -> str | None:
    """Return the releases of a component that break none of ``rows``, or ``None`` where that says nothing."""
    if components().by_name[name].role is Role.HOST or any(n not in known for n in names if n != name):
        return None
    by_release: dict[str, list[str]] = {}
    for version in (release.version for release in knowledge().releases.get(name, ())):
        if not (version.endswith("+cpu") and _OF_GPU & set(names)):
            by_release.setdefault(public(version), []).append(version)
    broken = set(_broken(rows, name, known, {version for each in by_release.values() for version in each}))
    obeying = [release for release, versions in by_release.items() if set(versions) - broken]
    return short_spec_of(tuple(by_release), obeying) if obeying and len(obeying) < len(by_release) else None


def _broken(rows: Iterable[Row], name: str, known: Mapping[str, str], builds: set[str]) -> Iterator[str]:
    """Give the builds of a component with which a row is broken, beside the known versions."""
    for row in rows:
        own = row.when.get(name)
        if own is None or not all(spec.contains(known[n]) for n, spec in row.when.items() if n != name):
            continue
        exact = own.text.removeprefix("==")
        meant = [exact] if exact in builds else [build for build in builds if own.contains(build)]
        unmet = [(n, spec) for n, spec in row.needs.items() if n == name or not spec.contains(known[n])]
        if not row.needs or any(n != name for n, _ in unmet):
            yield from meant
        elif unmet:
            yield from (build for build in meant if not unmet[0][1].contains(build))


def _next_floor(rows: Sequence[Row], known: Mapping[str, str]) -> dict[str, str]:
    """Return the lowest floor that a known version does not reach: the message says that it is too old."""
    for name in {name: None for row in rows for name in row.needs if name in known and name != "gpu"}:
        specs = [row.needs[name] for row in rows if name in row.needs and row.severity is Severity.ERROR]
        floors = [spec.text for spec in specs if spec.text[:2] == ">=" and not spec.contains(known[name])]
        if ordered := sorted((key, text) for text in floors if (key := key_of(text[2:]))):
            return {name: ordered[0][1]}
    return {}
