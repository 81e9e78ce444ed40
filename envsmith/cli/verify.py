"""``envsmith verify``: a published image is whole, unchanged, and somebody who is trusted vouches for it, or it is not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import Console, clean, dumps, say, table
from envsmith.errors import UsageError

if TYPE_CHECKING:
    from envsmith.publish.verify import Report

__all__ = ["verify"]


@click.command()
@click.argument("image", required=False)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, exists=True),
    help="Verify what is in this file (or OCI layout) without a network; IMAGE is then a tag or digest in it, or left out.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Public key (PEM) of a signer you trust; repeatable.",
)
@click.option("--identity", metavar="WHO", help="Keyless: who must have signed (address or workflow).")
@click.option("--issuer", metavar="URL", help="Keyless: who vouches for the identity.")
@click.option("--layers/--no-layers", default=True, show_default=True, help="Read every layer and compare its digest.")
@click.option("--rebuild", is_flag=True, help="Also build the image again from its lock and compare the digests.")
@click.option("--audit", is_flag=True, help="Also ask for vulnerabilities that are known today.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--verbose", "-v", is_flag=True, help="Show every layer as it is read.")
def verify(*, image: str | None, as_json: bool, verbose: bool, **how: Any) -> int:
    """Check an image against its proof: manifest, configuration, layers, lock, labels, record, bill of materials, signature, tag.

    IMAGE is REGISTRY/REPO:TAG, REGISTRY/REPO@sha256:…, or both (the tag must then lead to that digest). Exit code 0: everything is shown;
    8: something differs, and is named; 1: nothing differs, but nobody whom you trust has signed it.
    """
    from envsmith.publish import run

    if image is None and how["bundle"] is None:
        raise UsageError("nothing to verify", hint="name an image, or --bundle FILE.tar")
    if bool(how["identity"]) != bool(how["issuer"]):
        raise UsageError("--identity and --issuer belong together")
    trust = run.trust_of(how["keys"], how["identity"], how["issuer"])
    with contextlib.ExitStack() as stack:
        console = stack.enter_context(Console(verbose=verbose))
        asked = stack.enter_context(run.find_image(image, how["bundle"]))
        report = run.verify_image(
            asked, trust, layers=how["layers"], rebuild=how["rebuild"], audit=how["audit"], progress=console
        )
    click.echo(dumps(report.to_json()) if as_json else _text(report))
    for check in report.checks if not as_json else []:
        if check.state.value in {"differs", "unproved"}:
            say(f"{click.style(check.state.value, fg='red')}: {check.part}: {clean(check.text)}")
    return report.exit_code


def _text(report: Report) -> str:
    rows = [(check.part, check.state.value, clean(check.text)) for check in report.checks]
    colour = {"verified": "green", "differs": "red"}.get(report.status, "yellow")
    cell = f", cell {report.claim.cell}" if report.claim else ""
    return f"{table(rows)}\n{click.style(report.status, fg=colour, bold=True)}: {report.where}@{report.digest}{cell}"
