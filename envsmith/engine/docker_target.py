"""The smoke test's way into an image: one container a run, its standard streams ours, removed by its own name whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.engine import buildkit

__all__ = ["DockerTarget", "cdi_devices", "gpu_arguments"]

# Ranks exchange data through shared memory; docker's own 64 MB make NCCL and DeepSpeed's op fail at once.
_SHARED_MEMORY = "2g"


# Where the container device interface keeps what NVIDIA's toolkit wrote.
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


def cdi_devices(folders: Sequence[Path] = _CDI_FOLDERS) -> bool:
    """Whether a specification of NVIDIA's devices lies where engines look for one (``nvidia-ctk cdi generate`` writes it)."""
    for folder in folders:
        for path in (*folder.glob("*.yaml"), *folder.glob("*.json")):
            with contextlib.suppress(OSError):
                if "nvidia.com/gpu" in path.read_text(encoding="utf-8", errors="replace")[:4096]:
                    return True
    return False


def gpu_arguments(client: Any, folders: Sequence[Path] = _CDI_FOLDERS) -> tuple[str, ...]:
    """How the engine hands all GPUs to a container; nothing where it cannot.

    ``--gpus`` with the NVIDIA runtime or its hook beside a local engine; CDI where the engine reads specifications and one is there.
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


@dataclass(slots=True)
class DockerTarget:
    """A :class:`envsmith.smoke.launch.Target` on an image given by its id, so that a moved tag cannot change what is tested.

    The container has no network but its own loopback, no capabilities, and the image's unprivileged user.
    """

    image: str
    python: str
    gpu_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    client: str | None = None
    _names: list[str] = field(default_factory=list)

    def argv(self, args: Sequence[str]) -> list[str]:
        """``docker run -i … IMAGE PYTHON ARGS``; every call names a container of its own."""
        self.client = self.client or self._find()
        name = f"envsmith-smoke-{uuid.uuid4().hex[:12]}"
        self._names.append(name)
        variables = {"GLOO_SOCKET_IFNAME": "lo", **self.environment}
        return [
            self.client,
            "run",
            "--interactive",
            "--rm",
            "--init",
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

    @staticmethod
    def _find() -> str:
        """Any client can run a container; the one that builds is preferred because it is known to fit the engine."""
        return buildkit.any_client() or buildkit.find_client()

    def env(self) -> Mapping[str, str]:
        """Nothing: what the ranks need is passed on the command line, the host's variables stay outside."""
        return {}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Remove the containers that this target started and end the client."""
        while self._names:
            name = self._names.pop()
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    [self.client or "docker", "rm", "--force", name],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False, env=dict(os.environ),
                )  # fmt: skip
        process.kill()
