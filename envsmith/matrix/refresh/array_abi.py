"""Which compiled wheels were built for numpy 1 only: ``rules/arrays.yaml``.

A release whose METADATA admits no numpy 2 is not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

from packaging.version import Version

from envsmith.base.json_types import JsonFields, object_in
from envsmith.lock.index.array_abi import built_for
from envsmith.matrix.refresh.linking import wheels_of
from envsmith.matrix.refresh.shared import RefreshRun, in_parallel
from envsmith.model.version import Spec

ARRAYS = frozenset(
    {
        "h5py",
        "matplotlib",
        "numba",
        "onnx",
        "onnxruntime",
        "opencv-python",
        "opencv-python-headless",
        "pandas",
        "pyarrow",
        "scikit-learn",
        "scipy",
    }
)
_NUMPY_2 = "2.0.0"
_LINE = re.compile(r"# (?P<kind>one|both|none): (?P<name>[\w-]+): \"(?P<releases>[^\"]*)\"")
_HEAD = """\
# Made by `envsmith matrix refresh`: compiled wheels that were built for numpy 1 only. Change the updater, not the lines.
# `one` are releases for numpy 1, `both` those for numpy 2 as well, `none` those that take nothing from it.
{notes}evidence:
  built: {{kind: measured, source: "compiled files of {names} for x86-64 on the package index: the module of numpy from which they take arrays", date: {day}}}
rules:
"""
_RULE = """\
- id: {name}-arrays-numpy
  kind: conflicts
  severity: error
  stage: import
  symptom: "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"
  cause: "The compiled files of these releases of {name} were built for numpy 1, and their METADATA admits numpy 2."
  fix: "Use numpy below 2, or a newer {name}."
  rows:
{rows}
  evidence: [built]
"""


def update_arrays(
    old: str | None, name: str, records: Iterable[JsonFields], context: RefreshRun
) -> tuple[str | None, list[str]]:
    """Return the file with the releases of a component of :data:`ARRAYS` that it does not have yet, and what is new."""
    kinds = {} if old is None else _read(old)
    earlier = {} if context.again else kinds.get(name, {})
    admitting = [str(r["version"]) for r in records if _admits(r)]
    wheels = {v: f for v, f in wheels_of(context, name).items() if v in admitting and v not in earlier}
    tasks = {v: f"{name} {v}" for v in wheels}
    fresh = in_parallel(context, f"arrays of {name}", tasks, lambda v: built_for(wheels[v].url, context.index.fetcher))
    kinds[name] = {**earlier, **fresh}
    summary = [f"{name} {version}: built for numpy: {kind}" for version, kind in fresh.items()]
    return (_text(kinds, context.today) if fresh else old), summary


def _admits(record: JsonFields) -> bool:
    spec = object_in(record, "requires").get("numpy")
    return spec is None or Spec.parse(str(spec)).contains(_NUMPY_2)


def _read(text: str) -> dict[str, dict[str, str]]:
    kinds: dict[str, dict[str, str]] = {}
    for line in _LINE.finditer(text):
        for version in filter(None, line["releases"].split(" ")):
            kinds.setdefault(line["name"], {})[version] = line["kind"]
    return kinds


def _text(kinds: Mapping[str, Mapping[str, str]], day: str) -> str:
    notes, rules, names = [], [], []
    for name in sorted(kinds):
        ordered = sorted(kinds[name], key=Version)
        by_kind = ((kind, " ".join(v for v in ordered if kinds[name][v] == kind)) for kind in ("one", "both", "none"))
        notes += [f'# {kind}: {name}: "{releases}"\n' for kind, releases in by_kind if releases]
        runs = [list(run) for kind, run in groupby(ordered, key=lambda v, k=kinds[name]: k[v]) if kind == "one"]  # type: ignore[misc]
        if runs:
            names.append(name)
            rules.append(_RULE.format(name=name, rows="\n".join(_row(name, run) for run in runs)))
    return _HEAD.format(notes="".join(notes), names=", ".join(names), day=day) + "".join(rules)


def _row(name: str, run: list[str]) -> str:
    releases = f"=={run[0]}" if len(run) == 1 else f">={run[0]},<={run[-1]}"
    return f'  - {{when: {{{name}: "{releases}", numpy: ">=2"}}}}'
