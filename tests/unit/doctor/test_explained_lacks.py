"""A text that ends before its error names a lead, and a line of code that did not fail names nothing."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean

FRAMES = """Traceback (most recent call last):
  File "/home/user/train.py", line 3, in <module>
    from llava.model import LlavaMPT
  File "/home/user/llava/model/mpt.py", line 22, in <module>
    """
GONE = "from transformers.models.opt.modeling_opt import _expand_mask as _expand_mask_opt"


def judged(text: str):
    return diagnose(read_texts([("log", text)]), [("log", clean(text))])


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        (GONE, {"transformers": ">=4.19.0,<4.35.0"}),
        ("from transformers import Trainer, AdamW", {"transformers": "<5.0"}),
        ("args = transformers.TrainingArguments(output_dir=out, no_cuda=True)", {}),
    ],
)
def test_the_last_line_of_code_names_what_the_stated_release_lacks(code, needs):
    diagnosis = judged(f"transformers: 5.0.0\nimport transformers\n{FRAMES}{code}\n")
    leads = [d for d in diagnosis.diagnosed if d.finding.rule == "name-not-in-release"]
    assert diagnosis.status == "unknown"
    assert all(d.finding.severity.value == "warning" and "ends before its error" in d.finding.message for d in leads)
    assert [d.finding.needs.keys() for d in leads] == [needs.keys()] or not needs


@pytest.mark.parametrize("below", ["", "    ^^^^^^^^^^^^^\n", "\ntransformers 4.35.0\n"])
def test_carets_and_what_is_told_after_a_blank_line_are_no_error(below):
    first = judged(f"{FRAMES}{GONE}\n{below}").diagnosed[0]
    assert first.finding.needs == {"transformers": ">=4.19.0,<4.35.0"}


def test_a_cell_of_a_notebook_is_read_to_its_arrow():
    text = "import numpy as np\n      2 y = 1\n----> 3 x = np.product(y)\n      4 z = 2\n"
    assert judged(text).diagnosed[0].finding.needs == {"numpy": "<2.0.0"}


def test_imports_at_the_end_are_those_of_which_the_text_says_that_they_fail():
    told = judged(f"With transformers 4.35.0 it throws an import error:\n\n{GONE}\n")
    silent = judged(f"With transformers 4.35.0 I use:\n\n{GONE}\n")
    assert [d.finding.needs for d in told.diagnosed[:1]] == [{"transformers": ">=4.19.0,<4.35.0"}]
    assert not any(d.finding.rule == "name-not-in-release" for d in silent.diagnosed)


@pytest.mark.parametrize(
    "text",
    [
        f'{FRAMES}{GONE}\n  File "/home/user/other.py", line 1, in <module>\n    run()\n',
        f"{FRAMES}{GONE}\nValueError: nothing to do with it\n",
        f"transformers: 4.30.0\n{FRAMES}{GONE}\n",
        f"{FRAMES}from transformers import AutoTokenizer\n",
    ],
    ids=[
        "a frame of the middle",
        "an error that is told",
        "a release that has the name",
        "a name of the newest release",
    ],
)
def test_a_line_of_code_that_need_not_have_failed_names_nothing(text):
    assert not any(d.finding.rule == "name-not-in-release" for d in judged(text).diagnosed)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('  File "/home/user/.pyenv/versions/3.11.4/lib/python3.11/data', "python-version-unsupported"),
        (
            '  File "/env/site-packages/torchtext/_extension.py", line 50, in _load_lib\nOSError: /app/software/lib/python3.11',
            "extension-built-for-other-torch",
        ),
    ],
)
def test_a_path_that_is_cut_says_what_was_at_work(text, cause):
    assert judged(text).diagnosed[0].taxonomy.cause == cause


def test_a_limit_of_locked_memory_is_read_in_a_sentence():
    first = judged("the soft memlock setting is being set to 64K while slurm creates the shell of the job").diagnosed[0]
    assert first.finding.components == {"limit.memlock": str(64 << 10)}
