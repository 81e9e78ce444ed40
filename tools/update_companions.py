#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""Every companion that has a file of releases and an updater of its own nowhere else: transformers, numpy, peft and so on.

A dry run unless --write is given; every option of `envsmith matrix refresh` may follow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from envsmith.cli.app import run
from envsmith.frameworks import FRAMEWORKS

# The components that the other scripts of this folder keep.
ELSEWHERE = frozenset(FRAMEWORKS) | {
    "torch", "cuda", "toolkit", "nccl", "cudnn", "triton", "horovod", "transformer-engine", "flash-attn",
}  # fmt: skip


def companions(matrix: Path) -> list[str]:
    """Their names, in the order of components.yaml."""
    from envsmith.knowledge.graph.read import read_components
    from envsmith.matrix.refresh.updates import refreshable

    return [name for name in refreshable(matrix, read_components(matrix)) if name not in ELSEWHERE]


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent.parent / "matrix"
    chosen = [word for name in companions(folder) for word in ("--component", name)]
    sys.exit(run(["matrix", "refresh", "--matrix", str(folder), *chosen, *sys.argv[1:]]))
