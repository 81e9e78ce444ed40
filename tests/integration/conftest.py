"""One Docker engine for the whole run of the tests, with a base image made of the distribution's packages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path

import pytest

from . import docker_engine
from .conda_packages import channel, local, wheels  # noqa: F401 - fixtures of the tests of Conda


@dataclasses.dataclass(frozen=True)
class Base:
    """The base image of the tests' cells: ``name`` is what ``--base`` takes, ``python`` its minor."""

    name: str
    python: str


def _lend_base(address):
    """Take the base of the host's own engine, when it has one: making it takes a minute."""
    import docker

    with (
        contextlib.suppress(Exception),
        contextlib.closing(docker.DockerClient(timeout=60)) as host,
        contextlib.closing(docker.DockerClient(base_url=address, timeout=600)) as mine,
    ):
        for image in host.images.list(name="envsmith/base"):
            mine.images.load(image.save(named=image.tags[0]))
            return image.tags[0]
    return None


def _base(engine, lent, tool):
    """The base that was lent, or one that ``tools/base_image.py`` makes; an image that does not run is a reason to skip."""
    from envsmith.errors import BuildError, EngineError

    try:
        name = lent or tool.base_image(engine.client, "bookworm", lambda _event: None)
        return Base(name=name, python=engine.pythons(name)[0])
    except BuildError as error:
        pytest.skip(f"no base image can be made here: {'; '.join((error.message, *error.details[-3:]))}")
    except EngineError as error:
        pytest.skip(f"this host does not let a container run: {error.message[-300:]}")


@pytest.fixture(scope="session")
def docker_engine_and_base(load_file):
    """What ``DOCKER_HOST`` is to be for an engine that only these tests know, and the base in it."""
    from envsmith.builder.engines.docker import DockerEngine

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
        lent = _lend_base(address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", address)
            engine = DockerEngine()
            with contextlib.closing(engine.client):
                base = _base(engine, lent, load_file("tools/base_image.py"))
        yield address, base


@pytest.fixture(scope="session")
def docker_address(docker_engine_and_base):
    return docker_engine_and_base[0]


@pytest.fixture(scope="session")
def docker_base(docker_engine_and_base):
    return docker_engine_and_base[1]


@pytest.fixture(scope="module")
def docker_only_ours(docker_address):
    """``DOCKER_HOST`` leads to the tests' engine for as long as a module runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_address)
        yield docker_address
