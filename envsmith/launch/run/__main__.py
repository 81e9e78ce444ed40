"""``python -m envsmith.launch.run``: ``envsmith run`` where only the probe is installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envsmith.errors import EnvsmithError
from envsmith.launch.run.launcher import end_as
from envsmith.launch.run.start import Launch, check_command
from envsmith.launch.run.watch import WatchSettings


def main() -> int:
    """Parse, watch, and end as the launcher did."""
    parser = argparse.ArgumentParser(
        prog="python -m envsmith.launch.run", description="Say which rank of a launch failed first, where and why."
    )
    parser.add_argument(
        "--stall", type=float, default=300.0, help="report ranks that have not moved for so many seconds"
    )
    parser.add_argument("--on-hang", choices=["warn", "stop"], default="warn", help="go on, or ask the launcher to end")
    parser.add_argument("--preflight", action="store_true", help="compare the ranks and try one collective first")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="keep the evidence here")
    parser.add_argument("command", nargs="*", metavar="-- LAUNCHER")
    flags = parser.parse_args()
    try:
        check_command(flags.command)
        launch = Launch(
            command=flags.command,
            settings=WatchSettings(stall=flags.stall, stops=flags.on_hang == "stop"),
            say=_say,
            keep=flags.evidence.absolute() if flags.evidence else None,
            preflight=flags.preflight,
        )
        return end_as(launch.run())
    except EnvsmithError as error:
        _say(f"error: {error}")
        return error.exit_code


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
