"""Evidence as a file: appended, read back, judged together."""

from __future__ import annotations

from pathlib import Path

import pytest
from launches import late, stalled, waiting

from envsmith.errors import DataError
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stored import (
    EvidenceFile,
    Occasion,
    is_evidence,
    judge_occasions,
    merged,
    read_occasions,
)

STALL = stalled(waiting(0, "all_reduce", "all_reduce"), late(1, "all_reduce", waits_in="pipe_read"))
HEAD = '{"envsmith_evidence": 2}\n'
LAUNCH = '{"launch": {}, "verdict": null, "ranks": 1, "at": 1.0}\n'


def written(path: Path, *evidence: LaunchEvidence) -> str:
    file = EvidenceFile(path)
    for each in evidence:
        file.append(each, decide(each))
    return path.read_text()


def occasions(text: str) -> list[Occasion]:
    return read_occasions(text.splitlines(), "e.jsonl")


@pytest.mark.parametrize("is_link", [True, False])
def test_what_others_put_where_the_evidence_goes_is_neither_followed_nor_filled(tmp_path, is_link):
    planted, target = tmp_path / "e.jsonl", tmp_path / "target"
    target.write_text("mine")
    planted.symlink_to(target) if is_link else planted.write_text("theirs")
    target.chmod(0o644 if is_link else 0o600)
    planted.chmod(0o644 if is_link else 0o666)

    with pytest.raises(OSError, match=r"symbolic links|other users may write"):
        EvidenceFile(planted).append(STALL, None)

    assert (target.read_text(), planted.read_text()) == ("mine", "mine" if is_link else "theirs")


def test_what_is_written_is_read_back(tmp_path):
    text = written(tmp_path / "e.jsonl", STALL)

    (occasion,) = occasions(text)

    assert is_evidence(text)
    assert (occasion.evidence, occasion.verdict) == (STALL, decide(STALL))


def test_each_occasion_is_appended(tmp_path):
    text = written(tmp_path / "e.jsonl", STALL, STALL)

    assert [each.evidence for each in occasions(text)] == [STALL, STALL]


def test_a_file_that_has_grown_too_much_begins_anew(tmp_path):
    file = EvidenceFile(tmp_path / "e.jsonl", most_bytes=100)

    file.append(STALL, None)
    file.append(STALL, None)

    assert [each.evidence for each in occasions(file.path.read_text())] == [STALL]


def test_an_occasion_that_was_cut_off_is_left_out(tmp_path):
    text = written(tmp_path / "e.jsonl", STALL, STALL)

    assert len(occasions(text[:-40])) == 1


def test_the_file_is_its_users_alone(tmp_path):
    written(tmp_path / "e.jsonl", STALL)

    assert (tmp_path / "e.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_hosts_of_a_launch_are_judged_together():
    usual = ["all_reduce"] * 4
    parts = [stalled(waiting(0, *usual, "all_reduce")), stalled(late(1, *usual, waits_in="pipe_read"))]

    assert decide(merged(parts)).ranks == (1,)
    assert judge_occasions([[Occasion(part)] for part in parts]).ranks == (1,)


def test_what_run_said_as_the_launch_stood_still_is_said_again():
    blame = Blame(cause=Cause.BLOCKED, ranks=(1,), message="Rank 1 is blocked.", fix="Look at it.", is_hang=True)

    assert judge_occasions([[Occasion(STALL, blame), Occasion(LaunchEvidence(), None)]]) == blame


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"envsmith_evidence": 1}\n' + LAUNCH,
        HEAD,
        HEAD + LAUNCH + '{"rank": {"rank": "x"}, "calls": []}\n',
        HEAD + LAUNCH + '{"rank": {"rank": 0}, "calls": [[7, 1, 1.0, null]]}\n',
        HEAD + '{"launch": {"world": "many"}, "verdict": null, "ranks": 0, "at": 1.0}\n',
    ],
)
def test_a_broken_file_is_refused(text):
    with pytest.raises(DataError, match=r"Cannot read e\.jsonl"):
        occasions(text)
