"""podman, and buildah beside it: images as docker makes them, without a daemon and by another builder.

podman answers the SDK of docker on a socket of its own, which is started here for as long as it is needed when no
service runs. The build goes through ``podman build`` or ``buildah build``, which know secrets, mounts from stages and a
fixed time for everything they write. What they write differs from BuildKit's in headers and order only; the exported
layout is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.base.files import read_text, scratch
from envsmith.base.programs import end, execute, start
from envsmith.base.progress import EventKind, Progress, ProgressEvent
from envsmith.builder.engines import buildkit
from envsmith.builder.engines.base import TAIL, Built
from envsmith.builder.engines.container import NETWORK_VARIABLE, ContainerEngine
from envsmith.builder.engines.docker_target import DockerTarget, cdi_devices
from envsmith.builder.engines.shelf import engine_errors, refused, tool_argument
from envsmith.builder.image.context import read_host_settings, write_context, write_secrets
from envsmith.builder.image.dockerfile import ImageOptions
from envsmith.errors import EngineError, EnvsmithError, os_errors
from envsmith.model.lock import Lock

if TYPE_CHECKING:
    from envsmith.net.oci.image import OciImage
    from envsmith.smoke.run import SmokeTarget

# Seconds without a request after which a service that was started here ends.
_IDLE = 900
_STEP = re.compile(r"(?:\[(\d+)/\d+\] )?STEP (\d+)/\d+: (.*)")
_CACHED = re.compile(r"--> Using cache ")


# Where podman looks for its init process, a package of its own in some distributions; without one ``--init`` fails.
_INIT_FOLDERS = ("/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/local/lib/podman")


def has_init(folders: Sequence[str] = _INIT_FOLDERS) -> bool:
    """Return whether podman can put an init process (catatonit) into a container."""
    return any(shutil.which("catatonit", path=folder) for folder in (*folders, os.environ.get("PATH", "")))


class PodmanEngine(ContainerEngine):
    """Builds with ``podman build``."""

    # The program that builds, too.
    name = "podman"
    # While podman 4.3 keeps a layer, it lies in the container, in two archives below TMPDIR, and in the layer. Measured
    # on 2026-11-22 with Megatron-core on torch 2.15, an image of 5.7 GB: 21.0 GB, for a layer of 5.3 GB with torch.
    # The archives count for the disk of the engine, wherever TMPDIR is.
    copies_built = 4
    copies_exported = ((2, 2), (2, 1))

    def __init__(self, options: ImageOptions | None = None) -> None:
        super().__init__(options)
        self._service: subprocess.Popen[bytes] | None = None
        self._folder = contextlib.ExitStack()

    def available(self) -> str | None:
        """Return why podman cannot be used. No service is started for it."""
        for program in dict.fromkeys(("podman", self.name)):
            if shutil.which(program) is None:
                return f"{program} is not installed"
        try:
            import docker  # noqa: F401
        except ImportError:
            return "the Python package docker, with which podman's service is asked, is not installed"
        try:
            answer = execute(["podman", "info", "--format", "{{.Version.APIVersion}}"], seconds=20)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"podman does not answer: {error}"
        return None if answer.returncode == 0 else f"podman does not work here: {answer.stderr.strip()[-200:]}"

    def unused(self) -> str | None:
        """Return one sentence while podman holds no image: it is often installed but never set up."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            listing = execute([self.name, "images", "--quiet"], seconds=20)
            if listing.returncode == 0 and listing.stdout.strip():
                return None
        return f"it holds no image yet (--engine {self.name} takes it all the same)"

    @cached_property
    def client(self) -> Any:
        """Return the SDK's client on podman's service: the one that ``CONTAINER_HOST`` names, or one of our own."""
        import docker

        address = os.environ.get("CONTAINER_HOST") or self._serve()
        with engine_errors("reach podman's service"):
            client = docker.DockerClient(base_url=address, timeout=600)
            client.ping()
            return client

    def _serve(self) -> str:
        """Start a service that ends by itself after :data:`_IDLE` seconds, and return its address."""
        socket = self._folder.enter_context(scratch()) / "socket"
        command = ["podman", "system", "service", f"--time={_IDLE}", f"unix://{socket}"]
        quiet = subprocess.DEVNULL
        with os_errors("start podman", EngineError):
            self._service = start(command, stdin=quiet, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + 60
        while not socket.exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                hint = "Try it by hand: podman system service --time=5."
                raise EngineError(
                    "Cannot start podman's service: it ended, or did not answer within a minute.", hint=hint
                )
            time.sleep(0.05)
        return f"unix://{socket}"

    def close(self) -> None:
        """End the service that was started here."""
        if "client" in self.__dict__:
            self.client.close()
        if self._service is not None:
            end(self._service, signals=(signal.SIGTERM, signal.SIGKILL), patience=10.0)
            self._service = None
        self._folder.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @cached_property
    def network(self) -> str | None:
        """Return the network of build steps: podman's own default, unless the variable names one."""
        return os.environ.get(NETWORK_VARIABLE) or None

    def run_build(self, lock: Lock, scratch: Path, progress: Progress, *, cache: bool, output: Path | None) -> str:
        """Build by ``podman build`` or ``buildah build``."""
        context, private = scratch / "context", scratch / "private"
        context.mkdir()
        private.mkdir(mode=0o700)
        settings = read_host_settings()
        write_context(lock, context, self.options, builder=output is not None)
        dockerfile = scratch / "Dockerfile"
        dockerfile.write_text(with_keys(read_text(context / "Dockerfile"), context), encoding="utf-8")
        identity = scratch / "image"
        command = [self.name, "build", "--format=oci", "--layers", f"--timestamp={self.options.epoch}"]
        command += [f"--file={dockerfile}"]
        command += (
            [f"--iidfile={identity}"] if output is None else ["--target=built", f"--output=type=local,dest={output}"]
        )
        command += [f"--network={self.network}"] if self.network else []
        command += [] if cache else ["--no-cache"]
        command += [f"--secret=id={name},src={path}" for name, path in write_secrets(settings, private).items()]
        # Their values are taken from the environment and stand in no process list.
        variables = dict((*settings.proxies, *tool_argument()))
        command += [f"--build-arg={name}" for name in variables]
        transcript = StepTranscript(progress)
        code = buildkit.follow([*command, str(context)], {**os.environ, **variables}, transcript)
        if code:
            raise transcript.error()
        transcript.finish()
        return "" if output else identity.read_text(encoding="ascii").strip()

    def _send(self, image: OciImage, layout: Path, present: int) -> None:
        """Let podman read the folder of the layout. Layers that it has are skipped.

        The service would keep the archive as it came, unpacked, and each layer once more (17 GB for an image of 6 GB).
        A service that ``CONTAINER_HOST`` names sees no folder of this host.
        """
        if os.environ.get("CONTAINER_HOST"):
            super()._send(image, layout, present)
            return
        answer = execute(["podman", "load", "--quiet", f"--input={layout.name}"], cwd=layout.parent)
        if answer.returncode:
            raise refused(f"Cannot load the image into the engine: {answer.stderr.strip()[-300:]}.")
        # podman names what it reads after the folder.
        execute(["podman", "untag", image.identity, answer.stdout.rpartition(" ")[2].strip()])

    def target(self, built: Built) -> SmokeTarget:
        """Return the image by its id, with the host's GPUs for a cell with CUDA."""
        gpus = built.facts.get("cuda", "cpu") != "cpu" and cdi_devices()
        return DockerTarget(
            image=built.image,
            python=built.python,
            client="podman",
            init=has_init(),
            gpu_arguments=("--device=nvidia.com/gpu=all",) if gpus else (),
        )


class BuildahEngine(PodmanEngine):
    """Builds with ``buildah build``; podman runs what it built."""

    name = "buildah"


@dataclass(slots=True)
class StepTranscript:
    """Reads ``STEP n/m: …`` line by line: instructions of the Dockerfile become steps, other lines are kept for a failure."""

    progress: Progress
    title: str = ""
    began: float = 0.0
    cached: bool = False
    lines: list[str] = field(default_factory=list)

    def feed(self, line: str) -> None:
        """Take one line of output."""
        if match := _STEP.fullmatch(line):
            self.finish()
            self.lines, self.cached, self.began = [], False, time.monotonic()
            self.title = buildkit.title_of(match[3])
            self._tell(EventKind.START)
        elif _CACHED.match(line):
            self.cached = True
        else:
            self.lines = [*self.lines[-3 * TAIL :], line]
            self._tell(EventKind.LINE, line)

    def _tell(self, kind: EventKind, text: str = "", *, seconds: float | None = None) -> None:
        if self.title:
            self.progress(ProgressEvent(kind=kind, step=self.title, text=text, seconds=seconds))

    def finish(self) -> None:
        """Announce the end of the step that ran."""
        if self.cached:
            self._tell(EventKind.CACHED)
        else:
            self._tell(EventKind.DONE, seconds=time.monotonic() - self.began)
        self.title = ""

    def error(self) -> EnvsmithError:
        """Return the error that the last step's own lines speak of."""
        self._tell(EventKind.FAILED)
        return buildkit.judge(self.title or "the build", buildkit.last_words(self.lines))


# A Dockerfile whose steps podman and buildah can keep without taking one for another.
#
# Their cache compares the words of a step, and not the files that it mounts (containers/buildah#4522 and #6609): the
# layer with one torch would be taken for another. A stage that comes whole from the cache cannot be mounted in buildah
# 1.28 (containers/buildah#4375), but a stage without steps that stands on it can. Both were seen on 2026-11-22.

_MOUNTED_FILE = re.compile(r"--mount=type=bind,source=([^,\s]+)")
_MOUNTED_STAGE = re.compile(r"(--mount=type=bind,from=)([\w-]+)")
_STAGE = re.compile(r"FROM \S+ AS (\S+)", re.IGNORECASE)
_KEPT = "-kept"


def with_keys(text: str, context: Path) -> str:
    """Return a Dockerfile in which each step names all that it depends on, as a comment of its command.

    That is every instruction before it and every file of ``context`` that was mounted so far. Order and files of a
    Dockerfile are such that cells share their first steps.
    """
    key = hashlib.sha256()
    mounted = {stage for _, stage in _MOUNTED_STAGE.findall(text)}
    lines, stage = [], ""
    for instruction in _instructions(text):
        key.update(instruction.encode())
        if instruction.startswith("FROM "):
            lines += [f"FROM {stage} AS {stage}{_KEPT}"] if stage in mounted else []
            named = _STAGE.match(instruction)
            stage = named[1] if named else ""
        for name in _MOUNTED_FILE.findall(instruction):
            _add(key, context / name)
        comment = f" # {key.hexdigest()[:16]}" if instruction.startswith("RUN ") else ""
        lines.append(_MOUNTED_STAGE.sub(rf"\1\2{_KEPT}", instruction) + comment)
    return "\n".join(lines) + "\n"


def _instructions(text: str) -> Iterator[str]:
    """Yield each instruction with its continued lines, without comments and blank lines."""
    instruction = ""
    for line in text.splitlines():
        if not instruction and (not line.strip() or line.startswith("#")):
            continue
        instruction += line
        if line.endswith("\\"):
            instruction += "\n"
        else:
            yield instruction
            instruction = ""


def _add(key: hashlib._Hash, path: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            key.update(f"{file.relative_to(path.parent)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
