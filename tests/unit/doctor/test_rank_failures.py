"""Which rank of a launch ended or stopped first, by what the ranks and the launcher print."""

from __future__ import annotations

import pytest

from envsmith.doctor.facts import Draft
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.rank_failures import blame_texts, read_evidence
from envsmith.doctor.read import clean, read_text
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stored import Occasion

CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:5: Connection reset by peer"
WAITED = (
    "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
)


def rank(number: int, error: str, place: str = "train.py:10") -> str:
    file, _, line = place.partition(":")
    lines = [
        "Traceback (most recent call last):",
        f'  File "/home/user/{file}", line {line}, in step',
        "    run()",
        '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 4181, in all_reduce',
        "    work.wait()",
        error,
    ]
    return "".join(f"[rank{number}]: {text}\n" for text in lines)


def table(exits: dict[int, int]) -> str:
    rows = "".join(
        f"[{n}]:\n  rank      : {r} (local_rank: {r})\n  exitcode  : {status} (pid: {100 + r})\n"
        for n, (r, status) in enumerate(exits.items())
    )
    return f"ChildFailedError:\nFailures:\n{rows}Root Cause (first observed failure):\n"


def _blamed(text: str):
    answer = decide(read_evidence("train.log", text))
    return (answer.kind, answer.rank) if answer else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rank(1, "ValueError: label 7") + rank(0, CLOSED) + rank(2, CLOSED), ("rank-failed", 1)),
        (rank(0, CLOSED) + rank(2, "KeyError: 'x'") + rank(1, CLOSED), ("rank-failed", 2)),
        (rank(0, CLOSED) + rank(2, CLOSED) + table({1: -11, 0: -15, 2: 1}), ("rank-died", 1)),
        (rank(0, CLOSED) + rank(2, CLOSED) + table({1: 3, 0: -15, 2: 1}), ("rank-died", 1)),
        (rank(0, WAITED) + rank(2, WAITED) + table({0: 1, 1: -15, 2: 1}), ("rank-late", 1)),
        (rank(0, CLOSED) + rank(2, CLOSED) + table({0: 1, 2: -15}), ("rank-left", 1)),
        (
            rank(0, WAITED, "train.py:80") + rank(1, CLOSED) + rank(2, WAITED) + table({0: 1, 1: 1, 2: 1}),
            ("ranks-differ", 0),
        ),
        (
            rank(1, CLOSED) + "op.preamble.length <= op.nbytes. 8 vs 4\n" + rank(2, CLOSED) + table({0: -6, 1: -15}),
            ("ranks-differ", None),
        ),
        (
            "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//cpu//0/3\n"
            + table({1: 1, 0: -15, 2: -15}),
            ("rank-late", 3),
        ),
    ],
    ids=["raised", "raised-later", "signal", "status", "hung", "left", "other-collective", "sizes", "never-came"],
)
def test_the_rank_that_failed_first_is_named(text, expected):
    assert _blamed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\nValueError: one process only\n",
        rank(0, "ImportError: cannot import name 'x' from 'y'"),
        rank(0, "ImportError: no module 5") + rank(1, "ImportError: no module 5"),
        "[rank0] step 0 loss 0.1\n[rank1] step 0 loss 0.1\n",
        "[rank3]: ValueError: the moon is full\n",
    ],
    ids=["no-rank", "one-rank", "every-rank-alike", "healthy", "another-rank-alone"],
)
def test_nobody_is_blamed_where_the_ranks_do_not_differ(text):
    assert _blamed(text) is None


def test_the_message_says_where_and_what_follows():
    answer = decide(
        read_evidence("train.log", rank(1, "ValueError: label 7", "data.py:42") + rank(0, CLOSED) + rank(2, CLOSED))
    )

    assert answer is not None
    assert answer.message == (
        "Rank 1 ended first, with ValueError: label 7 at data.py:42 (step). The errors of ranks 0, 2 follow from it."
    )


def _diagnosis(text: str):
    draft = Draft()
    read_text(clean(text), draft, "job.log")
    return diagnose(draft.done(), [("job.log", clean(text))])


def test_the_rank_comes_first_and_what_follows_from_it_is_a_consequence():
    diagnosis = _diagnosis(rank(1, "ValueError: label 7") + rank(0, CLOSED) + rank(2, CLOSED) + table({1: 1, 0: -15}))

    assert diagnosis.root is not None
    assert diagnosis.root.finding.rule == "rank-failed"
    assert {d.role for d in diagnosis.diagnosed if d.finding.rule in {"nccl-remote-error", "child-failed"}} == {
        "consequence"
    }
    assert diagnosis.status == "unknown"


def test_ranks_that_reached_the_store_are_not_sent_to_the_network():
    text = (
        "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//cpu//0/1\n"
        "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:5512\n"
        + table({0: 1, 2: -15})
    )

    diagnosis = _diagnosis(text)

    assert diagnosis.root is not None
    assert diagnosis.root.finding.rule == "rank-late"
    assert diagnosis.status != "bad"


def test_a_cause_that_a_rank_states_comes_before_the_rank():
    error = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"

    diagnosis = _diagnosis(rank(1, error) + rank(0, CLOSED) + rank(2, CLOSED))

    assert diagnosis.root is not None
    assert diagnosis.root.finding.rule == "shm-too-small"
    assert any(d.finding.rule == "rank-failed" for d in diagnosis.diagnosed)


def test_what_run_said_of_a_launch_is_said_again_of_its_evidence():
    blame = Blame(cause=Cause.BLOCKED, ranks=(1,), message="Rank 1 is blocked.", fix="Look at it.", is_hang=True)

    answer = blame_texts([], {"evidence-a-1.jsonl": [Occasion(LaunchEvidence(), blame)]})

    assert answer == ("evidence-a-1.jsonl", blame)
