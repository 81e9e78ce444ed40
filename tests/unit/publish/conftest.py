"""A small image with its cell's folder, and keys to sign it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx", reason="the extra `publish` is not installed")
pytest.importorskip("securesystemslib", reason="the extra `publish` is not installed")


@pytest.fixture(scope="session")
def kit():
    """The helper beside the tests; --import-mode=importlib keeps test folders off sys.path."""
    name = "envsmith_tests_publish_kit"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("publish_kit.py"))
        module = importlib.util.module_from_spec(spec)
        # A dataclass looks its module up by name.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def cell(kit, tmp_path):
    return kit.make_cell(tmp_path / "cell")


@pytest.fixture
def keys(kit, tmp_path):
    return kit.make_keys(tmp_path)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    """No credentials of this machine, no waiting between attempts."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
