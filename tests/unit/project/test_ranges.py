"""What files of projects declare, judged: extras, groups, overrides, pins beside them."""

from __future__ import annotations

from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.project.ranges import Declarations

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
