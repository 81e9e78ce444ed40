"""A small matrix in a folder, for tests that bend it."""

from __future__ import annotations

from pathlib import Path

import pytest

FILES = {
    "components.yaml": """
components:
- {name: alpha, role: framework, short: al, title: Alpha, distributions: [alpha], aliases: []}
- {name: python, role: core, short: py, title: Python}
- {name: torch, role: core, short: torch, title: PyTorch, distributions: [torch], aliases: [pytorch]}
- {name: cuda, role: core, short: cu, title: CUDA}
- {name: nccl, role: core, short: nccl, title: NCCL}
- {name: gpu, role: host, short: sm, title: GPU}
- {name: gcc, role: host, short: gcc, title: GCC}
""",
    "releases/torch.yaml": """
component: torch
evidence:
  wheel: {kind: measured, source: the wheel, date: 2026-01-01}
  notes: {kind: documented, source: the notes, date: 2026-01-02}
builds:
- {version: "2.1.0+cu118", platform: linux-64, date: 2024-01-01, index: default, cuda: "11.8", nccl: "2.18.1", python: ["3.10", "3.11"], gpu: [sm_80], ptx: [compute_90], glibc: "2.17", sha256: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", evidence: wheel, evidence_of: {nccl: notes}}
- {version: "2.2.0+cu121", platform: linux-64, date: 2024-06-01, index: pytorch, cuda: "12.1", evidence: wheel}
""",
    "releases/gpu.yaml": """
component: gpu
evidence: {table: {kind: documented, source: vendor, date: 2026-01-01}}
names:
- {gpu: sm_90, names: [h100, "H 200"], evidence: table}
runs_on:
- {gpu: sm_80, runs_on: ">=sm_80,<sm_90,!=sm_87", evidence: table}
releases:
- {version: sm_80, evidence: table}
""",
    "releases/alpha.yaml": """
component: alpha
evidence: {index: {kind: declared, source: index, date: 2026-01-01}}
releases:
- {version: "1.1.0", date: 2024-02-01, requires: {torch: ">=2.1"}, evidence: index}
- {version: "1.0.0", date: 2024-01-01, requires: {torch: ">=2.1"}, evidence: index}
- {version: "2.0.0", date: 2025-01-01, yanked: true, requires: {torch: ">=2.2", python: ">=3.8"}, python: ["3.10"], sdist_only: true, evidence: index}
""",
    "rules/alpha.yaml": """
evidence: {issue: {kind: reported, source: an issue, date: 2026-01-01}}
rules:
- id: alpha-old
  kind: conflicts
  when: {alpha: "<2", torch: "2.2", gcc: ">=13"}
  stage: build
  symptom: it breaks
  cause: it is old
  fix: update
  evidence: issue
- id: alpha-table
  kind: requires
  severity: warning
  cause: shared cause
  rows:
  - {when: {alpha: "1.0.0"}, needs: {torch: "2.1"}}
  - {when: {alpha: "1.1.0", platform: linux-64}, needs: {torch: ["2.1", "==2.2.0"]}, severity: error, cause: own cause, evidence: [{kind: documented, source: doc, date: 2026-01-03}]}
  evidence: issue
""",
    "tested/alpha.yaml": """
framework: alpha
evidence: {ci: {kind: documented, source: their CI, date: 2026-01-01}}
tested:
- {version: "1.1.0", torch: "2.1.0", cuda: "11.8", python: "3.10", kind: ci, evidence: ci}
""",
}


class Folder:
    """A matrix/ that a test may change file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))


@pytest.fixture
def matrix(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "matrix")
