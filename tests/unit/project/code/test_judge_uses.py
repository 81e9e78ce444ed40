"""What code takes, held against the releases of a set of versions."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.rule import Severity
from envsmith.project.code.judge_uses import Assumed, has, judge_uses

from .conftest import RELEASES, HandIndex, uses_of


def judge(index, text: str, **versions: str):
    return judge_uses(uses_of(train=text), versions or {"transformers": "4.42.0", "accelerate": "1.0.0"}, index)


def test_a_name_that_a_release_took_away_is_an_error_with_its_place_and_its_successor(index):
    (finding,) = judge(index, "import os\nfrom transformers import Conversation").findings
    assert (finding.rule, finding.severity, finding.where) == ("code-name", Severity.ERROR, "train.py:2")
    assert (finding.components, finding.needs) == ({"transformers": "4.42.0"}, {"transformers": "<4.42.0"})
    assert "it went with 4.42.0" in finding.message
    assert finding.fix == "Take transformers.pipelines.Chat instead, or install transformers <4.42.0."


def test_a_finding_names_the_file_that_it_was_read_from(index):
    (finding,) = judge(index, "from transformers import Conversation").findings
    assert [str(e) for e in finding.evidence] == ["measured 2024-06-27: transformers-4.42.0.whl"]


def test_a_name_that_a_release_refuses_is_shown_with_how_that_was_seen():
    uses = uses_of(train="import numpy as np\nx = np.float")

    (finding,) = judge_uses(uses, {"numpy": "1.26.4"}, NameIndex.installed()).findings

    assert finding.evidence[0].source.startswith("hasattr(numpy, name) in numpy 1.23.5")


def test_a_name_that_a_later_release_brought_says_which(index):
    (finding,) = judge(index, "from transformers import Cache", transformers="4.41.0").findings
    assert "it came with 4.42.0" in finding.message


@pytest.mark.parametrize(("written", "count"), [("2024-01-02", 0), ("2024-05-02", 1), ("2025-01-02", 1), ("", 1)])
def test_code_means_nothing_that_came_long_after_it(index, written, count):
    uses = uses_of(train="from transformers import Cache")

    assert len(judge_uses(uses, {"transformers": "4.41.0"}, index, written=written).findings) == count


def test_an_attribute_of_an_object_that_came_after_the_code_is_one_of_a_subclass():
    having = {f"transformers.{path}": RELEASES["transformers"] for path in ("Model",)}
    index = HandIndex({**having, "transformers.Model.head": ("4.42.0",)})
    uses = uses_of(train="import transformers\ndef f(model: transformers.Model):\n    model.head")

    counts = [
        len(judge_uses(uses, {"transformers": "4.41.0"}, index, written=day).findings)
        for day in ("2024-06-01", "2024-07-01")
    ]

    assert counts == [0, 1]


def test_code_may_take_what_went_before_it_was_written(index):
    uses = uses_of(train="from accelerate import back")

    assert len(judge_uses(uses, {"accelerate": "0.2.0"}, index, written="2000-01-01").findings) == 1


def test_a_name_that_was_away_for_some_releases_says_both(index):
    (finding,) = judge(index, "from accelerate import back", accelerate="0.2.0").findings
    assert "it went with 0.2.0 and it is back in 1.0.0" in finding.message


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("from transformers import Conversation", Severity.ERROR),
        ("def f():\n    from transformers import Conversation", Severity.WARNING),
        ("import x\nif x.flag:\n    from transformers import Conversation", Severity.WARNING),
        ("try:\n    from transformers import Conversation\nexcept ImportError:\n    pass", Severity.NOTE),
        ("import transformers as t\nif t.__version__ < '4.42':\n    t.Conversation", Severity.NOTE),
    ],
)
def test_the_severity_is_what_the_missing_name_stops(index, text, severity):
    assert {f.severity for f in judge(index, text).findings} == {severity}


def test_an_argument_that_is_gone_is_named(index):
    (finding,) = judge(index, "import accelerate\na = accelerate.Accelerator(dispatch_batches=1)").findings
    assert finding.rule == "code-argument"
    assert "accelerate.Accelerator(dispatch_batches=)" in finding.message


@pytest.mark.parametrize(
    ("call", "is_told"),
    [("mel(1, 2)", True), ("mel(*pair, 3)", False), ("mel(1, n=2)", False), ("Mel.of(mel, 1)", False)],
)
def test_arguments_that_a_release_takes_by_name_only_are_counted_where_they_are_given_by_position(call, is_told):
    having = {f"transformers.{path}": RELEASES["transformers"] for path in ("mel", "Mel", "Mel.of")}
    index = HandIndex({**having, "transformers.mel(#2=)": ("4.40.0",), "transformers.Mel.of(#2=)": ("4.40.0",)})

    findings = judge(index, f"from transformers import Mel, mel\n{call}").findings

    assert ["mel() with 2 arguments by position, which transformers 4.42.0" in f.message for f in findings] == [
        True
    ] * is_told


def test_a_member_of_an_object_is_judged(index):
    text = "from transformers import Trainer\nclass M(Trainer):\n    def f(self):\n        self.old_step()"
    assert [f.where for f in judge(index, text).findings] == ["train.py:4"]


def test_a_name_that_no_release_has_is_not_a_matter_of_versions(index):
    assert judge(index, "import transformers\ntransformers.made_at_run_time").findings == ()


def test_an_import_of_a_name_that_no_release_has_is_a_warning():
    index = HandIndex({"transformers.models": ("4.42.0", "4.43.0")})
    text = "from transformers.models import MadeLater\n"

    [finding] = judge(index, text, transformers="4.42.0").findings
    before = judge(index, text, transformers="4.41.0").findings

    assert (finding.severity.value, dict(finding.needs)) == ("warning", {})
    assert finding.message == (
        "train.py:1 takes transformers.models.MadeLater, which transformers 4.42.0 does not have: no release does"
    )
    assert [f.message.partition(" takes ")[2] for f in before] == [
        "transformers.models, which transformers 4.41.0 does not have: it came with 4.42.0"
    ]


def test_a_module_of_a_shared_folder_may_be_that_of_another_distribution():
    index = NameIndex.installed()
    text = "import optimum.intel\nfrom optimum.exporters.openvino import export\nfrom optimum.version import nothing\n"

    findings = judge(index, text, optimum="1.23.1").findings

    assert findings == ()


def test_a_branch_that_asks_for_the_name_is_not_taken_where_it_is_missing(index):
    assert judge(index, "import transformers as t\nif hasattr(t, 'Conversation'):\n    t.Conversation").findings == ()


def test_a_branch_that_asks_for_another_name_guards_nothing(index):
    text = "import transformers as t\nif hasattr(t, 'Trainer'):\n    x = t.Conversation"
    assert [f.severity for f in judge(index, text).findings] == [Severity.ERROR]


def test_one_finding_lists_every_line_of_a_file(index):
    (finding,) = judge(
        index, "def f():\n    import transformers as t\n    t.Conversation\n    t.Conversation()"
    ).findings
    assert finding.message.endswith("(also in line 4)")


def test_it_says_what_it_did_not_judge(index):
    text = "import wandb\nimport accelerate\nimport transformers\ngetattr(transformers, x)"
    blind = judge(index, text, transformers="4.42.0").blind
    assert blind == (
        "accelerate: no version is stated, so 1 use of it was not judged",
        "1 packages have no name index: wandb",
        "1 lines choose a name at run time (transformers)",
    )


@pytest.mark.parametrize(
    ("version", "answer"),
    [("4.41.0", True), ("4.40.5", True), ("4.41.5", None), ("4.43", False), ("5.0", None), ("3.0", None), ("x", None)],
)
def test_a_release_that_was_not_measured_is_like_its_neighbours_where_they_agree(index, version, answer):
    assert has(index.ask("transformers.Conversation"), version) is answer


def judge_assumed(index, text: str, spec: str):
    return judge_uses(uses_of(train=text), {}, index, {"transformers": Assumed(version="4.43.0", spec=spec)}).findings


def test_what_only_the_newest_release_lacks_is_a_warning_that_says_so(index):
    (finding,) = judge_assumed(index, "from transformers import Conversation", ">=4.40")
    assert finding.severity is Severity.WARNING
    assert "transformers 4.43.0, the newest release that >=4.40 admits, does not have" in finding.message


def test_what_no_release_has_that_the_project_admits_is_an_error(index):
    (finding,) = judge_assumed(index, "from transformers import Conversation", ">=4.42")
    assert finding.severity is Severity.ERROR


def test_what_follows_from_a_missing_name_is_not_said_again(index):
    index.names |= {"transformers.old": ("4.40.0",), "transformers.old.Part": ("4.40.0",)}
    index.names |= {"transformers.old.Part(size=)": ("4.40.0",)}
    (finding,) = judge(index, "from transformers.old import Part\nPart(size=1)").findings
    assert "takes transformers.old," in finding.message


def test_where_a_module_is_missing_its_members_are_not_listed_and_their_new_module_replaces_it():
    paths = ("transformers.old", "transformers.old.Model", "transformers.old.Model(size=)")
    index = HandIndex(dict.fromkeys(paths, ("4.40.0",)), {"transformers.old.Model": "transformers.new.Model"})
    uses = uses_of(train="from transformers.old import Model\nModel(size=1)")

    (finding,) = judge_uses(uses, {"transformers": "4.43.0"}, index).findings

    assert "takes transformers.old, which" in finding.message
    assert finding.fix == "Take transformers.new instead, or install transformers <4.41.0."


_ATTENTION = """from flash_attn.flash_attn_interface import _flash_attn_forward
def ring(q, k, v):
    return _flash_attn_forward(q, k, v, 0, 1, causal=True, window_size=(-1, -1), alibi_slopes=None, return_softmax=False)
"""


def test_a_call_that_leaves_out_what_the_release_requires_is_told_with_the_releases_that_take_it():
    uses = uses_of(ring=_ATTENTION)

    (finding,) = judge_uses(uses, {"flash-attn": "2.6.3"}, NameIndex.installed()).findings

    assert (finding.rule, finding.severity) == ("code-argument", Severity.WARNING)
    assert finding.message == (
        "ring.py:3 calls flash_attn.flash_attn_interface._flash_attn_forward() without softcap, which flash-attn 2.6.3 "
        "requires: the call is complete before 2.6.0.post1"
    )
    assert finding.fix == "Give softcap, or install flash-attn >=2.4.0.post1,<2.6.0.post1."
    assert judge_uses(uses, {"flash-attn": "2.5.9.post1"}, NameIndex.installed()).findings == ()
