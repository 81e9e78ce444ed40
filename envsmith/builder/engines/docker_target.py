"""The smoke test's way into an image: one container a run, removed by its own name whatever happens."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.base.programs import execute
from envsmith.builder.engines import buildkit
from envsmith.errors import DataError, EngineError

# Ranks exchange data through shared memory; docker's own 64 MB make NCCL and DeepSpeed's op fail at once.
_SHARED_MEMORY = "2g"


# Where the container device interface keeps what NVIDIA's toolkit wrote.
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


def cdi_devices(folders: Sequence[Path] = _CDI_FOLDERS) -> bool:
    """Return whether ``nvidia-ctk cdi generate`` wrote a specification of NVIDIA's devices where engines look."""
    for folder in folders:
        for path in (*folder.glob("*.yaml"), *folder.glob("*.json")):
            with contextlib.suppress(DataError):
                if b"nvidia.com/gpu" in read_bounded(path, 1 << 20)[:4096]:
                    return True
    return False


def gpu_arguments(client: Any, folders: Sequence[Path] = _CDI_FOLDERS) -> tuple[str, ...]:
    """Return how the engine hands all GPUs to a container, or nothing where it cannot.

    ``--gpus`` with the NVIDIA runtime or its hook beside a local engine, else CDI where the engine reads
    specifications and one is there.
    """
    info: Mapping[str, Any] = {}
    with contextlib.suppress(Exception):
        info = client.info()
    if "nvidia" in (info.get("Runtimes") or {}):
        return ("--gpus=all",)
    if info.get("CDISpecDirs") and cdi_devices(folders):
        return ("--device=nvidia.com/gpu=all",)
    if shutil.which("nvidia-container-runtime-hook") and shutil.which("nvidia-smi"):
        return ("--gpus=all",)
    return ()


# What an engine says when it cannot hand over the GPUs, what that means, and what to do; first match wins.
_TOOLKIT = "Install NVIDIA's container toolkit on the host of the engine, then: "
_REFUSED: tuple[tuple[str, str, str], ...] = (
    (
        r'could not select device driver "cdi"|nvidia\.com/gpu=all is not an absolute path',
        "this engine, or its client, reads no specification of devices (CDI)",
        "Update Docker to 25 or newer and switch its feature cdi on (daemon.json, then restart it)",
    ),
    (
        r"could not select device driver|unknown runtime.*nvidia",
        "the engine has no NVIDIA runtime",
        f"{_TOOLKIT}nvidia-ctk runtime configure --runtime=docker, and restart the engine",
    ),
    (
        r"unresolvable CDI device|CDI device injection failed|failed to inject CDI|nvidia\.com/gpu=",
        "the specification of its devices (CDI) does not say what nvidia.com/gpu=all is",
        f"{_TOOLKIT}nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        r"nvidia-container-cli|nvidia-container-runtime|libnvidia-ml",
        "NVIDIA's runtime fails on this host",
        "Mend the driver of the host until nvidia-smi works: it is missing, or differs from the loaded module",
    ),
)
# The engine itself could not start the container; 126 and 127 are the command inside.
_ENGINE_FAILED = 125
_LINES = 5


def refusal(status: int | None, words: str, *, gpus: bool) -> EngineError | None:
    """Return the error of a container that was never started, from the client's status and words, or ``None``."""
    lines = tuple(line for line in words.strip().splitlines() if line.strip() and "--help" not in line)[-_LINES:]
    for pattern, why, hint in _REFUSED:
        if gpus and re.search(pattern, "\n".join(lines)):
            return EngineError(
                f"Cannot give the host's GPUs to the container of the smoke test: {why}.",
                details=lines,
                hint=f"{hint}. Or build without the smoke test: --no-smoke.",
            )
    if status == _ENGINE_FAILED:
        return EngineError(
            "Cannot start the container of the smoke test: the engine refused.",
            details=lines,
            hint="Look at what the engine says above.",
        )
    return None


@dataclass(slots=True)
class DockerTarget:
    """Runs ranks in an image, which is given by its id so that a moved tag cannot change what is tested.

    The container has no network but its own loopback, no capabilities, and the image's unprivileged user. ``init`` puts
    the engine's small init process in front of envsmith's, which collects what a killed rank leaves.
    """

    image: str
    python: str
    gpu_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    client: str | None = None
    init: bool = True
    _names: list[str] = field(default_factory=list)

    def argv(self, args: Sequence[str]) -> list[str]:
        """Return ``docker run -i … IMAGE PYTHON ARGS``. Every call names a container of its own."""
        self.client = self.client or buildkit.find_client()
        name = f"envsmith-smoke-{uuid.uuid4().hex[:12]}"
        self._names.append(name)
        variables = {"GLOO_SOCKET_IFNAME": "lo", **self.environment}
        return [
            self.client,
            "run",
            "--interactive",
            "--rm",
            *(["--init"] if self.init else []),
            f"--name={name}",
            "--hostname=localhost",
            "--network=none",
            f"--shm-size={_SHARED_MEMORY}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            *self.gpu_arguments,
            *(f"--env={key}={value}" for key, value in variables.items()),
            self.image,
            self.python,
            *args,
        ]

    def env(self) -> Mapping[str, str]:
        """Return nothing: what the ranks need is on the command line, the host's variables stay outside."""
        return {}

    def refusal(self, status: int | None, words: str) -> EngineError | None:
        """Return the error of a container that was never started, or ``None``."""
        return refusal(status, words, gpus=bool(self.gpu_arguments))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Remove the containers that this target started and end the client."""
        while self._names:
            name = self._names.pop()
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                execute([self.client or "docker", "rm", "--force", name], seconds=30)
        process.kill()
