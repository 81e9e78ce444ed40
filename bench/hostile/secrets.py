"""Secrets planted wherever a login can stand, in files, options and variables, and looked for in all that is printed or stored."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from random import Random

from envsmith.__main__ import main
from envsmith.doctor.facts import Facts
from envsmith.doctor.snapshot import dump
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stored import EvidenceFile
from hostile import Tally

TITLE = "secrets planted"
GOAL = 520
FAILURES = ("printed", "stored", "internal errors", "no JSON")

_LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
# A line of a requirements file, or of a log.
_LINES = (
    "https://u:{}@host/x.whl",
    "git+https://u:{}@host/x",
    "x @ https://u:{}@host/x-1.whl",
    "-e git+https://u:{}@host/x#egg=x",
    "-r https://u:{}@host/r.txt",
    "-c https://u:{}@host/c.txt",
    "--index-url https://u:{}@host/simple",
    "x @ https://host/x-1.whl?token={}",
    "NGC_API_KEY: {}",
    "X-Api-Key: {}",
    "os.environ['HF_TOKEN'] = '{}'",
    "HF_TOKEN => {}",
    "machine host login u password {}",
    "curl -u u:{} https://host",
    "docker login -u me -p {}",
    '{{"auth": "{}"}}',
    "Cookie: session={}",
    "//host/:_authToken={}",
    "AccountKey={}==",
    "https://host/t/{}1/channel/x-1.whl",
    "Authorization: Bearer {}1",
    "sk_live_{}",
    "dop_v1_{}",
    "--password {}",
    "TORCH_HUB_TOKEN={}",
)


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Plant ``count`` secrets."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for number in range(count):
        tally.tried += 1
        secret = "7" + "".join(random.choice(_LETTERS) for _ in range(17))
        line = random.choice(_LINES).format(secret)
        words = _words(random, line, folder)
        as_json = random.random() < 0.5
        output, status = _run([*words, *(["--json"] if as_json else [])])
        where = f"{number}: {words[:2]}: {line}"
        if secret in output:
            tally.fail("printed", f"{where}: {output}")
        if status == 70:
            tally.fail("internal errors", f"{where}: {output}")
        if as_json and not _is_json(output):
            tally.fail("no JSON", f"{where}: {output}")
        kept = folder / f"evidence-{number}.jsonl"
        EvidenceFile(kept).append(LaunchEvidence(unread=(line,), communicators=line), None)
        stored = kept.read_text(encoding="utf-8")
        if secret in stored or secret in dump(Facts(), (("log", line),)):
            tally.fail("stored", where)
        for row in stored.splitlines():
            json.loads(row)


def _words(random: Random, line: str, folder: Path) -> list[str]:
    """Return a command that meets the line: as a file, a text or a word."""
    requirements, log = folder / "requirements.txt", folder / "train.log"
    requirements.write_text(f"torch==2.9.1\n{line}\n")
    log.write_text(f"{line}\nRuntimeError: {line}\n")
    return random.choice(
        (
            ["solve", "-r", str(requirements), "--framework", "deepspeed"],
            ["check", "--from", str(requirements)],
            ["doctor", "--from", str(log)],
            ["doctor", "--from", str(requirements)],
            ["solve", "--framework", line],
            ["solve", "--framework", "deepspeed", "--with", line],
            ["check", line],
        )
    )


def _run(words: list[str]) -> tuple[str, int]:
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["envsmith", *words]
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
    return f"{out.getvalue()}\x00{err.getvalue()}", status


def _is_json(output: str) -> bool:
    answer = output.partition("\x00")[0]
    try:
        json.loads(answer or "{}")
    except ValueError:
        return False
    return True
