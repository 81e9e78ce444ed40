"""``rules/linking.yaml``: which torch the compiled wheels of a component link with, where its METADATA does not say.

Every release is measured once: its wheel for x86-64 is read by ranges and held against ``symbols/torch.bin``. The file
is made here as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.version import Version

from envsmith.matrix.refresh.shared import Context, in_parallel
from envsmith.model.version import public
from envsmith.python.compiled import read_needs
from envsmith.python.index import IndexFile
from envsmith.symbols.fit import FAILS, WheelNeeds, fits
from envsmith.symbols.table import SymbolTable, spec_of

# Their METADATA asks for no torch, and each compiled wheel links with some releases only. What cannot be loaded is left
# out with a message, so the rule warns.
LINKED = ("torchao",)
_ROW = re.compile(
    r"  - \{when: \{(?P<component>[\w-]+): \"(?P<releases>[^\"]+)\", platform: linux-64\}, needs: \{torch: \"(?P<torch>[^\"]+)\"\}\}"
)
_HEAD = """\
# Made by `envsmith matrix refresh`: which torch the compiled wheels of a component link with. Change the updater, not the lines.
evidence:
  linked: {{kind: measured, source: "compiled wheels of {names} for x86-64 on the package index: the symbols that they need, held against symbols/torch.bin", date: {day}}}
rules:
"""
_RULE = """\
- id: {name}-links-torch
  kind: requires
  severity: warning
  stage: import
  symptom: "Skipping import of cpp extensions"
  cause: "The compiled kernels of {name} link with some releases of torch only, and its METADATA asks for none; with another torch they are left out."
  fix: "Use a {name} that was built for the installed torch."
  rows:
{rows}
  evidence: [linked]
"""


def update_linking(
    old: str | None, components: Iterable[str], table: SymbolTable, context: Context
) -> tuple[str | None, list[str]]:
    """Return the file with a row for each set of releases that link with the same torch, and what is new."""
    known = {} if context.again or old is None else _read(old)
    summary: list[str] = []
    for name in components:
        specs = known.setdefault(name, {})
        tasks = {v: f"{name} {v}" for v in _wheels(context, name) if v not in specs}
        read = in_parallel(context, f"symbols of {name}", tasks, lambda v, name=name: _measured(context, name, v))  # type: ignore[misc]
        specs |= {version: _linking(needs, table) for version, needs in read.items()}
        summary += [
            f"{name} {version}: links with torch {specs[version] or 'of no measured release'}" for version in read
        ]
    return (_text(known, context.today) if summary else old), summary


def _wheels(context: Context, name: str) -> dict[str, IndexFile]:
    """Return a wheel for x86-64 of every final release."""
    wheels = {}
    for version, files in context.project(name).releases().items():
        fitting = [f for f in files if f.is_wheel and "linux" in f.filename and "x86_64" in f.filename]
        if fitting and not Version(version).is_prerelease:
            wheels[version] = max(fitting, key=lambda f: f.filename)
    return wheels


def _measured(context: Context, name: str, version: str) -> WheelNeeds:
    return read_needs(_wheels(context, name)[version].url, context.index.fetcher)


def _linking(needs: WheelNeeds, table: SymbolTable) -> str:
    """Return the spec of the releases of torch that a wheel links with. ``*`` where it needs nothing of torch."""
    judged = fits(needs, table)
    return spec_of(
        (public(f.build.version) for f in judged if f.verdict != FAILS),
        (public(f.build.version) for f in judged if f.verdict == FAILS),
    )


def _read(text: str) -> dict[str, dict[str, str]]:
    """Return the spec of each release that the file has."""
    specs: dict[str, dict[str, str]] = {}
    for row in _ROW.finditer(text):
        for release in row["releases"].split(" || "):
            specs.setdefault(row["component"], {})[release.removeprefix("==")] = row["torch"]
    return specs


def _text(specs: Mapping[str, Mapping[str, str]], day: str) -> str:
    head = _HEAD.format(names=", ".join(sorted(specs)), day=day)
    return head + "".join(_RULE.format(name=name, rows=_rows(name, specs[name])) for name in sorted(specs))


def _rows(name: str, specs: Mapping[str, str]) -> str:
    releases: dict[str, list[str]] = {}
    for version in sorted(specs, key=Version):
        if specs[version]:
            releases.setdefault(specs[version], []).append(f"=={version}")
    return "\n".join(
        f'  - {{when: {{{name}: "{" || ".join(versions)}", platform: linux-64}}, needs: {{torch: "{torch}"}}}}'
        for torch, versions in releases.items()
    )
