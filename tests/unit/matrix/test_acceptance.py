"""A record that somebody sends is accepted, or refused with every reason; who vouches for it goes with it to the page."""

from __future__ import annotations

import datetime as dt
import json
import socket

import pytest
from records_help import record

from envsmith.base import ssh
from envsmith.cli.app import run
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import find_matrix, list_files
from envsmith.matrix.acceptance import judge_file
from envsmith.matrix.cells import cell_states
from envsmith.matrix.vouchers import UNSIGNED, Voucher, vouchers
from envsmith.model.record import (
    CaseOutcome,
    Failure,
    Rung,
    StepOutcome,
    Verdict,
    merge,
    put_record,
    read_records,
    record_name,
    record_text,
)

NOW = dt.datetime(2026, 11, 27, 12, tzinfo=dt.timezone.utc)
GPU = {
    "cpus": 8,
    "kernel": "6.8.0",
    "driver": "580.95.05",
    "gpus": [{"name": "NVIDIA H100 80GB HBM3", "arch": "sm_90"}],
}


def judged(path, root=None):
    return judge_file(path, root or path.parent, knowledge(list_files(find_matrix())), NOW)


def written(folder, text):
    values = json.loads(text)
    path = folder / record_name(values["cell"], values["engine"], text)
    path.write_text(text)
    return path


def test_a_record_of_a_run_is_accepted(tmp_path):
    found = judged(put_record(tmp_path, record()))
    assert (found.objections, found.voucher) == ((), UNSIGNED)


def test_a_record_of_a_run_on_gpus_is_accepted(tmp_path):
    rungs = (Rung.INSTALLED, Rung.IMPORTED, Rung.COLLECTIVES_GPU, Rung.FRAMEWORK_GPU)
    found = judged(put_record(tmp_path, record(rungs=rungs, host=GPU, backend="nccl", lock="", engine="found")))
    assert found.objections == ()


def test_every_record_of_the_matrix_is_accepted():
    files = sorted((find_matrix() / "records").glob("*.json"))
    assert {path.name: why for path in files if (why := judged(path, find_matrix()).objections)} == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"started": "2027-03-01T12:00:00+00:00"}, "the run began on 2027-03-01, which is to come"),
        ({"loaded": {"torch": "2.9.1"}}, "the cell has torch 2.6.0+cu124, and torch 2.9.1 was loaded"),
        ({"rungs": ["imported", "collectives(gpu)"]}, "it claims a run on GPUs, and names no gpus, driver, kernel"),
        ({"rungs": ["imported", "collectives(gpu)"], "host": GPU}, "it claims a run on GPUs, and its backend is gloo"),
        ({"cases": {"list": "", "counts": {}, "bad": []}}, "it claims collectives, and no case passed"),
        ({"steps": []}, "it claims a framework step, and none passed"),
        ({"components": {"deepspeed": "0.16.4", "torch": "2.6.0+cu124", "cuda": "12.4", "python": "3.12", "nccl": "9.9.9"}},
         "nccl 9.9.9 is not a release that the matrix knows: run envsmith matrix refresh"),
        ({"summary": "read /data/alice/train.py"}, "summary must stay private"),
        ({"notes": ["see https://alice:secret@example.test/x"]}, "notes[0] must stay private"),
        ({"host": {**GPU, "gpus": [{"uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef"}]}}, "host.gpus[0].uuid must stay private"),
    ],
)  # fmt: skip
def test_a_record_is_refused_with_the_reason(tmp_path, change, reason):
    values = json.loads(record_text(record()))
    path = written(tmp_path, json.dumps({**values, **change}))
    assert reason in judged(path).objections


def test_a_record_that_was_changed_after_the_run_is_refused(tmp_path):
    path = put_record(tmp_path, record())
    path.write_text(path.read_text().replace("gloo", "nccl"))
    assert any("it was changed after the run" in line for line in judged(path).objections)


def test_a_file_that_is_no_record_is_refused_with_its_problems(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    assert judged(tmp_path / "x.json").objections[0].startswith("Cannot read x.json")


def test_a_record_names_gpus_driver_links_and_kernel_but_no_host_user_or_path(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "alice7")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-17.lab.example.test")
    planted = "alice7 on gpu-box-17 read /data/proj-x/run.py and /home/alice7/t.py from 10.1.2.3:29500 as GPU-01234567-89ab-cdef-0123-456789abcdef"
    texts = {
        "summary": planted, "notes": (planted,), "loaded": {"torch": "2.6.0", "nccl_transport": planted},
        "steps": (StepOutcome(name="deepspeed zero-2 fp32", verdict=Verdict.PASS, detail=planted, facts={"x": [planted]}),),
        "failure": Failure(rung=Rung.IMPORTED, symptom=planted, log=(planted,)),
        "earlier": (Failure(rung=Rung.IMPORTED, symptom=planted, log=(planted,)),),
        "cases": (CaseOutcome(case="c", verdict=Verdict.WRONG, blame=planted),),
    }  # fmt: skip
    gpus = [{**GPU["gpus"][0], "uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef"}]
    host = {**GPU, "gpus": gpus, "links": {"nvlink": 28}, "hostname": "gpu-box-17", "user": "alice7"}

    text = put_record(tmp_path, record(host=host, **texts)).read_text()

    assert not [word for word in ("alice7", "gpu-box", "proj-x", "10.1.2.3", "01234567", "lab.example") if word in text]
    shown = json.loads(text)["host"]
    assert shown["links"] == {"nvlink": 28}
    assert (shown["kernel"], shown["driver"], shown["gpus"][0]["name"]) == (
        "6.8.0",
        "580.95.05",
        "NVIDIA H100 80GB HBM3",
    )


def test_a_user_who_is_called_as_a_package_changes_no_name_of_a_record(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "deepspeed")
    values = json.loads(put_record(tmp_path, record()).read_text())
    assert values["steps"][0]["name"] == "deepspeed zero-2 fp32"


@pytest.fixture
def signed(tmp_path, ssh_key):
    """Return a matrix with the name of a key, and a record that the key signed."""
    root = tmp_path / "matrix"
    path = put_record(tmp_path / "proof" / "records", record())
    ssh.sign_file(path, ssh_key)
    root.mkdir()
    (root / "signers").write_text(f"alice {ssh_key.with_suffix('.pub').read_text()}")
    return root, path


def test_a_signed_record_is_merged_with_its_signature_and_the_cell_says_who_vouches(signed):
    root, path = signed
    merge([path.parent.parent], root / "records")

    people = vouchers(root)

    (state,) = cell_states(read_records(root / "records"), _Always(), NOW.date(), people)
    shown = state.to_json()["records"][0]["vouched_by"]
    assert people[path.name].name == "alice"
    assert shown.startswith("alice (SHA256:")


def test_a_signature_of_another_record_is_an_objection_and_never_a_voucher(signed):
    root, path = signed
    other = put_record(path.parent, record(started="2026-11-20T12:00:00+00:00"))
    path.with_name(path.name + ssh.SUFFIX).replace(other.with_name(other.name + ssh.SUFFIX))

    found = judged(other, root)

    assert any("its signature is not valid" in line for line in found.objections)
    merge([other], root / "records")
    assert vouchers(root)[other.name].name == ""


def test_merge_prints_who_vouches_and_check_takes_nothing(signed, capsys):
    root, path = signed
    unsigned = put_record(path.parent, record(started="2026-11-20T12:00:00+00:00"))
    words = ["matrix", "merge", str(path.parent), "--matrix", str(root)]

    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()

    assert sorted(line.partition(": ")[2].partition(" ")[0] for line in lines) == ["alice", "unsigned"]
    assert {f.name for f in (root / "records").iterdir()} == {path.name, path.name + ssh.SUFFIX, unsigned.name}


def test_check_refuses_a_changed_record_with_exit_code_1(tmp_path, capsys):
    path = put_record(tmp_path, record())
    path.write_text(path.read_text().replace("gloo", "nccl"))
    assert run(["matrix", "merge", "--check", str(path)]) == 1
    assert capsys.readouterr().out.startswith("refused: ")
    assert run(["matrix", "merge", "--check", str(put_record(tmp_path, record()))]) == 0


def test_a_voucher_reads_as_a_name_a_key_or_nobody():
    texts = [
        str(v)
        for v in (Voucher(name="alice", by="SHA256:x"), Voucher(by="SHA256:x"), UNSIGNED, Voucher(unchecked="no"))
    ]
    assert texts == ["alice (SHA256:x)", "SHA256:x", "unsigned", "signed, not checked here: no"]


class _Always:
    """A table of expiry for which every record counts."""

    def until(self, _record):
        return NOW.date()

    def is_stale(self, _record, _today):
        return False

    def rung(self, record, _today):
        return record.rung
