"""What a build refused first, in outputs as programs print them, and what the machine lacks."""

from __future__ import annotations

import pytest

from envsmith.agent import compiler_words
from envsmith.agent.compiler_words import CompilerRefusal, refusal_of
from envsmith.agent.protocol import one_line
from envsmith.base.os_packages import NAMES

COMMAND = (
    "x86_64-linux-gnu-g++ -fno-strict-overflow -Wall -fPIC -I/usr/include/python3.13 -c lib/x.c" + " -Iinclude" * 80
)
# Printed on Debian 13 without a compiler, by uv and the backends of the packages named; shortened.
PSUTIL = f"""error: Failed to build `psutil==7.0.0`
  cause: The build backend returned an error
         [stdout]
         building 'psutil._psutil_linux' extension
         {COMMAND}

         [stderr]
         psutil could not be installed from sources because gcc is not installed. Try running:
           sudo apt-get install gcc python3-dev
         error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'
"""
MPI4PY = """         checking for MPI compile and link ...
         failure.
         [stderr]
         error: Cannot compile MPI programs. Check your configuration!!!
         Installing mpi4py requires a working MPI implementation.
"""
CONTOURPY = """         The Meson build system
         ../meson.build:1:0: ERROR: Unknown compiler(s): [['c++'], ['g++'], ['clang++']]
         Running `c++ --version` gave "[Errno 2] No such file or directory: 'c++'"
"""
RPDS = """         Rust not found, installing into a temporary directory
         httpx.ConnectError: [Errno -2] Name or service not known
"""
PYZMQ = """         CMake Error at /cache/cmake/Modules/CMakeDetermineCCompiler.cmake:48 (message):
           Could not find the compiler specified in the environment variable CC:

           x86_64-linux-gnu-gcc.

         CMake Error: CMAKE_C_COMPILER not set, after EnableLanguage
"""
# As CMake, gcc and torch's cpp_extension with ninja write it.
HOROVOD = """CMake Error: CMake was unable to find a build program corresponding to "Unix Makefiles".
CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage
"""
NO_HEADER = f"""{COMMAND}
/tmp/build/src/ops.cpp:12:10: fatal error: mpi.h: No such file or directory
   12 | #include <mpi.h>
error: command '/usr/bin/x86_64-linux-gnu-g++' failed with exit code 1
"""
NINJA = """Error building extension 'deepspeed_shm_comm': [1/3] c++ -MMD -MF shm.o.d -DTORCH_EXTENSION_NAME=x -c /v/shm.cpp
FAILED: [code=127] shm.o
c++ -MMD -MF shm.o.d -DTORCH_EXTENSION_NAME=x -c /v/shm.cpp
/bin/sh: 1: c++: not found
ninja: build stopped: subcommand failed.
"""


@pytest.mark.parametrize(
    ("output", "refusal"),
    [
        (PSUTIL, ("error: [Errno 2] No such file or directory: 'x86_64-linux-gnu-gcc'", "cc")),
        (MPI4PY, ("error: Cannot compile MPI programs. Check your configuration!!!", "mpi")),
        (
            CONTOURPY,
            ("../meson.build:1:0: ERROR: Unknown compiler(s): [['c++'], ['g++'], ['clang++']]", "c++"),
        ),
        (RPDS, ("Rust not found, installing into a temporary directory", "cargo")),
        (PYZMQ, ("CMake Error: CMAKE_C_COMPILER not set, after EnableLanguage", "cc")),
        (HOROVOD, ('CMake Error: CMake was unable to find a build program corresponding to "Unix Makefiles".', "make")),
        (NO_HEADER, ("ops.cpp:12:10: fatal error: mpi.h: No such file or directory", "mpi")),
        (NINJA, ("/bin/sh: 1: c++: not found", "c++")),
        (
            "error: command 'x86_64-linux-gnu-g++' failed: No such file or directory",
            ("error: command 'x86_64-linux-gnu-g++' failed: No such file or directory", "c++"),
        ),
        ("a.c:1:10: fatal error: Python.h: No such file or directory", None),
        ("error: linker `cc` not found", ("error: linker `cc` not found", "cc")),
    ],
)
def test_first_refusal_is_told_and_what_is_missing(output: str, refusal: tuple[str, str] | None) -> None:
    expected = refusal or ("a.c:1:10: fatal error: Python.h: No such file or directory", "headers")
    assert refusal_of(output) == CompilerRefusal(*expected)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "/v/ops.cu:3:1: error: 'x' was not declared\n/v/ops.cu:9:1: error: another",
            "ops.cu:3:1: error: 'x' was not declared",
        ),
        (
            "CMake Error at CMakeLists.txt:20 (message):\n  torch was not found\n",
            "CMake Error at CMakeLists.txt:20 (message): torch was not found",
        ),
        ("/usr/bin/ld: cannot find -lcuda: No such file", "/usr/bin/ld: cannot find -lcuda: No such file"),
        (
            "error: command '/usr/bin/g++' failed with exit code 1",
            "error: command '/usr/bin/g++' failed with exit code 1",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", None),
    ],
)
def test_error_of_a_compiler_that_is_there_is_nothing_missing(output: str, line: str | None) -> None:
    assert refusal_of(output) == CompilerRefusal(line or output, "")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "everything was built",
        "ModuleNotFoundError: No module named 'torch'",
        "/bin/sh: 1: git: not found",  # a setup that asks for its own revision goes on
        "[Errno 2] No such file or directory: '/data/train.bin'",
    ],
)
def test_other_output_is_no_refusal_of_a_compiler(output: str) -> None:
    assert refusal_of(output) is None


def test_every_program_and_header_has_a_name_for_people() -> None:
    assert {*compiler_words._PROGRAMS.values(), *compiler_words._HEADERS.values()} <= set(NAMES)
    assert {what for _, what in compiler_words._ABSENT if what} <= set(NAMES)


def test_failing_extension_is_told_in_one_line_without_its_command() -> None:
    line = one_line(RuntimeError(NINJA))
    assert line == "RuntimeError: Error building extension 'deepspeed_shm_comm': /bin/sh: 1: c++: not found"


def test_endless_line_is_cut() -> None:
    refusal = refusal_of("a.c:1:1: error: " + "x" * 5000)
    assert refusal is not None
    assert len(refusal.line) == 300
