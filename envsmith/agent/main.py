"""Read the flags and the plan, then supervise ranks or be one."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence

from envsmith.agent.direct import direct_main
from envsmith.agent.launched import run_launched
from envsmith.agent.launchers import discover
from envsmith.agent.protocol import Exit, KeepingLog, Log, Row
from envsmith.agent.supervisor import Supervisor


def parse_flags(argv: Sequence[str]) -> Row:
    import argparse

    parser = argparse.ArgumentParser(description="Smoke test of the interpreter that runs this file.")
    parser.add_argument(
        "mode", nargs="?", default="file", choices=("file", "supervise", "rank", "launched"), help=argparse.SUPPRESS
    )
    parser.add_argument("--plan", help="the plan, a JSON file: `Plan.build(…).to_json()`")
    parser.add_argument("--events", help="append JSON lines here (%%r is the rank) instead of standard output")
    for name in ("--rank", "--world-size", "--local-rank", "--master-port"):
        parser.add_argument(name, type=int)
    parser.add_argument("--master-addr")
    return vars(parser.parse_args(list(argv)))


def private_output() -> Log:
    """Return our own copy of standard output. What else is printed goes to standard error."""
    sys.stdout.flush()
    log = Log(os.dup(1))
    os.dup2(2, 1)
    return log


def _end_with_input() -> None:
    """End this rank with its input, which the machine that started it holds open."""
    while os.read(0, 1 << 16):
        pass
    os._exit(Exit.ERROR)


def main(argv: Sequence[str]) -> int:
    flags = parse_flags(argv)
    if flags["mode"] == "supervise":
        plan = json.loads(sys.stdin.buffer.readline())
        return Supervisor(plan, private_output(), watch_stdin=True).main()
    if flags["mode"] == "launched":
        return run_launched(flags["plan"])
    if flags["mode"] == "rank":
        plan = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=_end_with_input, daemon=True).start()
    elif flags["plan"]:
        with open(flags["plan"]) as file:
            plan = json.load(file)
    else:
        sys.stderr.write("agent: --plan FILE is needed\n")
        return Exit.CONFIGURATION
    place = discover(os.environ, flags)
    out = private_output()
    if flags["events"]:
        name = flags["events"].replace("%r", str(place.rank if place else 0))
        out = Log(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644))
    if plan.get("gather"):
        out = KeepingLog(out.fd)
    if place is None or place.world == 1:
        return Supervisor(plan, out, watch_stdin=False).main()
    return direct_main(plan, place, out)
