"""``python -m envsmith`` and the ``envsmith`` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line and exit with its code, also when Ctrl-C comes before the command line is there."""
    # A scheduler or `docker stop` ends us by SIGTERM: the same clean way out as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from envsmith.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    if "rattler" in sys.modules:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End at once: rattler's workers call into an interpreter that is being taken down.

    With py-rattler 0.28 one run in three crashes.
    """
    import os
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
