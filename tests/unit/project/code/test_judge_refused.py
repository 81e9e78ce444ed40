"""Methods and calls that a release refuses though its names and arguments do not show it."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.project.code.judge_refused import judge_refused

from .conftest import uses_of

_HOOK = (
    "import pytorch_lightning as pl\nclass M(pl.LightningModule):\n    def validation_epoch_end(self, outputs): ...\n"
)
_STEP = (
    "from lightning.pytorch import LightningModule as L\nclass M(L):\n    def training_step(self, batch, i, {}): ..."
)
_ROOT = (
    "from pydantic import BaseModel, root_validator\nclass M(BaseModel):\n    @root_validator{}\n    def f(cls, v): ..."
)


def messages(text: str, **releases: str) -> list[str]:
    versions = {name.replace("_", "-"): version for name, version in releases.items()}
    return [finding.message for finding in judge_refused(uses_of(a=text), versions, NameIndex.installed())]


def test_a_hook_that_lightning_refuses_is_a_warning_with_what_it_does():
    (message,) = messages(_HOOK, pytorch_lightning="2.0.0")

    assert message == (
        "a.py:3 has validation_epoch_end() in the place of LightningModule's, "
        "which lightning 2.0.0 refuses: Trainer ends in NotImplementedError"
    )


def test_the_release_before_is_silent():
    assert messages(_HOOK, pytorch_lightning="1.9.5") == []


def test_a_hook_under_a_condition_is_silent():
    guarded = "import pytorch_lightning as pl\nif pl.__version__ < '2':\n    class M(pl.LightningModule):\n        def test_epoch_end(self, o): ..."

    assert messages(guarded, pytorch_lightning="2.0.0") == []


@pytest.mark.parametrize(("argument", "count"), [("optimizer_idx", 1), ("optimizer_idx=0", 0), ("*rest", 0)])
def test_a_step_that_wants_what_lightning_no_longer_gives_is_told(argument, count):
    assert len(messages(_STEP.format(argument), lightning="2.1.0")) == count


@pytest.mark.parametrize(
    ("call", "count"), [("", 1), ("()", 1), ("(allow_reuse=True)", 1), ("(pre=True)", 0), ("(skip_on_failure=True)", 0)]
)
def test_a_validator_that_pydantic_2_refuses_is_told(call, count):
    assert len(messages(_ROOT.format(call), pydantic="2.0")) == count


def test_an_argument_that_pydantic_2_refuses_is_told_where_it_is_given():
    (message,) = messages("from pydantic import Field\nx = Field('a', regex='b')\ny = Field('a')", pydantic="2.11.7")

    assert message.startswith("a.py:2 calls pydantic.Field() with regex, which pydantic 2.11.7 refuses")


def test_pydantic_1_inside_of_pydantic_2_takes_what_it_took():
    text = "from pydantic.v1 import BaseModel, root_validator\nclass M(BaseModel):\n    @root_validator\n    def f(cls, v): ..."

    assert messages(text, pydantic="2.11.7") == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("torch.load(f).eval()", 1),
        ("def f():\n    c = torch.load(p, map_location='cpu')\n    return c['args'].lr", 1),
        ("m = torch.load(f)\nm(1)", 1),
        ("torch.load(f, weights_only=False).eval()", 0),
        ("torch.load(f, **options).eval()", 0),
        ("d = torch.load(f)\nd['w'].float().size()\nd.items()", 0),
        ("torch.serialization.add_safe_globals([A])\ntorch.load(f).eval()", 0),
        ("try:\n    torch.load(f).eval()\nexcept Exception:\n    pass", 0),
    ],
)
def test_a_file_that_holds_more_than_tensors_is_told_where_torch_reads_no_more(text, count):
    assert len(messages(f"import torch\n{text}", torch="2.6.0")) == count
    assert messages(f"import torch\n{text}", torch="2.5.1") == []


@pytest.mark.parametrize(
    ("argument", "count"), [("trust_remote_code=True", 1), ("trust_remote_code=False", 0), ("trust_remote_code=x", 0)]
)
def test_a_data_set_that_is_loaded_as_a_script_is_told_from_datasets_4_on(argument, count):
    assert len(messages(f"import datasets\ndatasets.load_dataset('a', {argument})", datasets="4.0.0")) == count


@pytest.mark.parametrize(("key", "version", "count"), [("'T'", "5.13.0", 1), ("T", "5.13.0", 0), ("'T'", "5.13.1", 0)])
def test_a_tokenizer_that_is_registered_by_a_text_is_told_for_the_one_release_that_refuses_it(key, version, count):
    text = f"from transformers import AutoTokenizer\nAutoTokenizer.register({key}, fast_tokenizer_class=T)"

    assert len(messages(text, transformers=version)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import pandas\ndef f(df):\n    return df.iteritems()", 1),
        ("def f(df):\n    return df.iteritems()", 0),
        ("import pandas\ndef f(df):\n    return df.iteritems() if hasattr(df, 'iteritems') else df.items()", 0),
        ("import pandas\nclass A:\n    def iteritems(self): ...\ndef f(a):\n    return a.iteritems()", 0),
        ("import pandas, six\ndef f(d):\n    return six.iteritems(d)", 0),
    ],
)
def test_an_attribute_that_pandas_has_nowhere_is_told_in_a_file_that_imports_it(text, count):
    assert len(messages(text, pandas="2.0.3")) == count
    assert messages(text, pandas="1.5.3") == []
