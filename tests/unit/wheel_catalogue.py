"""A catalogue of one extension, and a cell to hold it against."""

from __future__ import annotations

from envsmith.model.cell import Cell, Platform

PUBLISHERS = """
distributions: [ext]
evidence:
  own: {kind: documented, source: "its setup.py", date: 2026-11-22}
publishers:
- {name: its/project, releases: "https://host.test/its/project", official: [ext], evidence: own}
- {name: somebody/else, releases: "https://host.test/else", evidence: own}
"""
HEAD = """
distribution: ext
evidence:
  lock: {kind: declared, source: "a lock", date: 2026-11-22}
  second: {kind: declared, source: "another lock", date: 2026-11-22}
requires:
- {versions: ["1.0", "1.1", "1.1+cu128", "1.2+cu128"], requires: [torch], evidence: lock}
wheels:
"""


def line(version: str, *, by: str = "its/project", python: str = "cp311", cuda: str = "12", evidence: str = "[lock]"):
    file = f"ext-{version}-{python}-{python}-linux_x86_64.whl"
    return (
        f'- {{by: {by}, tag: "v{cuda}{version}", file: "{file}", version: "{version}", torch: "2.8", cuda: "{cuda}", '
        f'cxx11_abi: true, sha256: "{"a" * 64}", evidence: {evidence}}}\n'
    )


CELL = Cell(
    components={"torch": "2.8.0+cu128", "cuda": "12.8", "python": "3.11"},
    chosen=("torch", "cuda", "python"),
    platform=Platform.LINUX_64,
)
