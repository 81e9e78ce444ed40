"""The two verbs as functions: find the cell or the image, do every step, and nothing of the terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import scratch
from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder.engines import choose_engine
from envsmith.builder.engines import rebuild as engine_rebuild
from envsmith.builder.engines.rebuild import LAYOUT
from envsmith.errors import ContentError, EnvsmithError, UsageError
from envsmith.model.record import RECORD_FILE
from envsmith.net.oci.canonical import repack
from envsmith.net.oci.image import OciImage, image_of, open_image
from envsmith.net.oci.layout import REF_NAME, copy_layout, open_files
from envsmith.net.oci.packing import packing_of
from envsmith.net.oci.registry import Repository, parse_reference
from envsmith.net.oci.spec import is_digest
from envsmith.net.oci.store import Store, load_manifest
from envsmith.publish.image_folder import write_folder
from envsmith.publish.proof import load_proof, refuse_unproved
from envsmith.publish.push import OWN_NAME, BundleWriter, Naming, Published, Seal, Target, image_names, publish
from envsmith.publish.sign import load_key, load_signer, open_envelope, sign, sign_keyless
from envsmith.publish.verify import Report, State, Trust, history, verify

# -- publish -----------------------------------------------------------------------------------------------------------


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
        names = ", ".join(folder.name for folder in folders[:8]) or "none"
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
    targets: Sequence[Target | Path],
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


# -- verify ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedImage:
    """An image of a registry or a bundle: its digest, the tag that named it, the digest written beside the tag."""

    store: Store
    digest: str
    tag: str | None = None
    stated_digest: str = ""


def trust_of(keys: Sequence[Path], identity: str | None, issuer: str | None) -> Trust:
    """Return whom to believe, from files and names."""
    return Trust(keys=tuple(load_key(key) for key in keys), identity=identity or "", issuer=issuer or "")


@contextlib.contextmanager
def find_image(image: str | None, bundle: Path | None) -> Iterator[NamedImage]:
    """Look an image up, in a registry or in a bundle. ``UsageError`` when there is none of that name."""
    if bundle is not None:
        store = open_files(bundle)
        with store:
            tag = None if image is None or is_digest(image) else image
            of_bundle = image if image is not None and tag is None else image_of(store, tag)
            names = [entry.annotations.get(REF_NAME) for entry in store.entries if entry.digest == of_bundle]
            yield NamedImage(store=store, digest=of_bundle, tag=tag or next(filter(None, names), None))
        return

    text = image or ""
    reference = parse_reference(text)
    repository = Repository(reference.registry, reference.repository)
    named = ":" in text.partition("@")[0].rpartition("/")[2] or reference.digest is None
    tag = reference.tag if named else None
    digest = repository.resolve(tag) if tag is not None else reference.digest
    if digest is None or (tag is None and repository.manifest(digest) is None):
        raise UsageError(f"Cannot find {text}: the registry has no such image.", hint="Check the name and the tag.")
    yield NamedImage(store=repository, digest=digest, tag=tag, stated_digest=reference.digest or "")


def verify_image(
    image: NamedImage,
    trust: Trust,
    *,
    layers: bool,
    rebuild: bool = False,
    earlier: bool = False,
    progress: Progress = silent,
) -> Report:
    """Make every check of :func:`envsmith.publish.verify.verify`, and a rebuild when it is asked for.

    ``earlier`` adds what was said of the image before, and of those that it replaced.
    """
    clock = Clock(progress)
    clock.start("verify", image.store.name)
    report = verify(
        image.store, image.digest, trust, tag=image.tag, layers=layers, progress=lambda text: clock.line("verify", text)
    )
    clock.done("verify")
    if image.stated_digest not in {"", image.digest}:
        report.add("tag", State.DIFFERS, f"it leads to {image.digest}, not to {image.stated_digest}")
    if rebuild:
        _rebuild(report, image.store, progress)
    for claim in history(image.store, image.digest, trust) if earlier else ():
        text = f"{claim.recorded.date()} {claim.rungs[-1]}, {claim.image[:19]}… of lock {claim.lock[:19]}…"
        report.add("history", State.NOTE, text)
    return report


def _rebuild(report: Report, store: Store, progress: Progress) -> None:
    """Build the lock that was published again and compare file by file with what was published."""
    lock = report.covered.lock if report.covered else None
    if lock is None or report.status == "differs":
        report.add("rebuild", State.UNPROVED, "not tried: there is no lock that could be believed")
        return
    with scratch() as folder:

        def fetch(layout: Path) -> OciImage:
            layout.parent.mkdir(parents=True, exist_ok=True)
            copy_layout(store, report.digest, layout)
            return open_image(layout)

        identity = load_manifest(store, report.digest, "manifest").config.digest
        engine = choose_engine().engine
        rebuilt = engine_rebuild.rebuild(lock, identity, fetch, folder, engine=engine, progress=progress)
    if rebuilt.same:
        report.add("rebuild", State.OK, f"built again from the lock: {rebuilt.second}")
        return
    report.add("rebuild", State.DIFFERS, f"built again from the lock it is {rebuilt.second}")
    for line in rebuilt.differences[:50]:
        report.add("rebuild", State.NOTE, line)
