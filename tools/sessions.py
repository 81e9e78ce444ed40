"""The sessions of README and docs: their commands, and what each of them prints.

    python tools/sessions.py             run the sessions marked ``<!-- output -->`` again and write what they print

A block of commands is fenced as ``console``; its commands begin with ``$``. The lines before it may say

    <!-- not run: reason -->     tests do not run it, and why
    <!-- exit N ... -->          the commands end with these codes (one for all, or one each) instead of 0
    <!-- in: library -->         it is run in a small library under git instead of an empty folder
    <!-- in: batch -->           it is run beside `job.sbatch` and `pip-list.txt`
    <!-- in: log -->             it is run beside `train.log` and `name.log` of trainings that failed
    <!-- in: old-repository -->  it is run in a repository of 2023 without pins
    <!-- slow -->                it takes more than ten seconds: `make slow` runs it, `make test` does not
    <!-- output -->              what stands below a command is all that it prints to stdout
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"((?:^[ \t]*<!--.*?-->[ \t]*\n)*)^[ \t]*```console\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!--\s*(not run|exit|in|slow|output)(?:[: ]\s*(.*?))?\s*-->")
_LIBRARY = """[project]
name = "mylib"
version = "1.0.0"
requires-python = ">=3.10"
dependencies = ["torch>=2.6", "deepspeed>=0.16"]
"""
LOG = """deepspeed 0.13.1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    import deepspeed
  File "/opt/env/lib/python3.11/site-packages/deepspeed/elasticity/elastic_agent.py", line 9, in <module>
    from torch.distributed.elastic.agent.server.api import log, _get_socket_with_port
ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'
"""
NAME_LOG = """accelerate 1.1.1
transformers 4.39.3
Traceback (most recent call last):
  File "run_ner.py", line 580, in main
    trainer = Trainer(
  File "/opt/env/lib/python3.10/site-packages/transformers/trainer.py", line 4252, in create_accelerator_and_postprocess
    self.accelerator = Accelerator(
TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'
"""
_OLD_CODE = """import torch
import transformers
import wandb
from accelerate import Accelerator
from transformers.deepspeed import HfDeepSpeedConfig

accelerator = Accelerator(dispatch_batches=True)


def chat(text):
    return transformers.Conversation(text)


def resume(path):
    try:
        from transformers import Cache
    except ImportError:
        Cache = None
    return torch.load(path), Cache
"""


@dataclass(frozen=True)
class Block:
    """One block of commands of a page, and what the lines before it say of it."""

    page: str
    number: int
    commands: tuple[str, ...]
    outputs: tuple[str, ...]
    marks: dict[str, str]
    start: int
    end: int

    @property
    def codes(self) -> list[int]:
        """The exit code that each command must have."""
        codes = [int(code) for code in self.marks.get("exit", "0").split()]
        return codes * len(self.commands) if len(codes) == 1 else codes


def pages() -> list[Path]:
    """Return the README and every page of the docs that is not generated."""
    return [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "reference" not in p.parts)]


def blocks(page: Path) -> Iterator[Block]:
    """Give the blocks of commands of a page."""
    for number, match in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
        parts = re.split(r"^\$ ", match[2], flags=re.MULTILINE)[1:]
        commands, _, outputs = zip(*(part.partition("\n") for part in parts), strict=True) if parts else ((), (), ())
        names = tuple(command.strip() for command in commands)
        marks = dict(_MARK.findall(match[1]))
        yield Block(str(page.relative_to(ROOT)), number, names, outputs, marks, *match.span(2))


_BATCH = """#!/bin/bash
#SBATCH --nodes 2
module purge
module load cuda/12.1 gcc/13.2.0
srun python train.py
"""


def prepare(block: Block, folder: Path) -> None:
    """Write into ``folder`` what the block's commands read."""
    kind = block.marks.get("in")
    if kind == "library":
        (folder / "pyproject.toml").write_text(_LIBRARY, encoding="utf-8")
        _commit(folder, os.environ)
    elif kind == "old-repository":
        (folder / "train.py").write_text(_OLD_CODE, encoding="utf-8")
        (folder / "requirements.txt").write_text("torch\ntransformers\naccelerate\nwandb\n", encoding="utf-8")
        day = {"GIT_COMMITTER_DATE": "2023-06-01T12:00:00Z", "GIT_AUTHOR_DATE": "2023-06-01T12:00:00Z"}
        _commit(folder, {**os.environ, **day})
    elif kind == "batch":
        (folder / "job.sbatch").write_text(_BATCH, encoding="utf-8")
        (folder / "pip-list.txt").write_text("Package Version\n------- -------\ntorch   2.2.2\n", encoding="utf-8")
    elif kind == "log":
        (folder / "train.log").write_text(LOG, encoding="utf-8")
        (folder / "name.log").write_text(NAME_LOG, encoding="utf-8")


def _commit(folder: Path, environment: Mapping[str, str]) -> None:
    git = ["git", "-c", "user.email=a@example.invalid", "-c", "user.name=a"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=folder, check=True, env=environment)


def answer(command: str, folder: Path) -> str:
    """Run one command in a folder. Return what it prints to stdout."""
    words = [sys.executable, "-m", "envsmith", *shlex.split(command, comments=True)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENVSMITH_MATRIX": str(ROOT / "matrix"), "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def with_output(page: Path) -> str:
    """Return the page with what its marked sessions print today."""
    text = page.read_text(encoding="utf-8")
    for block in reversed([block for block in blocks(page) if "output" in block.marks]):
        with tempfile.TemporaryDirectory() as name:
            prepare(block, Path(name))
            parts = [f"$ {command}\n{answer(command, Path(name)).rstrip()}\n" for command in block.commands]
        text = text[: block.start] + "\n".join(parts) + text[block.end :]
    return text


def main() -> int:
    """Write the sessions of every page again."""
    for page in pages():
        text = with_output(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
