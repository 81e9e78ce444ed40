"""``releases/<component>.yaml`` -> releases, and the rules that they declare themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from packaging.version import Version

from envsmith.graph.evidence import named_evidence, read_evidence, with_hash
from envsmith.graph.parse import Node
from envsmith.graph.rules import read_specs
from envsmith.model.component import ComponentTable
from envsmith.model.rule import Release, Row, Rule, RuleKind
from envsmith.model.version import Spec, version_key

__all__ = ["Declared", "declared_rules", "in_order", "read_gpu_names", "read_releases"]

_OPTIONAL = (
    "date", "yanked", "requires", "python", "sdist_only", "build_imports", "evidence", "sha256",
    "cuda_majors", "driver", "runfile_driver", "cudart", "cuda_shown", "family",
)  # fmt: skip
_PLAIN = ("cuda_majors", "driver", "runfile_driver", "cudart", "cuda_shown", "family", "build_imports")


@dataclass(frozen=True, slots=True)
class Declared:
    """A release and what it says it needs."""

    release: Release
    requires: Mapping[str, Spec]
    python: Spec | None


def read_releases(root: Node, table: ComponentTable) -> list[Declared]:
    """Every release of a file (except torch's), in version order; a version that stands there twice is a problem."""
    fields = root.fields(("component", "releases"), ("evidence", "names", "runs_on"))
    component = fields["component"].text() if "component" in fields else None
    if component is None or component not in table.by_name:
        if component:
            fields["component"].wrong("unknown component", "see components.yaml")
        return []
    named = named_evidence(fields.get("evidence"))
    found: dict[str, Declared] = {}
    for line in fields["releases"].sequence() if "releases" in fields else []:
        own = line.fields(("version", "evidence"), _OPTIONAL)
        version = own["version"].version() if "version" in own else None
        evidence = read_evidence(own["evidence"], named, owner=line) if "evidence" in own else ()
        evidence = with_hash(evidence, own.get("sha256"))
        if not version or not evidence:
            continue
        requires, _ = read_specs(own["requires"], table) if "requires" in own else ({}, ())
        release = Release(
            component=component,
            version=version,
            date=own["date"].day() if "date" in own else None,
            yanked=_yanked(own.get("yanked")),
            facts=_facts(own),
            evidence=evidence,
        )
        declared = Declared(release, requires, own["python"].spec() if "python" in own else None)
        if found.setdefault(version, declared) is not declared:
            line.wrong(f"{version} stands in this file twice", "remove one line")
    return in_order(found.values())


def in_order(declared: Iterable[Declared]) -> list[Declared]:
    """Oldest version first; words such as ``cpu`` come first of all."""
    return sorted(declared, key=lambda d: version_key(d.release.version) or Version("0.dev0"))


def _yanked(node: Node | None) -> str | None:
    if node is None or node.value is False:
        return None
    return "yanked" if node.value is True else node.text()


def _facts(fields: Mapping[str, Node]) -> dict[str, object]:
    facts: dict[str, object] = {}
    if "sdist_only" in fields:
        facts["sdist_only"] = fields["sdist_only"].flag()
    for name in _PLAIN:
        node = fields.get(name)
        if node is not None:
            many = isinstance(node.value, list)
            facts[name] = [entry.text() for entry in node.sequence()] if many else node.text()
    return facts


def declared_rules(component: str, declared: Sequence[Declared]) -> list[Rule]:
    """``<component>-declares-<target>``: one row per run of consecutive releases that declare the same."""
    targets = dict.fromkeys(t for d in declared for t in [*d.requires, *(["python"] if d.python else [])])
    rules = []
    for target in targets:
        rows: list[Row] = []
        for spec, group in groupby(declared, key=lambda d, t=target: _declares(d, t)):  # type: ignore[misc]
            run = list(group)
            if spec is not None:
                rows.append(_row(component, target, spec, run))
        if rows:
            rules.append(
                Rule(id=f"{component}-declares-{target}", kind=RuleKind.REQUIRES, rows=tuple(rows), stage="install")
            )
    return rules


def _declares(declared: Declared, target: str) -> Spec | None:
    """What one release asks of ``target``, or ``None`` when that bars no version."""
    spec = declared.requires.get(target)
    if target == "python" and spec is None:
        spec = declared.python
    return None if spec is None or spec.is_any else spec


def _row(component: str, target: str, spec: Spec, run: Sequence[Declared]) -> Row:
    first, last = run[0].release, run[-1].release
    when = f"=={first.version}" if first is last else f">={first.version},<={last.version}"
    evidence = tuple(dict.fromkeys(e for d in run for e in d.release.evidence))
    return Row(
        when={component: Spec.parse(when)}, needs={target: spec}, cause="its metadata says so", evidence=evidence[:4]
    )


def read_gpu_names(node: Node | None) -> dict[str, str]:
    """Folded name of a GPU -> ``sm_NN``; a name that stands for two architectures is a problem."""
    names: dict[str, str] = {}
    for line in node.sequence() if node else []:
        fields = line.fields(("gpu", "names", "evidence"))
        arch = fields["gpu"].version() if "gpu" in fields else None
        for entry in fields["names"].sequence() if "names" in fields else []:
            name = entry.text(maximum=60)
            if name and arch:
                folded = re.sub(r"[-_\s]+", "", name.lower())
                if names.setdefault(folded, arch) != arch:
                    entry.wrong(f"names both {names[folded]} and {arch}")
    return names
