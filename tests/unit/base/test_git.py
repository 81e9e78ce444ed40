"""git in a checkout whose settings name programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from envsmith.base.git import git

QUIET = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout each of whose programs would leave a file."""
    root = tmp_path / "checkout"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    hook = root / ".git" / "hooks" / "post-index-change"

    def run(*words: str) -> None:
        subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, env={**os.environ, **QUIET})

    root.mkdir()
    run("init", "--quiet")
    (root / "a.py").write_text("one\n")
    (root / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    run("add", ".")
    run("commit", "--quiet", "-m", "first")
    for name in (
        "core.fsmonitor",
        "filter.evil.clean",
        "filter.evil.process",
        "diff.evil.command",
        "diff.evil.textconv",
    ):
        run("config", name, str(program))
    run("config", "filter.evil.required", "true")
    hook.write_text(program.read_text())
    hook.chmod(0o755)
    (root / "a.py").write_text("two\n")
    return root


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "--name-only", "HEAD"),
        ("diff", "HEAD"),
        ("log", "-p"),
        ("show", "HEAD:a.py"),
        ("status",),
        ("ls-files",),
    ],
)
def test_no_program_of_a_checkout_is_started(checkout: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    answer = git(checkout, *words)

    assert answer.returncode == 0
    assert answer.stdout
    assert not (tmp_path / "ran").exists()
