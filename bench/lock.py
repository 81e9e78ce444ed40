"""Times envsmith's pip lock beside plain ``uv pip compile --generate-hashes`` of the same request, interleaved in one run.

    python bench/lock.py [--repeat 5] [--json]

Both use the same uv, the same warm cache, the same index and date. The answer is checked: both must pin the same versions. What the
lock does beyond plain uv: who requires whom, the build requirements of sdists, every rule asked again. Wall clock, medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from envsmith.knowledge.graph.load import components
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.query import cutoff
from envsmith.lock.resolve import Resolver, lock_pip, query_of
from envsmith.model.cell import Cell

CELLS = {
    "deepspeed": {"deepspeed": "0.19.8", "torch": "2.15.0+cu132", "cuda": "13.2", "python": "3.11"},
    "megatron-core": {"megatron-core": "0.19.2", "torch": "2.15.0+cu132", "cuda": "13.2", "python": "3.12"},
    "colossalai": {"colossalai": "0.5.0", "torch": "2.5.1+cu124", "cuda": "12.4", "python": "3.11"},
}


def plain(cell: Cell, day: str, uv: Uv) -> dict[str, str]:
    """Name to version, as uv alone pins the request."""
    want = query_of(cell, components())
    interpreter = find_interpreter(want.python)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "request.in"
        source.write_text("\n".join(want.requirements) + "\n")
        command = ["pip", "compile", str(source), "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        command += ["--python-version", want.python, "--python-platform", want.platform, "--exclude-newer", cutoff(day)]
        command += ["--python", interpreter.path] if interpreter else []
        text = uv.check(command, work="resolve with plain uv").stdout
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def ours(cell: Cell, day: str, uv: Uv) -> dict[str, str]:
    """Name to version, as envsmith locks the cell."""
    found = lock_pip(cell, exclude_newer=day, resolver=Resolver(uv=uv))
    return {pin.name: pin.version for pin in found.pins}


def measure(name: str, day: str, repeat: int) -> dict[str, object]:
    """Medians of ``repeat`` interleaved runs after one of each that warms the cache."""
    cell = Cell(components=CELLS[name], chosen=tuple(CELLS[name]))
    uv = Uv()
    answers = (plain(cell, day, uv), ours(cell, day, uv))
    if answers[0] != answers[1]:
        raise SystemExit(f"{name}: the two answers differ: {sorted(set(answers[0].items()) ^ set(answers[1].items()))}")
    times: dict[str, list[float]] = {"uv": [], "envsmith": []}
    for _ in range(repeat):
        for label, run in (("uv", plain), ("envsmith", ours)):
            started = time.perf_counter()
            run(cell, day, uv)
            times[label].append(time.perf_counter() - started)
    medians = {label: round(statistics.median(taken), 3) for label, taken in times.items()}
    ratio = round(medians["envsmith"] / medians["uv"], 2)
    return {"cell": name, "pins": len(answers[1]), "repeat": repeat, **medians, "ratio": ratio}


def main() -> None:
    """Print one line a cell, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--day", default="2026-11-19", help="the date that both are given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(name, arguments.day, arguments.repeat) for name in CELLS]
    head = {"uv": Uv().version, "python": platform.python_version(), "day": arguments.day}
    if arguments.json:
        sys.stdout.write(json.dumps({**head, "rows": rows}, indent=1) + "\n")
        return
    sys.stdout.write(f"{head['uv']}, Python {head['python']}, packages before the end of {head['day']}\n")
    for row in rows:
        sys.stdout.write(
            f"{row['cell']:<14} {row['pins']:>4} pins   uv {row['uv']:>7} s   envsmith {row['envsmith']:>7} s   ratio {row['ratio']}\n"
        )


if __name__ == "__main__":
    main()
