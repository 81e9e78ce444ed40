from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from envsmith.cli.doctor import doctor
from envsmith.errors import DataError, StorageError, UsageError

BAD = "torch==2.6.0\ndeepspeed==0.14.0\nPython version: 3.11.7\nImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'\n"


def run(*arguments: str, text: str = BAD):
    result = CliRunner().invoke(doctor, ["--from", "-", *arguments], input=text, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result


def test_text_names_the_root_cause_its_line_and_the_repair():
    out = run().stdout
    assert out.startswith("status: bad\nroot cause (error, confidence high):")
    assert "-:4: ImportError" in out
    assert "pip install 'deepspeed==" in out
    assert "understood: -:" in out


@pytest.mark.parametrize(
    ("level", "text", "code"),
    [
        ("error", BAD, 1),
        ("never", BAD, 0),
        ("error", "torch==2.6.0\n", 0),
        ("note", "CUDA out of memory", 1),
        ("warning", "NCCL_SOCKET_IFNAME=lo\n", 1),
        ("error", "NCCL_SOCKET_IFNAME=lo\n", 0),
    ],
)
def test_the_exit_code_follows_fail_on(level, text, code):
    assert run("--fail-on", level, text=text).return_value == code


def test_a_snapshot_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(StorageError, match=r"--save .*cannot be written"):
        run("--save", str(tmp_path / "absent" / "x.json"))


def test_an_interpreter_that_is_not_there_is_refused_and_a_folder_is_an_environment(tmp_path):
    with pytest.raises(UsageError, match="no interpreter there"):
        run("--python", str(tmp_path / "bin" / "python"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert run("--python", str(tmp_path)).return_value == 1


def test_json_is_one_object_of_the_documented_shape():
    value = json.loads(run("--json").stdout)
    assert value["status"] == "bad"
    assert value["findings"][0]["taxonomy"]["cause_key"] == "torch-api-removed-elastic-log"
    assert value["repair"]["commands"]["uv"].startswith("uv pip install")
    assert value["understood"][0]["kinds"]


def test_sarif_and_github_annotations():
    log = json.loads(run("--format", "sarif").stdout)
    assert log["version"] == "2.1.0"
    assert log["runs"][0]["results"][0]["level"] == "error"
    assert run("--format", "github").stdout.startswith("::error title=envsmith deepspeed-elastic-log::")


def test_markdown_is_fit_for_a_bug_report():
    out = run("--format", "markdown", text=BAD + "HF_HOME=/home/alice/hf\nNCCL_X=/home/alice/y\n").stdout
    assert "| torch | 2.6.0 |" in out
    assert "alice" not in out


def test_nothing_found_is_said_plainly_with_what_was_not_checked():
    out = run(text="torch==2.9.1+cu128\n").stdout
    assert "not checked:" in out
    assert "status: ok" in out or "status: unknown" in out


def test_verify_judges_the_repaired_set(capsys):
    assert "the repaired set judged again: ok" in run("--verify").stderr


def test_several_texts_are_judged_together(tmp_path):
    (tmp_path / "a").write_text("torch==2.6.0\n")
    (tmp_path / "b").write_text("deepspeed==0.14.0\n")
    result = CliRunner().invoke(
        doctor, ["--from", str(tmp_path / "a"), "--from", str(tmp_path / "b"), "--json"], standalone_mode=False
    )
    assert {f["rule"] for f in json.loads(result.stdout)["findings"]} >= {"deepspeed-elastic-log"}


def test_a_file_that_is_not_there_is_a_usage_error():
    result = CliRunner().invoke(doctor, ["--from", "/no-such-file"], standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    assert "no-such-file" in result.exception.message


def test_a_repair_that_does_not_exist_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="--fix-to"):
        run("--fix-to", str(tmp_path), text="torch==2.9.1\n")


def test_a_damaged_snapshot_is_a_data_error(tmp_path):
    with pytest.raises(DataError):
        run(text='{"kind": "envsmith doctor snapshot", "schema": 1, "facts": {}}')


def test_hostile_terminal_codes_do_not_reach_the_terminal():
    assert "\x1b" not in run(text="ModuleNotFoundError: No module named 'apex' \x1b]0;evil\x07\x1b[2J\n").stdout
