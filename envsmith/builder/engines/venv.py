"""The engine that needs nothing but Python: a lock installed into a virtual environment beside its files.

It is installed layer by layer, as an image is: the empty environment, torch with its CUDA libraries, the framework. The
next run keeps a finished layer, which has a stamp, and removes an unfinished one. uv installs only what is hashed, and
links files from its cache.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.base.files import digest_of, scratch, sha256_of, storage_errors, write_whole
from envsmith.base.interpreter import python_in
from envsmith.base.os_packages import install_command
from envsmith.base.programs import execute
from envsmith.base.progress import EventKind, Progress, ProgressEvent, announced, silent
from envsmith.builder.engines.base import Built, Engine, verify_content
from envsmith.builder.engines.compiling import Workshop, lacking_later, refuse_uncompilable, sources_of
from envsmith.builder.engines.content import INSPECT_SCRIPT, parse_inspection
from envsmith.builder.engines.space import refuse_without_room
from envsmith.builder.engines.stamps import Stamp, entries, finished, remove, reset, stamp
from envsmith.errors import (
    BuildError,
    ContentError,
    EngineError,
    EnvsmithError,
    InterruptedRunError,
    LockError,
    MissingProgramError,
)
from envsmith.lock.index.interpreters import Interpreter, find_interpreter, find_interpreters
from envsmith.lock.index.uv import Uv, find_uv
from envsmith.lock.pip_files import ALL_FILE, LAYER_FILES, layer_text
from envsmith.model.lock import Lock, Pin
from envsmith.smoke.run import LocalTarget

if TYPE_CHECKING:
    from envsmith.model.cell import Cell
    from envsmith.smoke.run import SmokeTarget


FOLDER = "venv"
# Operators of this cell that were compiled when they were first used (DeepSpeed's optimizers) are kept beside the environment, not in the
# user's home.
_EXTENSIONS = "torch-extensions"
# The step that builds what the index has as source only.
_SOURCES = "source packages"
# The oldest Python that a cell of the graph can have.
_OLDEST = (3, 8)
# A framework's setup compiles operators when these are set; what is locked is the plain build.
PLAIN_BUILD = {
    "UV_NO_INSTALLER_METADATA": "1",
    "SOURCE_DATE_EPOCH": "1735689600",
    "PYTHONHASHSEED": "0",
    "DS_BUILD_OPS": "0",
    "BUILD_EXT": "0",
    "CUDA_EXT": "0",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """One step of the build: ``pins`` are empty for the environment itself."""

    name: str
    key: str
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class VenvEngine(Engine):
    """Installs with uv for an interpreter of this host."""

    name = "venv"
    uv: Uv | None = None

    @classmethod
    def create(cls, *, offline: bool = False, channels: tuple[str, ...] = ()) -> VenvEngine:
        """Return an engine whose uv stays off the network when the user said so."""
        del channels
        return cls(uv=Uv(offline=True) if offline else None)

    def available(self) -> str | None:
        """Return why the engine cannot be used: no uv, or no interpreter."""
        try:
            _ = self.uv or find_uv()
        except EngineError as error:
            return error.reason
        return None if self.pythons() else "no CPython 3.8 or newer was found on this host"

    def pythons(self, base: str | None = None) -> tuple[str, ...]:
        """Return the minors of this host's interpreters, newest first."""
        del base
        minors = [i.minor for i in find_interpreters()]
        return tuple(m for m in minors if tuple(map(int, m.split("."))) >= _OLDEST)

    def refuse(self, cell: Cell) -> None:
        """Refuse what must be compiled where this host lacks the means."""
        if python := find_interpreter(cell.components["python"]):
            refuse_uncompilable(sources_of(cell), python)

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent) -> Built:
        """Install ``lock`` into ``directory/venv``."""
        return realise(lock, directory, progress=progress, uv=self.uv)

    def inspect(self, built: Built) -> dict[str, str]:
        """Return what the environment's own interpreter finds."""
        return inspect_python(Path(built.python))

    def target(self, built: Built) -> SmokeTarget:
        """Return the environment's interpreter. Compiled operators are kept beside the environment."""
        extensions = Path(built.reference).parent / _EXTENSIONS
        return LocalTarget(python=Path(built.python), extra={"TORCH_EXTENSIONS_DIR": str(extensions)})


def realise(
    lock: Lock, directory: Path, *, progress: Progress = silent, uv: Uv | None = None, torch_uv: Uv | None = None
) -> Built:
    """Install ``lock`` into ``directory/venv``, from its last finished layer on, and compare the result with the lock.

    ``torch_uv`` installs the torch layer, where its gigabytes are to lie in a cache of their own. Raises
    ``EngineError`` (no interpreter), ``StorageError`` (not enough space), ``BuildError``, ``NetworkError``,
    ``ContentError`` (a hash or an installed version differs), ``InterruptedRunError``. An unfinished layer is removed
    before.
    """
    interpreter = _interpreter(lock)
    refuse_uncompilable(lock.compiled, interpreter)
    environment = (directory / FOLDER).absolute()
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory, progress) as handle:
            tool = dataclasses.replace(uv or Uv(), inherit=(handle,))
            heavy = dataclasses.replace(torch_uv or tool, inherit=(handle,))
            builder = _Builder(
                uv=tool, torch_uv=heavy, lock=lock, environment=environment, interpreter=interpreter, progress=progress
            )
            builder.build()
            _read_files(lock, builder.python, directory / f".{FOLDER}.read", progress)
            digest = content_digest(environment)
    return Built(
        digest=digest,
        kind="venv",
        reference=str(environment),
        python=str(builder.python),
        cell=lock.cell.id,
        facts={"interpreter": interpreter.path, "python": interpreter.version},
        usage=_usage(lock, environment, interpreter, tool),
    )


def _usage(lock: Lock, environment: Path, interpreter: Interpreter, tool: Uv) -> tuple[tuple[str, str], ...]:
    uv = shutil.which("uv")
    # The one beside this envsmith leaves PATH when the environment is activated.
    uv = "uv" if uv and Path(uv).parent != Path(sys.executable).parent else tool.binary
    add = shlex.join([uv, "pip", "install", "--python", str(python_in(environment)), "NAME"])
    rows = [
        ("to use it", shlex.join(["source", str(environment / "bin" / "activate")])),
        ("to add a package (it has no pip)", add),
    ]
    components, missing = lacking_later(lock, interpreter)
    if command := install_command(missing, python=interpreter.minor) if missing else "":
        rows.append((f"to compile in training ({', '.join(components)})", command))
    return tuple(rows)


def _read_files(lock: Lock, python: Path, marker: Path, progress: Progress) -> None:
    """Read every installed file against its RECORD (five seconds a gigabyte), and note in ``marker`` what was read.

    uv links files from its cache: an edit in one environment is an edit in the next. The system's own time of the last
    change cannot be put back, so what carries the noted one needs no second reading.
    """
    environment = python.parent.parent
    times = {name: (s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for name, s in entries(environment)}
    state = digest_of(json.dumps([lock.digest, sorted(times.items())]).encode())
    with suppress(OSError):
        if marker.read_text(encoding="ascii") == state:
            verify_content(lock, inspect_python(python))
            return
    with announced(progress, "content", "every installed file"):
        verify_content(lock, inspect_python(python, "files"))
    write_whole(marker, state)


def _interpreter(lock: Lock) -> Interpreter:
    if lock.cell.platform.machine != platform.machine():
        raise EngineError(
            f"Cannot install the lock: it is for {lock.cell.platform.value}, and this host is {platform.machine()}.",
            hint="Build it on such a host, or with a container engine that can emulate it.",
        )
    interpreter = find_interpreter(lock.python_version)
    if interpreter is None:
        present = ", ".join(i.version for i in find_interpreters()) or "none"
        raise EngineError(
            f"Cannot find Python {lock.python_version} on this host: it has {present}.",
            hint=f"Install it (uv python install {lock.python_version}), or use another --python.",
        )
    return interpreter


@contextmanager
def _alone(directory: Path, progress: Progress) -> Iterator[int]:
    """Hold the lock of a cell's environment. A second build waits.

    uv inherits the lock: where envsmith was killed, the next build waits for uv's end.
    """
    handle = os.open(directory / f".{FOLDER}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{directory}: another build of this cell is running; waiting for it"
            progress(ProgressEvent(kind=EventKind.NOTE, step="", text=text))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Builder:
    """Brings one environment to the state of a lock."""

    uv: Uv
    torch_uv: Uv
    lock: Lock
    environment: Path
    interpreter: Interpreter
    progress: Progress

    @property
    def python(self) -> Path:
        return python_in(self.environment)

    def build(self) -> None:
        layers = self._layers()
        stamps = finished(self.environment, tuple(layer.key for layer in layers))
        self._restore(stamps)
        for layer in layers[: len(stamps)]:
            self.progress(ProgressEvent(kind=EventKind.CACHED, step=_step(layer)))
        pins = [pin for layer in layers[len(stamps) :] for pin in layer.pins]
        refuse_without_room(
            self.lock.cell.id,
            [{self.environment.parent: pins}],
            hint="Free some space, or choose another --output. uv's cache (UV_CACHE_DIR) is best on the same disk.",
            spared=lambda: self._cached(pins),
        )
        for number in range(len(stamps), len(layers)):
            self._build_sources(layers, number)
            self._run(layers, number)

    def _build_sources(self, layers: Sequence[_Layer], number: int) -> None:
        """Build what later layers have as source only into uv's cache, before a layer of wheels comes down.

        A build that fails (no compiler, no header) fails so in seconds, not behind gigabytes.
        """
        compiled = {source.name for source in self.lock.compiled}
        later = [pin for layer in layers[number + 1 :] for pin in layer.pins if pin.sdist and pin.name not in compiled]
        if number != 1 or not later:
            return
        with (
            announced(self.progress, _SOURCES, ", ".join(pin.name for pin in later)),
            scratch(self.environment.parent) as folder,
            installation(self.python, later, self.lock.build_pins) as arguments,
        ):
            place = ["--target", str(folder / "built")]
            self._uv([*arguments, *place], step=_SOURCES, work="build the source packages")

    def _layers(self) -> list[_Layer]:
        layers = [_Layer(name="environment", key=_key("environment", self.interpreter.path, self.interpreter.version))]
        for name in LAYER_FILES:
            if pins := tuple(pin for pin in self.lock.pins if pin.layer == name):
                build_pins = layer_text(self.lock.build_pins) if any(pin.sdist for pin in pins) else ""
                compiled = [s.to_json() for s in self.lock.compiled if s.name in {pin.name for pin in pins}]
                made_of = [json.dumps(compiled, sort_keys=True)] if compiled else []
                key = _key(name, layers[-1].key, layer_text(pins), build_pins, self.lock.cell.torch_backend, *made_of)
                layers.append(_Layer(name=name, key=key, pins=pins))
        return layers

    def _restore(self, stamps: Sequence[Stamp]) -> None:
        """Go back to the last finished layer. Without one, remove everything."""
        if stamps:
            reset(self.environment, stamps[-1], len(stamps))
        else:
            remove(self.environment)

    def _run(self, layers: Sequence[_Layer], number: int) -> None:
        """Install one layer and stamp it. Whatever stops it, the environment goes back to the layer before."""
        layer = layers[number]
        step = _step(layer)
        text = f"{len(layer.pins)} distributions" if layer.pins else self.interpreter.version
        try:
            with announced(self.progress, step, text):
                if layer.pins:
                    self._install(layer)
                else:
                    self._create()
                stamp(self.environment, number, layer.key)
        except BaseException as error:
            with suppress(OSError):
                self._restore(finished(self.environment, tuple(x.key for x in layers[:number])))
            if isinstance(error, (KeyboardInterrupt, InterruptedRunError)):
                hint = "Run the same command again. It resumes."
                raise InterruptedRunError(f"Cannot finish the {step}: it was interrupted.", hint=hint) from None
            raise

    def _create(self) -> None:
        arguments = ["venv", "--quiet", "--no-project", "--python", self.interpreter.path, str(self.environment)]
        self._uv(arguments, step="virtual environment")

    def _install(self, layer: _Layer) -> None:
        names = {source.name for source in self.lock.compiled}
        compiled = [pin for pin in layer.pins if pin.name in names]
        self._install_pins(layer, [pin for pin in layer.pins if pin.name not in names])
        if compiled:
            step = _step(layer)
            shop = Workshop(
                lock=self.lock,
                folder=self.environment.parent,
                python=self.python,
                environ=self.uv.environ,
                run=lambda arguments, extra: self._uv(arguments, step=step, work="compile a wheel", extra=extra),
            )
            wheels = [str(path) for path in shop.wheels(compiled)]
            self._uv(["pip", "install", "--python", str(self.python), "--no-deps", "--offline", *wheels], step=step)

    def _install_pins(self, layer: _Layer, pins: Sequence[Pin]) -> None:
        with installation(self.python, pins, self.lock.build_pins, backend=self.lock.cell.torch_backend) as arguments:
            self._uv(arguments, step=_step(layer))

    def _uv(
        self, arguments: Sequence[str], *, step: str, work: str = "", extra: Mapping[str, str] | None = None
    ) -> None:
        def on_line(line: str) -> None:
            self.progress(ProgressEvent(kind=EventKind.LINE, step=step, text=line.strip()))

        work = work or f"{'install' if step.endswith('layer') else 'create'} the {step}"
        tool = self.torch_uv if step == "torch layer" else self.uv
        try:
            tool.check(arguments, work=work, on_line=on_line, extra={**PLAIN_BUILD, **(extra or {})})
        except LockError as error:
            kind = EngineError if isinstance(error, MissingProgramError) else BuildError
            raise kind(error.message, details=error.details, hint=error.hint) from None

    def _cached(self, pins: Sequence[Pin]) -> bool:
        """Return whether everything is in uv's caches, on the disk of the environment, so that files are linked."""
        heavy = [pin for pin in pins if pin.layer == "torch"]
        light = [pin for pin in pins if pin.layer != "torch" and not pin.sdist]
        try:
            return self._linked(self.torch_uv, heavy) and self._linked(self.uv, light)
        except (OSError, EnvsmithError):
            return False

    def _linked(self, tool: Uv, pins: Sequence[Pin]) -> bool:
        cache = Path(tool.check(["cache", "dir"], work="find the cache of uv").stdout.strip())
        if cache.stat().st_dev != self.environment.parent.stat().st_dev:
            return False
        with scratch() as folder:
            requirements = folder / "requirements.txt"
            requirements.write_text(layer_text(pins), encoding="utf-8")
            arguments = ["pip", "install", "--dry-run", "--offline", "--no-deps", "--require-hashes"]
            arguments += ["--python", self.interpreter.path, "--break-system-packages"]
            arguments += ["--target", str(folder / "none"), "--requirements", str(requirements)]
            return tool.run(arguments).status == 0


@contextmanager
def installation(
    python: Path, pins: Sequence[Pin], build_pins: Sequence[Pin], *, backend: str = ""
) -> Iterator[list[str]]:
    """Yield the arguments with which uv installs ``pins``, and nothing else, from files with their hashes alone."""
    with scratch() as folder:
        requirements = folder / ALL_FILE
        requirements.write_text(layer_text(pins), encoding="utf-8")
        arguments = ["pip", "install", "--python", str(python), "--no-deps", "--require-hashes"]
        arguments += ["--requirements", str(requirements)]
        if backend:
            arguments += ["--torch-backend", backend]
        if any(pin.sdist for pin in pins):
            build = folder / "build.txt"
            build.write_text(layer_text(build_pins), encoding="utf-8")
            # Without the second option uv would fetch a build tool that is not pinned; it is still called a preview
            # in uv 0.13.
            arguments += ["--build-constraints", str(build), "--require-build-hashes"]
            arguments += ["--preview-features", "build-dependency-hashes"]
            for pin in pins:
                arguments += [] if pin.sdist else ["--only-binary", pin.name]
        else:
            arguments += ["--only-binary", ":all:"]
        yield arguments


def _step(layer: _Layer) -> str:
    return f"{layer.name} layer" if layer.pins else "virtual environment"


def _key(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def inspect_python(python: Path, *arguments: str) -> dict[str, str]:
    """Ask the environment's own interpreter what it holds, isolated from the user's site and variables.

    With ``files`` every installed file is read.

    Raises ``ContentError`` when it does not start or does not answer.
    """
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(python), "-I", "-B", "-c", INSPECT_SCRIPT, *arguments]
    try:
        answer = execute(command, seconds=900, env=variables)
    except (OSError, subprocess.SubprocessError) as error:
        raise ContentError(f"Cannot start {python}: {error}.", hint="Remove the folder and build again.") from None
    return parse_inspection(answer.stdout if answer.returncode == 0 else answer.stdout + answer.stderr)


# What an installer writes about itself or for this place alone: scripts name the path of their interpreter.
_OF_THE_INSTALLER = re.compile(
    r"(?:^|/)(?:INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json|uv_build\.json)$|\.py[co]$|^\.\./"
)


def content_digest(environment: Path) -> str:
    """Return ``sha256:…`` over what every ``RECORD`` lists, without what only the installer or the place decides.

    The same wheels give the same digest on every machine and path. Raises ``OSError`` or ``ValueError`` for a damaged
    RECORD.
    """
    lines: list[str] = []
    for record in environment.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        rows = csv.reader(io.StringIO(record.read_text(encoding="utf-8")))
        entries = [row for row in rows if len(row) == 3 and not _OF_THE_INSTALLER.search(row[0])]
        lines += [f"{name},{digest or _hash(record.parent.parent / name)}" for name, digest, _ in entries]
    return digest_of("\n".join(sorted(lines)).encode())


def _hash(path: Path) -> str:
    """Return the hash that a RECORD leaves out (PEP 376 allows it), written as there."""
    with path.open("rb") as file:
        return "sha256=" + base64.urlsafe_b64encode(sha256_of(file)).decode().rstrip("=")
