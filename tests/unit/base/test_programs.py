"""Other programs: what is kept of their answers, and that none outlives the block that started it, or envsmith."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import envsmith
from envsmith.base.programs import Conversation, Kept, Lines, close, converse, end, ending_orphans, execute, start


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_of_a_flood_the_beginning_the_end_and_the_count_are_kept() -> None:
    kept = Kept(10)

    for piece in (b"abc", b"defgh", b"x" * 1000, b"vwxyz"):
        kept.add(piece)

    assert kept.text == "abcde\n[1003 bytes left out]\nvwxyz"
    assert kept.count == 1013


def test_a_child_that_floods_its_output_does_not_fill_the_memory() -> None:
    answer = execute(_python("import os\nfor _ in range(2000): os.write(1, b'x' * 65536)\nos.write(1, b'end')"))

    assert answer.returncode == 0
    assert len(answer.stdout) < 17 << 20
    assert answer.stdout.endswith("end")
    assert "bytes left out" in answer.stdout


def test_a_program_is_fed_and_its_errors_stay_apart() -> None:
    answer = execute(_python("import sys; print(sys.stdin.read()); print('e', file=sys.stderr)"), feed="x" * 300_000)

    assert (len(answer.stdout), answer.stderr) == (300_001, "e\n")


def test_a_program_that_does_not_read_what_it_is_fed_is_not_an_error() -> None:
    assert execute(_python("import os; os.close(0); print(1)"), feed="x" * 3_000_000).stdout == "1\n"


def test_a_grandchild_that_holds_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "grandchild"
    apart = f"setsid sh -c 'echo $$ > {place}; exec sleep 600' & until [ -s {place} ]; do sleep 0.01; done"

    execute(["sh", "-c", apart])

    os.kill(int(place.read_text()), signal.SIGKILL)  # it was alive


def test_what_a_program_left_behind_ends_with_it() -> None:
    answer = execute(["sh", "-c", "sleep 600 & echo $!"])

    assert _gone(int(answer.stdout))


@pytest.mark.parametrize("patience", [0.0, 0.2])
def test_at_the_deadline_a_program_and_what_it_started_are_ended(tmp_path: Path, patience: float) -> None:
    place = tmp_path / "inner"

    with pytest.raises(subprocess.TimeoutExpired):
        execute(_noted(place), seconds=1.0, patience=patience)

    assert _gone(int(place.read_text()))


def test_lines_are_whole_whatever_pieces_they_come_in() -> None:
    lines: list[str] = []
    hears = Lines(lines.append, longest=6)

    for piece in ("zwö".encode()[:3], "zwö".encode()[3:] + b"lf\r", b"\nnext\rlonger than six\n\nrest", b""):
        hears.add(piece)

    assert lines == ["zwölf", "next", "longer", " than ", "six", "", "rest"]


def test_an_endless_line_is_handed_on_in_pieces() -> None:
    lines: list[str] = []
    hears = Lines(lines.append, longest=6)

    for _ in range(3):
        hears.add(b"xxxx")

    assert lines == ["xxxxxx", "xx"]


def test_a_conversation_hears_while_it_tells_and_its_input_stays_open() -> None:
    heard: list[str] = []
    errors = Kept()
    code = "import sys; print(sys.stdin.readline().strip(), flush=True); print('e', file=sys.stderr, flush=True); sys.stdin.read(); print('end')"
    talk = Conversation(
        _python(code), out=Lines(heard.append).add, err=errors.add, feed=b"x" * 300_000 + b"\n", stays=True
    )

    converse(talk, is_over=lambda: bool(heard and errors.count))
    is_still_there = talk.process.poll() is None
    close(talk, grace=30.0, patience=0.0)

    assert heard == ["x" * 65536] * 4 + ["x" * (300_000 - 4 * 65536)]
    assert errors.text == "e\n"
    assert is_still_there
    assert talk.process.returncode in {0, 120, 1}  # nobody hears its last line


def test_several_conversations_are_heard_at_once() -> None:
    heard: list[str] = []
    talks = [
        Conversation(_python(f"import time; time.sleep({wait}); print({wait})"), out=Lines(heard.append).add)
        for wait in (0.6, 0.0, 0.3)
    ]

    converse(*talks, is_over=lambda: False)
    end(*(talk.process for talk in talks))

    assert heard == ["0.0", "0.3", "0.6"]


def test_who_does_not_end_with_its_input_is_terminated_and_then_killed(tmp_path: Path) -> None:
    place = tmp_path / "inner"
    talk = Conversation(_noted(place), out=Kept().add, feed=b"x", stays=True)
    converse(talk, is_over=place.exists)
    killed: list[int] = []

    close(talk, grace=0.0, patience=0.2, kill=lambda process: killed.append(process.pid))

    assert killed == [talk.process.pid]
    assert _gone(int(place.read_text()))


# What is parsed at all: a call below stands in no other module.
_CAPTURING = re.compile(r"capture_output|check_output|getoutput|popen|communicate")


def test_no_output_of_a_program_is_kept_without_a_bound() -> None:
    package = Path(envsmith.__file__).parent
    unbounded = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        if "smoke/agent" not in path.as_posix()
        if _CAPTURING.search(source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (
            any(word.arg == "capture_output" for word in node.keywords)
            or ast.unparse(node.func) in {"subprocess.check_output", "subprocess.getoutput", "os.popen"}
            or ast.unparse(node.func).endswith(".communicate")
        )
    ]

    assert not unbounded, "ask through envsmith.base.programs"


# A shell with a child of its own. Both would stay for minutes, and the inner one does not listen.
_STUBBORN = ["/bin/sh", "-c", "trap '' INT TERM; (trap '' INT TERM; sleep 300) & echo ready; sleep 300; wait"]


def _noted(place: Path) -> list[str]:
    """Return such a shell that writes the number of its child into a file."""
    inner = "(trap '' INT TERM; sleep 300)"
    return ["/bin/sh", "-c", f"trap '' INT TERM; {inner} & echo $! > {place}.new; mv {place}.new {place}; wait"]


def _is_running(process: int) -> bool:
    """Say whether a process runs, or one of a group where the number is negative.

    The dead do not, however long init takes to reap them.
    """
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = entry.read_text().rpartition(")")[2].split()[:3]
            if state != "Z" and process in {int(entry.parent.name), -int(group)}:
                return True
    return False


def _gone(process: int) -> bool:
    """Wait for the end of a process, or of a group where the number is negative."""
    deadline = time.monotonic() + 30
    while _is_running(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _is_running(process)


def test_what_a_child_left_behind_ends_with_it() -> None:
    process = start(["/bin/sh", "-c", "sleep 300 & echo begun"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.wait()

    end(process)

    assert _gone(-process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_envsmith(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, subprocess, sys\n"
        "from envsmith.base.programs import end, start\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"process = start({_STUBBORN!r}, stdout=subprocess.PIPE)\n"
        "try: process.stdout.readline(); print(process.pid, flush=True); process.wait()\n"
        "finally: end(process, patience=0.3)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(timeout=60)

    assert _gone(-group)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_question_to_a_program_outlives_envsmith(tmp_path: Path, number: signal.Signals) -> None:
    place = tmp_path / "inner"
    code = (
        "import signal\n"
        "from envsmith.base.programs import execute\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"execute(['/bin/sh', '-c', 'read -r go && exec \"$@\"', 'sh', *{_noted(place)!r}], feed='go\\n')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        while not place.exists():
            time.sleep(0.02)
        parent.send_signal(number)
        parent.wait(timeout=60)

    assert _gone(int(place.read_text()))


@pytest.mark.parametrize("command", ["exit 0", "sleep 60"])
def test_what_a_program_left_in_a_session_of_its_own_ends_with_it(tmp_path, command):
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; setsid sleep 60 & echo $! > {tmp_path}/second; wait' & sleep 1; {command}"
    with suppress(subprocess.TimeoutExpired), ending_orphans():
        execute(["sh", "-c", script], seconds=3)
    for name in ("pid", "second"):
        assert not Path("/proc", (tmp_path / name).read_text().strip()).exists()


def test_what_ran_before_is_no_orphan(tmp_path):
    mine = start(["sleep", "60"])
    try:
        with ending_orphans():
            execute(["true"])
        assert mine.poll() is None
    finally:
        end(mine)
