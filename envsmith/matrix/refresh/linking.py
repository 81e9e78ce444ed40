"""``rules/linking.yaml``: which torch the compiled wheels of a component link with, where its METADATA does not say.

A release whose METADATA pins one torch is not measured. Of every other one the wheel for x86-64 is read once, by
ranges, and held against ``symbols/torch.bin``. The file is made here as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from envsmith.matrix.refresh.shared import Context, in_parallel
from envsmith.model.version import public
from envsmith.python.compiled import read_needs
from envsmith.python.index import IndexFile
from envsmith.symbols.fit import WheelNeeds, fits
from envsmith.symbols.table import SymbolTable, spec_of

_PINNED = re.compile(r"==[\d.]+(?:post\d+)?")
_ROW = re.compile(
    r"(?:  - \{when: \{|# (?P<every>any|none): )(?P<component>[\w-]+): \"(?P<releases>[^\"]+)\""
    r"(?:, platform: linux-64\}, needs: \{torch: \"(?P<torch>[^\"]+)\"\}\})?"
)
_HEAD = """\
# Made by `envsmith matrix refresh`: which torch the compiled wheels of a component link with. Change the updater, not the lines.
# `any` are releases that link with every measured torch, `none` those that link with none: they were built for an
# older one, or for a nightly.
{notes}evidence:
  linked: {{kind: measured, source: "compiled wheels of {names} for x86-64 on the package index: the symbols that they need, held against symbols/torch.bin", date: {day}}}
rules:
"""
_RULE = """\
- id: {name}-links-torch
  kind: requires
  severity: {linked.severity}
  stage: import
  symptom: "{linked.symptom}"
  cause: "The compiled files of {name} link with some releases of torch only, and its METADATA admits more. With another torch {linked.outcome}."
  fix: "Use the {name} that was built for the installed torch."
  rows:
{rows}
  evidence: [linked]
"""
# Specs that are no rule: what links with every torch, and what links with none that was measured.
_EVERY = {"any": "*", "none": ""}
_UNDEFINED = "undefined symbol"


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """What happens where the compiled files of a component do not link with torch, and what is printed then."""

    severity: str
    symptom: str
    outcome: str


LINKED: Mapping[str, Linked] = {
    "tensordict": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchao": Linked(
        severity="warning", symptom="Skipping import of cpp extensions", outcome="its compiled kernels are left out"
    ),
    "torchaudio": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchdata": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchvision": Linked(
        severity="error", symptom="Couldn't load custom C++ ops", outcome="its operators cannot be used"
    ),
    "vllm": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "xformers": Linked(
        severity="warning",
        symptom="xFormers can't load C++/CUDA extensions",
        outcome="its attention kernels are left out",
    ),
}


def update_linking(
    old: str | None, releases: Mapping[str, Iterable[Mapping[str, Any]]], table: SymbolTable, context: Context
) -> tuple[str | None, list[str]]:
    """Return the file with a row for each set of releases that link with the same torch, and what is new.

    ``releases`` are the records of each component of :data:`LINKED` that is measured in this run.
    """
    specs = {} if old is None else _read(old)
    summary: list[str] = []
    for name, records in releases.items():
        earlier = {} if context.again else specs.get(name, {})
        open_releases = {str(r["version"]) for r in records if not _pins_torch(r)}
        wheels = {v: f for v, f in _wheels(context, name).items() if v in open_releases}
        tasks = {v: f"{name} {v}" for v in wheels if v not in earlier}
        read = in_parallel(
            context,
            f"symbols of {name}",
            tasks,
            lambda v, w=wheels: read_needs(w[v].url, context.index.fetcher),  # type: ignore[misc]
        )
        fresh = {version: _linking(needs, table) for version, needs in read.items()}
        specs[name] = {**earlier, **fresh}
        summary += [f"{name} {v}: links with torch {fresh[v] or 'of no measured release'}" for v in fresh]
    return (_text(specs, context.today) if summary else old), summary


def _pins_torch(record: Mapping[str, Any]) -> bool:
    return _PINNED.fullmatch(str((record.get("requires") or {}).get("torch", ""))) is not None


def _wheels(context: Context, name: str) -> dict[str, IndexFile]:
    """Return a wheel for x86-64 of every final release."""
    wheels = {}
    for version, files in context.project(name).releases().items():
        fitting = [f for f in files if f.is_wheel and "linux" in f.filename and "x86_64" in f.filename]
        if fitting and not Version(version).is_prerelease:
            wheels[version] = max(fitting, key=lambda f: f.filename)
    return wheels


def _linking(needs: WheelNeeds, table: SymbolTable) -> str:
    """Return the spec of the releases of torch that export what a wheel needs, ``""`` for none that was measured.

    Libraries of CUDA do not count: another index has the same release of both for another CUDA.
    """
    judged = [(public(f.build.version), any(m.symbols for m in f.missing)) for f in fits(needs, table)]
    return spec_of((v for v, lacks in judged if not lacks), (v for v, lacks in judged if lacks))


def _read(text: str) -> dict[str, dict[str, str]]:
    """Return the spec of each release that the file has."""
    specs: dict[str, dict[str, str]] = {}
    for row in _ROW.finditer(text):
        for release in row["releases"].split(" || "):
            torch = row["torch"] or _EVERY[row["every"]]
            specs.setdefault(row["component"], {})[release.removeprefix("==")] = torch
    return specs


def _text(specs: Mapping[str, Mapping[str, str]], day: str) -> str:
    rules, notes, measured = [], [], []
    for name in sorted(specs):
        rows = _rows(name, specs[name])
        notes += [row for row in rows if row.startswith("#")]
        if own := [row for row in rows if not row.startswith("#")]:
            measured.append(name)
            rules.append(_RULE.format(name=name, linked=LINKED[name], rows="\n".join(own)))
    head = _HEAD.format(names=", ".join(measured), day=day, notes="".join(f"{note}\n" for note in notes))
    return head + "".join(rules)


def _rows(name: str, specs: Mapping[str, str]) -> list[str]:
    releases: dict[str, list[str]] = {}
    for version in sorted(specs, key=Version):
        releases.setdefault(specs[version], []).append(f"=={version}")
    return [_row(name, " || ".join(versions), torch) for torch, versions in releases.items()]


def _row(name: str, versions: str, torch: str) -> str:
    for word, spec in _EVERY.items():
        if torch == spec:
            return f'# {word}: {name}: "{versions}"'
    return f'  - {{when: {{{name}: "{versions}", platform: linux-64}}, needs: {{torch: "{torch}"}}}}'
