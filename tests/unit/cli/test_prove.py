"""``envsmith prove``: the environment or cell at hand, a record that is signed where asked, what is said at the end."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.base import ssh
from envsmith.builder.proof import RecordSubject
from envsmith.cli.app import run
from envsmith.matrix.vouchers import voucher_of
from envsmith.model.record import CaseOutcome, Verdict
from envsmith.smoke import everything
from envsmith.smoke.everything import Done, SmokeMachine
from envsmith.smoke.result import SmokeResult

COMPONENTS = {"torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"}
SUBJECT = RecordSubject(
    cell="torch2.13.0-cu130-py312", components=COMPONENTS, engine="found", environment="sha256:" + "e" * 64
)
HEALTH = {
    "before": {"driver": "580.95.05", "pairs": {"nvlink": [[0, 1]]}}, "after": {}, "seconds": 1.0,
    "network": {"active": {"InfiniBand": ["mlx5_0", "mlx5_1"]}},
}  # fmt: skip
GPU = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef", "arch": "sm_90"}
RESULT = SmokeResult(
    passed=True, exit_code=0, summary="1 of 1 collective cases verified", backend="nccl", ranks=2, digest="sha256:" + "d" * 64,
    cases=(CaseOutcome(case="all_reduce", verdict=Verdict.PASS),), loaded={"torch": "2.13.0+cu130", "python": "3.12.1"},
    host={"kernel": "6.8.0", "driver": "580.95.05", "gpus": [GPU, {**GPU, "index": 1}], "health": [HEALTH]},
)  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stand in for a machine with two GPUs whose every part passes. Return the interpreters that were asked."""
    asked: list[Path] = []

    def run_parts(parts, target, **_):
        asked.append(target.python)
        yield from (
            Done(part=part, result=replace(RESULT, tier=part.name), seconds=1.0) for part in parts if not part.judge
        )

    monkeypatch.setattr("envsmith.smoke.run.probe", lambda _target: {"torch": "2.13.0"})
    machine = SmokeMachine(backend="nccl", gpus=2, nccl="2.29.7", torch="2.13.0+cu130")
    monkeypatch.setattr(everything, "ask", lambda *_: machine)
    monkeypatch.setattr(everything, "run_parts", run_parts)
    monkeypatch.setattr("envsmith.cli.prove.find_cell", lambda *_: SUBJECT)
    return asked


def _environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def _record(folder: Path) -> Path:
    (path,) = (folder / "records").glob("*.json")
    return path


@pytest.mark.parametrize("named", ["env", "env/bin/python", "cell"])
def test_an_environment_its_interpreter_or_a_cell_is_taken(machine, tmp_path, named):
    _environment(tmp_path / "env")
    _environment(tmp_path / "cell" / "venv")
    assert run(["prove", str(tmp_path / named), "-o", str(tmp_path / "proof")]) == 0
    inside = {"cell": "cell/venv/bin/python"}.get(named, "env/bin/python")
    assert machine == [tmp_path / inside]


def test_the_record_names_gpus_driver_links_cards_and_kernel(machine, tmp_path):
    assert run(["prove", str(_environment(tmp_path / "env")), "-o", str(tmp_path / "proof")]) == 0
    text = _record(tmp_path / "proof").read_text()
    host = json.loads(text)["host"]
    assert {key: host[key] for key in ("kernel", "driver", "links", "rdma")} == {
        "kernel": "6.8.0", "driver": "580.95.05", "links": {"nvlink": 1}, "rdma": {"InfiniBand": 2},
    }  # fmt: skip
    assert [gpu["name"] for gpu in host["gpus"]] == [GPU["name"]] * 2
    assert "01234567" not in text


def test_an_unsigned_record_says_so_and_how_it_is_sent(machine, tmp_path, capsys):
    run(["prove", str(_environment(tmp_path / "env")), "-o", str(tmp_path / "proof")])
    said = capsys.readouterr().err
    assert "vouched for by: unsigned" in said
    assert "docs/how-to/prove.md" in said


def test_a_key_signs_the_record(machine, tmp_path, ssh_key, capsys):
    assert (
        run(["prove", str(_environment(tmp_path / "env")), "-o", str(tmp_path / "proof"), "--key", str(ssh_key)]) == 0
    )
    record = _record(tmp_path / "proof")
    assert voucher_of(record, tmp_path / "none").by.startswith("SHA256:")
    assert f"written: {record}{ssh.SUFFIX}" in capsys.readouterr().err


def test_the_record_is_accepted_by_the_check_that_a_pull_request_meets(machine, tmp_path, capsys):
    run(["prove", str(_environment(tmp_path / "env")), "-o", str(tmp_path / "proof")])
    assert run(["matrix", "merge", "--check", str(tmp_path / "proof")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("accepted: torch2.13.0-cu130-py312.found-")


def test_a_proof_without_time_for_the_full_tier_is_incomplete_and_not_failed(machine, tmp_path, capsys, monkeypatch):
    in_time = everything.run_parts

    def without_full(*words, **flags):
        for done in in_time(*words, **flags):
            yield replace(done, result=None) if done.part.name == "full" else done

    monkeypatch.setattr(everything, "run_parts", without_full)

    code = run(["prove", str(_environment(tmp_path / "env")), "-o", str(tmp_path / "proof")])

    assert code == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("incomplete: ")


def test_a_plan_runs_nothing(machine, tmp_path, capsys):
    assert run(["prove", str(_environment(tmp_path / "env")), "--plan-only"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"][0]["part"] == "facts"
    assert machine == []


def test_two_ways_to_sign_are_refused(capsys):
    assert run(["prove", "--key", "k", "--keyless"]) == 2
    assert "Cannot sign a record twice" in capsys.readouterr().err
