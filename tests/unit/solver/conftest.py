"""A small knowledge, written as people write it: two frameworks, four torch releases, what they carry, one host."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.knowledge.graph.read import read_knowledge
from envsmith.model.rule import Knowledge
from envsmith.solver import solver_of
from envsmith.solver.solver import Solver

FILES = {
    "components.yaml": """
components:
- {name: alpha, role: framework, short: al, title: Alpha, distributions: [alpha], aliases: [alpha-lm]}
- {name: beta, role: framework, short: be, title: Beta, distributions: [beta], aliases: []}
- {name: python, role: core, short: py, title: Python, distributions: [], aliases: []}
- {name: torch, role: core, short: torch, title: PyTorch, distributions: [torch], aliases: []}
- {name: cuda, role: core, short: cu, title: CUDA, distributions: [], aliases: []}
- {name: nccl, role: core, short: nccl, title: NCCL, distributions: [], aliases: []}
- {name: cudnn, role: core, short: cudnn, title: cuDNN, distributions: [], aliases: []}
- {name: triton, role: core, short: triton, title: Triton, distributions: [triton], aliases: []}
- {name: driver, role: host, short: drv, title: Driver, distributions: [], aliases: []}
- {name: gpu, role: host, short: sm, title: GPU, distributions: [], aliases: []}
- {name: glibc, role: host, short: glibc, title: glibc, distributions: [], aliases: []}
- {name: numpy, role: companion, short: np, title: NumPy, distributions: [numpy], aliases: []}
- {name: pydantic, role: companion, short: pydantic, title: Pydantic, distributions: [pydantic], aliases: []}
""",
    "releases/torch.yaml": """
component: torch
evidence:
  wheel: {kind: measured, source: the wheel, date: 2026-01-01}
builds:
- {version: "2.1.0+cu118", platform: linux-64, date: 2024-01-01, index: default, cuda: "11.8", nccl: "2.18.1", cudnn: "8.7.0", triton: "2.1.0", python: ["3.9", "3.10"], gpu: [sm_70, sm_80], ptx: [], glibc: "2.17", evidence: wheel}
- {version: "2.2.0+cu121", platform: linux-64, date: 2024-06-01, index: default, cuda: "12.1", cudnn: "8.9.2", triton: "2.2.0", python: ["3.9", "3.10", "3.11"], gpu: [sm_70, sm_80, sm_90], ptx: [], glibc: "2.17", evidence: wheel}
- {version: "2.2.0+cpu", platform: linux-64, date: 2024-06-01, index: pytorch, cuda: cpu, nccl: none, cudnn: none, python: ["3.9", "3.10", "3.11"], glibc: "2.17", evidence: wheel}
- {version: "2.3.0+cu130", platform: linux-64, date: 2025-01-01, index: default, cuda: "13.0", nccl: "2.27.5", cudnn: "9.1.0.70", triton: "2.3.0", python: ["3.10", "3.11", "3.12"], gpu: [sm_80, sm_90, sm_100], ptx: [], glibc: "2.28", evidence: wheel}
- {version: "2.3.0+cu126", platform: linux-64, date: 2025-01-01, index: pytorch, cuda: "12.6", nccl: "2.26.2", cudnn: "9.1.0.70", triton: "2.3.0", python: ["3.10", "3.11", "3.12"], gpu: [sm_70, sm_80, sm_90], ptx: [], glibc: "2.28", evidence: wheel}
- {version: "2.3.0+cpu", platform: linux-aarch64, date: 2025-01-01, index: default, cuda: cpu, nccl: none, cudnn: none, python: ["3.11"], glibc: "2.28", evidence: wheel}
- {version: "2.4.0+cu130", platform: linux-64, date: 2025-06-01, index: default, cuda: "13.0", nccl: "2.28.3", cudnn: "9.2.0", triton: "2.4.0", python: ["3.11", "3.12"], ptx: [], glibc: "2.28", evidence: wheel}
""",
    "releases/gpu.yaml": """
component: gpu
evidence:
  table: {kind: documented, source: vendor, date: 2026-01-01}
names:
- {gpu: sm_90, names: [h100, "H 200"], evidence: table}
runs_on:
- {gpu: sm_70, runs_on: ">=sm_70,<sm_80", evidence: table}
- {gpu: sm_80, runs_on: ">=sm_80,<sm_90", evidence: table}
- {gpu: sm_90, runs_on: ">=sm_90,<sm_100", evidence: table}
- {gpu: sm_100, runs_on: ">=sm_100,<sm_110", evidence: table}
releases:
- {version: sm_70, evidence: table}
- {version: sm_80, evidence: table}
- {version: sm_86, evidence: table}
- {version: sm_90, evidence: table}
- {version: sm_100, evidence: table}
""",
    "releases/python.yaml": """
component: python
evidence: {guide: {kind: documented, source: devguide, date: 2026-01-01}}
releases:
- {version: "3.9", date: 2020-10-05, evidence: guide}
- {version: "3.10", date: 2021-10-04, evidence: guide}
- {version: "3.11", date: 2022-10-24, evidence: guide}
- {version: "3.12", date: 2023-10-02, evidence: guide}
""",
    "releases/driver.yaml": """
component: driver
evidence: {notes: {kind: documented, source: notes, date: 2026-01-01}}
releases:
- {version: "470.57.02", evidence: notes}
- {version: "535.54.03", evidence: notes}
- {version: "580.65.06", evidence: notes}
""",
    "releases/alpha.yaml": """
component: alpha
evidence: {index: {kind: declared, source: index, date: 2026-01-01}}
releases:
- {version: "1.0.0", date: 2024-02-01, requires: {torch: ">=2.1,<2.3"}, evidence: index}
- {version: "1.1.0", date: 2024-07-01, requires: {torch: ">=2.1,<2.3"}, evidence: index}
- {version: "2.0.0", date: 2025-02-01, requires: {torch: ">=2.2"}, python: ["3.10", "3.11", "3.12"], evidence: index}
- {version: "2.0.1", date: 2025-03-01, yanked: broken upload, requires: {torch: ">=2.2"}, evidence: index}
- {version: "2.1.0rc1", date: 2025-04-01, requires: {torch: ">=2.2"}, evidence: index}
""",
    "releases/beta.yaml": """
component: beta
evidence: {index: {kind: declared, source: index, date: 2026-01-01}}
releases:
- {version: "0.1", date: 2024-03-01, requires: {torch: "<=2.2.0"}, evidence: index}
- {version: "0.2", date: 2024-09-01, requires: {torch: "<=2.2.0"}, evidence: index}
""",
    "releases/numpy.yaml": """
component: numpy
evidence: {index: {kind: declared, source: index, date: 2026-01-01}}
releases:
- {version: "1.26.4", date: 2024-02-05, evidence: index}
- {version: "2.0.0", date: 2024-06-16, evidence: index}
- {version: "2.1.0", date: 2024-08-18, evidence: index}
""",
    "rules/host.yaml": """
rules:
- id: cuda-driver-floor
  kind: requires
  stage: init
  cause: every CUDA major needs a driver of its first branch
  fix: update the driver
  rows:
  - {when: {cuda: "==13.*"}, needs: {driver: ">=580"}}
  - {when: {cuda: "==12.*"}, needs: {driver: ">=525.60.13"}}
  - {when: {cuda: "==11.*"}, needs: {driver: ">=450.80.02"}}
  evidence: [{kind: documented, source: vendor, date: 2026-01-01}]
""",
    "rules/alpha.yaml": """
rules:
- id: alpha-numpy2
  kind: conflicts
  when: {alpha: "<2", numpy: ">=2.0"}
  cause: np.bool8 is gone
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
- id: alpha-pydantic
  kind: requires
  when: {alpha: "<2"}
  needs: {pydantic: "<2"}
  cause: validators of pydantic 1
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
- id: alpha-compile-python
  kind: conflicts
  severity: warning
  when: {alpha: ">=2", torch: "2.3", python: "3.12"}
  cause: the compiler refuses Python 3.12
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
- id: alpha-note
  kind: conflicts
  severity: note
  when: {alpha: ">=2"}
  cause: the default of an option changed
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
""",
    "tested/alpha.yaml": """
framework: alpha
evidence: {ci: {kind: documented, source: their CI, date: 2026-01-01}}
tested:
- {version: "2.0.0", torch: "2.3.0", kind: ci, evidence: ci}
- {version: "1.1.0", torch: "2.2.0", kind: ci, evidence: ci}
""",
}


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Knowledge:
    return read_knowledge(write_files(tmp_path_factory.mktemp("matrix"), FILES))


@pytest.fixture(scope="session")
def solver(knowledge: Knowledge) -> Solver:
    return solver_of(knowledge)


@pytest.fixture(scope="session")
def matrix_files() -> dict[str, str]:
    return dict(FILES)
