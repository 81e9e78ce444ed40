"""A folder of logs: what each rank wrote is one text, in the order in which the ranks ended."""

from __future__ import annotations

import os

import pytest

from envsmith.doctor.rank_failures import read_evidence
from envsmith.doctor.read.remains import read_folder
from envsmith.errors import UsageError
from envsmith.launch.ranks.decide import decide

OWN = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in step\n    x\nValueError: label 7\n'
LOST = 'Traceback (most recent call last):\n  File "/w/train.py", line 5, in sync\n    y\nRuntimeError: Connection closed by peer\n'


@pytest.mark.parametrize(
    "name",
    ["run/attempt_0/{}/stderr.log", "rank_{}.log", "rank{}.err", "slurm-4711_{}.out", "logs/worker-rank-{}.txt"],
)
def test_the_files_of_ranks_are_one_text_and_the_first_to_end_comes_first(tmp_path, name):
    for rank, (text, seconds) in enumerate([(LOST, 20), (OWN, 10), (LOST, 21)]):
        path = tmp_path / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (seconds, seconds))

    ((source, text, notes),) = read_folder(tmp_path)

    answer = decide(read_evidence("train.log", text))
    assert (answer.kind, answer.rank, answer.message) == (
        "rank-failed",
        1,
        "Rank 1 ended first, with ValueError: label 7 at train.py:9 (step). The errors of ranks 0, 2 follow from it.",
    )
    assert source.endswith(": ranks")
    assert notes == ["3 files of 3 ranks"]


def test_other_texts_of_a_folder_are_read_by_themselves_and_binaries_are_not(tmp_path):
    (tmp_path / "pip.txt").write_text("torch==2.9.1\n")
    (tmp_path / "model.pt").write_bytes(b"\0\1")

    assert [source for source, _, _ in read_folder(tmp_path)] == ["pip.txt"]


def test_a_folder_without_a_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no file in it is a text"):
        read_folder(tmp_path)
