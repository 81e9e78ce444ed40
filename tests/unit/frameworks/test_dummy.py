"""A framework of a few lines: solved, built, smoke-tested and listed by registering it, without any other change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_index import TinyIndex, wheel

from envsmith.cli.app import run
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import Framework, Step
from envsmith.smoke.bundle import EXTRA

TORCH_PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON", "")
MATRIX = Path(__file__).parents[3] / "matrix"

DUMMY = Framework(
    name="dummy",
    short="dum",
    title="Dummy",
    distributions=("dummy",),
    module="dummy_trainer",
    aliases=("dummy-lm",),
    quick_steps=(Step(name="dummy all_reduce fp32", kind="dummy", issues=("all_reduce",), tolerance=1e-4),),
)
# What runs in the cell; a framework of the house has it as envsmith/agent/steps/dummy.py.
STEPS = """
from envsmith.agent.steps import FRAMEWORKS, STEPS
from envsmith.agent.steps.stage import Trained

def step(s):
    s.enter("import dummy_trainer")
    import dummy_trainer
    s.init_group()
    model = s.model().to(s.device)
    optimizer = s.optimizer(model)

    def update():
        dummy_trainer.average_gradients(s.torch.distributed, model)
        optimizer.step()
        optimizer.zero_grad()

    losses = s.train(model, lambda loss: loss.backward(), update)
    return Trained(losses=losses, reference=s.reference(), facts={"dummy": dummy_trainer.__version__})

STEPS["dummy"] = step
FRAMEWORKS.append("dummy")
"""
MODULE = """
__version__ = "1.2.0"

def average_gradients(dist, model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
"""
RELEASES = """component: dummy
evidence: {index: {kind: declared, source: a list, date: 2026-01-01}}
releases:
- {version: "1.0.0", date: 2025-01-01, requires: {torch: "<2"}, evidence: index}
- {version: "1.2.0", date: 2026-01-01, requires: {torch: ">=2"}, evidence: index}
"""
RULES = """rules:
- id: dummy-numpy
  kind: conflicts
  when: {dummy: ">=1.2", numpy: "<1.20"}
  cause: it asks numpy for names that came with 1.20
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
"""
TORCH = """component: torch
evidence: {{wheel: {{kind: measured, source: the wheel, date: 2026-01-01}}}}
builds:
- {{version: "{torch}", platform: linux-64, date: 2026-01-01, index: default, cuda: "{cuda}", nccl: none, cudnn: none, python: ["{python}"], glibc: "2.17", evidence: wheel}}
"""


def _matrix(folder: Path, torch: str, cuda: str, python: str) -> Path:
    """Write a small matrix: one torch for one Python, and the framework."""
    (folder / "releases").mkdir(parents=True)
    (folder / "rules").mkdir()
    for path in (*MATRIX.glob("*.yaml"), *MATRIX.glob("*.txt")):
        shutil.copy(path, folder)
    for name in ("python", "gpu"):
        shutil.copy(MATRIX / "releases" / f"{name}.yaml", folder / "releases")
    (folder / "releases" / "torch.yaml").write_text(TORCH.format(torch=torch, cuda=cuda, python=python))
    (folder / "releases" / "dummy.yaml").write_text(RELEASES)
    (folder / "rules" / "dummy.yaml").write_text(RULES)
    return folder


def _index(root: Path, torch: str, torch_files: dict[str, str] | None = None) -> TinyIndex:
    index = TinyIndex(root)
    index.add("torch", wheel("torch", torch, ["numpy"], torch_files))
    index.add("numpy", wheel("numpy", "2.3.0", files={"numpy-here.txt": ""}))
    index.add("dummy", wheel("dummy", "1.2.0", ["torch"], {"dummy_trainer.py": MODULE}))
    return index


@pytest.fixture
def dummy(monkeypatch, tmp_path):
    """The framework in both registries, a matrix and an index of its own. The value makes both for a torch and a Python."""
    monkeypatch.setitem(FRAMEWORKS, "dummy", DUMMY)
    monkeypatch.setitem(EXTRA, "dummy", STEPS)

    def make(torch: str, python: str, *, cuda: str = "cpu", torch_files: dict[str, str] | None = None) -> Path:
        monkeypatch.setenv("ENVSMITH_MATRIX", str(_matrix(tmp_path / "matrix", torch, cuda, python)))
        for name in [n for n in os.environ if n.startswith(("UV_", "PIP_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("UV_DEFAULT_INDEX", _index(tmp_path / "index", torch.partition("+")[0], torch_files).url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
        return tmp_path

    return make


def _json(words, capsys, code=0):
    assert run(words) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_it_is_solved_judged_explained_and_listed(dummy, capsys):
    dummy("2.13.0+cpu", "3.11")
    cell = _json(["solve", "--framework", "Dummy_LM", "--json"], capsys)["cell"]
    assert cell["id"] == "dum1.2.0-torch2.13.0-cpu-py311"
    assert list(cell["components"])[:3] == ["dummy", "torch", "cuda"]
    assert (
        _json(["check", "dummy==1.2.0", "numpy==1.19.5", "--json"], capsys, code=1)["findings"][0]["rule"]
        == "dummy-numpy"
    )
    explanation = _json(["explain", cell["id"], "--json"], capsys)
    assert explanation["subject"] == cell["id"]
    frameworks = _json(["matrix", "export"], capsys)["frameworks"]
    assert [f["name"] for f in frameworks if f["releases"]] == ["torch", "dummy"]


def test_help_names_it():
    code = (
        "from envsmith.frameworks import FRAMEWORKS; from envsmith.frameworks.framework import Framework;"
        "FRAMEWORKS['dummy'] = Framework(name='dummy', short='dum', title='Dummy', distributions=(), module='dummy');"
        "from envsmith.cli.app import run; run(['build', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"{', '.join(FRAMEWORKS)} or dummy; repeatable." in " ".join(done.stdout.split())


def test_it_is_built_in_a_virtual_environment(dummy, capsys):
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = dummy("2.13.0+cpu", minor)
    words = ["build", "--framework", "dummy", "--engine", "venv", "--no-conda", "--no-smoke", "--json"]
    outcome = _json([*words, "--output", str(folder / "cells")], capsys)
    assert outcome["cell"]["components"]["dummy"] == "1.2.0"
    python = outcome["built"]["python"]
    code = "import dummy_trainer; print(dummy_trainer.__version__)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "1.2.0\n"


@pytest.mark.torch
def test_it_is_smoke_tested_and_its_record_is_listed(dummy, capsys, tmp_path):
    code = "import sys, torch as t; print(t.__version__, t.version.cuda or 'cpu', '%d.%d' % sys.version_info[:2], t.__path__[0])"
    done = subprocess.run([TORCH_PYTHON, "-c", code], capture_output=True, text=True, check=True)
    torch, cuda, minor, place = done.stdout.split()
    # The cell's torch is the real one of that interpreter: links to its packages, without their metadata, by a path file.
    links = tmp_path / "links"
    links.mkdir()
    for path in Path(place).parent.iterdir():
        if not path.name.endswith((".dist-info", ".pth")):
            (links / path.name).symlink_to(path)
    folder = dummy(torch, minor, cuda=cuda, torch_files={"torch-elsewhere.pth": f"{links}\n"})
    words = ["build", "--framework", "dummy", "--engine", "venv", "--no-conda", "--ranks", "2", "--json"]
    outcome = _json([*words, "--output", str(folder / "cells")], capsys)
    record = outcome["record"]
    assert [(s["name"], s["verdict"]) for s in record["steps"]] == [("dummy all_reduce fp32", "pass")]
    assert record["rungs"][-1] == "framework step(cpu)"
    assert record["loaded"]["installed"]["dummy"] == "1.2.0"
    records = folder / "matrix" / "records"
    records.mkdir()
    shutil.copy(Path(outcome["directory"]) / "record.json", records / "dummy.json")
    (entry,) = _json(["matrix", "list", "--framework", "dummy", "--format", "json"], capsys)
    assert (entry["framework"], entry["version"], entry["status"]) == ("dummy", "1.2.0", "proved")
