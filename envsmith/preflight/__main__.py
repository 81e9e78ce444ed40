"""``python -m envsmith.preflight``, alone or under torchrun, srun or mpirun: exit code 0 when the job may start, 1 when not."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import NoReturn

from envsmith import preflight
from envsmith.agent.launchers import discover
from envsmith.errors import EnvsmithError


def _size(text: str) -> int:
    """Read a size in bytes: ``70G``, ``512M`` or a number."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    unit = units.get(text[-1:].upper(), 0)
    try:
        return int(float(text[:-1] if unit else text) * (1 << unit))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; say 70G or 512M") from None


def _pair(text: str) -> tuple[str, str]:
    name, _, version = text.replace("==", "=").partition("=")
    if not name or not version:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME==VERSION")
    return name, version


def main(argv: list[str] | None = None) -> int:
    """Parse, import torch, run, print."""
    parser = argparse.ArgumentParser(prog="python -m envsmith.preflight", description=__doc__)
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="wait for the other ranks (default 30)"
    )
    parser.add_argument(
        "--expect", type=_pair, action="append", default=[], metavar="NAME==VERSION", help="what must be loaded"
    )
    parser.add_argument(
        "--min-gpu-free", type=_size, default=0, metavar="SIZE", help="memory that every GPU must have free"
    )
    parser.add_argument("--no-collective", action="store_true", help="compare only")
    parser.add_argument("--strict", action="store_true", help="warnings are errors")
    parser.add_argument("--json", action="store_true", help="rank 0 prints the report as one JSON object")
    options = parser.parse_args(argv)
    started = time.monotonic()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # who loses a failed rank warns of it with its C++ frames
    try:
        import torch  # noqa: F401 - timed apart: its import is not the preflight's
    except Exception as error:  # noqa: BLE001 - a broken environment is what is looked for
        sys.stderr.write(f"preflight: failed: torch cannot be imported: {error}\n")
        return 1
    imported = time.monotonic() - started
    try:
        report = preflight.run(
            timeout=options.timeout,
            backend=options.backend,
            collective=not options.no_collective,
            strict=options.strict,
            expect=dict(options.expect),
            min_gpu_free=options.min_gpu_free,
            raises=False,
            isolate=False,  # this process makes no other group
        )
    except EnvsmithError as error:
        sys.stderr.write(f"preflight: {error}\n")
        return error.exit_code
    rank = min(report.facts, default=0)
    if options.json and _my_rank() == rank:
        sys.stdout.write(json.dumps({**report.to_json(), "torch_import_seconds": round(imported, 3)}, indent=2) + "\n")
    return 0 if report.ok else 1


def _my_rank() -> int:
    place = discover(os.environ, {})
    return place.rank if place else 0


def _leave(code: int) -> NoReturn:
    """End with a code. What a failed collective left in other threads may abort the interpreter as it ends."""
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main())
