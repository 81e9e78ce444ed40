"""The docker engine: images by BuildKit, through the docker command line."""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.base.about import command_for
from envsmith.base.progress import EventKind, Progress, ProgressEvent
from envsmith.builder.engines import buildkit
from envsmith.builder.engines.base import Built
from envsmith.builder.engines.container import NETWORK_VARIABLE, ContainerEngine
from envsmith.builder.engines.docker_target import DockerTarget, gpu_arguments
from envsmith.builder.engines.shelf import engine_errors, tool_argument
from envsmith.builder.image.context import read_host_settings, write_context, write_secrets
from envsmith.errors import EngineError
from envsmith.model.lock import Lock

if TYPE_CHECKING:
    from envsmith.smoke.run import SmokeTarget


class DockerEngine(ContainerEngine):
    """Builds with BuildKit, which is part of the docker client or of its buildx plugin."""

    name = "docker"
    # BuildKit lets a build take part in a step that another build has under way.
    shares_steps = True

    @cached_property
    def client(self) -> Any:
        """Return the SDK's client. Calls that wait for a build or a pull take minutes."""
        try:
            import docker
        except ImportError as error:
            raise EngineError(
                "Cannot use Docker: the Python package docker is not installed.",
                hint=f"Install it: {command_for('docker')}.",
            ) from error
        with engine_errors("reach a Docker engine"):
            return docker.from_env(timeout=600)

    def available(self) -> str | None:
        """Return why the engine cannot be used: no SDK, no engine at its socket, or no client that runs BuildKit."""
        try:
            import docker
            from docker.errors import DockerException
            from requests.exceptions import RequestException
        except ImportError:
            return "the Python package docker is not installed"
        try:
            client = docker.from_env(timeout=2)
            with contextlib.closing(client):
                client.ping()
                if client.version().get("Os") != "linux":
                    return "the engine runs no Linux containers"
        except (DockerException, RequestException):
            return "no engine answers at its socket"
        try:
            buildkit.find_client()
        except EngineError as error:
            return "; ".join((error.reason, *error.details))
        return None

    @cached_property
    def network(self) -> str | None:
        """Return the network of build steps: ``host`` without a bridge, else the default. A variable overrides.

        Raises ``EngineError`` for a variable that names none, and when the engine does not answer.
        """
        if named := os.environ.get(NETWORK_VARIABLE):
            if named not in {"host", "none", "default", "bridge"}:
                raise EngineError(
                    f"Cannot use {NETWORK_VARIABLE}={named!r}: it is not a network of an engine.",
                    hint="Use host, bridge, default or none.",
                )
            return named
        with engine_errors("list the networks of the engine"):
            return None if self.client.networks.list(names=["bridge"], filters={"driver": "bridge"}) else "host"

    def run_build(self, lock: Lock, scratch: Path, progress: Progress, *, cache: bool, output: Path | None) -> str:
        """Build by ``docker build`` with BuildKit."""
        client = buildkit.find_client()
        private = scratch / "private"
        private.mkdir(mode=0o700)
        settings = read_host_settings()
        if settings.unreachable:
            text = f"folders of this host are not visible inside the build: {', '.join(settings.unreachable)}"
            progress(ProgressEvent(kind=EventKind.NOTE, step="build", text=text))
        context = scratch / "context"
        context.mkdir()
        write_context(lock, context, self.options, builder=output is not None)
        return buildkit.build(
            client,
            context,
            buildkit.Lent(
                network=self.network,
                secrets=write_secrets(settings, private),
                arguments=(*settings.proxies, *tool_argument()),
            ),
            scratch=scratch,
            buildx=buildkit.has_buildx(client),
            progress=progress,
            cache=cache,
            output=output,
        )

    def target(self, built: Built) -> SmokeTarget:
        """Return the image by its id, with the host's GPUs for a cell with CUDA."""
        gpus = gpu_arguments(self.client) if built.facts.get("cuda", "cpu") != "cpu" else ()
        return DockerTarget(image=built.image, python=built.python, gpu_arguments=gpus)
