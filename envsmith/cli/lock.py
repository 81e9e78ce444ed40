"""``envsmith lock``: the cell pinned completely, as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.base.files import read_text, write_whole
from envsmith.cli.console import Console, dumps, live_terminal, print_out, say, table
from envsmith.cli.declare import Folder, Section, group, verb
from envsmith.cli.flags import LockFlags, RequestFlags, cells_option, flavour_option
from envsmith.cli.solve import show_refusal
from envsmith.cli.sources import SourceFlags, lock_options, plan
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.model.finding import UnsatisfiableError
from envsmith.project.uv_and_pixi import PIXI, difference, manifest_of, merged, with_pixi

if TYPE_CHECKING:
    from envsmith.base.progress import Progress
    from envsmith.builder.options import BuildOutcome, Options
    from envsmith.builder.upgrade import Upgrade
    from envsmith.model.lock import Lock


# What ``--upgrade`` means without a name.
_EVERYTHING = "*"
# Headings of ``--help``.
_OUTPUT, _LOCK_AND_NETWORK = map(Section, ("Output", "Lock and network"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PinFlags:
    """The options of ``lock``."""

    request: RequestFlags = group(RequestFlags, "Request")
    output: Folder = cells_option("Folder for the cell's own folder.")
    base: str | None = _OUTPUT.option("IMAGE", "Base image (NAME[:TAG][@DIGEST]), or packages.")
    form: str = _OUTPUT.choice(
        ["pip", "conda", "uv", "pixi", "all"],
        "--format",
        "What is written. With 'conda' an unreachable channel is an error, with 'all' a note. 'uv' also merges the "
        "versions into the pyproject.toml of --project, 'pixi' into its pixi.toml or [tool.pixi].",
        default="all",
    )
    flavour: str = flavour_option()
    sources: SourceFlags = group(SourceFlags, "Sources")
    locking: LockFlags = group(LockFlags, "Lock and network")
    check: bool = _LOCK_AND_NETWORK.flag(
        "Write nothing. Exit 1 when the existing lock is out of date for this request."
    )
    upgrade: tuple[str, ...] = _LOCK_AND_NETWORK.several(
        "NAME",
        "Lock again with a newer release of this package and keep all else; repeatable. Without NAME keep nothing.",
        is_flag=False,
        flag_value=_EVERYTHING,
    )
    yes: bool = _OUTPUT.flag("With --format uv or pixi: write the project's file without asking.")
    as_json: bool = _OUTPUT.flag("--json", "One JSON object on stdout: cell, lock digest, files.")


@verb(
    PinFlags,
    f"envsmith lock {EXAMPLE}",
    f"envsmith lock {EXAMPLE} --format pip --exclude-newer 2026-11-01",
    f"envsmith lock {EXAMPLE} --check",
    f"envsmith lock {EXAMPLE} --upgrade transformers",
)
def lock(settings: PinFlags) -> int:
    """Pin the cell completely: requirements with sha256 hashes, pylock.toml, conda-lock.yml, Dockerfile.

    The same request on the same date gives the same bytes. Give --exclude-newer to repeat an older one.

    With --format conda the cell is one that the channels have, and lock.json and pylock.toml, which the Conda lock was
    compared with, are the only files of pip's.
    """
    from envsmith.builder import existing  # --help waits for no installer

    flags, locking = settings.request, settings.locking
    flags.refuse_nothing("lock a cell", "lock")
    if settings.form == "conda" and locking.no_conda:
        raise UsageError(
            "Cannot combine --format conda with --no-conda: they contradict each other.", hint="Leave one of them out."
        )
    if settings.upgrade and (settings.check or locking.locked or locking.frozen):
        raise UsageError(
            "Cannot combine --upgrade with --check, --locked or --frozen: these keep the lock as it is.",
            hint="Leave one of them out.",
        )
    if settings.form == "uv" and flags.project is None:
        raise UsageError("Cannot write a pyproject.toml: no project is named.", hint="Add --project DIR.")
    try:
        with Console(quiet=True if settings.check else None) as console:
            options, inferred = plan(flags, partial(_options, settings), console)
            if settings.check:
                return _check(existing.lock_difference(options, progress=console))
            outcome, moved = _locked(options, settings.upgrade, console)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    files = {name: str(outcome.directory / name) for name in outcome.files}
    if flags.project is not None and settings.form in {"uv", "pixi"}:
        _merge(settings.form, flags.project, outcome.lock, write=settings.yes)
    elif settings.form == "pixi":
        files[PIXI] = str(outcome.directory / PIXI)
        write_whole(outcome.directory / PIXI, with_pixi("", outcome.lock, PIXI))
    if settings.as_json:
        digest, notes = outcome.lock.digest, list(outcome.notes)
        answer = {"cell": outcome.cell.to_json(), "lock": digest, "files": files, "notes": notes, **inferred}
        print_out(dumps({**answer, **({"moved": moved.moved, "obstacles": moved.obstacles} if moved else {})}))
        return 0
    print_out(table([(path, "") for path in files.values()]))
    for note in outcome.notes:
        say(f"note: {note}")
    for line in (*(moved.moved or ["nothing moved"]), *moved.obstacles) if moved else ():
        print_out(line)
    print_out(f"locked {outcome.cell.id}: {len(outcome.lock.pins)} distributions, {outcome.lock.digest}")
    return 0


def _locked(options: Options, names: Sequence[str], progress: Progress) -> tuple[BuildOutcome, Upgrade | None]:
    """Return the lock, and what moved in it where that was asked for."""
    from envsmith.builder import arrow, upgrade

    if not names:
        return arrow.lock_only(options, progress=progress), None
    moved = upgrade.upgrade(options, () if _EVERYTHING in names else names, progress=progress)
    return moved.outcome, moved


def _options(settings: PinFlags, flags: RequestFlags) -> Options:
    return lock_options(
        flags,
        settings.sources,
        settings.locking,
        flavour=settings.flavour,
        conda=not settings.locking.no_conda and settings.form not in {"pip", "uv", "pixi"},
        output=settings.output,
        base=settings.base,
        conda_only=settings.form == "conda",
    )


def _merge(form: str, folder: Path, lock: Lock, *, write: bool) -> None:
    """Show what a project of uv or pixi needs as a diff, and write it when the user says so."""
    path = folder / "pyproject.toml" if form == "uv" else manifest_of(folder)
    old = read_text(path) if form == "uv" or path.is_file() else ""
    new = merged(old, lock) if form == "uv" else with_pixi(old, lock, path.name)
    if old == new:
        say(f"{path} has the versions of {lock.cell.id} already")
        return
    say(difference(old, new, str(path)))
    if write or (live_terminal() and click.confirm(f"Write {path}?", err=True)):
        write_whole(path, new)
        say(f"wrote {path}. Run {'uv lock, then uv sync --locked' if form == 'uv' else 'pixi install'}.")
    else:
        say(f"{path} was not written. Add --yes to write it.")


def _check(differences: Sequence[str]) -> int:
    for line in differences:
        say(line)
    say(f"the lock is {'not up to date: run the same command without --check' if differences else 'up to date'}")
    return 1 if differences else 0
