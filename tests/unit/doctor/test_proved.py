"""An environment that envsmith proved: what its run has shown is no error there any more."""

from __future__ import annotations

import json

import pytest

from envsmith.doctor.facts import Draft
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.proved import own_run

CELL = {"torch": "2.15.0+cu132", "cuda": "13.2"}


def facts(*, toolkit="13.0", gpu="", **distributions):
    draft = Draft()
    versions = {"deepspeed": "0.19.8", "torch": "2.15.0", **distributions}
    draft.distributions.update(versions)
    for name, version in {"python": "3.12.14", **versions, **CELL, "toolkit": toolkit}.items():
        draft.component(name, version, "host", 4)
    if gpu:
        draft.gpu(gpu)
        draft.component("gpu", "sm_90", "NVML", 4)
    return draft.done()


@pytest.fixture
def prove(tmp_path, locks):
    """Leaves the folder of a cell as a build does, with changes of its record, and returns its interpreter."""

    def build(**changes):
        lock = locks.deepspeed(**CELL)
        lock = locks.replace(
            lock, pins=tuple(locks.pin(n, v, "torch") for n, v in (("torch", "2.15.0"), ("deepspeed", "0.19.8")))
        )
        record = {
            "schema": 2,
            "cell": str(lock.cell.id),
            "components": {n: v for n, v in lock.cell.components.items() if n not in {"driver", "nccl"}},
            "lock": lock.digest,
            "engine": "venv",
            "environment": "sha256:" + "a" * 64,
            "rungs": ["solved", "locked", "installed", "imported", "collectives(cpu)", "framework step(cpu)"],
            "passed": True,
            "summary": "99 of 99",
            "started": "2026-11-21T04:05:31+00:00",
            "seconds": {},
            "host": {"gpus": [], "driver": ""},
            "loaded": {},
            "backend": "gloo",
            "ranks": 4,
            **changes,
        }
        (tmp_path / "lock.json").write_text(lock.text())
        (tmp_path / "record.json").write_text(json.dumps(record))
        return tmp_path / "venv" / "bin" / "python"

    return build


def judged(python, found):
    run = own_run(python, found)
    return diagnose(found, runs=[run] if run else [])


def severities(diagnosis):
    return {d.finding.rule: d.finding.severity.value for d in diagnosis.diagnosed}


def test_a_toolkit_that_a_rule_refuses_is_a_note_where_the_step_passed(prove):
    diagnosis = judged(prove(), facts())

    assert diagnosis.status == "ok"
    assert severities(diagnosis)["deepspeed-toolkit-cuda"] == "note"
    assert severities(diagnosis)["toolkit-older-than-cuda"] == "note"
    assert diagnosis.repair is None
    assert any("2026-11-21" in sentence for sentence in diagnosis.checked)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"passed": False, "failure": {"rung": "framework step(cpu)", "symptom": "no"}}, {}),
        ({"lock": "sha256:" + "0" * 64}, {}),
        ({"rungs": ["solved", "locked", "installed", "imported"]}, {}),
        ({}, {"deepspeed": "0.19.7"}),
        ({}, {"wandb": "0.20.0"}),
        ({}, {"gpu": "NVIDIA H100 80GB HBM3"}),
    ],
    ids=["failed", "another lock", "not so far", "another release", "a package more", "a GPU that it did not use"],
)
def test_it_stays_an_error_where_the_run_does_not_speak_of_it(prove, changes, found):
    assert severities(judged(prove(**changes), facts(**found)))["deepspeed-toolkit-cuda"] == "error"


def test_an_environment_that_envsmith_did_not_build_has_no_run(tmp_path):
    assert own_run(tmp_path / "venv" / "bin" / "python", facts()) is None
