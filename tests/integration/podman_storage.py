"""A storage of podman's own for one test, set up as a host without systemd needs it, and removed afterwards."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from . import docker_engine


@contextlib.contextmanager
def podman_with(image, client, *, tools=("podman",)):
    """podman with ``image`` of the engine ``client`` loaded; skips where it cannot run a container."""
    wanted = [name for name in tools if not shutil.which(name)]
    if wanted and (failed := docker_engine.install(*wanted)):
        pytest.skip(f"{' and '.join(wanted)} not installed, and {failed}")
    storage = Path(tempfile.mkdtemp(prefix="envsmith-ip-", dir="/tmp"))
    try:
        (storage / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{storage}/root"\nrunroot = "{storage}/run"\n'
        )
        (storage / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = []\nnetns = "host"\n[engine]\ncgroup_manager = "cgroupfs"\nruntime = "runc"\n'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CONTAINERS_STORAGE_CONF", str(storage / "storage.conf"))
            patch.setenv("CONTAINERS_CONF", str(storage / "containers.conf"))
            base = b"".join(client.images.get(image).save(named=image))
            subprocess.run(["podman", "load", "--quiet"], input=base, check=True, capture_output=True)
            probe = ["podman", "run", "--rm", "--network=none", image, "true"]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"podman cannot run a container here: {done.stderr.strip()[-200:]}")
            yield
    finally:
        subprocess.run(["umount", "--lazy", f"{storage}/root/overlay"], check=False, capture_output=True)
        shutil.rmtree(storage, ignore_errors=True)
