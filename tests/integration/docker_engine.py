"""A Docker engine of the tests' own: started under a temporary folder with its own socket, ended by its own process id.

Everything that a host can forbid (packages, root, mounts, control groups, a mirror) is a reason to skip, told in one sentence.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from envsmith.builder.engines import buildkit
from envsmith.errors import EngineError

# What is needed, and the packages of Debian and Ubuntu that bring it.
_PACKAGES = ("docker.io", "containerd", "runc", "mmdebstrap")


class CannotStartError(RuntimeError):
    """The engine cannot run on this host; the message says why."""


def reason_not() -> str | None:
    """Why no engine can be started here; ``None`` when one can."""
    if os.geteuid() != 0:
        return "starting a Docker engine needs root"
    if _lacking() and (failed := install(*_PACKAGES)):
        return f"{_lacking() or 'the engine'} is missing, and {failed}"
    return _lacking()


def _lacking() -> str | None:
    for program in ("dockerd", "containerd", "runc"):
        if not shutil.which(program):
            return f"{program} is not installed"
    if not shutil.which("mmdebstrap"):
        return "mmdebstrap is not installed"
    try:
        buildkit.find_client()
    except EngineError as error:
        return "; ".join((error.message, *error.details))
    return None


def install(*packages: str) -> str | None:
    """Install packages of the distribution; ``None`` when that went well, else one sentence."""
    if os.environ.get("ENVSMITH_TEST_NO_INSTALL"):
        return "ENVSMITH_TEST_NO_INSTALL forbids to install it"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "only root can install it, with apt-get"
    # Where an init system runs the packages would start services of their own, which the tests do not use.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *words],
                env=environment, capture_output=True, text=True, errors="replace", timeout=900, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} did not end in 15 minutes"
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            return f"apt-get {words[0]} failed: {lines[-1] if lines else done.returncode}"
    return None


@contextlib.contextmanager
def running(folder: Path, *, driver: str = "overlay2"):
    """Start ``dockerd`` below ``folder``; yields the address for ``DOCKER_HOST``. :class:`CannotStartError` where it cannot run."""
    address = f"unix://{folder / 'docker.sock'}"
    # Should the test process die without its clean-up, the engine is asked to end by the kernel.
    guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    command = [
        *guard, "dockerd", "--host", address, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"),
        "--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver", driver,
    ]  # fmt: skip
    log = folder / "log"
    try:
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
                _end(process)
    finally:
        _sweep(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import docker

    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(Exception):
            client = docker.DockerClient(base_url=address, timeout=5)
            with contextlib.closing(client):
                if client.ping():
                    return
        time.sleep(0.2)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "failed to start" in line or "level=fatal" in line), "")
    raise CannotStartError(f"dockerd does not start here: {(told or ' '.join(lines[-2:]))[-400:]}")


def _sweep(folder: Path) -> None:
    """What a killed engine leaves: its containerd and shims, which name the folder, and mounts, which keep it from being removed."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                program = Path(os.fsdecode(words[0])).name
                if program.startswith("containerd") and any(os.fsencode(str(folder)) in word for word in words):
                    os.kill(int(entry.name), signal.SIGKILL)
    lines = Path("/proc/mounts").read_text(errors="replace").splitlines()
    for mount in sorted((line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
