"""A Docker engine of the tests' own: started under a temporary folder with its own socket, ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path


def reason_not() -> str | None:
    """Why no engine can be started here; ``None`` when one can."""
    if os.geteuid() != 0:
        return "starting a Docker engine needs root"
    if not shutil.which("dockerd") and not _install():
        return "dockerd is not installed, and apt-get cannot install it"
    return None


def _install() -> bool:
    if not shutil.which("apt-get") or os.environ.get("ENVSMITH_TEST_NO_INSTALL"):
        return False
    for command in (
        ["update"],
        ["install", "--yes", "--no-install-recommends", "docker.io", "containerd", "runc", "mmdebstrap"],
    ):
        done = subprocess.run(
            ["apt-get", "-qq", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            return False
    return shutil.which("dockerd") is not None


@contextlib.contextmanager
def running(folder: Path):
    """Start ``dockerd`` below ``folder``; yields the address for ``DOCKER_HOST``."""
    address = f"unix://{folder / 'docker.sock'}"
    command = [
        "dockerd", "--host", address, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"),
        "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver", os.environ.get("ENVSMITH_TEST_STORAGE_DRIVER", "overlay2"),
    ]  # fmt: skip
    log = folder / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            _wait(address, process, log)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    _unmount(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import docker

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(Exception):
            client = docker.DockerClient(base_url=address, timeout=2)
            with contextlib.closing(client):
                if client.ping():
                    return
        time.sleep(0.2)
    raise RuntimeError("dockerd did not start:\n" + log.read_text(errors="replace")[-2000:])


def _unmount(folder: Path) -> None:
    """What a killed engine leaves mounted keeps its folder from being removed."""
    lines = Path("/proc/mounts").read_text().splitlines()
    for mount in sorted((line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
