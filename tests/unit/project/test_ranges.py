"""What files of projects declare, judged: extras, groups, overrides, pins beside them."""

from __future__ import annotations

from envsmith.model.cell import Platform, Request
from envsmith.model.finding import Judgement
from envsmith.model.version import Spec
from envsmith.project.ranges import Declarations, judge_ranges

OK = Judgement(status="ok")


def _judge(folder, text, name="pyproject.toml", **versions):
    (folder / name).write_text(text)
    return Declarations.of(folder / name).judge(OK, versions, Platform.LINUX_64)


def test_dependencies_that_cannot_be_met_together_are_bad(tmp_path):
    judgement = _judge(
        tmp_path, '[project]\nname = "x"\ndependencies = [\n  "deepspeed>=0.12,<0.14.4",\n  "torch>=2.4",\n]\n'
    )

    assert [(f.rule, f.where) for f in judgement.findings] == [
        ("deepspeed-elastic-socket", f"{tmp_path}/pyproject.toml:4")
    ]


def test_an_extra_is_judged_with_what_is_always_installed(tmp_path):
    text = (
        '[project]\nname = "x"\ndependencies = ["torch>=2.4"]\n[project.optional-dependencies]\n'
        'old = ["deepspeed<0.14.4"]\nnew = ["deepspeed>=0.16"]\n'
    )
    (finding,) = _judge(tmp_path, text).findings

    assert finding.message.startswith("with extra old: ")


def test_a_group_is_judged_too(tmp_path):
    text = '[project]\nname = "x"\ndependencies = ["torch>=2.4"]\n[dependency-groups]\nold = ["deepspeed<0.14.4"]\n'
    (finding,) = _judge(tmp_path, text).findings

    assert finding.message.startswith("with group old: ")


def test_what_is_pinned_beside_the_file_counts(tmp_path):
    text = '[project]\nname = "x"\ndependencies = ["deepspeed<0.14.4"]\n'

    assert _judge(tmp_path, text).status == "ok"
    assert _judge(tmp_path, text, torch="2.4.1").status == "bad"


def test_an_override_of_uv_is_not_held_to_what_packages_declare(tmp_path):
    text = '[project]\nname = "x"\ndependencies = ["deepspeed<0.14.4", "torch>=2.4"]\n'

    assert _judge(tmp_path, text + '[tool.uv]\noverride-dependencies = ["torch==2.9.1"]\n').status == "ok"


def test_a_pinned_release_that_is_not_known_is_left_to_the_judgement_of_what_is_pinned(tmp_path):
    assert not _judge(tmp_path, "torch==1.7.0\n", "requirements.txt", torch="1.7.0").unknown


def test_two_files_are_judged_together(tmp_path):
    (tmp_path / "requirements.txt").write_text("deepspeed<0.14.4\n")
    (tmp_path / "constraints.txt").write_text("torch>=2.4\n")

    both = Declarations.of(tmp_path / "requirements.txt").joined(Declarations.of(tmp_path / "constraints.txt"))

    assert both.judge(OK, {}, Platform.LINUX_64).status == "bad"


def _judged(**specs):
    narrowed = {name: (Spec.parse(text), f"{name}.txt:1") for name, text in specs.items()}
    return judge_ranges(Request(frameworks={"deepspeed": Spec.parse("*")}, narrowed=narrowed))


def test_ranges_that_known_releases_meet_are_ok():
    assert _judged(deepspeed=">=0.15", torch=">=2.4").status == "ok"


def test_a_rule_that_leaves_no_release_is_a_finding_with_place_and_repair():
    judgement = _judged(deepspeed=">=0.12,<0.14.4", torch=">=2.4")

    (finding,) = judgement.findings
    assert judgement.status == "bad"
    assert finding.rule == "deepspeed-elastic-socket"
    assert finding.where == "deepspeed.txt:1"
    assert finding.evidence
    assert judgement.repair
    assert {change.component for change in judgement.repair.changes} == {"deepspeed"}


def test_a_range_beyond_what_is_known_is_unknown():
    judgement = _judged(torch=">=99")

    assert judgement.status == "unknown"
    assert "torch.txt:1" in judgement.unknown[0]


def test_a_range_that_contradicts_itself_is_bad():
    judgement = _judged(torch=">=2.6,<2.4")

    assert judgement.status == "bad"
    assert judgement.findings[0].message == "no release of torch is >=2.6,<2.4"
