"""What came of running the command once: passed, failed with an error, or not to be judged."""

from __future__ import annotations

import difflib
import re
import signal
from dataclasses import dataclass

# As `git bisect run` has it: this set cannot be judged.
SKIP_STATUS = 125
# Exit statuses of a shell for a command that cannot be run at all: no set of packages changes that.
UNUSABLE = frozenset({126, 127})
# Two error lines with numbers and paths taken out are one error from this likeness on.
_ALIKE = 0.8
_SPEAKER = re.compile(r"^\[?\w*rank\w*\]?:? ?")
_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit|Failure)\b.*")
_FRAME = re.compile(r'\s+File ".{1,400}", line \d+')
# What follows the frames of a traceback names its class, whatever that is called.
_TYPED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::.*)?")
_VARIABLE = re.compile(r"0x[0-9a-f]+|/[\w./+-]+|\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOutcome:
    """``passed`` is ``None`` where the set cannot be judged. ``error`` is one line. ``output`` is the end of the output."""

    passed: bool | None
    error: str = ""
    output: str = ""
    seconds: float = 0.0

    def is_like(self, error: str) -> bool:
        """Return whether it failed in the way that ``error`` says."""
        if _kind(self.error) != _kind(error):
            return False
        first, second = (_VARIABLE.sub("#", text) for text in (self.error, error))
        return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio() >= _ALIKE


def outcome_of(status: int, output: str, seconds: float, errors: str = "") -> TrialOutcome:
    """Return the outcome of a command that ended. A signal is a failure: training code dies of it.

    ``errors`` is what of the output went to stderr. Its last line stands for an error that names no class.
    """
    if status == 0:
        return TrialOutcome(passed=True, seconds=seconds)
    if status == SKIP_STATUS:
        return TrialOutcome(
            passed=None, error=f"exit status {SKIP_STATUS}: the command asks to skip it", seconds=seconds
        )
    last_line = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "") if status > 0 else ""
    error = error_in(output) or last_line[:500] or _named(status)
    return TrialOutcome(passed=False, error=error, output=output, seconds=seconds)


def error_in(output: str) -> str:
    """Return the last line of an output that follows the frames of a traceback or names an exception, or nothing."""
    error, is_below_frames = "", False
    for each in output.splitlines():
        line = _SPEAKER.sub("", each)
        if _FRAME.match(line):
            is_below_frames = True
        elif (is_below_frames and _TYPED.fullmatch(line)) or _EXCEPTION.match(line.strip()):
            error, is_below_frames = line.strip(), False
    return error[:500]


def _named(status: int) -> str:
    if status < 0:
        try:
            return f"ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"ended by signal {-status}"
    return f"exit status {status}"


def _kind(error: str) -> str:
    """Return the class of an exception, or of another error its first words."""
    return re.split(r"[:(\d]", error, maxsplit=1)[0].rpartition(".")[2].strip()
