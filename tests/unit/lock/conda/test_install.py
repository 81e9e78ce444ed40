"""Where a Conda environment is made in place of another: the other is lost in no case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.lock.conda.install import _in_place_of


def test_an_environment_whose_replacement_was_killed_is_put_back_by_the_next_run(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    (prefix / "conda-meta").mkdir(parents=True)
    (prefix / "earlier").touch()
    code = (
        "import os, pathlib; from envsmith.lock.conda.install import _in_place_of\n"
        f"with _in_place_of(prefix := pathlib.Path({str(prefix)!r})):\n"
        "    prefix.mkdir(); (prefix / 'half').touch(); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    before = []

    def fail() -> None:
        before.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _in_place_of(prefix):
        fail()

    assert before == [".env-envsmith-old"]
    assert [path.name for path in tmp_path.iterdir()] == ["env"]
    assert sorted(path.name for path in prefix.iterdir()) == ["conda-meta", "earlier"]
