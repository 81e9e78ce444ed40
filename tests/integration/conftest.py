"""One Docker engine for the whole run of the tests, with a base image made of the distribution's packages."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from . import docker_engine
from .conda_packages import channel, local, wheels  # noqa: F401 - fixtures of the tests of Conda


def _lend_base(address):
    """Take the bootstrapped base of the host's own engine, when it has one: making it takes a minute."""
    import docker

    with (
        contextlib.suppress(Exception),
        contextlib.closing(docker.DockerClient(timeout=60)) as host,
        contextlib.closing(docker.DockerClient(base_url=address, timeout=600)) as mine,
    ):
        for image in host.images.list(name="envsmith/base"):
            mine.images.load(image.save(named=image.tags[0]))


def _reason_unusable():
    """Why the engine that runs cannot build a cell on this host; ``None`` when it can. The base is there afterwards."""
    from envsmith.engines.docker import DockerEngine
    from envsmith.errors import BuildError, EngineError
    from envsmith.image.dockerfile import from_reference

    engine = DockerEngine()
    with contextlib.closing(engine.client):
        pythons = engine.pythons()
        if not pythons:
            return "no base image can be pulled or made here"
        try:
            base = engine.base_for(pythons[0], None, progress=lambda _event: None)
        except BuildError as error:
            return f"no base image can be made here: {'; '.join((error.message, *error.details[-3:]))}"
        try:
            code, output = engine.shelf.run(from_reference(base), ["true"], network="none", timeout=120)
        except EngineError as error:
            return f"this host does not let a container run: {error.message[-300:]}"
    return f"a container that does nothing ended with {code}: {output[-200:]}" if code else None


@pytest.fixture(scope="session")
def docker_address():
    """What ``DOCKER_HOST`` is to be for an engine that only these tests know."""
    if reason := docker_engine.reason_not():
        pytest.skip(reason)
    drivers = os.environ.get("ENVSMITH_TEST_STORAGE_DRIVER", "overlay2 vfs").split()
    with contextlib.ExitStack() as stack:
        reasons = []
        for driver in drivers:
            # A short path: a socket's name may have 107 characters.
            folder = Path(tempfile.mkdtemp(prefix="envsmith-it-", dir="/tmp"))
            try:
                address = stack.enter_context(docker_engine.running(folder, driver=driver))
                break
            except docker_engine.CannotStartError as error:
                reasons.append(f"{driver}: {error}")
        else:
            pytest.skip("; ".join(reasons))
        _lend_base(address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", address)
            if reason := _reason_unusable():
                pytest.skip(reason)
        yield address


@pytest.fixture(scope="module")
def docker_only_ours(docker_address):
    """``DOCKER_HOST`` leads to the tests' engine for as long as a module runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_address)
        yield docker_address
