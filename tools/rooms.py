"""Run the two commands of the README on a stock Debian: a minimal root, an ordinary user, no compiler, no cache.

    python3 tools/rooms.py                                    both commands in Debian 13 and in Debian 12
    python3 tools/rooms.py --suite bookworm -- 'make build FRAMEWORK=ray' 'make test'

A room is an overlay of a root that debootstrap has made once (some minutes) and that nothing writes to afterwards. Each
room gets a fresh clone of what is committed here. It has the host's network, authorities and package indexes, and
nothing else of the host. What uv has downloaded goes on from a room to the next one, so gigabytes come down once.

Exit codes: 0 all commands passed, 1 one failed, 77 this host does not let rooms be made (a sentence says why).
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import fcntl
import io
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envsmith.base.programs import end, start  # noqa: E402
from envsmith.net.authorities import ca_bundle  # noqa: E402 - of this checkout: nothing has to be installed
from envsmith.net.index_settings import as_toml, pip_values, uv_settings  # noqa: E402

COMMANDS = ("make build FRAMEWORK=deepspeed", "make test")
# Debian 13 and 12, with what the README asks for. A clone needs git and certificates.
SUITES = ("trixie", "bookworm")
PACKAGES = ("python3", "python3-venv", "make", "ca-certificates", "git")
USER, UID = "newcomer", 1000
HOME = Path("home") / USER
BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
FAILED, NOT_HERE = 1, 77
# Of the host's environment a room sees how to reach the network, and nothing else.
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# pip's settings that hold on another machine too. Logins of indexes stand in their addresses.
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")
UV_KEYS = ("index", "index-url", "extra-index-url", "index-strategy", "allow-insecure-host")
_LOCAL = re.compile(r"(?:file:)?/")
_MIRROR = re.compile(r"^(?:deb\s+(?:\[[^\]]*\]\s+)?|URIs:\s*)(https?://\S+/debian/?)(?:\s|$)", re.MULTILINE)
_SYSTEM_PATH = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
# Namespaces of processes and mounts end with the first process in them, however that ends.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# A room has the devices that every machine has. $1 root, $2 layer, $3 work, $4 room, $5 user, $6 command.
_ENTER = f"""
set -e
path=$PATH PATH={_SYSTEM_PATH}
if [ "$2" != "$4" ]; then mount -t overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" overlay "$4"; fi
mount -t proc proc "$4/proc"
mount --rbind /sys "$4/sys"
mount -t tmpfs -o mode=755,nosuid tmpfs "$4/dev"
for node in null zero full random urandom tty; do
  touch "$4/dev/$node"
  mount --bind "/dev/$node" "$4/dev/$node"
done
mkdir "$4/dev/pts" "$4/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$4/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$4/dev/shm"
ln -s pts/ptmx "$4/dev/ptmx"
ln -s /proc/self/fd "$4/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${{number%:*}}" "$4/dev/${{number#*:}}"; done
chroot --userspec="$5:$5" "$4" /usr/bin/env "PATH=$path" /bin/bash -c 'cd "$HOME/project" && eval "$1"' bash "$6"
"""


class RoomError(Exception):
    """A room cannot be made, though this host should let it be made."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A command that ran in a room: its exit status, and its seconds."""

    suite: str
    command: str
    status: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Room:
    """The folders of a room. ``layer`` has what is written: beside the root in an overlay, else a copy of the root."""

    root: Path
    layer: Path
    work: Path
    place: Path


def reason_not(
    which: Callable[[str], str | None] | None = None, user: int | None = None, checkout: Path = ROOT
) -> str | None:
    """Return why this host makes no rooms, or ``None``."""
    find = which or (lambda name: shutil.which(name, path=_system_path()))
    if (os.geteuid() if user is None else user) != 0:
        return "only root may make a root file system and mount it"
    missing = [name for name in ("debootstrap", "unshare", "chroot", "mount", "git") if not find(name)]
    if missing:
        return f"{' and '.join(missing)} cannot be found"
    return None if (checkout / ".git").exists() else "this folder is no clone of the repository"


def _system_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), _SYSTEM_PATH))


def may_unshare() -> bool:
    """Tell whether the kernel gives this process namespaces of its own. Containers often may not have them."""
    ran = subprocess.run([*_APART, "true"], env=_host(), capture_output=True, check=False)
    return ran.returncode == 0


def _host() -> dict[str, str]:
    """Return the environment of the host's own programs."""
    return {**os.environ, "PATH": _system_path(), "LC_ALL": "C.UTF-8"}


def mirror_of(sources: str) -> str | None:
    """Return the first mirror of Debian in the text of apt's sources, or ``None``: debootstrap has a default."""
    match = _MIRROR.search(sources)
    return match[1] if match else None


def _sources() -> str:
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())


def make_root(suite: str, store: Path, mirror: str | None) -> Path:
    """Return the root of a suite, which is made where it is missing.

    A root has its name when it is whole: what an interrupted debootstrap has left is removed.
    """
    root, partial, log = store / suite, store / f"{suite}.partial", store / f"{suite}.log"
    with (store / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        _remove(partial)
        started = time.monotonic()
        sys.stdout.write(f"{suite}: debootstrap makes its root once, in some minutes\n")
        sys.stdout.flush()
        with log.open("w") as output:
            include = f"--include={','.join(PACKAGES)}"
            steps = (
                ("debootstrap", "--variant=minbase", include, suite, str(partial), *([mirror] if mirror else [])),
                ("chroot", str(partial), "useradd", "--create-home", "--uid", str(UID), USER),
            )
            statuses = (_status([*_APART, *step], env=_host(), stdout=output, stderr=output) for step in steps)
            if any(statuses):
                tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
                raise RoomError(f"Cannot make the root of {suite}: " + "\n  ".join((f"see {log}.", *tail)))
        partial.rename(root)
        sys.stdout.write(f"{suite}: made in {clock(time.monotonic() - started)}\n")
    return root


def _status(command: Sequence[str], *, env: Mapping[str, str], **streams: Any) -> int:
    """Run a program to its end and return its status. What interrupts us ends it at once, and all in its namespaces."""
    process = start(command, env=env, stdin=subprocess.DEVNULL, **streams)
    try:
        return process.wait()
    finally:
        end(process, signals=(signal.SIGKILL,))


def _remove(folder: Path) -> None:
    """Remove a folder. Processes that were just killed may write for a moment longer."""
    for seconds in (0.2, 1.0, 3.0):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(seconds)
    shutil.rmtree(folder)


@contextlib.contextmanager
def room_of(root: Path, folder: Path) -> Iterator[Room]:
    """Yield an empty room over a root: an overlay, or a copy where the kernel refuses one. Nothing of it stays."""
    overlay = Room(root=root, layer=folder / "layer", work=folder / "work", place=folder / "room")
    for path in (overlay.layer, overlay.work, overlay.place):
        path.mkdir(parents=True)
    options = f"lowerdir={root},upperdir={overlay.layer},workdir={overlay.work}"
    trial = [*_APART, "mount", "-t", "overlay", "-o", options, "overlay", str(overlay.place)]
    try:
        if subprocess.run(trial, env=_host(), capture_output=True, check=False).returncode == 0:
            yield overlay
        else:
            copy = Room(root=root, layer=overlay.place, work=overlay.work, place=overlay.place)
            subprocess.run(["cp", "-a", "--reflink=auto", f"{root}/.", str(copy.place)], check=True)
            yield copy
    finally:
        _remove(folder)


def pip_configuration(environ: Mapping[str, str]) -> str:
    """Return a pip.conf with the settings of the host that hold in a room. Folders of the host are left out."""
    values = pip_values(environ)
    settings = {
        key: " ".join(w for w in values[key].split() if not _LOCAL.match(w)) for key in PIP_KEYS if key in values
    }
    parser = configparser.RawConfigParser()
    parser["global"] = {key: value for key, value in settings.items() if value}
    if ca_bundle(environ):
        parser["global"]["cert"] = f"/{BUNDLE}"
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def uv_configuration(environ: Mapping[str, str]) -> str:
    """Return a uv.toml with the indexes that the host's uv is configured for. pip's stand in pip's file."""
    own = {key: value for key, value in environ.items() if not key.startswith("PIP_")}
    settings = uv_settings({**own, "PIP_CONFIG_FILE": os.devnull})
    return as_toml({key: settings[key] for key in UV_KEYS if settings.get(key)})


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a room: what a login sets, the host's proxies, and authorities that the host names."""
    proxies = {name: environ[name] for word in PROXIES for name in (word, word.upper()) if environ.get(name)}
    login = {"HOME": f"/{HOME}", "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
    authorities = {"SSL_CERT_FILE": f"/{BUNDLE}"} if ca_bundle(environ) else {}
    return {**proxies, **login, **authorities, "PATH": "/usr/bin:/bin"}


def furnish(room: Room, environ: Mapping[str, str], downloads: Path) -> None:
    """Write into a room what it has of the host, what uv has downloaded for the room before, and a fresh clone."""
    authorities = ca_bundle(environ) or Path(ssl.get_default_verify_paths().cafile or f"/{BUNDLE}")
    network = (("/etc/resolv.conf", "etc/resolv.conf"), ("/etc/hosts", "etc/hosts"))
    for source, target in ((authorities, BUNDLE), *((Path(source), Path(target)) for source, target in network)):
        if source.is_file():
            _write(room.layer / target, source.read_bytes())
    _write(room.layer / "etc/pip.conf", pip_configuration(environ).encode())
    if configuration := uv_configuration(environ):
        _write(room.layer / "etc/uv/uv.toml", configuration.encode())
    home = room.layer / HOME
    (home / ".cache").mkdir(parents=True)
    if downloads.exists():
        downloads.rename(home / ".cache/uv")
    _clone(home / "project")
    for path in (home, home / ".cache"):
        os.chown(path, UID, UID)


def _clone(target: Path) -> None:
    # The checkout may be another user's, which git refuses to root by default.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as settings:
        settings.write("[safe]\n\tdirectory = *\n")
        settings.flush()
        clone = subprocess.run(
            ["git", "clone", "--quiet", str(ROOT), str(target)],
            env={**_host(), "GIT_CONFIG_GLOBAL": settings.name},
            capture_output=True,
            text=True,
            check=False,
        )
    if clone.returncode:
        raise RoomError(f"Cannot clone {ROOT}: {' '.join(clone.stderr.split())}")
    subprocess.run(["chown", "--recursive", "--no-dereference", f"{UID}:{UID}", str(target)], check=True)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_bytes(content)
    path.chmod(0o644)


def run_in(room: Room, suite: str, command: str) -> Run:
    """Run a command in a room as its user, with the output here."""
    sys.stdout.write(f"\n{suite}$ {command}\n")
    sys.stdout.flush()
    started = time.monotonic()
    places = [str(path) for path in (room.root, room.layer, room.work, room.place)]
    enter = [shutil.which("unshare", path=_system_path()) or _APART[0], *_APART[1:], "/bin/sh", "-c", _ENTER, "sh"]
    status = _status([*enter, *places, USER, command], env=environment_of(os.environ))
    run = Run(suite=suite, command=command, status=status, seconds=time.monotonic() - started)
    sys.stdout.write(f"{suite}: exit {run.status} after {clock(run.seconds)}\n")
    return run


def clock(seconds: float) -> str:
    """Return ``3:05`` for 185 seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def table(runs: Sequence[Run]) -> str:
    """Return a line for each command: room, exit status, minutes."""
    width = max((len(run.suite) for run in runs), default=0)
    rows = (f"{run.suite:<{width}}  exit {run.status:<3}  {clock(run.seconds):>6}  {run.command}" for run in runs)
    return "".join(f"{row}\n" for row in rows)


@contextlib.contextmanager
def visit_folder(store: Path) -> Iterator[Path]:
    """Yield a folder for the time of one visit. What a visit that was killed has left goes first: it is gigabytes."""
    with contextlib.ExitStack() as stack:
        with (store / "visits.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for folder in store.glob("visit-*"):
                with contextlib.suppress(BlockingIOError), _held(folder):
                    _remove(folder)
            mine = Path(tempfile.mkdtemp(prefix="visit-", dir=store))
            stack.enter_context(_held(mine))
        stack.callback(_remove, mine)
        yield mine


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which ends with this process. ``BlockingIOError`` where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def visit(suites: Sequence[str], plan: Callable[[str], Sequence[str]], store: Path, *, keep: bool) -> list[Run]:
    """Run the commands of each suite in a room of its own, the next one only where those before it passed."""
    store.mkdir(parents=True, exist_ok=True)
    mirror = mirror_of(_sources())
    roots = {suite: make_root(suite, store, mirror) for suite in suites}
    runs: list[Run] = []
    with visit_folder(store) as folder:
        downloads = folder / "downloads"
        for suite in suites:
            with room_of(roots[suite], folder / suite) as room:
                furnish(room, os.environ, downloads)
                for command in plan(suite):
                    runs.append(run_in(room, suite, command))
                    if runs[-1].status:
                        break
                if (cache := room.layer / HOME / ".cache/uv").exists():
                    cache.rename(downloads)
                if keep:
                    target = Path(tempfile.mkdtemp(prefix=f"kept-{suite}-", dir=store)) / USER
                    (room.layer / HOME).rename(target)
                    sys.stdout.write(f"{suite}: kept in {target}\n")
    return runs


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--suite", action="append", help=f"a suite of Debian (default: {' and '.join(SUITES)})")
    line.add_argument("--first-only", action="append", default=[], metavar="SUITE", help="run the first command only")
    line.add_argument("--store", type=Path, default=Path("/var/tmp/envsmith-rooms"), help="where roots are kept")  # noqa: S108 - root's own, and /tmp is often small
    line.add_argument("--keep", action="store_true", help="keep what a room's user has left, and say where")
    line.add_argument(
        "commands", nargs="*", metavar="COMMAND", help=f"default: {', '.join(map(shlex.quote, COMMANDS))}"
    )
    return line


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Visit the rooms and say how it went."""
    arguments = parser().parse_args()
    if reason := reason_not() or (None if may_unshare() else "this machine gives no process mounts of its own"):
        sys.stderr.write(f"Cannot make rooms: {reason}.\n")
        return NOT_HERE
    signal.signal(signal.SIGTERM, _interrupted)
    commands = arguments.commands or COMMANDS
    try:
        runs = visit(
            arguments.suite or SUITES,
            lambda suite: commands[:1] if suite in arguments.first_only else commands,
            arguments.store.absolute(),
            keep=arguments.keep,
        )
    except RoomError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\nCannot finish the rooms: interrupted.\n")
        return 128 + signal.SIGINT
    sys.stdout.write(f"\n{table(runs)}")
    return FAILED if any(run.status for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
