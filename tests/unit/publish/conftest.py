"""A small image with its cell's folder, and keys to sign it."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("securesystemslib", reason="the extra `publish` is not installed")


@pytest.fixture(scope="session")
def kit(load_file):
    """The helper beside the tests."""
    return load_file("tests/unit/publish/publish_kit.py")


@pytest.fixture(scope="session")
def made_cell(kit, tmp_path_factory):
    """The cell's folder, to be read only."""
    return kit.make_cell(tmp_path_factory.mktemp("publish") / "cell")


@pytest.fixture
def cell(made_cell, tmp_path):
    return shutil.copytree(made_cell, tmp_path / "cell", symlinks=True)


@pytest.fixture(scope="session")
def keys(kit, tmp_path_factory):
    return kit.make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    """No credentials of this machine, no waiting between attempts."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
