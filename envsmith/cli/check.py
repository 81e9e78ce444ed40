"""``envsmith check``: judge a set of versions without changing it."""

from __future__ import annotations

import click

from envsmith.cli.console import dumps
from envsmith.cli.findings import FORMATS, judgement_text

__all__ = ["check"]


@click.command()
@click.argument("pairs", nargs=-1, metavar="[NAME==VERSION...]")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE",
    help="Take the versions of a file (environment.yml, conda-lock.yml, pixi.lock, @EXPLICIT, 'conda list', a pip lock or freeze); "
    "'-' is stdin; repeatable; a NAME==VERSION beside it wins.",
)
@click.option(
    "--platform", default="linux-64", show_default=True, metavar="PLATFORM", help="linux-64 or linux-aarch64."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How findings are written."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def check(*, pairs: tuple[str, ...], sources: tuple[str, ...], platform: str, form: str, as_json: bool) -> int:
    """Judge a given set: any component, e.g. deepspeed==0.14.0 torch==2.6.0 driver==535.54.03 gpu==sm_90 nvcc==12.4.

    A version may be '*' (some release of it is there) or none (it is known to be absent).

    Exit code 0 when nothing speaks against it (status ok or unknown), 1 when it is bad.
    """
    from envsmith.cli.options import parse_pairs
    from envsmith.errors import UsageError
    from envsmith.graph import components, gpu_names
    from envsmith.model.platform import Platform
    from envsmith.solve import api

    try:
        where = Platform.parse(platform)
    except ValueError as error:
        raise UsageError(f"--platform: {error}") from None
    names = gpu_names()
    spelt = [f"gpu=={names[v.lower()]}" if (v := p.partition("==")[2]).lower() in names else p for p in pairs]
    if not pairs and not sources:
        raise UsageError(
            "nothing to check",
            hint="envsmith check deepspeed==0.14.0 torch==2.6.0, or envsmith check --from conda-lock.yml",
        )
    given = {**_told(sources), **parse_pairs(spelt, components())}
    judgement = api.check(given, platform=where)
    click.echo(dumps(judgement.to_json()) if as_json or form == "json" else judgement_text(judgement, form))
    return 1 if judgement.status == "bad" else 0


def _told(sources: tuple[str, ...]) -> dict[str, str]:
    """The components that files name, by the readers of ``doctor``; ``UsageError`` for a file that names none."""
    if not sources:
        return {}
    from envsmith.cli.console import say
    from envsmith.errors import UsageError
    from envsmith.sources.reports import Draft, read_text

    draft = Draft()
    for source in sources:
        text, notes = _open(source)
        read = read_text(text, draft, source, tuple(notes))
        say(f"{source}: {', '.join(read.kinds) or 'not recognised'}")
    facts = draft.done()
    versions = {name: fact.version for name, fact in facts.components.items() if fact.exact}
    if not versions:
        raise UsageError(
            f"{', '.join(sources)}: no version of a component is told there",
            hint="known are environment.yml, conda-lock.yml, pixi.lock, conda list, pip list, pip freeze and logs",
        )
    return versions


def _open(source: str) -> tuple[str, list[str]]:
    """The text of a file or of stdin, bounded; ``UsageError`` when it cannot be read."""
    import sys
    from pathlib import Path

    from envsmith.errors import UsageError
    from envsmith.sources.reports import read_bounded

    if source == "-":
        return read_bounded(sys.stdin.buffer)
    try:
        with Path(source).open("rb") as file:
            return read_bounded(file)
    except OSError as error:
        raise UsageError(f"--from {source}: {error.strerror or error}", hint="give a file, or - for stdin") from error
