"""``envsmith run``: one prefix before any launch, that says which rank failed first, where and why."""

from __future__ import annotations

from dataclasses import dataclass

import click

from envsmith.base.files import write_whole
from envsmith.cli.console import dumps, print_out, say
from envsmith.cli.declare import File, Folder, Section, argument, flag, option, verb
from envsmith.frameworks import EXAMPLE
from envsmith.launch.run.launcher import end_as
from envsmith.launch.run.report import junit, launch_json
from envsmith.launch.run.start import Launch, check_command
from envsmith.launch.run.watch import WatchSettings

# Headings of ``--help``.
_WATCH = Section("Watch")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFlags:
    """The options of ``run``."""

    command: tuple[str, ...] = argument(nargs=-1, metavar="-- LAUNCHER")
    stall: float = _WATCH.option(
        "SECONDS",
        "Report a launch whose ranks have not moved for this long.",
        type=click.FloatRange(min=1.0),
        default=300.0,
    )
    on_hang: str = _WATCH.choice(
        ["warn", "stop"], "Print the verdict and go on, or ask the launcher to end where it is certain.", default="warn"
    )
    preflight: bool = _WATCH.flag("Compare the ranks and try one collective before the first.")
    as_json: bool = flag("--json", "One JSON object on stdout. What the launcher prints goes to stderr.")
    report: File | None = option("FILE", "Write a JUnit report of the ranks, for CI.")
    evidence: Folder | None = option("DIR", "Keep the evidence here, for `doctor --from DIR`.")


@verb(
    RunFlags,
    "envsmith run -- torchrun --nproc-per-node 8 train.py",
    f"envsmith run --on-hang stop --evidence /shared/job-17 -- {EXAMPLE} train.py --{EXAMPLE} ds.json",
)
def run(settings: RunFlags) -> int:
    """Watch a launch from outside, and say which rank failed first, where and why.

    The command runs as it would without this: same results, same output, same exit code. A hook on PYTHONPATH acts in
    each process that has RANK set. When ranks end badly or stand still, one block on stderr names rank, place and
    cause. Several nodes each watch their own ranks, and `doctor --from DIR` compares what they kept.

    Exit code: the launcher's.
    """
    check_command(settings.command)
    launch = Launch(
        command=settings.command,
        settings=WatchSettings(stall=settings.stall, stops=settings.on_hang == "stop"),
        say=say,
        keep=settings.evidence.absolute() if settings.evidence else None,
        preflight="envsmith.preflight" if settings.preflight else "",
        diverts=settings.as_json,
    )
    status = launch.run()
    if settings.report:
        write_whole(settings.report, junit(status, launch.blame, launch.evidence))
    if settings.as_json:
        print_out(dumps(launch_json(status, launch.blame, launch.evidence, launch.kept_in)))
    return end_as(status)
