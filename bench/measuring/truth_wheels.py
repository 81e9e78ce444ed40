"""Pairs of a compiled wheel and a build of torch: predicted from the symbols, then really loaded."""

from __future__ import annotations

import argparse
import ctypes.util
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.symbols.elf import MAGIC, Binary, read_binary
from envsmith.knowledge.symbols.fit import FAILS, LINKS, UNKNOWN, Fit, WheelNeeds, fits, needs_of
from envsmith.knowledge.symbols.table import SymbolTable, TorchBuild
from envsmith.lock.index.index import IndexFile, PackageIndex, find_index
from envsmith.net.http import HttpClient

# Projects whose wheels on the index are linked with torch, and small enough to be downloaded by the dozen.
PROJECTS = (
    "torchvision",
    "torchaudio",
    "torchao",
    "torchtext",
    "torchdata",
    "torchcodec",
    "torchrl",
    "tensordict",
    "natten",
    "torch-tensorrt",
)
_LARGEST = 60 << 20

# Loads each file in a process of its own, as the import of an extension does: at once, with all symbols. Packages such
# as torchtext and torchaudio load the libraries of their own wheel first, so that is done too.
_LOADER = """
import ctypes, json, os, sys
import torch
answers = {}
for path, before in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for library in before:
            try:
                ctypes.CDLL(library)
            except OSError:
                pass
        try:
            ctypes.CDLL(path)
            text = "loaded"
        except OSError as error:
            text = str(error)
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    answers[path] = os.read(reader, 4096).decode() or f"crashed: {status}"
    os.close(reader)
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Outcome:
    pair: str
    predicted: str
    real: str
    reason: str
    named: bool

    @property
    def kind(self) -> str:
        if UNKNOWN in {self.predicted, self.real}:
            return "unknown"
        return "right" if self.predicted == self.real else "WRONG"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--torch", action="append", required=True, help="release; its default build is installed")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--folder", type=Path, help="where environments and wheels are kept while it runs")
    parser.add_argument("--json", type=Path, help="write every pair there")


def run(options: argparse.Namespace) -> int:
    table = SymbolTable(find_matrix() / "symbols")
    generator = random.Random(options.seed)
    candidates = _candidates(options.python)
    print(f"{len(candidates)} wheels of {len(PROJECTS)} projects; seed {options.seed}", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number, release in enumerate(options.torch):
            build = table.find(release, "linux-64")
            if build is None:
                sys.exit(f"torch {release} was not measured")
            share = (options.pairs - len(outcomes)) // (len(options.torch) - number)
            outcomes += _of_build(build, _drawn(candidates, build, share, generator), Path(folder), options.python)
    if options.json:
        rows = [{**vars(o), "kind": o.kind} for o in outcomes]
        options.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    return _summary(outcomes)


def _candidates(python: str) -> list[tuple[str, str, IndexFile]]:
    """Return (project, release, wheel) for every wheel that this Python can load on x86-64."""
    version = tuple(map(int, python.split(".")))
    platforms = [
        "linux_x86_64",
        *(f"manylinux_2_{n}_x86_64" for n in range(5, 36)),
        "manylinux1_x86_64",
        "manylinux2014_x86_64",
        "manylinux2010_x86_64",
    ]
    tags = {*cpython_tags(version, platforms=platforms), *compatible_tags(version, platforms=platforms)}
    index = PackageIndex(HttpClient(), find_index())
    rows = []
    for name in PROJECTS:
        for release, files in index.project(name).releases().items():
            fitting = [
                f for f in files if f.is_wheel and "x86_64" in f.filename and parse_wheel_filename(f.filename)[3] & tags
            ]
            if fitting and not Version(release).is_prerelease and (fitting[0].size or 0) < _LARGEST:
                rows.append((name, release, fitting[0]))
    return rows


def _drawn(
    candidates: list[tuple[str, str, IndexFile]], build: TorchBuild, count: int, generator: random.Random
) -> list[tuple[str, str, IndexFile]]:
    """Draw half among the wheels that were uploaded within 120 days of this torch, half among all."""
    index_day = {c[2].filename: c[2].day or "" for c in candidates}
    day = _day(build.version.partition("+")[0])
    near = [c for c in candidates if abs(_days(index_day[c[2].filename]) - _days(day)) <= 120]
    first = generator.sample(near, min(count // 2, len(near)))
    others = [c for c in candidates if c not in first]
    return first + generator.sample(others, min(count - len(first), len(others)))


def _days(day: str) -> float:
    return time.mktime(time.strptime(day, "%Y-%m-%d")) / 86400 if day else 0.0


def _day(release: str) -> str:
    files = PackageIndex(HttpClient(), find_index()).project("torch").releases()[release]
    return min(f.day for f in files if f.day)


def _of_build(build: TorchBuild, drawn: list[tuple[str, str, IndexFile]], folder: Path, python: str) -> list[Outcome]:
    table = SymbolTable(find_matrix() / "symbols")
    environment = folder / "environment"
    interpreter = environment / "bin" / "python"
    started = time.monotonic()
    _run("uv", "venv", "-q", "--clear", "--python", python, environment)
    _run("uv", "pip", "install", "-q", "--python", interpreter, f"torch=={build.version.partition('+')[0]}")
    print(f"{build}: environment in {time.monotonic() - started:.0f} s", flush=True)
    fitting: list[tuple[str, Fit]] = []
    files: list[tuple[str, list[str]]] = []
    for name, release, file in drawn:
        place = folder / file.filename
        _run(
            "uv", "pip", "install", "-q", "--no-deps", "--python", interpreter, "--target", place, f"{name}=={release}"
        )
        compiled = list(_compiled(place))
        needs = needs_of(file.filename, file.sha256, compiled)
        (fit,) = fits(needs, table, [build])
        fitting.append((file.filename, _on_this_machine(fit, needs)))
        files += _in_order(place, dict(compiled))
    answers = _loaded(interpreter, files)
    outcomes = []
    for file, fit in fitting:
        real = {path: text for path, text in answers.items() if path.startswith(f"{folder / file}/")}
        outcomes.append(_judged(f"{file} | {build}", fit, real))
        last = outcomes[-1]
        print(f"  {last.kind:8} {file}: {fit.verdict}, really {last.real} {last.reason[-140:]}", flush=True)
        _run("rm", "-rf", folder / file)
    _run("rm", "-rf", environment)
    print(f"{build}: {len(drawn)} wheels in {time.monotonic() - started:.0f} s", flush=True)
    return outcomes


def _libraries(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*.so*") if path.read_bytes()[: len(MAGIC)] == MAGIC)


def _compiled(place: Path) -> Iterator[tuple[str, Binary]]:
    for path in _libraries(place):
        with path.open("rb") as file:
            yield str(path.relative_to(place)), read_binary(file, path.name)


def _on_this_machine(fit: Fit, needs: WheelNeeds) -> Fit:
    """Without a driver, what is linked with the driver cannot be loaded."""
    has_driver = ctypes.util.find_library("cuda") is not None
    return fit if has_driver or not needs.uses_driver else dataclasses.replace(fit, verdict=FAILS)


def _in_order(place: Path, compiled: dict[str, Binary]) -> list[tuple[str, list[str]]]:
    """Return each file of a wheel with those of the wheel that it is linked with, the innermost first."""
    named = {name: {name.rpartition("/")[2], binary.soname} for name, binary in compiled.items()}

    def before(name: str, seen: tuple[str, ...]) -> list[str]:
        own = [o for lib in compiled[name].libraries for o in compiled if lib in named[o] and o not in seen]
        return list(dict.fromkeys(path for o in own for path in [*before(o, (*seen, o)), o]))

    return [(str(place / name), [str(place / o) for o in before(name, (name,))]) for name in compiled]


def _loaded(interpreter: Path, files: list[tuple[str, list[str]]]) -> dict[str, str]:
    answer = subprocess.run(
        [interpreter, "-c", _LOADER, json.dumps(files)],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if answer.returncode:
        sys.exit(f"torch itself cannot be imported: {answer.stderr[-800:]}")
    return json.loads(answer.stdout.strip().splitlines()[-1])


def _judged(pair: str, fit: Fit, answers: dict[str, str]) -> Outcome:
    """Hold a prediction against the real load. A file that lacks another library says nothing about torch."""
    every = [text for text in answers.values() if text != "loaded"]
    failures = [text for text in every if not any(library in text for library in fit.unclear)]
    symbols = {name for m in fit.missing for name in (*m.symbols, *m.libraries)}
    named = any(name in text for name in symbols for text in failures)
    real = FAILS if failures else UNKNOWN if every else LINKS
    return Outcome(pair, fit.verdict, real, (failures or every or [""])[0], named)


def _summary(outcomes: list[Outcome]) -> int:
    counts = Counter(outcome.kind for outcome in outcomes)
    judged = counts["right"] + counts["WRONG"]
    wrong_fits = sum(o.kind == "WRONG" and o.predicted == LINKS for o in outcomes)
    predicted = [o for o in outcomes if o.predicted == FAILS and o.real == FAILS]
    print(f"{len(outcomes)} pairs: {counts['right']} right, {counts['WRONG']} wrong, {counts['unknown']} unknown")
    print(f'right of those judged: {100 * counts["right"] / max(judged, 1):.1f} %; wrong "links": {wrong_fits}')
    print(f"links {sum(o.real == LINKS for o in outcomes)}, fails {sum(o.real == FAILS for o in outcomes)} in reality")
    print(f"failures whose symbol or library was named: {sum(o.named for o in predicted)} of {len(predicted)}")
    print(f"load average of the machine: {os.getloadavg()[0]:.1f}")
    return 1 if counts["WRONG"] else 0


def _run(*command: object) -> None:
    answer = subprocess.run([str(c) for c in command], check=False, capture_output=True, text=True, timeout=900)
    if answer.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {answer.stderr[-800:]}")
