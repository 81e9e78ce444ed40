"""Builds without BuildKit: the same Dockerfile, step by step, through the engine's own interface of containers.

The classic builder knows neither mounts nor secrets, so it is not used. Every ``RUN`` is a container of its own, with the step's files and
secrets mounted where BuildKit would mount them, and what it wrote is committed as a layer. Only what our own renderer writes is understood.

The layers hold the same files as BuildKit's, in other headers and order, so that the engine's id of the image is another one, and another one
each time; the exported layout is the same. What is not the same: the engine must be on this machine (files are mounted from it), steps run one after the other, and
finished steps are kept as images ``envsmith/step:…`` until somebody removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.engines import buildkit
from envsmith.engines.base import TAIL, engine_errors
from envsmith.errors import ContentError, EngineError, InterruptedRunError
from envsmith.progress import Event, EventKind, Progress

if TYPE_CHECKING:
    from docker.types import Mount as EngineMount


# Where finished steps are kept; ``docker image rm $(docker image ls --format '{{.Repository}}:{{.Tag}}' envsmith/step)`` forgets them (by name:
# a step that an image stands on would be refused by its id).
STEPS = "envsmith/step"
_FINAL = frozenset({"ENV", "USER", "WORKDIR", "CMD", "LABEL"})
# Variables of the build (proxies) come in a file, or a committed step would remember them in its configuration.
_VARIABLES = "/dev/envsmith/.variables"
_PREFIX = f"if [ -s {_VARIABLES} ]; then set -a; . {_VARIABLES}; set +a; fi; "
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def wanted() -> bool:
    """``DOCKER_BUILDKIT=0`` asks for builds without BuildKit, as it does for docker itself."""
    return os.environ.get("DOCKER_BUILDKIT", "").strip().lower() in {"0", "false"}


def needs_local(address: str) -> str | None:
    """One sentence when the engine at ``address`` (the SDK's ``base_url``) cannot mount files of this machine."""
    if address == "http+docker://localhost" or address.startswith("unix:"):
        return None
    return "without BuildKit the engine must be on this machine, and answer at a socket of it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """One ``--mount`` of a step: ``kind`` is ``bind`` or ``secret``; ``stage`` names the stage that ``source`` is in, empty for the context."""

    kind: str
    source: str
    target: str
    stage: str = ""
    required: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruction:
    """One instruction: its word, the text behind it without mounts, and the mounts of a ``RUN``."""

    word: str
    text: str
    mounts: tuple[Mount, ...] = ()


def parse_dockerfile(text: str) -> tuple[Instruction, ...]:
    """The instructions of a Dockerfile of ours; ``EngineError`` for what our renderer does not write."""
    found = []
    for line in _joined(text):
        word, _, rest = line.partition(" ")
        if word not in {"FROM", "RUN", "COPY", *_FINAL}:
            raise EngineError(f"without BuildKit {word[:40]!r} is not understood", hint="build with BuildKit")
        mounts: list[Mount] = []
        while word == "RUN" and (match := re.match(r"--mount=(\S+)[\s\\]+", rest)):
            mounts.append(_mount(match[1]))
            rest = rest[match.end() :]
        if word != "RUN":
            rest = re.sub(r"\s*\\\n\s*", " ", rest)
        found.append(Instruction(word=word, text=rest.strip(), mounts=tuple(mounts)))
    return tuple(found)


def _joined(text: str) -> Iterator[str]:
    """Logical lines without comments; a step keeps its line breaks, which its shell reads."""
    parts: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\\\n".join([*parts, line])
        parts = []


def _mount(text: str) -> Mount:
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    kind = fields.get("type", "bind")
    if kind not in {"bind", "secret"} or "target" not in fields:
        raise EngineError(f"without BuildKit the mount {text[:80]!r} is not understood", hint="build with BuildKit")
    source = fields.get("id", "") if kind == "secret" else fields.get("source", "")
    required = kind == "bind" or fields.get("required") == "true"
    return Mount(kind=kind, source=source, target=fields["target"], stage=fields.get("from", ""), required=required)


@dataclass(slots=True)
class ClassicBuilder:
    """One build. ``client`` is the SDK's; ``secrets`` are files of this machine by id; ``variables`` are set in every step and kept in none.

    Without ``cache`` no finished step is taken and none is kept.
    """

    client: Any
    context: Path
    secrets: Mapping[str, Path]
    variables: Sequence[tuple[str, str]]
    network: str | None
    progress: Progress
    cache: bool = True
    _stages: dict[str, str] = field(default_factory=dict)
    _made: list[str] = field(default_factory=list)

    def build(self, *, output: Path | None = None) -> str:
        """The image's id; with ``output`` the files of the last stage (``FROM scratch`` and one ``COPY``) are written there (an empty id).

        Nothing is tagged. ``InterruptedRunError`` on Ctrl-C; the containers that were started are removed whatever happens.
        """
        instructions = parse_dockerfile((self.context / "Dockerfile").read_text(encoding="utf-8"))
        image = ""
        try:
            with tempfile.TemporaryDirectory(prefix="envsmith-classic-") as folder:
                image = self._through(instructions, Path(folder), output)
            if output is not None:
                return ""
            return self._finished(image, [f"{one.word} {one.text}" for one in instructions if one.word in _FINAL])
        except KeyboardInterrupt as error:
            raise InterruptedRunError(
                "the build was interrupted; nothing was tagged",
                hint="run the same command again: finished steps are kept",
            ) from error
        finally:
            self._forget(image)

    # -- stages --------------------------------------------------------------------------------------------------------

    def _through(self, instructions: Sequence[Instruction], folder: Path, output: Path | None) -> str:
        """Every instruction that makes or reads files, in order; the image after the last. What is no layer comes at the end."""
        image, stage = "", ""
        for one in instructions:
            if one.word == "FROM":
                image, stage = self._from(one.text)
            elif one.word == "RUN":
                image = self._step(image, one, folder)
            elif one.word == "COPY" and output is not None:
                self._copied(one.text, output)
            if stage:
                self._stages[stage] = image
        return image

    def _from(self, text: str) -> tuple[str, str]:
        name, _, stage = text.partition(" AS ")
        if name == "scratch":
            return "", stage
        if name in self._stages:
            return self._stages[name], stage
        with engine_errors(f"{name} cannot be looked up"):
            return str(self.client.images.get(name).id), stage

    def _copied(self, text: str, output: Path) -> None:
        """``COPY --from=STAGE /folder /``, or one file."""
        match = re.fullmatch(r"--from=(\S+) (/\S+) /", text)
        if match is None or match[1] not in self._stages:
            raise EngineError(f"without BuildKit COPY {text[:80]!r} is not understood", hint="build with BuildKit")
        self._extract(self._stages[match[1]], match[2], output)

    def _extract(self, image: str, folder: str, output: Path) -> None:
        """Write the plain files that lie in a folder of an image to ``output``: names only, no path of the archive is followed."""
        output.mkdir(parents=True, exist_ok=True)
        with (
            engine_errors(f"{folder} of the builder cannot be read"),
            self._container(image, "true", (), {}) as made,
            tempfile.TemporaryFile() as file,
        ):
            for block in made.get_archive(folder)[0]:
                file.write(block)
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                for member in archive:
                    data = archive.extractfile(member) if member.isreg() else None
                    if data is not None:
                        (output / Path(member.name).name).write_bytes(data.read())

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, image: str, step: Instruction, folder: Path) -> str:
        title = buildkit.title_of(" ".join(m.source for m in step.mounts) + " " + step.text)
        sources = {mount: path for mount in step.mounts if (path := self._source(mount, folder)) is not None}
        key = _key(image, step, sources)
        self._tell(EventKind.START, title)
        if self.cache and (kept := self._kept(key)):
            self._tell(EventKind.CACHED, title)
            return kept
        started = time.monotonic()
        made = self._run(image, step, sources, title, folder)
        if self.cache:
            with engine_errors("a finished step cannot be kept"):
                self.client.images.get(made).tag(STEPS, key)
        else:
            self._made.append(made)
        self._tell(EventKind.DONE, title, seconds=time.monotonic() - started)
        return made

    def _source(self, mount: Mount, folder: Path) -> Path | None:
        """The file or folder of this machine that a mount shows; ``None`` for a secret that was not given."""
        if mount.kind == "secret":
            given = self.secrets.get(mount.source)
            if given is None and mount.required:
                raise EngineError(f"the secret {mount.source} is wanted, and none was given")
            return given
        if not mount.stage:
            return self.context / mount.source
        # A stage's files are part of what a step is made of, as their own content, not as the stage's name.
        out = folder / f"stage-{mount.stage}"
        if not out.exists():
            self._extract(self._stages[mount.stage], mount.source, out)
        return out

    def _run(self, image: str, step: Instruction, sources: Mapping[Mount, Path], title: str, folder: Path) -> str:
        mounts = {mount.target: path for mount, path in sources.items()}
        if self.variables:
            file = folder / "variables"
            lines = [f"{n}={shlex.quote(v)}\n" for n, v in self.variables if _VARIABLE.fullmatch(n)]
            file.write_text("".join(lines), encoding="utf-8")
            file.chmod(0o600)
            mounts[_VARIABLES] = file
        lines_of: list[str] = []
        with (
            engine_errors(f"{title or 'a step'} cannot be run"),
            self._container(image, step.text, mounts.items(), {}) as made,
        ):
            made.start()
            for line in _lines(made.logs(stream=True, follow=True, stdout=True, stderr=True)):
                lines_of = [*lines_of[-3 * TAIL :], line]
                self._tell(EventKind.LINE, title, line)
            if made.wait()["StatusCode"]:
                self._tell(EventKind.FAILED, title)
                raise buildkit.judge(title or "the build", [line for line in lines_of if line.strip()][-TAIL:])
            return str(made.commit(message=step.text[:200]).id)

    @contextlib.contextmanager
    def _container(
        self, image: str, script: str, mounts: Iterable[tuple[str, Path]], options: Mapping[str, Any]
    ) -> Iterator[Any]:
        """A container that is removed at the end; while it runs, :func:`envsmith.engines.buildkit.end_all` can end it."""
        made = self.client.containers.create(
            image,
            ["/bin/sh", "-c", _PREFIX + script],
            user="0",
            network_mode=self.network or "default",
            mounts=[_engine_mount(target, path) for target, path in mounts],
            **options,
        )

        def stop() -> None:
            with contextlib.suppress(Exception):
                made.kill()

        buildkit.STOPS.add(stop)
        try:
            yield made
        finally:
            buildkit.STOPS.discard(stop)
            with contextlib.suppress(Exception):
                made.remove(force=True)

    def _kept(self, key: str) -> str | None:
        from docker.errors import ImageNotFound

        with engine_errors("the engine's finished steps cannot be looked up"):
            try:
                return str(self.client.images.get(f"{STEPS}:{key}").id)
            except ImageNotFound:
                return None

    def _finished(self, image: str, final: Sequence[str]) -> str:
        """The last image with everything that is no layer: environment, user, folder, command, labels."""
        self._tell(EventKind.START, "export")
        with engine_errors("the image cannot be finished"), self._container(image, "true", (), {}) as made:
            finished = str(made.commit(changes=list(final)).id)
        self._tell(EventKind.DONE, "export")
        return finished

    def _forget(self, last: str) -> None:
        """Without a cache the steps of this build are nobody's; the engine keeps the layers of an image that still needs them."""
        for made in reversed(self._made):
            if made != last:
                with contextlib.suppress(Exception):
                    self.client.images.remove(made)
        self._made.clear()

    def _tell(self, kind: EventKind, title: str, text: str = "", *, seconds: float | None = None) -> None:
        if title:
            self.progress(Event(kind=kind, step=title, text=text, seconds=seconds))


def _engine_mount(target: str, path: Path) -> EngineMount:
    from docker.types import Mount as EngineMount

    return EngineMount(target=target, source=str(path.resolve()), type="bind", read_only=True)


def _key(image: str, step: Instruction, sources: Mapping[Mount, Path]) -> str:
    """What a step is made of: the image before it, its words, and the content of what it sees; secrets are nothing of it, as in BuildKit."""
    digest = hashlib.sha256(f"{image}\n{step.text}\n".encode())
    for mount, path in sorted(sources.items(), key=lambda pair: pair[0].target):
        if mount.kind == "secret":
            continue
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            name = str(file.relative_to(path)) if file != path else ""
            digest.update(f"{mount.target}/{name}\n{_sha256(file)}\n".encode())
    return digest.hexdigest()[:40]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ContentError(f"{path.name}: the build context lacks it: {error.strerror or error}") from None
    return digest.hexdigest()


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Whole lines of a stream that comes in pieces."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")
