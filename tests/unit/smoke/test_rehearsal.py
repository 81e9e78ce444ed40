"""The preflight tried on two ranks of which one has stopped: what counts as named, and that nothing is left running. No torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envsmith.smoke.rehearsal import rehearse

NAMED = "sys.stderr.write('preflight: failed: rank 1 did not come'); sys.exit(1)"


class Stand:
    """An environment whose preflight is ``code``; it notes what each rank was started with."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder, self.code = folder, code

    def argv(self, args):
        note = f"import json,os,sys,pathlib; pathlib.Path({str(self.folder)!r}, os.environ['RANK']).write_text(json.dumps([os.getpid(), dict(os.environ)]))"  # fmt: skip
        return [sys.executable, "-S", "-c", f"{note}; {self.code}"]

    def env(self):
        return {"OF": "the target"}


@pytest.mark.parametrize(
    ("code", "passed", "words"),
    [
        (NAMED, True, "rank 1 did not come"),
        ("sys.stderr.write('preflight: ok'); sys.exit(0)", False, "ok"),
        ("sys.stderr.write('rank 0 is bad'); sys.exit(1)", False, "rank 0"),
        ("sys.exit(1)", False, "said nothing"),
        ("import time; time.sleep(60)", False, "did not end within 2 s"),
    ],
)
def test_preflight_passes_when_it_fails_in_time_and_names_the_rank_that_was_stopped(
    tmp_path, code, passed, words
) -> None:
    result = rehearse(Stand(tmp_path, code), "gloo", 2.0)
    assert result.passed == passed
    assert words in result.summary
    _, env = json.loads((tmp_path / "0").read_text())
    assert (env["WORLD_SIZE"], env["LOCAL_RANK"], env["OF"]) == ("2", "0", "the target")
    stopped = tmp_path / "1"
    if stopped.exists():  # it came as far as that before it was stopped
        assert not Path(f"/proc/{json.loads(stopped.read_text())[0]}").exists()


def test_ranks_that_share_a_gpu_are_told_how(tmp_path) -> None:
    rehearse(Stand(tmp_path, NAMED), "nccl", 2.0, nccl="2.28.9")
    _, env = json.loads((tmp_path / "0").read_text())
    assert (env["LOCAL_RANK"], env["NCCL_HOSTID"]) == ("0", "envsmith-rank-0")
