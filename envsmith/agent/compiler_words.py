"""What a compiler, or what starts it, refused first: one line of an output that may have thousands."""

from __future__ import annotations

import re
from typing import NamedTuple


class CompilerRefusal(NamedTuple):
    """The line that says why, and the program or header that the machine lacks: a key of ``os_packages.NAMES``."""

    line: str
    missing: str


# A program by its plain name, without the target before it (x86_64-linux-gnu-) and the release behind it (-12).
_PROGRAMS = {
    "c++": "c++", "g++": "c++", "clang++": "c++", "cc": "cc", "gcc": "cc", "clang": "cc", "make": "make",
    "gmake": "make", "cmake": "cmake", "ninja": "ninja", "mpicc": "mpi", "mpicxx": "mpi", "cargo": "cargo",
    "rustc": "cargo", "gfortran": "fortran",
}  # fmt: skip
_HEADERS = {"Python.h": "headers", "pyconfig.h": "headers", "mpi.h": "mpi"}
_PROGRAM = re.compile(r"(?:[\w.-]*-linux-gnu-)?([a-z][a-z+]*?)(?:-\d[\d.]*)?")
# Words with which a program says that another one is not there; the group is its name, or else the second item says it.
_ABSENT = (
    (re.compile(r"command '([^']+)' failed: No such file or directory"), ""),
    (re.compile(r"\[Errno 2\] No such file or directory: '([^']+)'"), ""),
    (re.compile(r"\b(?:ba|da|z)?sh: (?:line )?(?:\d+: )?(\S+): (?:command )?not found"), ""),
    (re.compile(r"fatal error: (\S+): No such file or directory"), ""),
    (re.compile(r"Unknown compiler\(s\): \[\['([^']+)'"), ""),
    (re.compile(r"error: linker `([^`]+)` not found"), ""),
    (re.compile(r"No CMAKE_CXX_COMPILER could be found|CMAKE_CXX_COMPILER not set"), "c++"),
    (re.compile(r"No CMAKE_C_COMPILER could be found|CMAKE_C_COMPILER not set|no acceptable C compiler found"), "cc"),
    (re.compile(r'unable to find a build program corresponding to "Unix Makefiles"'), "make"),
    (re.compile(r'unable to find a build program corresponding to "Ninja"'), "ninja"),
    (re.compile(r"can't find Rust compiler|Cargo, the Rust package manager, is not installed|Rust not found"), "cargo"),
    (re.compile(r"[Cc]ould (?:NOT|not) find MPI\b|[Cc]annot find MPI\b|error: Cannot compile MPI programs"), "mpi"),
)
_REFUSED = re.compile(
    r"(?:^|[\s/])([^\s/]+:\d+(?::\d+)?: (?:(?:fatal )?error|ERROR): .+)"
    r"|((?:fatal )?error: command '[^']+' failed\b.*)"
    r"|(nvcc fatal\s*: .+)|((?:(?<!\S)\S*/)?ld: (?:cannot find|undefined reference).+)"
    r"|(error(?:\[E\d+\])?: (?:linker|could not compile) .+)"
)
# setuptools' last word; uv's own has no indent.
_SETUPTOOLS = re.compile(r"^\s+error: (?!subprocess-exited)(.+)", re.MULTILINE)
_CMAKE = re.compile(r"CMake Error(?: at .+|: .+)")
_LONGEST = 300


def refusal_of(text: str) -> CompilerRefusal | None:
    """Return what was refused first. What the machine lacks comes before what the compiler makes of that."""
    lines = [line.strip() for line in text.splitlines()]
    for line in lines:
        missing = _missing(line)
        if missing:
            return CompilerRefusal(_plain(line), missing)
    for number, line in enumerate(lines):
        match = _REFUSED.search(line)
        if match:
            return CompilerRefusal(_plain(next(group for group in match.groups() if group)), "")
        if _CMAKE.match(line):
            # The sentence stands below the place.
            below = lines[number + 1 : number + 3] if line.endswith(":") else []
            return CompilerRefusal(_plain(" ".join([line, *filter(None, below)])), "")
    match = _SETUPTOOLS.search(text)
    return CompilerRefusal(_plain(f"error: {match[1].strip()}"), "") if match else None


def _missing(line: str) -> str:
    """Return what the machine lacks by this line, or an empty text."""
    for pattern, what in _ABSENT:
        match = pattern.search(line)
        if match is None:
            continue
        if what:
            return what
        name = match[1].rpartition("/")[2]
        program = _PROGRAM.fullmatch(name)
        program_key = _HEADERS.get(name) or (_PROGRAMS.get(program[1], "") if program else "")
        if program_key:
            return program_key
    return ""


def _plain(line: str) -> str:
    """Return the line without the folders in which it was said."""
    short = re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+(?=[^\s/:'\"]+:\d)", "", line)
    return short if len(short) <= _LONGEST else short[: _LONGEST - 1] + "…"
