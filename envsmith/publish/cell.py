"""A cell as the user names it: found, and published to every target, with nothing of the terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from envsmith.base.files import scratch
from envsmith.base.keyless import sign_keyless
from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder.engines.rebuild import LAYOUT
from envsmith.errors import ContentError, EnvsmithError, UsageError
from envsmith.model.record import RECORD_FILE
from envsmith.net.oci.canonical import repack
from envsmith.net.oci.image import open_image
from envsmith.net.oci.packing import packing_of
from envsmith.publish.bundle import BundleWriter
from envsmith.publish.image_folder import write_folder
from envsmith.publish.proof import load_proof, refuse_unproved
from envsmith.publish.push import OWN_NAME, Naming, Published, PushTarget, Seal, image_names, publish
from envsmith.publish.sign import load_signer, open_envelope, sign


def find_cell(named: str | None, output: Path) -> Path:
    """Return the folder of a cell: as a path, as an id below ``output``, or the only one with a record."""
    if named is not None:
        for folder in (Path(named), output / named):
            if (folder / "lock.json").is_file():
                return folder
        raise UsageError(
            f"Cannot find {named}: it is neither a cell's folder nor a cell below {output}.",
            hint="Make one with envsmith build.",
        )
    folders = sorted(path.parent for path in output.glob(f"*/{RECORD_FILE}"))
    if len(folders) != 1:
        if not folders:
            raise UsageError(
                f"Cannot choose a cell: none below {output} has a record.", hint="Make one with envsmith build."
            )
        names = ", ".join(folder.name for folder in folders[:8])
        raise UsageError(
            f"Cannot choose a cell: {output} holds {len(folders)} with a record ({names}).", hint="Name one."
        )
    return folders[0]


def source_of_ci() -> str:
    """Return the address of the source, where the CI says it."""
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    return f"{server}/{name}" if server and name else ""


def seal_with(key: Path | None) -> Seal:
    """Return the seal of a key file, or a keyless one."""
    if key is None:
        return Seal(close=sign_keyless)

    signer = load_signer(key)

    def opens(bundle: bytes) -> bytes:
        opened = open_envelope(bundle, [signer.public_key])
        if not opened.signer:
            raise ContentError("Cannot verify the statement: this key did not sign it.")
        return opened.payload

    return Seal(close=lambda payload: sign(payload, signer), opens=opens, by=str(signer.public_key.keyid))


def publish_cell(
    directory: Path,
    seal: Seal,
    *,
    targets: Sequence[PushTarget | Path],
    layout: Path | None = None,
    packing: str | None = None,
    naming: Naming = OWN_NAME,
    images: Path | None = None,
    progress: Progress = silent,
) -> list[Published]:
    """Publish the cell in ``directory`` to every target (a path is a bundle's), and report each."""
    clock = Clock(progress)
    proof = load_proof(directory)
    # Before gigabytes are written or read: what is wrong with the record itself, whatever the image is.
    refuse_unproved(proof, images={"image": proof.record.image or ""})
    clock.start("image")
    image = open_image(layout or _layout(directory), check=True)
    size = sum(blob.size for blob in image.manifest.blobs)
    clock.done("image", f"{image.digest[:19]}…, {size / 1e6:.1f} MB")
    refuse_unproved(proof, images=image_names(image))
    published = []
    with contextlib.ExitStack() as stack:
        if packing is not None and any(packing_of(layer.media_type) != packing for layer in image.manifest.layers):
            image = repack(image, stack.enter_context(scratch(directory)) / LAYOUT, packing, progress=progress)
        for target in targets:
            clock.start("publish", str(target) if isinstance(target, Path) else target.name)
            with BundleWriter(target) if isinstance(target, Path) else contextlib.nullcontext(target) as place:
                one = publish(proof, image, place, seal, naming, progress=progress)
            clock.done("publish", ", ".join(f"{count} blobs {outcome}" for outcome, count in sorted(one.blobs.items())))
            published.append(one)
        if images is not None:
            write_folder(images, proof, image, published)
    return published


def _layout(directory: Path) -> Path:
    """Return where the image of a cell lies as an OCI layout."""
    if (directory / LAYOUT / "index.json").is_file():
        return directory / LAYOUT
    raise EnvsmithError(
        f"Cannot publish {directory.name}: it has no image as an OCI layout ({LAYOUT}/).",
        hint="Build it with envsmith build --oci, which tests the very image that is published.",
    )
