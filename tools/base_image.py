"""Make a base image from Debian's packages and load it into the container engine, for a host without a registry.

Prints the name for ``envsmith build --base NAME --python X.Y``. ``mmdebstrap`` makes the same file system twice from
the same state of the mirror. The image around it is written by hand with fixed times, so its id depends on nothing but
the file system.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envsmith import plain
from envsmith.engines.base import TAIL
from envsmith.engines.buildkit import judge
from envsmith.engines.docker import DockerEngine
from envsmith.engines.podman import PodmanEngine
from envsmith.errors import EngineError, EnvsmithError
from envsmith.image.dockerfile import ImageOptions
from envsmith.model.cell import Platform
from envsmith.progress import Event, EventKind, Progress

# The Python of each distribution.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
INCLUDE = ("ca-certificates", "python3", "python3-venv")
_SKIPPED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def base_image(client: Any, distribution: str, progress: Progress) -> str:
    """Make the base, load it through the SDK's ``client`` and return its name, which holds its id."""
    platform = Platform.host()
    with tempfile.TemporaryDirectory(prefix="envsmith-base-") as folder:
        root = Path(folder) / "root.tar"
        make_root(distribution, INCLUDE, root, progress, platform=platform)
        image_id, chunks = archive(root, f"envsmith/base:{distribution}-{{id}}", platform)
        for _ in client.api.load_image(chunks):
            pass
    name = f"envsmith/base:{distribution}-{image_id[7:19]}"
    if client.images.get(name).id != image_id:
        raise EngineError(f"the engine gave {name} another id than its content has")
    return name


def make_root(
    distribution: str,
    include: tuple[str, ...],
    out: Path,
    progress: Progress,
    *,
    platform: Platform = Platform.LINUX_64,
) -> None:
    """Write the root file system as a tar file to ``out``. Nothing stays at ``out`` when it fails.

    Raises ``EngineError`` without ``mmdebstrap``, and ``BuildError`` with its last lines when it fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise EngineError(
            "mmdebstrap is not installed",
            hint="apt-get install mmdebstrap, or load a base image into the engine and name it with --base",
        )
    step = f"base image of {plain.distribution(distribution)}"
    progress(Event(kind=EventKind.START, step=step))
    started = time.monotonic()
    partial = out.with_name(out.name + ".partial")
    try:
        _run(step, _mmdebstrap(distribution, include, partial, platform), progress)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress(Event(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))


def _mmdebstrap(distribution: str, include: tuple[str, ...], out: Path, platform: Platform) -> list[str]:
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
        f"--architectures={platform.docker.split('/')[1]}",
        f"--include={','.join(plain.os_package(name) for name in include)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _SKIPPED),
        *(f"--customize-hook={hook}" for hook in hooks),
        distribution,
        str(out),
        *_mirror(distribution),
    ]


def _mirror(distribution: str) -> tuple[str, ...]:
    """Return the host's own package source when it is for the same distribution. The tool has a default."""
    source = Path("/etc/apt/sources.list.d/debian.sources")
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    suites = {word for line in text.splitlines() if line.startswith("Suites:") for word in line.split()[1:]}
    return (str(source),) if distribution in suites else ()


def _run(step: str, command: list[str], progress: Progress) -> None:
    lines: list[str] = []
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(ImageOptions().epoch), "LC_ALL": "C"}
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
        hint = "check that this machine reaches its distribution's mirror (apt-get update), then run again"
        raise judge(step, lines[-TAIL:], hint=hint)


def archive(root: Path, tag: str, platform: Platform) -> tuple[str, Iterator[bytes]]:
    """Return the image's id and its archive in chunks, as ``docker load`` reads it.

    The id is known beforehand. It is the sha256 of the configuration, which holds the layer's sha256 and nothing that
    varies.
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
    """Stream the archive: a base of hundreds of megabytes is never held in memory nor written a second time."""
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


def main() -> int:
    """Make the base that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distribution", choices=sorted(PYTHONS), default="bookworm")
    parser.add_argument("--engine", choices=["docker", "podman"], default="docker")
    arguments = parser.parse_args()

    def show(event: Event) -> None:
        sys.stderr.write(f"{event.text}\n" if event.kind is EventKind.LINE else f"{event.step}: {event.kind.value}\n")

    engine = DockerEngine() if arguments.engine == "docker" else PodmanEngine()
    try:
        name = base_image(engine.client, arguments.distribution, show)
    except EnvsmithError as error:
        lines = (f"error: {error.message}", *error.details, *([f"hint: {error.hint}"] if error.hint else ()))
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return error.exit_code
    sys.stdout.write(f"{name}\n")
    sys.stderr.write(
        f"envsmith build --engine {arguments.engine} --base {name} --python {PYTHONS[arguments.distribution]}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
