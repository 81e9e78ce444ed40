"""Every failure that a user can meet, one class a kind, each with its own exit code.

The command line prints ``message`` and ``hint`` and exits with ``exit_code``. No traceback unless ``--traceback`` is
given. The table of exit codes in the documentation is generated from :data:`EXIT_CODES`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class EnvsmithError(Exception):
    """A failure with a sentence for the person in front of the screen.

    ``message`` says what is wrong and where. ``hint`` what to do next. ``details`` are further lines (the last lines of
    a failed step, or every problem of a file), shown below the message.
    """

    exit_code: int = 1
    summary: str = "the answer is no: unsatisfiable request, bad environment, failed smoke test"

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)

    @property
    def reason(self) -> str:
        """Return the reason alone, as a clause for another sentence: "Cannot <verb> <object>: <reason>."."""
        return self.message.partition(": ")[2].removesuffix(".") or self.message

    def to_json(self) -> dict[str, object]:
        """Return what ``--json`` prints of a failure."""
        answer: dict[str, object] = {"message": self.message, "hint": self.hint, "exit_code": self.exit_code}
        return answer | ({"details": list(self.details)} if self.details else {})

    def __str__(self) -> str:
        return "\n".join([self.message, *self.details, *([f"hint: {self.hint}"] if self.hint else [])])


class UsageError(EnvsmithError):
    """The request cannot be understood: an unknown name, a malformed version or spec, a contradictory flag."""

    exit_code = 2
    summary = "usage: an unknown name, a malformed version, spec or option"


class DataError(EnvsmithError):
    """A file of ``matrix/``, a lock or a record does not parse. ``details`` lists every problem with its key path."""

    exit_code = 3
    summary = "data: a YAML, lock or record file is broken; every problem is listed"


class LockError(EnvsmithError):
    """The package layer cannot be resolved or pinned completely for the cell. ``names`` are the packages at fault."""

    exit_code = 4
    summary = "lock: the package layer cannot be resolved or pinned completely"

    def __init__(
        self, message: str, *, hint: str | None = None, details: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.names = tuple(names)


class ContradictionError(LockError):
    """The packages of a cell contradict each other. ``names`` are those whose requirements the resolver mentions.

    ``required`` are those that it ends with, as what it was asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Sequence[str] = (),
        names: Sequence[str] = (),
        required: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint, details=details, names=names)
        self.required = tuple(required)


class MissingProgramError(LockError):
    """A source needs a compiler, a header or another program that this host lacks."""


class NetworkError(EnvsmithError):
    """An index, registry or channel cannot be reached, or answers with something that is not an answer."""

    exit_code = 5
    summary = "network: an index, registry or channel is unreachable or answers nonsense"


class EngineError(EnvsmithError):
    """The container engine is missing, not running, or refuses, or this host lacks a program that a build needs."""

    exit_code = 6
    summary = "engine: no usable container engine, interpreter, compiler or base image"


class BuildError(EnvsmithError):
    """A build step failed. ``details`` holds its last lines."""

    exit_code = 7
    summary = "build: a step failed; its last lines are shown"


class ContentError(EnvsmithError):
    """What is installed differs from what the lock or label says, or a hash does not match."""

    exit_code = 8
    summary = "content: an artifact, image or environment differs from its lock (hash or version)"


class SmokeError(EnvsmithError):
    """The smoke test could not be run, or what it shows is this machine's fault (a cell that failed is exit code 1)."""

    exit_code = 9
    summary = "smoke: the test could not be started, or what it shows is not the environment's fault"


class StorageError(EnvsmithError):
    """The disk is full or a file cannot be written. Nothing half-written is left."""

    exit_code = 10
    summary = "storage: the disk is full or a path cannot be written"


class InterruptedRunError(EnvsmithError):
    """Ctrl-C or SIGTERM: what was finished is kept, nothing half-written is left (130 is the shell's convention)."""

    exit_code = 130
    summary = "interrupted by Ctrl-C or SIGTERM; run the same command again to resume"


class LeftAsideWarning(UserWarning):
    """A file that cannot be used was left aside, and the work went on without it."""


@contextmanager
def os_errors(work: str, failure: type[EnvsmithError] = StorageError, *, hint: str | None = None) -> Iterator[None]:
    """Raise ``failure`` instead of an ``OSError``: "Cannot ``work``" (verb and object), and the system's reason."""
    try:
        yield
    except OSError as error:
        raise failure(f"Cannot {work}: {error.strerror or error}.", hint=hint) from error


@dataclass(frozen=True)
class SystemRefusal:
    """What the operating system refuses: in a sentence, by the words of any program, by its numbers, and what to do.

    Only the disk's have numbers. ``is_of_machine`` is false for what may be the fault of what was run.
    """

    sentence: str
    words: str
    numbers: tuple[int, ...] = ()
    hint: str = ""
    is_of_machine: bool = True

    @property
    def is_full(self) -> bool:
        """Return whether space is what lacks."""
        return errno.ENOSPC in self.numbers or errno.EDQUOT in self.numbers


_SPACE = "Free some space, then run the same command again: it resumes."
_LIMIT = "Raise the limit, then run the same command again: it resumes."
_PLACE = "Check the path and its permissions, or choose another place with --output."
# The first whose words stand in a text is meant. Rust prints the number as well.
_REFUSALS = (
    SystemRefusal("the disk is full", r"[Nn]o space left on device|ENOSPC|os error 28\b|\[Errno 28\]", (errno.ENOSPC,), _SPACE),
    SystemRefusal("the disk quota is used up", r"[Dd]isk quota exceeded|EDQUOT|os error 122\b|\[Errno 122\]", (errno.EDQUOT,), _SPACE),
    SystemRefusal("the file system is read-only", r"Read-only file system|os error 30\b", (errno.EROFS,), _PLACE),
    SystemRefusal("permission is denied", r"Permission denied \(os error 13\)", (errno.EACCES, errno.EPERM), _PLACE, is_of_machine=False),
    SystemRefusal("a disk cannot be read or written", r"Input/output error|os error 5\b|Stale file handle"),
    SystemRefusal("too few open files are allowed (ulimit -n)", r"Too many open files|os error 24\b"),
    SystemRefusal("too few processes are allowed", r"can't start new thread|pthread_create failed|Resource temporarily unavailable"),
    SystemRefusal("memory is short", r"[Cc]an(?:not|'t) allocate memory(?! in static TLS)|not enough memory|\bMemoryError|bad_alloc|failed to map segment"),
    SystemRefusal("a file may not be as large as it must be (ulimit -f)", r"File too large|os error 27\b", (errno.EFBIG,), _LIMIT),
    SystemRefusal("a port is taken by another program", r"Address already in use|EADDRINUSE"),
    SystemRefusal("the network is unreachable", r"Cannot assign requested address|Network is unreachable|Address family not supported"),
)  # fmt: skip


def refusal_of_machine(text: str) -> SystemRefusal | None:
    """Return what the machine is short of where a text holds the operating system's refusal."""
    return next((each for each in _REFUSALS if each.is_of_machine and re.search(each.words, text)), None)


def refusal_of_disk(text: str) -> SystemRefusal | None:
    """Return why a program could not write, where its words say so."""
    return next((each for each in _REFUSALS if each.numbers and re.search(each.words, text)), None)


def is_of_disk(error: OSError) -> bool:
    """Return whether an ``OSError`` of any kind of work speaks of the disk, not of the work."""
    return any(error.errno in each.numbers for each in _REFUSALS)


def storage_error(error: OSError, path: object) -> StorageError:
    """Return the failure of a write to ``path``, with what to do about a full disk or a missing permission."""
    for refusal in _REFUSALS:
        if error.errno in refusal.numbers:
            return StorageError(f"Cannot write {path}: {refusal.sentence}.", hint=refusal.hint)
    in_the_way = isinstance(error, (FileExistsError, NotADirectoryError))
    reason = f"{error.filename} is not a folder" if in_the_way else error.strerror or str(error)
    return StorageError(f"Cannot write {path}: {reason}.", hint=_PLACE)


def is_of_the_system(error: EnvsmithError) -> bool:
    """Return whether a failure is this machine's, its engine's or its network's: it says nothing about a cell."""
    kinds = (StorageError, NetworkError, EngineError, MissingProgramError, SmokeError, InterruptedRunError)
    return isinstance(error, kinds) or refusal_of_machine(str(error)) is not None


EXIT_CODES: dict[int, str] = {
    0: "fine",
    EnvsmithError.exit_code: EnvsmithError.summary,
    **{kind.exit_code: kind.summary for kind in EnvsmithError.__subclasses__()},
    141: "output was closed before it was complete (for example by `head`)",
}
