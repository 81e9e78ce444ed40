"""``python -m envsmith`` and the ``envsmith`` command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TextIO

# Allocations between two searches for garbage: about what one verb makes. Python's own default is 700.
_ALLOCATIONS = 100_000


def main() -> None:
    """Run the command line and exit with its code, also when Ctrl-C comes before the command line is there."""
    # Modules and the version graph stay to the end: looking for garbage among them is 4 % of a solve.
    gc.set_threshold(_ALLOCATIONS)
    # A scheduler or `docker stop` ends us by SIGTERM: the same clean way out as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _open_streams()
    try:
        from envsmith.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    _flush(sys.stdout)
    _flush(sys.stderr)
    if "rattler" in sys.modules:
        # Its workers call into an interpreter that is being taken down: with py-rattler 0.28 one run in three crashes.
        os._exit(code)
    # The memory goes back with the process: without this Python visits every object once more, for a tenth of a solve.
    gc.freeze()
    sys.exit(code)


def _open_streams() -> None:
    """Put the null device in place of each standard stream that is closed, before a file of envsmith gets its number."""
    while (handle := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(handle)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - open for as long as the program runs
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


def _flush(stream: TextIO) -> None:
    """Write what was said. What cannot be written is dropped: Python would try again at its end, and exit with 120."""
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
