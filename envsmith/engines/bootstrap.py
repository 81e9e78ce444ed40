"""A base image made on this machine from the distribution's own packages, for hosts that can reach a package mirror but no registry.

``mmdebstrap`` makes the same file system twice from the same mirror state; the image around it is written by hand, with fixed
times, so that its id (the sha256 of its configuration) depends on nothing but the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envsmith import plain
from envsmith.engines.base import failed_step
from envsmith.errors import EngineError
from envsmith.model.cell import Platform
from envsmith.progress import Event, EventKind, Progress

# 2025-01-01T00:00:00Z, as for layers (render/dockerfile.py).
_EPOCH = 1735689600
_SKIPPED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What is bootstrapped: a distribution's code name and the packages beside its essential ones."""

    distribution: str
    include: tuple[str, ...]
    platform: Platform = Platform.LINUX_64


def missing_tool() -> str | None:
    """``None`` when this machine can bootstrap a base, else one sentence that says what it lacks."""
    if not (shutil.which("mmdebstrap") or shutil.which("debootstrap")):
        return "neither mmdebstrap nor debootstrap is installed"
    if os.geteuid() != 0 and not shutil.which("mmdebstrap"):
        return "debootstrap needs root (mmdebstrap does not)"
    return None


def make_root(recipe: Recipe, out: Path, progress: Progress) -> None:
    """Write the root file system as a tar file to ``out``; nothing stays at ``out`` when it fails.

    ``EngineError`` without a tool, ``BuildError`` with the last lines when the tool fails.
    """
    if reason := missing_tool():
        raise EngineError(
            f"no base image can be pulled, and none can be made here: {reason}",
            hint="install mmdebstrap (apt-get install mmdebstrap), or load a base image into the engine and name it with --base",
        )
    step = f"bootstrap of {plain.distribution(recipe.distribution)}"
    progress(Event(kind=EventKind.START, step=step))
    started = time.monotonic()
    partial = out.with_name(out.name + ".partial")
    try:
        if shutil.which("mmdebstrap"):
            _run(step, _mmdebstrap(recipe, partial), progress)
        else:
            _debootstrap(step, recipe, partial, progress)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress(Event(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))


def _packages(recipe: Recipe) -> str:
    return ",".join(plain.os_package(name) for name in recipe.include)


def _mmdebstrap(recipe: Recipe, out: Path) -> list[str]:
    hooks = (
        'printf "127.0.0.1\\tlocalhost\\n::1\\tlocalhost\\n" > "$1/etc/hosts"',
        'echo cell > "$1/etc/hostname"; : > "$1/etc/resolv.conf"; : > "$1/etc/machine-id"',
        'rm -f "$1/var/cache/ldconfig/aux-cache"; rm -rf "$1"/var/log/apt "$1"/var/log/*.log',
    )
    return [
        "mmdebstrap",
        "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
        "--variant=minbase",
        "--format=tar",
        f"--architectures={recipe.platform.docker.split('/')[1]}",
        f"--include={_packages(recipe)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _SKIPPED),
        *(f"--customize-hook={hook}" for hook in hooks),
        recipe.distribution,
        str(out),
        *_mirror(recipe.distribution),
    ]


def _mirror(distribution: str) -> tuple[str, ...]:
    """The host's own package source when it is for the same distribution; otherwise the tool's default mirror."""
    source = Path("/etc/apt/sources.list.d/debian.sources")
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    suites = {word for line in text.splitlines() if line.startswith("Suites:") for word in line.split()[1:]}
    return (str(source),) if distribution in suites else ()


def _debootstrap(step: str, recipe: Recipe, out: Path, progress: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix="envsmith-base-", dir=out.parent) as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={_packages(recipe)}", recipe.distribution, str(root)]
        _run(step, command, progress)
        for wasted in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man"):
            shutil.rmtree(root / wasted, ignore_errors=True)
        for needed in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log"):
            (root / needed).mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(root, arcname=".", filter=_clamped)


def _clamped(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = min(int(member.mtime), _EPOCH)
    member.uname = member.gname = ""
    return member


def _run(step: str, command: list[str], progress: Progress) -> None:
    lines: list[str] = []
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH), "LC_ALL": "C"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                progress(Event(kind=EventKind.LINE, step=step, text=lines[-1]))
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise failed_step(
            step,
            lines,
            hint="check that this machine reaches its distribution's mirror (apt-get update), then run again",
        )


def archive(root: Path, tag: str, platform: Platform) -> tuple[str, Iterator[bytes]]:
    """Wrap a root file system as an image archive that ``docker load`` reads: the image's id and the archive's bytes in chunks.

    The id is known beforehand because it is the sha256 of the configuration, which holds the layer's sha256 and nothing that varies.
    """
    layer = hashlib.sha256()
    with root.open("rb") as file:
        while block := file.read(1 << 20):
            layer.update(block)
    created = "2025-01-01T00:00:00Z"
    config = {
        "architecture": platform.docker.split("/")[1],
        "config": {"Cmd": ["python3"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "created": created,
        "history": [{"created": created, "created_by": "envsmith bootstrap"}],
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{layer.hexdigest()}"], "type": "layers"},
    }
    blob = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    image_id = hashlib.sha256(blob).hexdigest()
    manifest = json.dumps(
        [{"Config": f"{image_id}.json", "Layers": ["layer.tar"], "RepoTags": [tag.format(id=image_id[:12])]}]
    ).encode()
    return f"sha256:{image_id}", _chunks(root, {f"{image_id}.json": blob, "manifest.json": manifest})


def _chunks(root: Path, small: dict[str, bytes]) -> Iterator[bytes]:
    """The archive as a stream: a base of hundreds of megabytes is never held in memory nor written a second time."""
    for name, data in small.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        yield info.tobuf() + data + bytes(-len(data) % 512)
    info = tarfile.TarInfo("layer.tar")
    info.size = root.stat().st_size
    yield info.tobuf()
    with root.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
    yield bytes(-info.size % 512 + 1024)
