"""Attack envsmith in seeded, counted ways and print one table of what was tried and what broke.

    python bench/robust.py [KIND …] [--seed 0] [--scale 1.0]

Each kind is a module of ``bench/hostile`` with a ``TITLE``, a ``GOAL`` (how many are tried at scale 1), the ``FAILURES`` that must
stay 0, and ``attack(tally, count, random, folder)``. Ends with 1 when anything broke.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from hostile import Tally

KINDS = ("inputs", "records", "cache", "published", "host", "interrupted", "mend", "run", "secrets")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="tries in units of each kind's goal")
    options = parser.parse_args()
    broken: list[str] = []
    print("| attacked | tried | broke | seconds |\n|---|---|---|---|")
    for kind in options.kinds or KINDS:
        module = importlib.import_module(f"hostile.{kind}")
        tally, start = Tally(), time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="robust-") as folder:
            count = max(1, round(module.GOAL * options.scale))
            module.attack(tally, count, random.Random(f"{options.seed} {kind}"), Path(folder))
        failures = ", ".join(f"{what} {tally.failures[what]}" for what in module.FAILURES)
        print(f"| {module.TITLE} | {tally.tried} | {failures} | {time.perf_counter() - start:.0f} |", flush=True)
        broken += [f"{kind}: {example}" for example in tally.examples]
    print("\n".join(broken), file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
