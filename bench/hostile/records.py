"""Hostile records: real ones bent at a place or in their bytes, laid into a copy of the matrix that every verb then reads."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from envsmith.cli.app import run
from envsmith.knowledge.graph.location import find_matrix
from hostile import Tally

TITLE = "hostile records"
GOAL = 2500
FAILURES = ("internal errors", "signals", "ended commands")

_BATCH = 250
_INTERNAL = 70
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 3.5, 10**30, -(10**4000), 1e308, float("nan"), float("inf"), "", " ", "none", "cpu", "nan",
    "not-a-version", "1!2.0", "2.0+cu\u0664", "v1", "1.0.post1.dev2", "9999-99-99", "9999-99-99T00:00:00Z", "*", ">=2 || <1",
    "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+23:59", "2026-02-30T00:00:00Z", "2026-11-21T13:00:00-23:59",
    "../../etc/passwd", "/etc/passwd", "-rf", "$(id)", "`id`", "a\nb", "\x00", "\x1b[31mred", "\u202e", "\ud800", "%s%n{}",
    "<script>alert(1)</script>", "</script>", "]]>", "|", "torch", "x" * 300, "x" * 20_000, "\U0001f600", "ds1-torch2", "é",
    [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, {"\x00": "\x1b"}, [1, "2", None], ["solved"], {"torch": 2.1},
)  # fmt: skip
_VERBS: tuple[tuple[str, ...], ...] = (
    ("solve", "--framework", "deepspeed"),
    ("check", "torch==2.9.1", "deepspeed==0.18.0"),
    ("matrix", "list"),
    ("matrix", "list", "--format", "json"),
    ("matrix", "show", "ds0.16.4-torch2.6.0-cu124-py312"),
    ("matrix", "run", "{folder}/expired.yaml", "--state", "{folder}/state", "--plan"),
)
# These take seconds: one of them after each batch.
_LONG = (("matrix", "export", "-o", "{folder}/export"), ("matrix", "site", "-o", "{folder}/site"))
_EXPIRED = "schema: 1\nname: x\ncells:\n- solved: {deepspeed: '*'}\n  take: 1\n- expired: {torch: '*'}\n"


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Lay ``count`` bent records into a copy of the matrix, some hundred at a time. What ends a verb is found by halving."""
    source = find_matrix()
    originals = [path.read_text(encoding="utf-8") for path in sorted((source / "records").glob("*.json"))]
    matrix = folder / "matrix"
    shutil.copytree(source, matrix, ignore=shutil.ignore_patterns("records"))
    (folder / "expired.yaml").write_text(_EXPIRED)
    os.environ |= {"ENVSMITH_MATRIX": str(matrix), "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1"}
    _lay((), originals[:20], matrix / "records")
    for verb in (*_VERBS, *_LONG):  # what the children share: imports, schemas
        _run([word.format(folder=folder) for word in verb])
    for number, start in enumerate(range(0, count, _BATCH)):
        bent = [_bent(random, random.choice(originals)) for _ in range(min(_BATCH, count - start))]
        tally.tried += len(bent)
        _merge(tally, bent, folder)
        verbs = [*_VERBS, _LONG[number % len(_LONG)]]
        for what, text, verb in _failures(bent, originals[:20], verbs, folder):
            tally.fail(what, f"{' '.join(verb)}: {text[:200]!r}")


def _bent(random: Random, text: str) -> bytes:
    """Return a record with one to three places changed, or its bytes."""
    if random.random() < 0.2:
        return _bent_bytes(random, text.encode())
    document = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        holder, key = random.choice(list(_places(document)))
        action = random.random()
        if action < 0.1:
            del holder[key]
        elif action < 0.15 and isinstance(holder, dict):
            holder[str(random.choice(_VALUES))] = holder[key]
        else:
            holder[key] = copy.deepcopy(random.choice(_VALUES))
        if not document:
            break
    if random.random() < 0.05:
        return (json.dumps(document)[:-1] + ', "x": ' + "[" * 30_000).encode()
    sys.set_int_max_str_digits(0)
    return json.dumps(document).encode()


def _places(document: Any) -> Any:
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _bent_bytes(random: Random, content: bytes) -> bytes:
    place = random.randrange(len(content))
    kind = random.randrange(5)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]
    if kind == 2:
        return content[:place] + random.randbytes(8) + content[place:]
    return (b"\xef\xbb\xbf" + content, content * 20)[kind - 3]


def _failures(
    bent: Sequence[bytes], good: Sequence[str], verbs: Sequence[Sequence[str]], folder: Path
) -> list[tuple[str, bytes, Sequence[str]]]:
    """Return each record that ended a verb, with the verb, by halving what failed."""
    failures = []
    for verb in verbs:
        todo = [list(bent)]
        while todo:
            part = todo.pop()
            _lay(part, good, folder / "matrix" / "records")
            what = _in_child(lambda verb=verb: _outcome(verb, folder))
            if not what:
                continue
            if len(part) == 1:
                failures.append((what, part[0], verb))
            else:
                todo += [part[: len(part) // 2], part[len(part) // 2 :]]
    return failures


def _lay(bent: Sequence[bytes], good: Sequence[str], records: Path) -> None:
    shutil.rmtree(records, ignore_errors=True)
    records.mkdir()
    for number, content in enumerate((*bent, *(text.encode() for text in good))):
        (records / f"{number}.json").write_bytes(content)


def _outcome(verb: Sequence[str], folder: Path) -> str:
    """Run a verb. Every one of them has an answer, whatever lies among the records."""
    code = _run([word.format(folder=folder) for word in verb])
    return "internal errors" if code == _INTERNAL else "ended commands" if code not in {0, 1} else ""


def _run(words: list[str]) -> int:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return run(words)
        except Exception:  # noqa: BLE001 - whatever it is, it is counted
            return _INTERNAL


def _merge(tally: Tally, bent: Sequence[bytes], folder: Path) -> None:
    """Offer each record to the verb that must take it whole or refuse it."""
    for content in bent:
        (folder / "record.json").write_bytes(content)
        words = ["matrix", "merge", str(folder / "record.json"), "--matrix", str(folder / "merged")]
        what = _in_child(lambda words=words: "internal errors" if _run(words) == _INTERNAL else "")
        if what:
            tally.fail(what, f"matrix merge: {content[:200]!r}")


def _in_child(task: Callable[[], str]) -> str:
    """Run a task in a child of this process, so that a signal ends the child alone."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, task().encode())
        except BaseException:  # noqa: BLE001 - whatever it is, it is counted
            os.write(write, b"internal errors")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        what = answer.read()
    _, status = os.waitpid(child, 0)
    return "signals" if os.WIFSIGNALED(status) else what
