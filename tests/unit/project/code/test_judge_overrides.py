"""Methods of a project that stand in the place of a package's, judged by the releases of the package."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.rule import Severity
from envsmith.project.code.judge_overrides import judge_overrides
from envsmith.project.code.judge_uses import Assumed
from envsmith.project.code.python_files import read_project
from envsmith.project.code.reading import read_project_uses


def judged(tmp_path, code: str, **assumed: Assumed):
    """The findings on one file with transformers 4.53.0 and PyTorch Lightning 2.0.0."""
    (tmp_path / "train.py").write_text(code)
    releases = {
        "transformers": "4.53.0",
        "pytorch-lightning": "2.0.0",
        **{n: one.version for n, one in assumed.items()},
    }
    return list(judge_overrides(read_project_uses(read_project(tmp_path)), releases, NameIndex.installed(), assumed))


TRAINER = "import transformers\nclass Own(transformers.Trainer):\n    def "


@pytest.mark.parametrize(
    ("method", "argument", "spec"),
    [
        ("log(self, logs): ...", "start_time", ">=3.1.0,<4.47.0"),
        ("compute_loss(self, model, inputs, return_outputs=False): ...", "num_items_in_batch", ">=3.2.0,<4.46.0"),
        ("training_step(self, model, inputs): ...", "num_items_in_batch", ">=3.1.0,<4.46.0"),
        ("_get_train_sampler(self): ...", "train_dataset", ">=3.1.0,<4.52.0"),
    ],
)
def test_a_method_that_does_not_take_what_the_release_gives_it_is_a_warning(tmp_path, method, argument, spec):
    (finding,) = judged(tmp_path, TRAINER + method)

    assert (finding.rule, finding.severity, finding.where) == ("code-override", Severity.WARNING, "train.py:3")
    assert f"does not take {argument}, which transformers 4.53.0 has there" in finding.message
    assert dict(finding.needs) == {"transformers": spec}


def test_what_is_given_is_known_by_whatever_path_the_class_is_imported(tmp_path):
    code = "from lightning.pytorch.plugins.io import CheckpointIO\nclass Own(CheckpointIO):\n    def load_checkpoint(self, path, map_location=None): ..."

    (finding,) = judged(tmp_path, code, lightning=Assumed(version="2.6.0"))

    assert "does not take weights_only, which lightning 2.6.0" in finding.message
    assert judged(tmp_path, code, lightning=Assumed(version="2.5.6")) == []


def test_a_method_that_wants_what_the_release_no_longer_gives_is_a_warning(tmp_path):
    code = "import pytorch_lightning as pl\nclass Own(pl.Callback):\n    def on_train_epoch_end(self, trainer, pl_module, outputs): ..."
    (finding,) = judged(tmp_path, code)

    assert "wants outputs, which lightning 2.0.0 does not have there" in finding.message


@pytest.mark.parametrize(
    "method",
    [
        "log(self, logs, start_time=None): ...",
        "log(self, logs, *args): ...",
        "compute_loss(self, model, inputs, return_outputs=False, **kwargs): ...",
        "create_model_card(self, model_name=None): ...",
        "create_optimizer(self): ...",
        "evaluate(self, data=None): ...",
        "_get_train_sampler(self, dataset=None): ...",
        "__init__(self, model): ...",
        "mine(self, a, b): ...",
    ],
)
def test_a_method_that_fits_or_never_fitted_is_not_told(tmp_path, method):
    assert not judged(tmp_path, TRAINER + method)


def test_a_class_under_a_question_for_the_version_is_not_told(tmp_path):
    code = "import transformers\nif transformers.__version__ < '4.47':\n  class Own(transformers.Trainer):\n    def log(self, logs): ..."

    assert not judged(tmp_path, code)


def test_a_release_that_the_project_only_admits_is_said_to_be_the_newest(tmp_path):
    newest = Assumed(version="4.53.0", spec=">=4.40")
    (finding,) = judged(tmp_path, TRAINER + "log(self, logs): ...", transformers=newest)

    assert "transformers 4.53.0, the newest release that >=4.40 admits, has there" in finding.message
