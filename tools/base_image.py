"""Measure which packages make a base (``--measure``), or make an image of Debian's for a host without a registry.

Measured are the rows of ``packages`` in ``matrix/bases.yaml``: what apt would install on nothing, by exact version. apt
reads the host's own sources of Debian and the indexes of any architecture, and installs nothing.

Without ``--measure`` an image is made and loaded into the container engine: the tool that unpacks a base from packages
(``ENVSMITH_TOOL=NAME``), or itself a base (``--base NAME``). ``mmdebstrap`` makes the same file system twice from the
same state of the mirror. The image around it is written by hand with fixed times, so its id depends on nothing but the
file system.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from envsmith.base.progress import EventKind, Progress, ProgressEvent
from envsmith.builder.engines.base import TAIL
from envsmith.builder.engines.buildkit import judge
from envsmith.builder.engines.docker import DockerEngine
from envsmith.builder.engines.podman import PodmanEngine
from envsmith.builder.image.dockerfile import ImageOptions
from envsmith.errors import EngineError, EnvsmithError
from envsmith.model import plain
from envsmith.model.cell import Platform

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
    return f"envsmith/base:{distribution}-{image_id[7:19]}"


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
    progress(ProgressEvent(kind=EventKind.START, step=step))
    started = time.monotonic()
    partial = out.with_name(out.name + ".partial")
    try:
        _run(step, _mmdebstrap(distribution, include, partial, platform), progress)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    progress(ProgressEvent(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))


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
                progress(ProgressEvent(kind=EventKind.LINE, step=step, text=lines[-1]))
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


# What a minimal root is, and what each need adds to it. apt's own patterns.
_ROOT = ("?essential", "?priority(required)", "apt", "usr-is-merged")
_NEEDS = {
    "base": (*INCLUDE,),
    "c++": ("g++",),
    "cc": ("gcc", "libc6-dev"),
    "cluster": (
        "git",
        "ibverbs-providers",
        "libibverbs1",
        "numactl",
        "openssh-client",
        "openssh-server",
        "pdsh",
        "rdma-core",
    ),
    "headers": ("libpython{python}-dev",),
    "make": ("make",),
}
_INST = re.compile(r"^Inst (\S+) \((\S+)", re.MULTILINE)


def measure(distribution: str, platform: Platform) -> str:
    """Return the rows of a distribution and platform as they stand in ``matrix/bases.yaml``, and the indexes' day."""
    architecture = platform.docker.split("/")[1]
    with tempfile.TemporaryDirectory(prefix="envsmith-measure-") as folder:
        apt = _private_apt(Path(folder), distribution, architecture)
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        dates = [
            parsedate_to_datetime(line.partition(": ")[2])
            for file in Path(folder).glob("lists/*InRelease")
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.startswith("Date: ")
        ]
        root = _installed(apt, _ROOT)
        lines = [f"# {distribution} {platform.value}: indexes of {max(dates):%Y-%m-%dT%H:%M:%SZ}"]
        for need, names in _NEEDS.items():
            packages = [name.format(python=PYTHONS[distribution]) for name in names]
            closure = dict(_installed(apt, (*_ROOT, *packages)))
            if need != "base":
                closure = {name: version for name, version in closure.items() if name not in dict(root)}
            lines += _row(distribution, platform, need, packages, closure)
    return "\n".join(lines) + "\n"


def _private_apt(folder: Path, distribution: str, architecture: str) -> list[str]:
    """Return apt-get with a state of its own: nothing installed, and the sources of the host for the distribution."""
    host = Path("/etc/apt/sources.list.d/debian.sources").read_text(encoding="utf-8")
    codename = next(line.split()[1] for line in host.splitlines() if line.startswith("Suites:"))
    for name in ("lists/partial", "cache/archives/partial", "sources", "preferences"):
        (folder / name).mkdir(parents=True)
    (folder / "sources" / "debian.sources").write_text(host.replace(codename, distribution), encoding="utf-8")
    (folder / "status").touch()
    settings = {
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": folder / "preferences",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
    }
    return ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]


def _installed(apt: list[str], names: tuple[str, ...]) -> list[tuple[str, str]]:
    answer = subprocess.run([*apt, "--simulate", "install", *names], check=True, capture_output=True, text=True)
    return _INST.findall(answer.stdout)


def _row(distribution: str, platform: Platform, need: str, packages: list[str], closure: dict[str, str]) -> list[str]:
    pairs = [f'"{plain.os_package(n)}": "{plain.os_version(v)}"' for n, v in sorted(closure.items())]
    return [
        f"- distribution: {distribution}",
        f"  platform: {platform.value}",
        f"  need: {need}",
        f"  install: [{', '.join(packages)}]",
        f"  evidence: apt-{distribution}",
        *textwrap.wrap(
            f"closure: {{{', '.join(pairs)}}}",
            width=150,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        ),
    ]


def main() -> int:
    """Make the base that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distribution", choices=sorted(PYTHONS), default="bookworm")
    parser.add_argument("--engine", choices=["docker", "podman"], default="docker")
    parser.add_argument("--measure", action="store_true", help="print rows for matrix/bases.yaml")
    arguments = parser.parse_args()
    if arguments.measure:
        for platform in Platform:
            sys.stdout.write(measure(arguments.distribution, platform))
        return 0

    def show(event: ProgressEvent) -> None:
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
        f"ENVSMITH_TOOL={name} envsmith build --engine {arguments.engine} --base packages "
        f"--python {PYTHONS[arguments.distribution]}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
