"""``envsmith publish``: an image that was proved goes to a registry, or into one file, with its proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import Console, dumps, say, table
from envsmith.cli.flags import cells_option
from envsmith.errors import UsageError

if TYPE_CHECKING:
    from envsmith.publish.push import Published, Seal, Target

__all__ = ["publish"]


@click.command()
@click.argument("cell", required=False)
@click.option("--to", "to", metavar="REGISTRY/REPO", help="Where the image goes, without a tag: ghcr.io/me/cells.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write image and proof into one tar file instead (or as well), for a place without a network.",
)
@click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False), help="Private key (PEM) that signs the statement."
)
@click.option("--keyless", is_flag=True, help="Sign with the identity of this CI job through sigstore instead.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A further, moving tag (repeatable): ds0.19, latest.")
@click.option("--replace", is_flag=True, help="Move the cell's own tag when it leads to another image.")
@click.option("--layout", type=click.Path(path_type=Path, exists=True), help="OCI layout of the image (folder or tar).")
@click.option(
    "--mount", "also", multiple=True, metavar="REPO", help="Repository of that registry to take layers over from."
)
@click.option("--source", metavar="URL", help="Address of the source, for the annotations.")
@click.option(
    "--audit/--no-audit", default=True, show_default=True, help="Ask for known vulnerabilities of the packages."
)
@click.option(
    "--images-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write the cell's folder of images/: Dockerfile, locks, record, digests.",
)
@cells_option("Folder of the cells' folders.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--verbose", "-v", is_flag=True, help="Show every blob.")
def publish(*, cell: str | None, as_json: bool, verbose: bool, **how: Any) -> int:
    """Push the image of a cell by digest, with lock, record, bill of materials and a signed statement; the tag comes last.

    CELL is a cell's folder, or its id below --output; it may be left out where there is only one. A cell without a passing record of this very
    image is not published (exit code 1). Interrupted, the same command sends what is missing.
    """
    if how["to"] is None and how["bundle"] is None:
        raise UsageError("nowhere to publish to", hint="--to REGISTRY/REPO, or --bundle FILE.tar")
    if (how["key"] is None) == (not how["keyless"]):
        raise UsageError(
            "a published image is signed: give --key FILE or --keyless",
            hint="openssl genpkey -algorithm ed25519 -out key.pem makes a key; keep it out of the repository",
        )
    from envsmith.publish import run

    directory = run.find_cell(cell, how["output"])
    seal = run.seal_with(how["key"])
    with Console(verbose=verbose) as console:
        done = run.publish_cell(
            directory,
            seal,
            targets=_targets(how),
            layout=how["layout"],
            tags=how["tags"],
            source=how["source"] or run.source_of_ci(),
            replace=how["replace"],
            audit=how["audit"],
            images=how["images_dir"],
            progress=console,
        )
    for one in done:
        if one.expired:
            say(f"warning: the record expired on {one.claim.expires}; the image is published and marked so")
    audit = str(done[0].claim.audit.get("status") or "not audited")
    say(f"known vulnerabilities: {audit}")
    click.echo(dumps({"published": [_json(one) for one in done]}) if as_json else _text(done, seal))
    return 0


def _targets(how: dict[str, Any]) -> list[Target | Path]:
    from envsmith.publish.registry import Repository
    from envsmith.sources.registry import parse_reference

    found: list[Target | Path] = []
    if how["to"] is not None:
        reference = parse_reference(how["to"])
        if reference.digest or ":" in how["to"].rpartition("/")[2]:
            raise UsageError(
                f"--to {how['to']}: a repository without tag or digest was expected", hint="--tag adds tags"
            )
        found.append(Repository(reference.registry, reference.repository, push=True, also=tuple(how["also"])))
    if how["bundle"] is not None:
        found.append(how["bundle"])
    return found


def _json(one: Published) -> dict[str, object]:
    return {
        "target": one.target,
        "digest": one.digest,
        "tags": list(one.tags),
        "cell": one.claim.cell,
        "lock": one.claim.lock,
        "rungs": list(one.claim.rungs),
        "expires": one.claim.expires.isoformat(),
        "expired": one.expired,
        "audit": dict(one.claim.audit),
        "blobs": dict(one.blobs),
        "attachments": list(one.attachments),
    }


def _text(done: list[Published], seal: Seal) -> str:
    rows = [(f"{one.target}:{tag}", one.digest) for one in done for tag in one.tags]
    one = done[0]
    signed = f"signed by key {seal.by[:16]}" if seal.by else "signed keyless"
    return f"{table(rows)}\npublished: {one.claim.cell}, proved: {' -> '.join(one.claim.rungs)}; {signed}"
