"""What the kernel and tools of this machine say, read from their texts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.launch.ranks.doing import family
from envsmith.launch.run.host import (
    disks_of,
    exit_code,
    family_of,
    look,
    open_process,
    parse_gpu_memory,
    parse_kernel_lines,
    program_of,
)


def test_only_telling_lines_of_this_launch_are_taken_from_the_kernel_s_log():
    lines = [
        "[ 100.000001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "[ 200.000001] NVRM: Xid (PCI:0000:3b:00): 94, pid=77, name=python, Contained: SM",
        "[ 201.000001] eth0: link up",
        "<4>[ 202.500000] python[77]: segfault at 0 ip 1 sp 2 error 4",
    ]

    assert parse_kernel_lines(lines, 150.0) == (lines[1], lines[3])
    assert parse_kernel_lines(lines, 150.0, {78}) == (lines[3],), "the Xid is of a process that is none of its ranks"
    assert parse_kernel_lines(lines, 150.0, {77}) == (lines[1], lines[3])


def test_memory_of_gpus_is_summed_by_process():
    assert parse_gpu_memory("77, 1024\n77, 1\n78, 2\n[N/A], [N/A]\n") == {77: 1025 << 20, 78: 2 << 20}


def test_a_process_is_seen_as_the_kernel_shows_it():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(signal.SIGSTOP)
        while look(process.pid).state != "T":
            pass
        state = look(os.getpid())
        process.kill()

    assert process.pid in {child.pid for child in state.children}
    assert disks_of(os.getpid())[0].size >= 0


def test_the_compiler_below_a_builder_and_its_shells_is_of_the_family():
    command = [sys.executable, "-c", "print(1, flush=True); input()"]
    for _ in range(4):
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # the deepest one runs now
        numbers, states = family_of(process.pid), family(look(process.pid).children)
        process.communicate(b"\n")

    assert len(numbers) == len(states) == 4


@pytest.mark.parametrize(
    ("wait", "has_limit"),
    [
        ("threading.Event().wait(60)", True),
        ("threading.Event().wait()", False),
        ("select.select([], [], [], 60)", True),
        ("select.poll().poll()", False),
        ("signal.sigtimedwait({signal.SIGUSR1}, 60)", True),
        ("signal.sigwaitinfo({signal.SIGUSR1})", False),
    ],
)
def test_a_wait_with_a_time_limit_is_told_from_one_without(wait, has_limit):
    code = f"import select, signal, threading; print(1, flush=True); {wait}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while look(process.pid).state != "S":
            pass
        state = look(process.pid)
        process.kill()

    assert state.has_limit is has_limit


def test_the_command_of_a_process_is_one_line():
    with subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(60)"]) as process:
        while not (command := look(process.pid).command):
            pass  # the kernel has none yet as the program begins
        process.kill()

    assert command == f"{sys.executable} -c import time time.sleep(60)"


def test_a_program_whose_file_is_replaced_by_an_upgrade_is_the_same(tmp_path):
    program = Path(shutil.copy(shutil.which("sleep"), tmp_path))
    with subprocess.Popen([program, "60"]) as process:
        while program_of(process.pid) != str(program):
            pass
        program.unlink()
        replaced = program_of(process.pid)
        process.kill()

    assert replaced == str(program)


def test_the_end_of_a_process_has_its_code_where_the_kernel_tells_it():
    process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    handle = open_process(process.pid)
    process.wait()

    assert exit_code(handle) in {-9, None}
    os.close(handle)
