"""How time and memory grow with the knowledge: releases and rules doubled three times, beside uv and python-sat.

    python bench/growth.py [--json FILE] [--requests N] [--budget SECONDS] [--seed N]

The first size is the real knowledge (`real_instance` of `bench/solver.py`). Each doubling splits every release into two and adds as many statements
as there were: random windows of two components, drawn from the seed, that leave the answer of every request of the run as it is. All programs get the
same requests. uv gets the instance as a package index on this machine: a distribution for each component, a wheel for each release, its METADATA
made when uv asks for it. It prefers the newest release of each, so its answer may differ from the best cell; it is held against every statement.

`build` is what comes before the first answer, `best` the median of the answers, both in milliseconds of processor time. uv's processes are counted
whole, with a warm cache. Memory is the peak of a process that does nothing else. What is not answered within the budget (for all requests of a size together) is left out and counted.

Needs `pip install python-sat` beside envsmith.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import uv

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where a child process loads it by path

from solver import Envsmith, Instance, PySat, real_instance, split, wishes

from envsmith.solver.kernel import bits

FACTORS = (1, 2, 4, 8)


def grown(instance: Instance, factor: int, count: int, seed: int) -> tuple[Instance, list[list[tuple[int, int]]]]:
    """Return the instance with ``factor`` times the releases and statements, and requests that have an answer in it."""
    larger = split(instance, factor)
    requests = wishes(larger, count, seed, wanted=True)
    solver = Envsmith(larger)
    answers = [solver.best(request) for request in requests]
    statements = sum(len(rule) for rule in instance.rules)
    chance = random.Random(f"{seed} {factor}")
    added: list[tuple[tuple[tuple[int, int], ...], ...]] = []
    while len(added) < statements * (factor - 1):
        first, second = chance.sample(range(len(larger.sizes)), 2)
        literals = tuple((v, _window(chance, larger.sizes[v])) for v in (first, second))
        if not any(all(mask >> answer[v] & 1 for v, mask in literals) for answer in answers):
            added.append((literals,))
    return Instance(larger.names, larger.sizes, (*larger.rules, *added), larger.keys), requests


def _window(chance: random.Random, size: int) -> int:
    width = max(1, size // chance.choice((4, 8, 16)))
    return ((1 << width) - 1) << chance.randrange(max(1, size - width + 1))


# envsmith and python-sat: a process for each, which says how long it took and how much memory it had.


def _child(pipe, program, instance: Instance, requests) -> None:
    began = time.process_time()
    built = program(instance)
    pipe.send(("build", 1000 * (time.process_time() - began), _peak()))
    for request in requests:
        began = time.process_time()
        built.best(request)
        pipe.send(("best", 1000 * (time.process_time() - began), _peak()))
    pipe.close()


def _peak() -> float:
    """Return the largest memory of this process in MB. ``ru_maxrss`` would begin with that of the process it came from."""
    line = next(x for x in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def in_process(program, instance: Instance, requests, budget: float) -> dict[str, object]:
    """Return the figures of one program on one size."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, program, instance, requests), daemon=True)
    child.start()
    theirs.close()
    until, times, peak = time.monotonic() + budget, {"build": [], "best": []}, 0.0
    while len(times["best"]) < len(requests) and ours.poll(max(0.0, until - time.monotonic())):
        try:
            kind, milliseconds, peak = ours.recv()
        except EOFError:
            break
        times[kind].append(milliseconds)
    child.kill()
    child.join()
    return _figures(program.name, times["build"], times["best"], peak)


def _figures(name: str, build: list[float], best: list[float], peak: float) -> dict[str, object]:
    return {
        "program": name,
        "build_ms": round(build[0], 2) if build else None,
        "best_ms": round(statistics.median(best), 3) if best else None,
        "answered": len(best),
        "peak_mb": round(peak, 1) if peak else None,
    }


# uv: the instance as an index on this machine.


class Index:
    """A package index of an instance: ``c3`` is the component of variable 3, its release ``17`` the value 16."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.allowed: list[dict[int, dict[int, int]]] = [{} for _ in instance.sizes]
        self.banned = [0] * len(instance.sizes)
        for rule in instance.rules:
            for nogood in rule:
                if len(nogood) == 1:
                    self.banned[nogood[0][0]] |= nogood[0][1]
                    continue
                (first, mask), (second, barred) = nogood
                for value in bits(mask):
                    row = self.allowed[first].setdefault(value, {})
                    row[second] = row.get(second, instance.full[second]) & ~barred

    def page(self, variable: int) -> str:
        """Return the list of files of a component."""
        kept = [v for v in range(self.instance.sizes[variable]) if not self.banned[variable] >> v & 1]
        files = (f"c{variable}-{v + 1}-py3-none-any.whl" for v in kept)
        links = (f'<a href="/files/{f}" data-core-metadata="true">{f}</a>' for f in files)
        return "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"

    def metadata(self, variable: int, value: int) -> str:
        """Return the METADATA of a release."""
        lines = ["Metadata-Version: 2.1", f"Name: c{variable}", f"Version: {value + 1}"]
        allowed = self.allowed[variable].get(value, {})
        return "\n".join([*lines, *(f"Requires-Dist: c{v}{specifier(mask)}" for v, mask in allowed.items())]) + "\n"

    def holds(self, answer: list[int]) -> bool:
        """Tell whether an answer meets every statement."""
        return not any(all(m >> answer[v] & 1 for v, m in n) for rule in self.instance.rules for n in rule)


def specifier(mask: int) -> str:
    """Return a mask as one specifier: its ends, without the releases between them that are barred."""
    if not mask:
        return "<0"
    low, high = (mask & -mask).bit_length(), mask.bit_length()
    holes = (v for v in range(low, high) if not mask >> (v - 1) & 1)
    return f">={low},<={high}" + "".join(f",!={v}" for v in holes)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that a uv without time left open."""


def served(index: Index) -> ThreadingHTTPServer:
    """Start the index on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple":
                body, kind = index.page(int(parts[1][1:])), "text/html"
            else:
                name, version = parts[1].split("-")[:2]
                body, kind = index.metadata(int(name[1:]), int(version) - 1), "text/plain"
            data = body.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing of single requests."""

    server = _Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def with_uv(instance: Instance, requests, budget: float) -> dict[str, object]:
    """Return the figures of uv on one size: each request once for the cache, once for the figures."""
    index = Index(instance)
    server = served(index)
    until, times, peak = time.monotonic() + budget, [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for request in requests:
            lines = [f"c{v}" for v in range(len(instance.sizes))]
            lines += [f"c{v}{specifier(mask)}" for v, mask in request]
            runs = [_uv(server.server_port, lines, Path(folder), until) for _ in range(2)]
            if None in runs:
                break
            answer, milliseconds, memory = runs[1]
            if not index.holds(answer):
                raise SystemExit(f"uv's answer breaks a statement: {answer}")
            times.append(milliseconds)
            peak = max(peak, memory)
    server.shutdown()
    return _figures("uv", [], times, peak)


# Starts a program from a small process, because its peak of memory begins with that of the process it was started from.
_LAUNCHER = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
sys.stderr.write(f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}")
sys.exit(1 if status else 0)
"""


def _uv(port: int, lines: list[str], folder: Path, until: float) -> tuple[list[int], float, float] | None:
    """Run uv once. ``None`` when it is not ready in time."""
    command = [uv.find_uv_bin(), "pip", "compile", "-", "--python", sys.executable]
    command += ["--quiet", "--no-header", "--no-annotate"]
    command += ["--index-url", f"http://127.0.0.1:{port}/simple", "--cache-dir", str(folder / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]
    with subprocess.Popen(launcher, **pipes, text=True, cwd=folder, start_new_session=True) as child:
        try:
            text, usage = child.communicate("\n".join(lines), timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return None
    if child.returncode:
        return None
    seconds, memory = map(float, usage.split())
    pins = dict(line.split("==") for line in text.split())
    return [int(pins[f"c{v}"]) - 1 for v in range(len(pins))], 1000 * seconds, memory / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of one program for one size")
    parser.add_argument("--seed", type=int, default=22)
    options = parser.parse_args()
    base, table = real_instance(), []
    for factor in FACTORS:
        instance, requests = grown(base, factor, options.requests, options.seed)
        size = {
            "factor": factor,
            "releases": sum(instance.sizes),
            "statements": sum(len(rule) for rule in instance.rules),
            "requests": len(requests),
        }
        print(", ".join(f"{n} {v}" for n, v in size.items()), flush=True)
        for row in (
            in_process(Envsmith, instance, requests, options.budget),
            in_process(PySat, instance, requests, options.budget),
            with_uv(instance, requests, options.budget),
        ):
            table.append({**size, **row})
            print("  " + ", ".join(f"{n} {v}" for n, v in row.items()), flush=True)
    for one, following in pairwise(r for r in table if r["program"] == "envsmith"):
        growth = following["peak_mb"] / one["peak_mb"]
        print(f"envsmith, {one['factor']} to {following['factor']} times: memory x{growth:.2f}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
