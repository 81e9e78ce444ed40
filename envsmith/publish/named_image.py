"""An image as the user names it, of a registry or a bundle: found, and every check of it made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import scratch
from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder.engines import choose_engine
from envsmith.builder.engines import rebuild as engine_rebuild
from envsmith.errors import UsageError
from envsmith.net.oci.image import OciImage, image_of, open_image
from envsmith.net.oci.layout import REF_NAME, copy_layout, open_files
from envsmith.net.oci.registry import Repository, parse_reference
from envsmith.net.oci.spec import is_digest
from envsmith.net.oci.store import Store, load_manifest
from envsmith.publish.report import CheckState, Trust, VerifyReport
from envsmith.publish.sign import load_key
from envsmith.publish.verify import history, verify


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
) -> VerifyReport:
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
        report.add("tag", CheckState.DIFFERS, f"it leads to {image.digest}, not to {image.stated_digest}")
    if rebuild:
        _rebuild(report, image.store, progress)
    for claim in history(image.store, image.digest, trust) if earlier else ():
        text = f"{claim.recorded.date()} {claim.rungs[-1]}, {claim.image[:19]}… of lock {claim.lock[:19]}…"
        report.add("history", CheckState.NOTE, text)
    return report


def _rebuild(report: VerifyReport, store: Store, progress: Progress) -> None:
    """Build the lock that was published again and compare file by file with what was published."""
    lock = report.covered.lock if report.covered else None
    if lock is None or report.status == "differs":
        report.add("rebuild", CheckState.UNPROVED, "not tried: there is no lock that could be believed")
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
        report.add("rebuild", CheckState.OK, f"built again from the lock: {rebuilt.second}")
        return
    report.add("rebuild", CheckState.DIFFERS, f"built again from the lock it is {rebuilt.second}")
    for line in rebuilt.differences[:50]:
        report.add("rebuild", CheckState.NOTE, line)
