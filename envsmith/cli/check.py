"""``envsmith check``: judge a set of versions without changing it."""

from __future__ import annotations

import click

from envsmith.cli.console import dumps
from envsmith.cli.findings import FORMATS, judgement_text

__all__ = ["check"]


@click.command()
@click.argument("pairs", nargs=-1, required=True, metavar="NAME==VERSION...")
@click.option(
    "--platform", default="linux-64", show_default=True, metavar="PLATFORM", help="linux-64 or linux-aarch64."
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How findings are written."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def check(*, pairs: tuple[str, ...], platform: str, form: str, as_json: bool) -> int:
    """Judge a given set: any component, e.g. deepspeed==0.14.0 torch==2.6.0 driver==535.54.03 gpu==sm_90 nvcc==12.4.

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
    judgement = api.check(parse_pairs(spelt, components()), platform=where)
    click.echo(dumps(judgement.to_json()) if as_json or form == "json" else judgement_text(judgement, form))
    return 1 if judgement.status == "bad" else 0
