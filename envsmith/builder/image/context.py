"""The folder that is sent to a container build: Dockerfile, requirements, scripts, and artifacts that are on no index.

It is made afresh for every build and removed afterwards; secrets lie beside it, never in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from envsmith.base.files import HashedWriter
from envsmith.builder.image.dockerfile import JOBS, SOURCES, WHEELS, ImageOptions, image_files, source_archive
from envsmith.errors import ContentError, os_errors
from envsmith.lock.index.archives import fetch_archive
from envsmith.model import plain
from envsmith.model.lock import Artifact, CompiledSource, Lock
from envsmith.net.address import parts_of
from envsmith.net.authorities import ca_bundle
from envsmith.net.index_settings import as_toml, index_addresses, netrc_file, pip_values, uv_settings


def write_context(lock: Lock, folder: Path, options: ImageOptions | None = None, *, builder: bool = False) -> None:
    """Fill the empty ``folder`` for the image, or for the ``builder`` of its wheels.

    Raises ``StorageError`` when it cannot be written, ``ContentError`` for an archive or local file that is gone or
    differs from the lock.
    """
    with os_errors("write the build context"):
        layers = _local_artifacts(lock, folder)
        if lock.compiled and (builder or lock.wheels):
            _source_archives(lock, folder / SOURCES)
        options = replace(options or ImageOptions(), wheels=frozenset(layers))
        for name, text in image_files(lock, options, builder=builder).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")


def _local_artifacts(lock: Lock, folder: Path) -> set[str]:
    """Copy every artifact of a folder of this host (``file:`` address) and return the layers that need them."""
    layers: set[str] = set()
    archives = {source.name for source in lock.compiled if source.archive}
    for pin in (pin for pin in lock.pins if pin.name not in archives):
        layer = "torch" if pin.layer == "torch" else "framework"
        for artifact in pin.artifacts:
            if artifact.url and artifact.url.startswith("file:"):
                target = folder / WHEELS / layer / plain.file_name(artifact.filename)
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_checked(artifact, target)
                layers.add(layer)
    return layers


def _source_archives(lock: Lock, folder: Path) -> None:
    """Fetch the archives of what is compiled, compared with the lock. Only the step that needs one sees it."""
    folder.mkdir()
    for source in lock.compiled:
        artifact = _placed(source, source_archive(lock, source.name))
        (folder / plain.file_name(artifact.filename)).write_bytes(fetch_archive(source.name, artifact))


def _placed(source: CompiledSource, artifact: Artifact) -> Artifact:
    """Return the archive with its address. A lock without its ``pylock.toml`` has none for what no index serves."""
    if artifact.url or not source.archive:
        return artifact
    if source.archive == "file":
        raise ContentError(
            f"Cannot find the source archive of {source.name}: the lock was made from a file and does not know "
            "where it is.",
            hint=f"Lock again with --source '{source.name}@ARCHIVE#sha256={artifact.sha256}'.",
        )
    return replace(artifact, url=source.archive)


def _copy_checked(artifact: Artifact, target: Path) -> None:
    source = Path(unquote(parts_of(artifact.url or "").path))
    try:
        with source.open("rb") as read, target.open("wb") as write:
            copy = HashedWriter(write)
            shutil.copyfileobj(read, copy, 1 << 20)
    except FileNotFoundError as error:
        raise ContentError(
            f"Cannot read {source}: {artifact.filename}, which the lock took from here, does not exist.",
            hint="Lock the cell again.",
        ) from error
    if copy.sha256 != artifact.sha256:
        raise ContentError(
            f"Cannot use {source}: its sha256 is {copy.sha256[:16]}…, and the lock says {artifact.sha256[:16]}….",
            hint="Lock the cell again.",
        )


# A compiler of CUDA code takes this much memory at times; more of them than fit would be killed.
_MEMORY_OF_A_JOB = 4 << 30


def compile_jobs() -> int:
    """Return how many compilers run at once: ``MAX_JOBS`` of this host, else its cores as far as its memory allows."""
    named = os.environ.get("MAX_JOBS", "")
    if named.isdecimal() and 0 < int(named) < 1000:
        return int(named)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // _MEMORY_OF_A_JOB))


def write_secrets(settings: HostSettings, folder: Path) -> dict[str, Path]:
    """Write the host's settings below ``folder``, which only this user can enter, and return secret id → file.

    The CA bundle itself is world-readable: apt reads it as a user of its own, and it holds public certificates only.
    """
    secrets: dict[str, Path] = {}
    folder.chmod(0o700)
    for name, source in (("ca", settings.ca), ("netrc", settings.netrc)):
        if source:
            secrets[name] = folder / name
            shutil.copyfile(source, secrets[name])
    if settings.uv_toml:
        secrets["uv"] = folder / "uv.toml"
        secrets["uv"].write_text(settings.uv_toml, encoding="utf-8")
    secrets[JOBS] = folder / JOBS
    secrets[JOBS].write_text(f"{compile_jobs()}\n", encoding="ascii")
    for name, path in secrets.items():
        path.chmod(0o644 if name == "ca" else 0o600)
    return secrets


# What this host needs to reach its package index, for passing into a build as secrets: a CA bundle and index settings.
#
_SYSTEM_BUNDLES = tuple(
    map(Path, ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"))
)
# The predefined build arguments of BuildKit: neither kept in the image nor part of the cache key.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSettings:
    """``ca`` and ``netrc`` are files of this host, ``uv_toml`` is a configuration for uv. It may hold passwords.

    ``proxies`` are variables for the build. ``unreachable`` names settings that point to a folder of this host, which a
    build cannot see.
    """

    ca: Path | None = None
    netrc: Path | None = None
    uv_toml: str = ""
    proxies: tuple[tuple[str, str], ...] = ()
    unreachable: tuple[str, ...] = ()


def read_host_settings(environ: Mapping[str, str] | None = None) -> HostSettings:
    """Collect the settings."""
    env = os.environ if environ is None else environ
    settings = uv_settings(env)
    pip = pip_values(env)
    addresses = (*index_addresses(settings), *pip.get("index-url", "").split(), *pip.get("extra-index-url", "").split())
    folders = dict.fromkeys(address for address in addresses if address.startswith(("file:", "/", ".", "~")))
    if indexes := [index for index in settings.pop("index", []) if index["url"] not in folders]:
        settings["index"] = indexes
    # A build sees no store of this host: what holds the system's authorities goes in as a file.
    bundle = ca_bundle(env) or next((p for p in _SYSTEM_BUNDLES if p.is_file()), None)
    proxies = tuple((n, v) for name in _PROXIES for n in (name, name.lower()) if (v := env.get(n)))
    return HostSettings(
        ca=bundle, uv_toml=as_toml(settings), netrc=netrc_file(env), proxies=proxies, unreachable=tuple(folders)
    )
