"""CPU seconds of the command line from start to exit, beside `uv pip compile` for the same request in the same run.

    python bench/start.py [--repeat 5] [--framework deepspeed]

Prints the median of user+system time of each command and the ratio. The solve is measured with a warm and with an empty cache; uv too
(`--cold` adds the run with an empty uv cache, which downloads metadata).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(argv: list[str], env: dict[str, str], stdin: str = "") -> tuple[float, float]:
    """CPU and wall seconds of one command; stops with its output when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--framework", default="deepspeed")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    import uv

    envsmith = [sys.executable, "-m", "envsmith"]
    compile_ = [uv.find_uv_bin(), "pip", "compile", "--quiet", "--python", sys.executable, "--generate-hashes", "-"]
    base = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    with tempfile.TemporaryDirectory() as empty:
        runs: dict[str, tuple[list[str], dict[str, str], str, bool]] = {
            "envsmith --help": ([*envsmith, "--help"], base, "", False),
            "envsmith solve": ([*envsmith, "solve", "--framework", options.framework], base, "", False),
            "envsmith solve, empty cache": (
                [*envsmith, "solve", "--framework", options.framework],
                {**base, "XDG_CACHE_HOME": empty},
                "",
                True,
            ),
            "uv pip compile": (compile_, base, options.framework, False),
        }
        if options.cold:
            runs["uv pip compile, empty cache"] = (
                compile_,
                {**base, "UV_CACHE_DIR": str(Path(empty) / "uv")},
                options.framework,
                True,
            )
        results = {}
        for name, (argv, env, text, fresh) in runs.items():
            if not fresh:
                measure(argv, env, text)
            samples = []
            for _ in range(options.repeat):
                if fresh:
                    subprocess.run(["rm", "-rf", empty], check=True)
                    Path(empty).mkdir()
                samples.append(measure(argv, env, text))
            results[name] = tuple(statistics.median(column) for column in zip(*samples, strict=True))
    reference = results["uv pip compile"][0]
    print(f"{'command':32} {'cpu s':>8} {'wall s':>8} {'cpu / uv':>9}")
    for name, (cpu, wall) in results.items():
        print(f"{name:32} {cpu:8.3f} {wall:8.3f} {cpu / reference:9.2f}")


if __name__ == "__main__":
    main()
