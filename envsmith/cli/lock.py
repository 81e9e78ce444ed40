"""``envsmith lock``: the cell pinned completely, as files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import Console, dumps, say, table
from envsmith.cli.options import (
    RequestFlags,
    cells_option,
    conda_options,
    conda_settings,
    flavour_option,
    request_options,
    talk_options,
)
from envsmith.cli.solve import show_refusal
from envsmith.cli.sources import parse_sources, source_options
from envsmith.errors import UnsatisfiableError, UsageError
from envsmith.frameworks import EXAMPLE

if TYPE_CHECKING:
    from envsmith.options import Options


@click.command()
@request_options
@cells_option("Folder for the cell's own folder.")
@click.option("--base", metavar="IMAGE", help="Base image of the Dockerfile (NAME[:TAG][@DIGEST]).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["pip", "conda", "all"]),
    default="all",
    show_default=True,
    help="What is written; with 'conda' a channel that refuses or cannot be reached is an error, with 'all' a note.",
)
@flavour_option
@source_options
@conda_options
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; exit 1 when the lock that is there, its Conda part included, is not what this request gives.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: cell, lock digest, files.")
@talk_options
def lock(*, flags: RequestFlags, form: str, check: bool, as_json: bool, talk: dict[str, bool], **how: Any) -> int:
    """Pin the cell completely: requirements with sha256 hashes, pylock.toml, conda-lock.yml, Dockerfile.

    The same request on the same date gives the same bytes; give --exclude-newer to repeat an older one.

    With --format conda the cell is one that the channels have, and lock.json and pylock.toml, which the Conda lock was compared with,
    are the only files of pip's.
    """
    from envsmith import build
    from envsmith import options as envsmith_options

    if not flags.framework and not flags.with_ and flags.torch is None:
        raise UsageError("nothing to lock", hint=f"name a framework: envsmith lock --framework {EXAMPLE}")
    if form == "conda" and how["no_conda"]:
        raise UsageError("--format conda and --no-conda exclude each other")
    sources = parse_sources(how)
    request, compiled = sources.read(flags.request(), offline=how["offline"])
    settings = conda_settings(how, request.exclude_newer)
    if form == "pip":
        settings["conda"] = None
    options = envsmith_options.Options(
        request=request,
        request_text=flags.text(flavour=how["flavour"], sources=sources.text),
        compile=compiled,
        flavour=how["flavour"],
        output=how["output"],
        base=how["base"],
        conda_only=form == "conda",
        **settings,
    )
    try:
        with Console(verbose=talk["verbose"], quiet=talk["quiet"] or check) as console:
            if check:
                return _check(options, console)
            made = build.lock_only(options, progress=console)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=as_json)
    if as_json:
        files = {name: str(made.directory / name) for name in made.files}
        click.echo(
            dumps({"cell": made.cell.to_json(), "lock": made.lock.digest, "files": files, "notes": list(made.notes)})
        )
        return 0
    click.echo(table([(str(made.directory / name), "") for name in made.files]))
    for note in made.notes if not talk["quiet"] else ():
        say(f"note: {note}")
    click.echo(f"locked {made.cell.id}: {len(made.lock.pins)} distributions, {made.lock.digest}")
    return 0


def _check(options: Options, console: Console) -> int:
    from envsmith import build

    difference = build.lock_difference(options, progress=console)
    for line in difference:
        say(line)
    say(
        "the lock is up to date"
        if not difference
        else "the lock is not up to date: run the same command without --check"
    )
    return 1 if difference else 0
