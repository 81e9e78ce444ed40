"""``-r``, ``--project`` and ``--without``: files become part of the request."""

from __future__ import annotations

import json

import pytest

from envsmith.cli.app import run
from envsmith.cli.demands import gather
from envsmith.cli.flags import RequestFlags
from envsmith.errors import UsageError


def _solve(capsys, *words):
    code = run(["solve", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_package_that_is_not_a_component_makes_a_cell_of_its_own(capsys):
    _, bare = _solve(capsys, "-f", "deepspeed")
    code, answer = _solve(capsys, "-f", "deepspeed", "--with", "tyro", "--with", "hydra-core>=1.3")
    assert code == 0
    assert answer["cell"]["further"] == ["hydra-core>=1.3", "tyro"]
    assert answer["cell"]["components"] == bare["cell"]["components"]
    assert answer["cell"]["id"].startswith(bare["cell"]["id"] + "-with.")
    assert answer["why"][-1] == "hydra-core and tyro: a lock asks whether the index has them."


def test_a_name_that_looks_like_a_misspelt_component_is_refused(capsys):
    assert run(["solve", "--with", "deepsped"]) == 2
    assert "Try deepspeed" in capsys.readouterr().err


def test_a_file_and_a_flag_that_contradict_each_other_are_both_in_the_conflict(tmp_path, capsys):
    (tmp_path / "r.txt").write_text("wandb\ntorch==2.9.1\n")
    code, answer = _solve(capsys, "--torch", "2.8", "-r", str(tmp_path / "r.txt"))
    assert code == 1
    messages = [member["message"] for member in answer["conflict"]]
    assert messages == ["torch 2.8 was asked for", f"torch ==2.9.1: {tmp_path}/r.txt:2"]


def test_a_requirement_can_be_left_out(tmp_path, capsys):
    (tmp_path / "r.txt").write_text("wandb\nlm_eval @ git+https://example.org/x\n")
    assert run(["solve", "-f", "deepspeed", "-r", str(tmp_path / "r.txt")]) == 3
    assert f"{tmp_path}/r.txt:2: lm_eval comes from" in capsys.readouterr().err
    code, answer = _solve(capsys, "-f", "deepspeed", "-r", str(tmp_path / "r.txt"), "--without", "lm-eval")
    assert (code, answer["cell"]["further"]) == (0, ["wandb"])


def test_a_file_that_requires_nothing_is_said(tmp_path, capsys):
    (tmp_path / "requirements.txt").write_text("# later\n")

    assert run(["solve", "--project", str(tmp_path)]) == 0

    assert "requirements.txt: no package is required there" in capsys.readouterr().err


def test_a_list_that_names_no_package_is_no_request_unless_something_else_is_named(tmp_path, capsys):
    empty = tmp_path / "requirements.txt"
    empty.write_text("# later\n")

    assert run(["pack", "-r", str(empty)]) == 2
    assert "names no package" in capsys.readouterr().err
    assert run(["solve", "torch", "-r", str(empty)]) == 0


def test_an_environment_of_conda_is_a_file_of_requirements_too(tmp_path, capsys):
    (tmp_path / "environment.yml").write_text("dependencies: [python=3.11, pytorch=2.8.0]")
    code, answer = _solve(capsys, "-r", str(tmp_path / "environment.yml"))
    assert code == 0
    assert (answer["cell"]["components"]["torch"].partition("+")[0], answer["cell"]["components"]["python"]) == (
        "2.8.0",
        "3.11",
    )


@pytest.mark.parametrize("flags", [{"extra": ("gpu",)}, {"group": ("dev",)}, {"without": ("x",)}])
def test_a_part_of_a_project_without_a_project_is_refused(flags):
    with pytest.raises(UsageError, match="Cannot use"):
        gather(RequestFlags(**flags))


def test_what_a_lock_was_made_from_changes_with_the_files(tmp_path):
    flags = RequestFlags(requirements=(tmp_path / "r.txt",))
    texts = []
    for content in ("wandb\n", "# why\nwandb\n", "wandb>=0.15\n"):
        (tmp_path / "r.txt").write_text(content)
        texts.append(gather(flags).text(flavour="runtime", sources=""))
    assert texts[0] == texts[1] != texts[2]
