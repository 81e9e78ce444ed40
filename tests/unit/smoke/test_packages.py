"""The step that imports what was asked for beside the framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.agent.protocol import Wrong
from envsmith.agent.steps.packages import modules_of, step_imports
from envsmith.frameworks.framework import Step
from envsmith.model.cell import Cell
from envsmith.model.record import Verdict
from envsmith.smoke.events import StepRow
from envsmith.smoke.plan import IMPORTS, Plan
from envsmith.smoke.step_verdict import judge_step


class Stage:
    cuda = False

    def __init__(self, *distributions: str) -> None:
        self.step = {"distributions": distributions}

    def enter_import(self, module: str) -> None:
        pass


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, **files: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        paths = [path.replace("__py", ".py").replace("_in_", "/") for path in files]
        for path, text in zip(paths, files.values(), strict=True):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in paths))

    return install


def test_every_module_of_a_distribution_is_imported(install):
    install("tiny-one", tinyalpha__py="", tinybeta_in___init____py="", tests_in___init____py="raise OSError")
    assert modules_of("tiny-one") == ["tinyalpha", "tinybeta"]
    assert step_imports(Stage("tiny-one")).facts["imported"] == ["tinyalpha", "tinybeta"]


def test_a_module_that_cannot_be_imported_is_wrong(install):
    install("tiny-two", tinybroken__py="import torch_of_nowhere")
    with pytest.raises(Wrong, match="tiny-two: ModuleNotFoundError: No module named 'torch_of_nowhere'"):
        step_imports(Stage("tiny-two"))


def test_a_distribution_that_is_not_installed_is_wrong():
    with pytest.raises(Wrong, match="tiny-nowhere: PackageNotFoundError"):
        step_imports(Stage("tiny-nowhere"))


def test_an_import_that_wants_a_gpu_is_not_shown_on_a_machine_without_one(install):
    install("tiny-three", tinygpu__py="raise ImportError('libcuda.so.1: cannot open shared object file')")
    facts = step_imports(Stage("tiny-three")).facts
    assert facts["imported"] == []
    assert "libcuda.so.1" in facts["not shown without a GPU"][0]


def test_the_plan_of_a_cell_with_further_packages_imports_them():
    components = {"torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"}
    cell = Cell(
        components=components, chosen=("torch",), further=("Hydra_Core>=1.3", "wandb[media]; python_version>'3'")
    )
    (step,) = [step for step in Plan.build(cell).steps if step.name == IMPORTS]
    assert step.to_json()["distributions"] == ["hydra-core", "wandb"]
    assert not [s for s in Plan.build(Cell(components=components, chosen=("torch",))).steps if s.name == IMPORTS]


def test_a_step_that_trains_nothing_passes_without_losses():
    step = Step(name=IMPORTS, kind="imports", tolerance=None, trains=False)
    outcome = judge_step(step, [StepRow(run=IMPORTS, rank=0, facts={"imported": ["wandb"]})], 1.0)
    assert outcome.verdict is Verdict.PASS
    assert "wandb" in outcome.detail
