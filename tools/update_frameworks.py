#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""DeepSpeed, Megatron-core, Colossal-AI and Horovod, with DeepSpeed's own toolkit rule.

A dry run unless --write is given; every option of `envsmith matrix refresh` may follow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from envsmith.cli.app import run
from envsmith.frameworks import FRAMEWORKS

COMPONENTS = (*FRAMEWORKS, "horovod")

if __name__ == "__main__":
    matrix = Path(__file__).resolve().parent.parent / "matrix"
    chosen = [word for name in COMPONENTS for word in ("--component", name)]
    sys.exit(run(["matrix", "refresh", "--matrix", str(matrix), *chosen, *sys.argv[1:]]))
