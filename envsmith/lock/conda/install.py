"""Make the environment of a Conda lock: rattler links the packages, uv installs the pip section, both by hash.

An environment that was at the prefix before stays there, whole, unless the new one is complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from envsmith.base.files import read_bounded, read_text, scratch, sha256_of, write_whole
from envsmith.base.interpreter import python_in
from envsmith.base.programs import execute
from envsmith.base.progress import EventKind, Progress, ProgressEvent, lines_of, silent
from envsmith.base.schema import parse_json
from envsmith.errors import (
    BuildError,
    ContentError,
    DataError,
    EnvsmithError,
    InterruptedRunError,
    NetworkError,
    StorageError,
    UsageError,
    os_errors,
    refusal_of_disk,
)
from envsmith.lock.conda.channels import access_to
from envsmith.lock.conda.lock_files import pip_lines
from envsmith.lock.conda.model import CondaLock, PipPackage, PlatformLock, Tell
from envsmith.lock.conda.names import clean, fold, require_rattler, scrub
from envsmith.lock.index.uv import Uv
from envsmith.lock.pip_files import layer_text
from envsmith.model.cell import Platform
from envsmith.model.lock import Pin
from envsmith.net.address import parts_of

_STAMP = "conda-meta/envsmith"


def realise(
    conda_lock: CondaLock,
    prefix: Path,
    *,
    cache_dir: Path,
    platform: Platform | None = None,
    channels: Sequence[str] = (),
    build_pins: Sequence[Pin] = (),
    offline: bool = False,
    progress: Progress = silent,
) -> Path:
    """Install the lock into ``prefix`` and give the path of its interpreter.

    A lock holds no credentials. ``channels`` are those of the lock with theirs, where the user gave them, and rattler's
    client looks into the stores that it knows. Mirrors, proxies and certificates are those of the user's configuration.
    ``build_pins`` are what source distributions of the pip section are built with, by hash. Without them uv chooses.

    ``ContentError``: a package is not what the lock says. ``NetworkError``: one cannot be fetched (a channel removes
    packages). ``UsageError``: the prefix holds something that is not a Conda environment. ``InterruptedRunError``: Ctrl-C.
    What was at the prefix is put back on every failure. A prefix that is this lock already is left as it is.
    """
    chosen = platform or Platform.host()
    try:
        part = conda_lock.on(chosen)
    except KeyError:
        covered = ", ".join(p.platform.value for p in conda_lock.platforms)
        raise UsageError(
            f"Cannot install this Conda lock: it is for {covered}, not for {chosen.value}.",
            hint="Lock again with --conda-platform.",
        ) from None
    target = prefix.absolute()
    python = python_in(target)
    if _is_done(part, target):
        progress(ProgressEvent(kind=EventKind.CACHED, step="conda", text=f"{target} is this lock already"))
        return python
    _check_files(part)
    tell = lines_of(progress, "conda")
    try:
        with _in_place_of(target):
            tell(f"installing {len(part.packages)} Conda packages")
            _link(part, target, cache_dir, channels or conda_lock.channels)
            if part.pip:
                tell(f"installing {len(part.pip)} packages with uv, by hash")
                _install_pip(part.pip, build_pins, Uv(offline=offline), python, tell)
            _verify(part, target)
            write_whole(target / _STAMP, _stamp(part))
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "Cannot finish the installation: it was interrupted.", hint="Run the same command again."
        ) from None
    return python


def _stamp(part: PlatformLock) -> str:
    files = [(p.url, p.sha256) for p in part.packages] + [(w.url, w.sha256) for w in part.pip]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _is_done(part: PlatformLock, prefix: Path) -> bool:
    """Return whether the prefix was completed from this very lock and still holds what the lock says."""
    try:
        if read_text(prefix / _STAMP) != _stamp(part):
            return False
        _verify(part, prefix)
    except (OSError, ValueError, DataError, ContentError):
        return False
    return True


def _check_files(part: PlatformLock) -> None:
    """Hash the packages of ``file://`` channels: rattler 0.28 checks only what it downloads."""
    for package in part.packages:
        parts = parts_of(package.url)
        if parts.scheme != "file":
            continue
        path = Path(urllib.request.url2pathname(parts.path))
        try:
            with path.open("rb") as file:
                digest = sha256_of(file).hex()
        except OSError as error:
            raise NetworkError(
                f"Cannot fetch {package.name} {package.version}: the channel does not have it any more.",
                details=[f"{path}: {error.strerror}"],
                hint="Lock the cell again.",
            ) from error
        if digest != package.sha256:
            raise ContentError(
                f"Cannot install {package.name} {package.version}: it is not the file that the lock names.",
                details=[f"{path}: sha256 {digest}, locked {package.sha256}"],
                hint="Lock the cell again: the channel changed the file, or its index is wrong. Nothing was installed.",
            )


@contextmanager
def _in_place_of(prefix: Path) -> Iterator[None]:
    """Set an old environment aside until the new one is complete, and put it back when anything fails.

    Where a run was killed, the next puts it back.
    """
    aside = prefix.with_name(f".{prefix.name}-envsmith-old")
    with os_errors(f"use {prefix}"):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        if aside.is_dir():
            shutil.rmtree(prefix, ignore_errors=True)
            aside.rename(prefix)
        if prefix.exists() and any(prefix.iterdir()):
            if not (prefix / "conda-meta").is_dir():
                raise UsageError(
                    f"Cannot install into {prefix}: it is not empty, and it is not a Conda environment.",
                    hint="Give another folder.",
                )
            prefix.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(prefix, ignore_errors=True)
        if aside.is_dir():
            _put_back(aside, prefix)
        raise
    if aside.is_dir():
        with scratch(prefix.parent) as folder:  # never half removed under its own name
            aside.rename(folder / "env")


def _put_back(aside: Path, prefix: Path) -> None:
    with os_errors(f"put back the environment at {prefix}", hint=f"Move it back by hand: it is complete in {aside}."):
        aside.rename(prefix)


def _link(part: PlatformLock, prefix: Path, cache_dir: Path, channels: Sequence[str]) -> None:
    require_rattler()
    cache = cache_dir.absolute() / "conda-packages"
    order = {
        "prefix": str(prefix),
        "cache": str(cache),
        "platform": part.platform.value,
        "packages": [dataclasses.asdict(p) | {"filename": p.filename} for p in part.packages],
        "access": dataclasses.asdict(access_to(channels)),
    }
    with os_errors(f"link packages into {prefix}"):
        cache.mkdir(parents=True, exist_ok=True)
        linker = [sys.executable, "-m", "envsmith.lock.conda.linker"]
        finished = execute(linker, feed=json.dumps(order), patience=5.0)
    if finished.returncode:
        raise _error(part, _message(finished.stdout, finished.stderr, finished.returncode))


def _message(out: str, err: str, status: int) -> str:
    try:
        return str(parse_json(out)["error"])
    except (ValueError, KeyError, TypeError):
        tail = [line for line in err.splitlines() if line.strip()][-3:]
        return f"the linker ended with {status}: {' '.join(tail)}"


def _error(part: PlatformLock, text: str) -> EnvsmithError:
    """Return the error that rattler's one string is: its kind decides the exit code."""
    details = [clean(scrub(text), 600)]
    named = next((p for p in part.packages if p.filename in text or f"{p.name}-{p.version}-{p.build}" in text), None)
    what = f"{named.name} {named.version}" if named else "a Conda package"
    low = text.lower()
    if "hash mismatch" in low or "sha256" in low or "md5" in low:
        return ContentError(
            f"Cannot install {what}: it is not the file that the lock names.",
            details=details,
            hint="Lock the cell again if the channel changed it. Otherwise download it again.",
        )
    if "404" in low or "not found" in low or "no such file" in low:
        return NetworkError(
            f"Cannot fetch {what}: the channel does not have it any more.", details=details, hint="Lock the cell again."
        )
    if disk := refusal_of_disk(text):
        return StorageError(f"Cannot install {what}: {disk.sentence}.", details=details, hint=disk.hint)
    if "fetch" in low or "connect" in low or "error sending request" in low or "download" in low:
        return NetworkError(
            f"Cannot fetch {what}: the channel did not answer.",
            details=details,
            hint="Run the same command again, or give another --channel.",
        )
    return BuildError(f"Cannot install {what}: the linker failed.", details=details)


def _install_pip(packages: Sequence[PipPackage], build_pins: Sequence[Pin], uv: Uv, python: Path, tell: Tell) -> None:
    """Install addresses by hash. uv reads the user's configuration, and nothing is resolved."""
    with scratch() as folder:
        requirements = folder / "pip.txt"
        requirements.write_text(pip_lines(packages))
        command = ["pip", "install", "--no-deps", "--require-hashes", "--python", str(python), "-r", str(requirements)]
        if build_pins and any(not p.url.endswith(".whl") for p in packages):
            build = folder / "build.txt"
            build.write_text(layer_text(build_pins))
            # uv calls the second one a preview; without it a build tool that is not pinned would be fetched (as in
            # engine/venv.py).
            command += ["--build-constraints", str(build), "--require-build-hashes"]
            command += ["--preview-features", "build-dependency-hashes"]
        uv.check(command, work="install the pip section of the Conda lock", on_line=tell)


def _verify(part: PlatformLock, prefix: Path) -> None:
    """Refuse a prefix that is not the lock: every package by version, build and hash, every distribution by version."""
    installed: dict[str, tuple[str, str, str]] = {}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        data = parse_json(read_bounded(path, 64 << 20))
        installed[str(data.get("name"))] = (
            str(data.get("version")),
            str(data.get("build")),
            str(data.get("sha256") or ""),
        )
    wrong = []
    for package in part.packages:
        have = installed.pop(package.name, None)
        if have is None or have[:2] != (package.version, package.build) or have[2] not in {"", package.sha256}:
            installed_text = " ".join(have[:2]) if have else "nothing"
            wrong.append(f"{package.name}: locked {package.version} {package.build}, installed {installed_text}")
    wrong += [f"{name}: installed, but not in the lock" for name in installed]
    have_pip = _distributions(prefix)
    wrong += [
        f"{p.name}: locked {p.version}, installed {have_pip.get(p.name, 'nothing')}"
        for p in part.pip
        if have_pip.get(p.name) != p.version
    ]
    if wrong:
        raise ContentError(f"Cannot use {prefix}: it is not what the Conda lock says.", details=wrong[:20])


def _distributions(prefix: Path) -> dict[str, str]:
    versions = {}
    for path in prefix.glob("lib/python3.*/site-packages/*.dist-info"):
        name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        versions[fold(name)] = version
    return versions


# What ``conda activate`` would set for a cell, read out of its lock: an image and a smoke test start the interpreter
# directly.
#
# Only what a build of an extension at first use needs (DeepSpeed and Colossal-AI compile then): the compilers' names
# carry the target in the Conda world, and PyTorch asks ``CXX`` and ``CUDA_HOME`` for them. Scripts of packages are not
# run.


def variables(part: PlatformLock, prefix: str) -> dict[str, str]:
    """Return ``CONDA_PREFIX``, and the variables of the compilers that the lock has."""
    names = {p.name for p in part.packages}
    target = f"{prefix}/bin/{part.platform.machine}-conda-linux-gnu"
    activated = {"CONDA_PREFIX": prefix}
    if f"gcc_impl_{part.platform.value}" in names:
        activated["CC"] = f"{target}-gcc"
    if f"gxx_impl_{part.platform.value}" in names:
        activated["CXX"] = f"{target}-g++"
    if "cuda-nvcc" in names:
        activated["CUDA_HOME"] = prefix
        if "CXX" in activated:
            activated["NVCC_PREPEND_FLAGS"] = f"-ccbin={activated['CXX']}"
    return activated
