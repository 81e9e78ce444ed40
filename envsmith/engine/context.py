"""The folder that is sent to a container build: the Dockerfile, the requirements, uv, and artifacts that are on no index.

It is made afresh for every build and removed afterwards; secrets lie beside it, never in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envsmith.engine.host_settings import HostSettings
from envsmith.errors import ContentError, EngineError, StorageError
from envsmith.lock.requirements import BUILD_FILE, SDIST_FILE, TORCH_FILE, image_layers, layer_text
from envsmith.model.lock import Artifact, CompiledSource, Lock
from envsmith.render import safe
from envsmith.render.dockerfile import (
    JOBS,
    SOURCES,
    UV_FILE,
    WHEELS,
    ImageOptions,
    render,
    render_builder,
    source_archive,
)

__all__ = ["uv_binary", "write_context", "write_secrets"]


def uv_binary() -> Path:
    """The uv that is installed with envsmith (or on PATH); ``EngineError`` when there is none."""
    found: str | None
    try:
        from uv import find_uv_bin

        found = find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if not found:
        raise EngineError("uv is not installed", hint="install envsmith with its dependencies: uv is one of them")
    return Path(found)


def write_context(
    lock: Lock, folder: Path, options: ImageOptions | None = None, *, builder: bool = False
) -> dict[str, str]:
    """Fill the empty ``folder`` for the image, or for the ``builder`` of its wheels; which layers have files that are on no index is told.

    ``StorageError`` when it cannot be written, ``ContentError`` for an archive or local file that is gone or another than the lock says.
    """
    try:
        layers = _local_artifacts(lock, folder)
        options = replace(options or ImageOptions(), wheels=frozenset(layers))
        # Pins only: a comment with the cell's name would be another torch layer for every cell.
        compiled = {source.name for source in lock.compiled}
        sdists = [pin for pin in lock.pins if pin.layer != "torch" and pin.sdist and pin.name not in compiled]
        if compiled and (builder or lock.wheels):
            _source_archives(lock, folder / SOURCES)
        # The step with torch is in every Dockerfile, whether a lock has anything for it or not.
        for name, pins in {TORCH_FILE: (), **image_layers(lock, built=True if builder else None)}.items():
            (folder / name).write_text(layer_text(pins, lock.wheels), encoding="utf-8")
        (folder / SDIST_FILE).write_text(layer_text(sdists), encoding="utf-8")
        (folder / BUILD_FILE).write_text(layer_text(lock.build_pins), encoding="utf-8")
        text = render_builder(lock, options) if builder else render(lock, options)
        (folder / "Dockerfile").write_text(text, encoding="utf-8")
        uv = folder / UV_FILE
        # With its time: a builder that has this very file is not sent it again (``context_folder``).
        shutil.copy2(uv_binary(), uv)
        uv.chmod(0o755)
    except OSError as error:
        raise StorageError(f"the build context cannot be written: {error.strerror or error}") from error
    return {"layers with local files": " ".join(sorted(layers))}


def _local_artifacts(lock: Lock, folder: Path) -> set[str]:
    """Copy every artifact that the lock found in a folder of this host (``file:`` address); the layers that need them."""
    layers: set[str] = set()
    given = {source.name for source in lock.compiled if source.archive}
    for pin in (pin for pin in lock.pins if pin.name not in given):
        layer = "torch" if pin.layer == "torch" else "framework"
        for artifact in pin.artifacts:
            if artifact.url and artifact.url.startswith("file:"):
                target = folder / WHEELS / layer / safe.file_name(artifact.filename)
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_checked(artifact, target)
                layers.add(layer)
    return layers


def _source_archives(lock: Lock, folder: Path) -> None:
    """The archives of what is compiled: fetched here, held against the lock, and seen by the one step that needs them."""
    from envsmith.sources.archives import fetch_archive

    folder.mkdir()
    for source in lock.compiled:
        artifact = _placed(source, source_archive(lock, source.name))
        (folder / safe.file_name(artifact.filename)).write_bytes(fetch_archive(source.name, artifact))


def _placed(source: CompiledSource, artifact: Artifact) -> Artifact:
    """The archive with its address; a lock without its ``pylock.toml`` has none for what no index serves."""
    if artifact.url or not source.archive:
        return artifact
    if source.archive == "file":
        raise ContentError(
            f"{source.name}: the lock was made from an archive that was given as a file, and does not know where it is",
            hint=f"lock again with --source '{source.name}@ARCHIVE#sha256={artifact.sha256}'",
        )
    return replace(artifact, url=source.archive)


def _copy_checked(artifact: Artifact, target: Path) -> None:
    source = Path(unquote(urlsplit(artifact.url or "").path))
    digest = hashlib.sha256()
    try:
        with source.open("rb") as read, target.open("wb") as write:
            while block := read.read(1 << 20):
                digest.update(block)
                write.write(block)
    except FileNotFoundError as error:
        raise ContentError(
            f"{source}: the lock took {artifact.filename} from here, and it is gone", hint="lock the cell again"
        ) from error
    if digest.hexdigest() != artifact.sha256:
        raise ContentError(
            f"{source}: its sha256 is {digest.hexdigest()[:16]}…, the lock says {artifact.sha256[:16]}…",
            hint="lock the cell again",
        )


# A compiler of CUDA code takes this much memory at times; more of them than fit would be killed.
_MEMORY_OF_A_JOB = 4 << 30


def _jobs() -> int:
    """How many compilers at once: ``MAX_JOBS`` of this host, else its cores, and no more than its memory allows."""
    named = os.environ.get("MAX_JOBS", "")
    if named.isdecimal() and 0 < int(named) < 1000:
        return int(named)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // _MEMORY_OF_A_JOB))


def write_secrets(settings: HostSettings, folder: Path) -> dict[str, Path]:
    """Write the host's settings below ``folder``, which only this user can enter, outside any context; secret id to file.

    The CA bundle itself is world-readable: apt reads it as a user of its own, and it holds public certificates only.
    """
    secrets: dict[str, Path] = {}
    folder.chmod(0o700)
    if settings.ca:
        secrets["ca"] = folder / "ca.pem"
        shutil.copyfile(settings.ca, secrets["ca"])
    if settings.uv_toml:
        secrets["uv"] = folder / "uv.toml"
        secrets["uv"].write_text(settings.uv_toml, encoding="utf-8")
    secrets[JOBS] = folder / JOBS
    secrets[JOBS].write_text(f"{_jobs()}\n", encoding="ascii")
    for name, path in secrets.items():
        path.chmod(0o644 if name == "ca" else 0o600)
    return secrets
