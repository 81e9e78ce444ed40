"""For all tests: Ctrl-C means Ctrl-C, also where the runner was started in the background, whose shell ignores it."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
