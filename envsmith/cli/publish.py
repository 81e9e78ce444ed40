"""``envsmith publish``: an image that was proved goes to a registry, or into one file, with its proof."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.base.text import clean
from envsmith.cli.console import Console, dumps, print_out, table, warn
from envsmith.cli.declare import ExistingPath, File, Folder, argument, flag, option, several, verb
from envsmith.cli.flags import cells_option
from envsmith.errors import UsageError
from envsmith.net.oci.registry import Repository, parse_reference
from envsmith.publish.archive import verify_archive
from envsmith.publish.cell import find_cell, publish_cell, seal_with, source_of_ci
from envsmith.publish.named_image import find_image, trust_of, verify_image
from envsmith.publish.push import Naming

if TYPE_CHECKING:
    from envsmith.publish.push import Published, PushTarget, Seal
    from envsmith.publish.report import VerifyReport


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishFlags:
    """The options of ``publish``."""

    cell: str | None = argument(required=False)
    to: str | None = option("REGISTRY/REPO", "Where the image goes, without a tag: ghcr.io/me/cells.")
    bundle: File | None = option(
        "Write image and proof into one tar file instead (or as well), for a place without a network."
    )
    key: File | None = option("Private key (PEM) that signs the statement.")
    keyless: bool = flag("Sign with the identity of this CI job through sigstore instead.")
    tags: tuple[str, ...] = several("--tag", "TAG", "A further, moving tag (repeatable): ds0.19, latest.")
    replace: bool = flag("Move the cell's own tag when it leads to another image.")
    layout: ExistingPath | None = option("OCI layout of the image (folder or tar).")
    compress: str | None = option(
        "How the layers are stored: smaller by gzip, or by zstd (quicker; Docker reads it since 23). "
        "Default: as the layout has them.",
        type=click.Choice(["none", "gzip", "zstd"]),
    )
    also: tuple[str, ...] = several("--mount", "REPO", "Repository of that registry to take layers over from.")
    source: str | None = option("--source-url", "URL", "Address of the source, for the annotations.", old=("--source",))
    images_dir: Folder | None = option("Also write the cell's folder of images/: Dockerfile, locks, record, digests.")
    output: Folder = cells_option("Folder of the cells' folders.")
    as_json: bool = flag("--json", "One JSON object on stdout.")

    def targets(self) -> list[PushTarget | Path]:
        """Return where the image goes. ``UsageError`` for a repository with a tag or digest."""
        targets: list[PushTarget | Path] = []
        if self.to is not None:
            reference = parse_reference(self.to)
            if reference.digest or ":" in self.to.rpartition("/")[2]:
                raise UsageError(
                    f"Cannot publish to {self.to}: a repository is needed here, without a tag or digest.",
                    hint="Remove the tag or digest. Use --tag to add tags.",
                )
            targets.append(Repository(reference.registry, reference.repository, push=True, also=self.also))
        return targets if self.bundle is None else [*targets, self.bundle]


@verb(PublishFlags)
def publish(settings: PublishFlags) -> int:
    """Push the image of a cell by digest, with lock, record, bill of materials and a signed statement. The tag comes last.

    CELL is a cell's folder, or its id below --output. It may be left out where there is only one. A cell without a
    passing record of this very image is not published (exit code 1). Interrupted, the same command sends what is
    missing.
    """
    if settings.to is None and settings.bundle is None:
        raise UsageError(
            "Cannot publish an image: no destination is given.",
            hint="Give --to REGISTRY/REPOSITORY, or --bundle FILE.tar.",
        )
    if (settings.key is None) == (not settings.keyless):
        raise UsageError(
            f"Cannot publish an image: it must be signed, and {'both' if settings.keyless else 'neither'} of --key and "
            f"--keyless {'are' if settings.keyless else 'is'} given.",
            hint="Make a key with openssl genpkey -algorithm ed25519 -out key.pem, give --key key.pem, and keep it out of "
            "the repository.",
        )
    directory = find_cell(settings.cell, settings.output)
    seal = seal_with(settings.key)
    source = settings.source or source_of_ci()
    naming = Naming(tags=settings.tags, source=source, replace=settings.replace)
    with Console() as console:
        published = publish_cell(
            directory,
            seal,
            targets=settings.targets(),
            layout=settings.layout,
            packing=settings.compress,
            naming=naming,
            images=settings.images_dir,
            progress=console,
        )
    for one in published:
        if one.expired:
            warn(f"warning: the record expired on {one.claim.expires}; the image is published and marked so")
    print_out(dumps({"published": [_json(one) for one in published]}) if settings.as_json else _text(published, seal))
    return 0


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
        "blobs": dict(one.blobs),
        "attachments": list(one.attachments),
    }


def _text(published: list[Published], seal: Seal) -> str:
    rows = [(f"{one.target}:{tag}", one.digest) for one in published for tag in one.tags]
    one = published[0]
    signed = f"signed by key {seal.by[:16]}" if seal.by else "signed keyless"
    return f"{table(rows)}\npublished: {one.claim.cell}, proved: {' -> '.join(one.claim.rungs)}; {signed}"


# ``envsmith verify``: a published image is whole, unchanged, and somebody who is trusted vouches for it, or it is not.


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyFlags:
    """The options of ``verify``."""

    image: str | None = argument(required=False)
    bundle: ExistingPath | None = option(
        "Verify what is in this file (or OCI layout) without a network; "
        "IMAGE is then a tag or digest in it, or left out."
    )
    keys: tuple[File, ...] = several("--key", "Public key (PEM) of a signer you trust; repeatable.")
    identity: str | None = option("WHO", "Keyless: who must have signed (address or workflow).")
    issuer: str | None = option("URL", "Keyless: who vouches for the identity.")
    layers: bool = option("--layers/--no-layers", "Read every layer and compare its digest.", default=True)
    rebuild: bool = flag("Also build the image again from its lock and compare the digests.")
    history: bool = flag("Also list the earlier records of the image, and of those that it replaced.")
    as_json: bool = flag("--json", "One JSON object on stdout.")


@verb(VerifyFlags)
def verify(settings: VerifyFlags) -> int:
    """Check an image and its proof: manifest, configuration, layers, lock, labels, record, bill, provenance, signature, tag.

    IMAGE is REGISTRY/REPO:TAG, REGISTRY/REPO@sha256:…, or both (the tag must then lead to that digest), or the file of
    a pack archive. Exit code 0: everything is shown. 8: the image differs from its proof (differences are listed). 1: it
    matches, but has no trusted signature.
    """
    if settings.image is None and settings.bundle is None:
        raise UsageError("Cannot verify an image: none is named.", hint="Name an image, or give --bundle FILE.tar.")
    if bool(settings.identity) != bool(settings.issuer):
        raise UsageError(
            "Cannot check the signer: --identity and --issuer belong together.", hint="Give both of them, or neither."
        )
    trust = trust_of(settings.keys, settings.identity, settings.issuer)
    archive = Path(settings.image or "")
    if settings.bundle is None and not archive.is_file() and (archive.exists() or archive.suffix == ".tar"):
        reason = "it is a folder" if archive.exists() else "there is no such file"
        raise UsageError(
            f"Cannot verify {archive}: {reason}.",
            hint="Name an image, the file of a pack archive, or --bundle FILE.tar.",
        )
    if settings.bundle is None and archive.is_file():
        return _show(verify_archive(archive, trust), settings)
    with Console() as console, find_image(settings.image, settings.bundle) as named:
        report = verify_image(
            named, trust, layers=settings.layers, rebuild=settings.rebuild, earlier=settings.history, progress=console
        )
    return _show(report, settings)


def _show(report: VerifyReport, settings: VerifyFlags) -> int:
    print_out(dumps(report.to_json()) if settings.as_json else _report_text(report))
    for check in report.checks if not settings.as_json else []:
        if check.state.value in {"differs", "unproved"}:
            warn(f"{click.style(check.state.value, fg='red')}: {check.part}: {clean(check.text)}")
    return report.exit_code


def _report_text(report: VerifyReport) -> str:
    rows = [(check.part, check.state.value, clean(check.text)) for check in report.checks]
    colour = {"verified": "green", "differs": "red"}.get(report.status, "yellow")
    cell = f", cell {report.covered.claim.cell}" if report.covered else ""
    return f"{table(rows)}\n{click.style(report.status, fg=colour, bold=True)}: {report.where}@{report.digest}{cell}"
