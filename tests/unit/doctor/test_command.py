"""`envsmith doctor` as a person types it: formats, exit codes, snapshots, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from envsmith.cli.check import check
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
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match=r"Cannot write .*x\.json: .*is not a folder"):
        run("--save", str(tmp_path / "file" / "x.json"))


def test_an_interpreter_that_is_not_there_is_refused_and_a_folder_is_an_environment(tmp_path):
    def live(python: Path):
        return CliRunner().invoke(doctor, ["--python", str(python), "--json"], standalone_mode=False)

    refused = live(tmp_path / "bin" / "python").exception
    assert isinstance(refused, UsageError)
    assert "has no interpreter" in refused.message
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert json.loads(live(tmp_path).stdout)["facts"]["host"]["environment"] == str(tmp_path)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--python", "/usr/bin/env"), "--python with --from"),
        (("--deep",), "--deep with --from"),
        (("--json", "--format", "sarif"), "--json with --format sarif"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        run(*options, text="torch==2.9.1\n")


def test_a_file_that_is_no_snapshot_is_refused_with_the_way_to_make_one(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("no snapshot")
    result = CliRunner().invoke(doctor, ["--compare", str(tmp_path / "a"), str(tmp_path / "b")], standalone_mode=False)
    assert isinstance(result.exception, DataError)
    assert "--save FILE" in (result.exception.hint or "")


CONFIG = """{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 3,
  "fp16": {"enabled": true},
  "bf16": {"enabled": true}
}
"""


def test_findings_of_a_configuration_name_file_and_line(tmp_path):
    file = tmp_path / "ds_config.json"
    file.write_text(CONFIG)
    result = CliRunner().invoke(doctor, ["--from", str(file), "--json"], standalone_mode=False)
    where = {f["rule"]: f["where"] for f in json.loads(result.stdout)["findings"]}
    assert where["ds-batch-config"] == f"{file}:2"
    assert where["mixed-precision-options"] == f"{file}:5"
    text = CliRunner().invoke(doctor, ["--from", str(file)], standalone_mode=False).stdout
    assert f"seen:  {file}:2" in text


def test_findings_of_a_command_name_its_first_line(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(
        "#!/bin/sh\n# gpu: 2 x RTX 3090\ngpus: 2 x A100\n\ntorchrun \\\n  --nproc_per_node=8 \\\n  train.py\n"
    )
    result = CliRunner().invoke(doctor, ["--from", str(file), "--json"], standalone_mode=False)
    where = {f["rule"]: f["where"] for f in json.loads(result.stdout)["findings"]}
    assert where["more-ranks-than-gpus"] == f"{file}:5"


def test_a_wrong_nccl_alone_is_pinned_and_torch_stays():
    commands = json.loads(run("--json", text="torch==2.10.0\nnvidia-nccl-cu12==2.21.5\n").stdout)["repair"]["commands"]
    assert "torch" not in commands["pip"]
    assert commands["pip"].startswith("pip install --force-reinstall --no-deps 'nvidia-nccl-cu12==")
    assert commands["conda"].startswith("conda install -c conda-forge 'nccl=")


BATCH = '{\n "train_batch_size": 32,\n "train_micro_batch_size_per_gpu": 3\n}\n'


@pytest.mark.parametrize("verb", [doctor, check])
def test_a_finding_of_a_configuration_is_shown_at_its_line(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my ds.json").write_text(BATCH)

    def told(form):
        return CliRunner().invoke(verb, ["--from", "my ds.json", "--format", form], standalone_mode=False).stdout

    assert "::error file=my ds.json,line=2,title=envsmith ds-batch-config::" in told("github")
    located = [
        r["locations"] for r in json.loads(told("sarif"))["runs"][0]["results"] if r["ruleId"] == "ds-batch-config"
    ]
    place = located[0][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "my%20ds.json", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 2}
    assert "my ds.json:2" in told("text")


@pytest.mark.parametrize("verb", [doctor, check])
def test_what_came_by_stdin_has_no_file_in_sarif_and_annotations(verb):
    for form in ("github", "sarif"):
        told = CliRunner().invoke(verb, ["--from", "-", "--format", form], input=BATCH, standalone_mode=False).stdout
        assert "ds-batch-config" in told
        assert "file=" not in told
        assert "locations" not in told


def test_a_text_in_a_pipe_that_nobody_names_is_not_passed_over_in_silence():
    command = [sys.executable, "-m", "envsmith", "doctor", "--offline"]

    result = subprocess.run(command, input=BAD, capture_output=True, text=True, check=False, timeout=60)

    assert "what comes through the pipe is not read" in result.stderr
    assert "envsmith doctor - reads it" in result.stderr
