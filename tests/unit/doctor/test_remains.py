"""What single ranks left, in the formats that other programs write, gives one verdict on the launch."""

from __future__ import annotations

import json
import os
import pickle

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.rank_failures import blame_texts, read_evidence
from envsmith.doctor.read import Draft, clean, read_text
from envsmith.doctor.read.remains import read_folder

START = 1_795_000_000_000_000_000


def entry(number: int, operation: str, size: int, *, done: bool, dtype: str = "Float") -> dict:
    """A row as torch 2.13 writes it (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp), with a stack of one frame."""
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{operation}", "time_created_ns": START + number * 10**9,
        "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype],
        "state": "completed" if done else "started", "retired": done, "timeout_ms": 600000, "is_p2p": False,
        "frames": [{"name": "step", "filename": "/w/train.py", "line": 40 + number}],
    }  # fmt: skip


def dump(*entries: dict) -> dict:
    ranks = "[0, 1, 2]"
    return {
        "version": "2.10", "entries": list(entries), "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
    }  # fmt: skip


def write_dumps(folder, *, as_json: bool = False) -> None:
    for rank in range(3):
        odd = rank == 1
        last = entry(3, "broadcast", 17, done=False) if odd else entry(3, "all_reduce", 8, done=False)
        value = dump(entry(1, "all_reduce", 8, done=True), entry(2, "all_reduce", 8, done=True), last)
        content = json.dumps(value, indent=1).encode() if as_json else pickle.dumps(value, 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)


def texts_of(folder):
    return [(source, text) for source, text, _ in read_folder(folder)]


@pytest.mark.parametrize("as_json", [False, True])
def test_dumps_of_the_flight_recorder_name_the_rank_with_another_collective(tmp_path, as_json):
    write_dumps(tmp_path, as_json=as_json)

    _, answer = blame_texts(texts_of(tmp_path))

    assert answer.ranks == (1,)
    assert "broadcast of [17] float32" in answer.message


def test_a_dump_is_named_among_what_was_read(tmp_path):
    write_dumps(tmp_path)

    ((_, text, notes),) = read_folder(tmp_path)

    assert notes == ["3 files of 3 ranks"]
    assert text.count("profiling_name") == 9


def test_a_file_that_only_looks_like_a_dump_is_said_to_be_unread(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(print, 4))

    ((_, text, notes),) = read_folder(tmp_path)

    assert text.strip() in {"", "[rank0]:"}
    assert notes == [
        "1 files of 1 ranks",
        "nccl_trace_rank_0: not read as a flight recorder's dump: it holds more than plain values",
    ]


PY_SPY_WAITS = """Process 1200: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 1200 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:4181)
    wrapper (torch/distributed/c10d_logger.py:83)
    sync (train.py:64)
    <module> (train.py:135)
"""
PY_SPY_READS = """Process 1201: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 1201 (idle): "MainThread"
    read (train.py:101)
    <module> (train.py:133)
"""
FAULTHANDLER_READS = """Thread 0x00007f1c (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
Current thread 0x00007f2b (most recent call first):
  File "/w/train.py", line 101 in read
  File "/w/train.py", line 133 in <module>
"""


@pytest.mark.parametrize("odd", [PY_SPY_READS, FAULTHANDLER_READS])
def test_stacks_of_every_rank_name_the_one_that_is_elsewhere(tmp_path, odd):
    for rank, text in enumerate([PY_SPY_WAITS, odd, PY_SPY_WAITS]):
        (tmp_path / f"rank{rank}.txt").write_text(text)

    _, answer = blame_texts(texts_of(tmp_path))

    assert answer.ranks == (1,)
    assert "train.py:101 (read)" in answer.message + answer.place


def test_the_error_file_of_torchelastic_has_the_error_and_its_place(tmp_path):
    trace = (
        'Traceback (most recent call last):\n  File "/opt/v/lib/python3.12/site-packages/torch/x.py", line 3, in wrapper\n'
        '    return f()\n  File "/w/train.py", line 84, in main\n    check()\nValueError: label 1000 out of range\n'
    )
    message = {
        "message": "ValueError: label 1000 out of range",
        "extraInfo": {"py_callstack": trace, "timestamp": "1795000000"},
    }
    for rank, text in ((0, ""), (1, json.dumps({"message": message}))):
        path = tmp_path / f"attempt_0/{rank}"
        path.mkdir(parents=True)
        (path / "error.json").write_text(text)
    (tmp_path / "attempt_0/0/stderr.log").write_text("RuntimeError: Connection closed by peer [127.0.0.1]:9955\n")

    _, answer = blame_texts(texts_of(tmp_path))

    assert (answer.ranks, answer.place) == ((1,), "train.py:84 (main)")
    assert "label 1000 out of range" in answer.message


def test_a_log_whose_lines_torch_has_marked_with_the_rank_already_is_read_as_any_other(tmp_path):
    errors = ("RuntimeError: Connection closed by peer [127.0.0.1]:9955", "ValueError: label 1000 out of range")
    for rank, error in enumerate(errors):
        path = tmp_path / f"attempt_0/{rank}"
        path.mkdir(parents=True)
        lines = (
            "Traceback (most recent call last):",
            f'  File "/w/train.py", line {8 + rank}, in main',
            "    go()",
            error,
        )
        (path / "stderr.log").write_text("".join(f"[rank{rank}]: {line}\n" for line in lines))

    _, answer = blame_texts(texts_of(tmp_path))

    assert (answer.ranks, answer.place) == ((1,), "train.py:9 (main)")


# The record of NVIDIA/nccl, ext-profiler/inspector/README.md (v4.0), with the fields that are read.
def inspector(rank: int, number: int) -> str:
    return json.dumps(
        {
            "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 4, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "dump_timestamp_us": 1748030377748202,
                "pid": 1639453,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 17179869184,
                "coll_exec_time_us": 61974,
            },
        }
    )


def test_lines_of_the_inspector_are_collectives_of_their_ranks():
    text = "\n".join(inspector(rank, number) for rank in range(4) for number in (1406, 1407)) + "\n"

    evidence = read_evidence("inspector.jsonl", text)

    assert [one.rank for one in evidence.ranks] == [0, 1, 2, 3]
    assert [(call.sequence, call.operation, call.ended) for call in evidence.ranks[2].calls] == [
        (1406, "all_reduce", True),
        (1407, "all_reduce", True),
    ]


def test_the_finding_of_a_folder_is_the_first_rank_and_the_rest_follows(tmp_path):
    lost = 'Traceback (most recent call last):\n  File "/w/train.py", line 5, in sync\n    y\nRuntimeError: Connection closed by peer\n'
    for rank, text in enumerate([lost, "", lost]):
        (tmp_path / f"rank_{rank}.log").write_text(text)
        os.utime(tmp_path / f"rank_{rank}.log", (100 + rank, 100 + rank))
    message = {"message": "x", "extraInfo": {"py_callstack": "KeyError: 'lr'", "timestamp": "1795000000"}}
    (tmp_path / "rank_1.json").write_text(json.dumps({"message": message}))
    texts, draft = texts_of(tmp_path), Draft()
    for source, text in texts:
        read_text(clean(text), draft, source)

    diagnosis = diagnose(draft.done(), texts)

    assert diagnosis.root.finding.rule == "rank-failed"
    assert "Rank 1" in diagnosis.root.finding.message
