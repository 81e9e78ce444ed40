"""A launch under watch is the launch as it was: its output, its exit code, its signals. Only a failure adds a block."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from launches import CLOSED, ended, failed, late, stalled, waiting

import envsmith
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import ExitStatus, LaunchEvent, LaunchEvidence
from envsmith.launch.ranks.stored import read_occasions
from envsmith.launch.run.report import block, junit
from envsmith.launch.run.start import Launch
from envsmith.launch.run.watch import WatchSettings

ROOT = Path(envsmith.__file__).parents[1]
# Starts ranks as torchrun does: each with RANK, and SIGTERM for the others when one fails.
LAUNCHER = """
import os, subprocess, sys, time
world = int(sys.argv[1])
env = lambda rank: dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2]], env=env(rank)) for rank in range(world)]
while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
    time.sleep(0.02)
for rank in ranks:
    if rank.poll() is None:
        rank.terminate()
sys.exit(int(any(rank.wait() for rank in ranks)))
"""


def watched(script: str, *options: str, ranks: int = 2, **settings) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "envsmith",
        "run",
        *options,
        "--",
        sys.executable,
        "-c",
        LAUNCHER,
        str(ranks),
        script,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, **settings)


def alone(*command: str, **settings) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "envsmith", "run", "--", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, **settings)


def test_a_launch_that_succeeds_says_no_word_of_ours():
    result = watched("import sys; sys.stdout.write('step 1\\n')")

    assert (result.returncode, result.stdout, result.stderr) == (0, "step 1\nstep 1\n", "")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise ValueError('label 7')", "Rank 1 ended first, with ValueError: label 7"),
        ("os.kill(os.getpid(), 9)", "Rank 1 was ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "Rank 1 was ended by SIGSEGV"),
        ("sys.exit(3)", "Rank 1 ended with exit status 3"),
        ("os._exit(5)", "Rank 1 ended with exit status 5"),
        ("sys.excepthook = lambda *_: os._exit(3); {}['pad']", "Rank 1 ended first, with KeyError: 'pad'"),
        ("sys.excepthook = lambda *_: print('no'); {}['pad']", "Rank 1 ended first, with KeyError: 'pad'"),
        ("import code; code.InteractiveInterpreter().runcode('{}[0]'); sys.exit(3)", "Rank 1 ended with exit status 3"),
    ],
)
def test_the_rank_that_failed_is_named(fault, words, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {fault}\ntime.sleep(20)\n")

    result = watched(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", "--evidence", str(tmp_path / "e")
    )

    assert result.returncode == 1
    assert words in result.stderr
    assert kept(tmp_path / "e")[-1].verdict.ranks == (1,)


def kept(folder):
    (file,) = folder.glob("evidence-*.jsonl")
    return read_occasions(file.read_text().splitlines(), file.name)


@pytest.mark.parametrize("status", [0, 1, 3, 42, -9, -15, -11])
def test_the_exit_code_is_the_launcher_s(status):
    code = f"import os, sys; os.kill(os.getpid(), {-status}) if {status} < 0 else sys.exit({status})"

    assert alone(sys.executable, "-c", code).returncode == status


def test_input_and_output_pass_untouched():
    result = alone(sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read().upper())", input="abc\n")

    assert (result.stdout, result.stderr) == ("ABC\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_the_launcher_and_nobody_is_blamed(number, tmp_path):
    ready = tmp_path / "ready"
    code = (
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        f"open({str(ready)!r}, 'w').close()\ntime.sleep(30)"
    )
    command = [sys.executable, "-m", "envsmith", "run", "--", sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not ready.exists():
        time.sleep(0.02)

    process.send_signal(number)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 7
    assert "Rank" not in errors


def test_the_user_s_own_sitecustomize_is_loaded(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['MINE'] = 'yes'\n")

    result = watched("import os; print(os.environ['MINE'])", ranks=1, env={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert result.stdout == "yes\n"


def test_children_of_a_rank_are_no_ranks(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'raise SystemExit(3)']); raise ValueError('mine')"

    result = watched(code, "--evidence", str(tmp_path / "e"), ranks=1)

    assert "ValueError: mine" in result.stderr
    assert [one.rank for one in kept(tmp_path / "e")[-1].evidence.ranks] == [0]


def test_ranks_of_a_launch_that_a_rank_starts_are_none_of_this_one(tmp_path):
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package.parent / "version.py").write_text("__version__ = '2.13.0'\n")
    (package / "distributed_c10d.py").write_text("def init_process_group(backend, rank=-1, world_size=-1):\n    pass\n")
    code = (
        "import os, subprocess, sys, torch.distributed.distributed_c10d as c10d; c10d.init_process_group('gloo'); "
        "inner = {**os.environ, 'RANK': '1', 'LOCAL_RANK': '1'}; "
        "subprocess.run([sys.executable, '-c', 'raise SystemExit(3)'], env=inner); raise ValueError('mine')"
    )

    watched(code, "--evidence", str(tmp_path / "e"), ranks=1, env={**os.environ, "PYTHONPATH": str(tmp_path)})

    assert [(one.rank, bool(one.error)) for one in kept(tmp_path / "e")[-1].evidence.ranks] == [(0, True)]


def test_a_program_that_does_not_exist_has_the_code_of_a_shell():
    result = alone("no-such-launcher")

    assert (result.returncode, result.stderr) == (
        127,
        (
            "envsmith run: Cannot start no-such-launcher: No such file or directory.\n"
            "  next: Activate the environment that has it, or give its path.\n"
        ),
    )


@pytest.mark.parametrize(
    ("text", "mode", "status"),
    [("echo runs; exit 3", 0o755, 3), ("#!/bin/sh\nexit 4", 0o755, 4), ("#!/bin/sh\nexit 4", 0o644, 126)],
    ids=["no interpreter named", "one named", "not executable"],
)
def test_a_script_is_started_as_a_shell_would(tmp_path, text, mode, status):
    (tmp_path / "launch").write_text(text)
    (tmp_path / "launch").chmod(mode)

    assert alone(str(tmp_path / "launch")).returncode == status


def behind(shell: str, script: str, tmp_path: Path, **settings) -> subprocess.CompletedProcess[str]:
    """Run a launch of two ranks whose host a line of shell has broken before."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    own = f'exec {sys.executable} -m envsmith run -- {sys.executable} {tmp_path}/launcher.py 2 "$1"'
    command = ["bash", "-c", f"{shell}; {own}", "bash", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, **settings)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("ulimit -n 16", ""),
        ("export TMPDIR=/nowhere/at/all", ""),
        ("unset HOME", ""),
        ("exec 2>&-", ""),
        ("ulimit -f 0", "Cannot watch the launch"),
    ],
)
def test_a_launch_on_a_broken_host_ends_as_it_would_alone(tmp_path, broken, words):
    result = behind(broken, "import time; time.sleep(0.5); print('done', flush=True); raise SystemExit(0)", tmp_path)

    assert (result.returncode, result.stdout) == (0, "done\ndone\n")
    assert words in result.stderr


def test_a_long_folder_for_temporary_files_is_no_hindrance(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    code = "import os, time; time.sleep(20) if os.environ['RANK'] == '0' else None; raise ValueError('label 7')"
    result = watched(code, env={**os.environ, "TMPDIR": str(folder)})

    assert "Rank 1 ended first, with ValueError: label 7" in result.stderr


def test_a_child_s_signal_that_is_ignored_stays_ignored():
    line = "import signal, sys; print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN); sys.exit(5)"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [
        sys.executable,
        "-c",
        ignoring,
        sys.executable,
        "-m",
        "envsmith",
        "run",
        "--",
        sys.executable,
        "-c",
        line,
    ]

    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)

    assert (result.returncode, result.stdout) == (5, "True\n")


def test_a_watch_that_fails_is_one_line_and_the_launch_goes_on(tmp_path):
    program = (
        "import sys; from envsmith.__main__ import main; from envsmith.launch.run.watch import LaunchWatch\n"
        "LaunchWatch.run = lambda self: 1 / 0\n"
        "sys.argv = ['envsmith', 'run', '--', 'sh', '-c', 'sleep 0.3; exit 6']; main()"
    )
    variables = {**os.environ, "TMPDIR": str(tmp_path)}

    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
        env=variables,
    )

    words = "envsmith run: Cannot watch the launch: division by zero. The launch is not affected.\n"
    assert (result.returncode, result.stderr) == (6, words)
    assert list(tmp_path.iterdir()) == []


def test_evidence_that_cannot_be_written_is_said_and_nobody_is_sent_to_it(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "evidence"

    result = watched("raise SystemExit(3)", "--evidence", str(folder))

    assert result.returncode == 1
    assert f"Cannot write the evidence into {folder}: Not a directory." in result.stderr
    assert "all evidence" not in result.stderr


def test_folders_of_launches_that_failed_are_bounded(tmp_path):
    for number in range(20):
        folder = tmp_path / f"envsmith-run-{number:02}"
        folder.mkdir()
        os.utime(folder, (number, number))

    alone("false", env={**os.environ, "TMPDIR": str(tmp_path)})

    assert min(path.name for path in tmp_path.iterdir()) == "envsmith-run-05"
    assert len(list(tmp_path.iterdir())) == 16


def test_a_pipe_where_a_rank_s_marks_should_be_does_not_hold_the_end(tmp_path):
    code = (
        "import os; folder = os.environ['ENVSMITH_RUN_FOLDER']; rank = '%s-%d.marks' % (os.environ['RANK'], os.getpid());"
        " os.unlink(os.path.join(folder, rank)); os.mkfifo(os.path.join(folder, rank)); raise SystemExit(2)"
    )

    assert watched(code).returncode == 1


def lines(evidence):
    return block(decide(evidence), evidence, None).splitlines()


def test_a_death_has_rank_cause_evidence_and_next_step():
    assert lines(failed(ended(0, 1, 10.1, CLOSED), ended(1, 3))) == [
        "envsmith run: the launch of 2 ranks ended with exit code 1",
        "  Rank 1 ended with exit status 3, without an error of Python. What the other ranks print follows from it.",
        "  cause: exited",
        "  evidence: exitcode: 3",
        "  next: Look for a sys.exit or os._exit on that rank, or run it with python -X faulthandler.",
    ]


@pytest.mark.parametrize(("kernel", "word"), [("wait_for_partner", "hang"), ("hrtimer_nanosleep", "waiting")])
def test_hang_is_said_only_of_what_cannot_go_on(kernel, word):
    evidence = stalled(waiting(0, "all_reduce", "all_reduce"), late(1, "all_reduce", waits_in=kernel))

    assert lines(evidence)[0] == f"envsmith run: {word}: no rank of 2 has called a collective for 300 s"


def test_what_differs_between_ranks_and_what_was_not_read_is_said():
    ranks = [
        replace(ended(0, 1, 10.1, CLOSED), environment={"version of torch": "2.13.0"}),
        replace(ended(1, 3), environment={"version of torch": "2.9.1"}),
    ]

    text = lines(replace(failed(*ranks), unread=("py-spy is not installed",)))

    assert "  differs: version of torch differs (rank 0: 2.13.0, rank 1: 2.9.1)" in text
    assert text[-1] == "  not read: py-spy is not installed"


def test_a_launch_without_ranks_says_what_to_do():
    head, step = lines(LaunchEvidence(launcher=ExitStatus(code=1)))

    assert head == "envsmith run: the command ended with exit code 1, and no rank was seen"
    assert step.startswith("  next: Read what the launcher printed.")


def test_a_command_that_fails_before_any_rank_starts_has_its_own_error_passed_on():
    printed = alone(sys.executable, "-c", "raise FileNotFoundError('ds.json')").stderr.splitlines()

    assert "envsmith run: the command ended with exit code 1, and no rank was seen" in printed
    assert "  The command itself ended with FileNotFoundError: ds.json, and no rank was seen before." in printed


@pytest.mark.parametrize("way", ["os._exit", "sys.exit"])
def test_a_way_out_that_the_interpreter_itself_calls_is_taken(way):
    result = watched(f"import atexit, os, sys; atexit.register({way}, 9)", ranks=1)

    bare = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "1", f"import atexit, os, sys; atexit.register({way}, 9)"], check=False
    )
    assert result.returncode == bare.returncode


def test_the_end_of_a_launch_that_stood_still_says_again_why():
    hang = Blame(cause=Cause.BLOCKED, ranks=(0,), message="Rank 0 is blocked.", fix="Look.", is_hang=True)

    first, second, *_ = block(hang, failed(ended(0, -9)), None).splitlines()

    assert first == "envsmith run: the launch of 1 rank ended with exit code 1, after it stood still"
    assert second == "  Rank 0 is blocked."


def test_ranks_that_are_started_again_have_a_line_for_each_attempt():
    former = LaunchEvent(at=1.0, text="attempt 0: Rank 1 ended first.", kind="attempt")

    text = block(None, failed(ended(0, 1), attempt=1, events=(former,)), None)

    assert "  attempt 0: Rank 1 ended first." in text.splitlines()


def test_a_launch_that_was_interrupted_is_not_judged():
    evidence = failed(ended(0, -15), is_interrupted=True)

    assert lines(evidence) == ["envsmith run: the launch of 1 rank ended with exit code 1, after it was interrupted"]


def test_the_module_of_a_preflight_is_named_by_who_starts_the_launch(tmp_path: Path) -> None:
    launch = Launch(command=["true"], settings=WatchSettings(), say=print, preflight="envsmith.preflight")
    environment = launch._environment(tmp_path)
    assert environment["ENVSMITH_RUN_PREFLIGHT"] == f"envsmith.preflight:{tmp_path / 'package'}"


def test_json_is_the_only_thing_on_stdout():
    result = watched("print('step 1'); raise SystemExit(3)", "--json", ranks=1)

    answer = json.loads(result.stdout)
    assert (answer["exit_code"], answer["verdict"]["ranks"]) == (1, [0])
    assert "step 1" in result.stderr


def test_a_rank_that_starts_its_own_program_again_is_watched_as_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
        "    os.execv(sys.executable, [sys.executable, sys.argv[0]])\nraise ValueError('mine')\n"
    )

    result = watched(
        f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}])",
        "--evidence",
        str(tmp_path / "e"),
        ranks=1,
    )

    assert "ValueError: mine" in result.stderr
    assert [one.rank for one in kept(tmp_path / "e")[-1].evidence.ranks] == [0]


def test_a_report_has_a_case_for_each_rank():
    evidence = failed(ended(0, 1, 11.0, CLOSED), ended(1, 3, 10.0))

    suite = ET.fromstring(junit(1, decide(evidence), evidence))

    names = {case.get("name"): [child.tag for child in case] for case in suite}
    assert names == {"launch": ["failure"], "rank 0": ["skipped"], "rank 1": ["failure"]}
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "1")


def test_an_error_of_syntax_is_named_with_its_type_and_place():
    result = watched("compile('a = = 3', 'config.py', 'exec')", ranks=1)

    assert "SyntaxError: invalid syntax at config.py:1" in result.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of errors came with Python 3.11")
def test_of_a_group_of_errors_the_first_one_is_named():
    result = watched("raise ExceptionGroup('several', [ValueError('label 7'), KeyError('x')])", ranks=1)

    assert "raised from ValueError: label 7" in result.stderr
