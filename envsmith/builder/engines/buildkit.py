"""The docker command line where the SDK cannot serve: a BuildKit build with secrets, its output shown as progress.

The SDK drives Docker's first builder only, which knows neither secrets nor cache mounts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envsmith.agent.compiler_words import refusal_of
from envsmith.base.programs import Conversation, Lines, execute
from envsmith.base.progress import EventKind, Progress, ProgressEvent
from envsmith.base.schema import parse_json
from envsmith.builder.engines.base import TAIL
from envsmith.errors import (
    BuildError,
    ContentError,
    EngineError,
    EnvsmithError,
    InterruptedRunError,
    NetworkError,
    StorageError,
    os_errors,
    refusal_of_disk,
)

# Clients up to 22 have BuildKit inside; later ones hand the build to the buildx plugin.
_LAST_WITH_BUILDKIT = 22


# The client by what was searched: one build looks five times, and asking the clients takes a third of a second.
_CLIENTS: dict[tuple[str | None, str], str] = {}


def find_client(path: str | None = None) -> str:
    """Return a docker client that can run BuildKit.

    Raises ``EngineError`` that says which were tried and why each was refused. ``ENVSMITH_DOCKER`` names one. Several
    may be installed: a client without its buildx plugin on PATH, a distribution's at ``/usr/bin``.
    """
    named = os.environ.get("ENVSMITH_DOCKER")
    searched = os.environ.get("PATH", "") if path is None else path
    if (client := _CLIENTS.get((named, searched))) and os.access(client, os.X_OK):
        return client
    folders = [*searched.split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    installed = [c for folder in dict.fromkeys(folders) if folder and (c := shutil.which("docker", path=folder))]
    reasons = []
    for client in dict.fromkeys([named] if named else installed):
        reason = _refused(client)
        if reason is None:
            _CLIENTS[named, searched] = client
            return client
        reasons.append(f"{client}: {reason}")
    raise EngineError(
        "Cannot find a docker client: none of those installed can run BuildKit.",
        details=reasons,
        hint="Install the buildx plugin of docker, or use --engine podman or buildah.",
    )


def _refused(client: str) -> str | None:
    if has_buildx(client):
        return None
    version = _ask([client, "version", "--format", "{{.Client.Version}}"]) or _ask([client, "--version"]) or ""
    major = re.search(r"(\d+)\.\d+", version)
    if major and int(major[1]) <= _LAST_WITH_BUILDKIT:
        return None
    return f"version {version or 'unknown'} without the buildx plugin"


def has_buildx(client: str) -> bool:
    """Return whether a client builds by buildx, which writes what it built into a file."""
    return _ask([client, "buildx", "version"]) is not None


def _ask(command: list[str]) -> str | None:
    """Return the first line of what a command prints, or ``None`` when it fails."""
    try:
        answer = execute(command, seconds=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.strip().splitlines()
    # "docker version" fails when no daemon answers, yet prints its own version first.
    return lines[0] if lines and (answer.returncode == 0 or lines[0][:1].isdigit()) else None


# Seconds that a client has to end by itself.
_PATIENCE = 5.0
_VERTEX = re.compile(r"#(\d+) (.*)")
_STAMPED = re.compile(r"(\d+\.\d+) ?(.*)")
_TITLES = (
    ("cell.sh compile", "compiled sources"),
    ("steps/base.sh", "base from packages"),
    ("requirements-uv", "uv"),
    ("requirements-sdists", "wheels of source distributions"),
    ("requirements-torch", "torch layer"),
    ("requirements-dependencies", "dependencies layer"),
    ("requirements-framework", "framework layer"),
    ("requirements-build", "what is compiled with"),
    ("cell.sh os_packages", "distribution packages"),
    ("cell.sh environment", "user and environment"),
    ("cell.sh bytecode", "byte-code"),
    ("exporting to", "export"),
)


def title_of(instruction: str) -> str:
    """Return the name of a step by its instruction, or nothing for one that is not worth showing."""
    return next((title for mark, title in _TITLES if mark in instruction), "")


@dataclass(slots=True)
class Transcript:
    """Reads ``--progress plain`` line by line: vertices of the Dockerfile become steps, other lines are kept for a failure."""

    progress: Progress
    titles: dict[str, str] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    failed: str | None = None
    tail: list[str] = field(default_factory=list)

    def feed(self, line: str) -> None:
        """Take one line of output."""
        self.tail = [*self.tail[-3 * TAIL :], line]
        match = _VERTEX.fullmatch(line)
        if not match:
            return
        number, text = match[1], match[2]
        if number not in self.titles:
            self.titles[number] = title_of(text)
            self._tell(number, EventKind.START)
        elif text == "CACHED":
            self._tell(number, EventKind.CACHED)
        elif text.startswith("DONE"):
            seconds = re.search(r"(\d+\.\d+)s", text)
            self._tell(number, EventKind.DONE, seconds=float(seconds[1]) if seconds else None)
        elif text.startswith("ERROR"):
            self.failed = number
            self._tell(number, EventKind.FAILED)
        elif not text.startswith("sha256:"):
            stamped = _STAMPED.fullmatch(text)
            text = stamped[2] if stamped else text
            self.lines.setdefault(number, []).append(text)
            self._tell(number, EventKind.LINE, text)

    def _tell(self, number: str, kind: EventKind, text: str = "", *, seconds: float | None = None) -> None:
        if title := self.titles.get(number, ""):
            self.progress(ProgressEvent(kind=kind, step=title, text=text, seconds=seconds))

    def error(self) -> EnvsmithError:
        """Return the error, from the failed step's own lines, or from the end of the output when no step failed."""
        number = self.failed
        step = (self.titles.get(number, "") if number else "") or "the build"
        lines = self.lines.get(number, []) if number else []
        return judge(step, last_words(lines or self.tail))


# What the last lines say, the error it is, and what to do: first match wins.
_KNOWN: tuple[tuple[str, type[EnvsmithError], str], ...] = (
    (
        (
            r"Cannot connect to the Docker daemon|docker\.sock|error reading from server|unexpected EOF|"
            r"rpc error: code = (?:Unavailable|Canceled)|transport is closing|connection is closing|closing transport"
        ),
        EngineError,
        "Start the engine again, which ended during the build, then run the same command: finished steps are kept.",
    ),
    (
        r"Hash mismatch|hash mismatch|do(?:es)? not match any of the.*hash",
        ContentError,
        "Lock the cell again, or find out who changed the artifact: it differs from its lock.",
    ),
    (
        r"E: Version '.*' for '.*' was not found",
        BuildError,
        "Run the same command with a fresh lock: the distribution's mirror has newer packages.",
    ),
    (
        r"invalid peer certificate|certificate verify failed|UnknownIssuer|Certificate verification failed",
        NetworkError,
        "Set SSL_CERT_FILE to the CA bundle of the proxy that inspects TLS. It reaches the build as a secret.",
    ),
    (
        (
            r"dns error|Temporary failure resolving|Could not resolve|error sending request|Connection refused|timed out|"
            r"Failed to fetch"
        ),
        NetworkError,
        ("Check the network, proxy and index settings, then run again. Finished steps are kept."),
    ),
    (
        r"failed to resolve source metadata|pull access denied|failed to do request|not found: manifest unknown",
        EngineError,
        "Check the registry, or name what is here: a base with --base, for --base packages a tool with ENVSMITH_TOOL.",
    ),
    (
        r"unknown flag|BuildKit is enabled but|buildx component is missing",
        EngineError,
        "Install docker-buildx or set ENVSMITH_DOCKER to another client: this one cannot run BuildKit.",
    ),
)


FULL_HINT = "Free space where the engine keeps its images (docker system df), then run again. Finished steps are kept."
_NEXT = (
    "Look at the lines above, the last ones of the step. Finished steps are kept, and the next run starts at this one."
)


# What compilers, linkers and CMake begin the line with that says why.
_ERROR = re.compile(r"\b(?:fatal error|error):|CMake Error|undefined reference", re.IGNORECASE)
_ERRORS = 5


def last_words(lines: Sequence[str]) -> list[str]:
    """Return the end of a step's output. The first errors above it stand before: a traceback of who called is long."""
    written = [line for line in lines if line.strip()]
    errors = [line for line in written[:-TAIL] if _ERROR.search(line)][:_ERRORS]
    return [*errors, *written[len(errors) - TAIL :]]


def judge(step: str, lines: list[str], *, hint: str = _NEXT) -> EnvsmithError:
    """Return the error that the last lines of a failed step speak of. ``hint`` is for one that says nothing known."""
    text = "\n".join(lines)
    if (disk := refusal_of_disk(text)) and disk.is_full:
        return StorageError(f"Cannot finish {step}: {disk.sentence}.", details=lines, hint=FULL_HINT)
    for pattern, kind, advice in _KNOWN:
        if re.search(pattern, text):
            return kind(f"Cannot finish {step}: its command failed.", details=lines, hint=advice)
    refusal = refusal_of(text)
    why = f": {refusal.line.rstrip('.')}" if refusal else ""
    return BuildError(f"Cannot finish {step}: its command failed{why}.", details=lines, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lent:
    """What the steps of a build get from the host: a network, files of secrets, values of build arguments."""

    network: str | None
    secrets: Mapping[str, Path]
    arguments: Iterable[tuple[str, str]] = ()


def build(
    client: str,
    context: Path,
    lent: Lent,
    *,
    scratch: Path,
    buildx: bool = False,
    progress: Progress,
    cache: bool = True,
    output: Path | None = None,
) -> str:
    """Build ``context`` without tagging anything and return the image id.

    The client writes its answers into the folder ``scratch``: one with ``buildx`` (:func:`has_buildx`) one more. Without ``cache`` no step of an earlier build is used.
    With ``output`` the files of the stage ``built`` are written to that folder and there is no image (an empty id). On
    Ctrl-C or any other exception the client is ended and waited for, which cancels the build in the engine. Nothing is
    tagged, and finished steps stay in the engine's cache.
    """
    image_id_file = scratch / "image"
    metadata = scratch / "metadata.json" if buildx and not output else None
    command = [client, "build", "--progress", "plain"]
    if output:
        command += ["--output", f"type=local,dest={output}", "--target", "built"]
    else:
        command += ["--iidfile", str(image_id_file)]
    command += ["--metadata-file", str(metadata)] if metadata else []
    command += ["--network", lent.network] if lent.network else []
    command += [] if cache else ["--no-cache"]
    for name, path in lent.secrets.items():
        command += ["--secret", f"id={name},src={path}"]
    # An attestation of the builder's would make another image of it (an index) and hold the hour of the build.
    plain_image = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", **plain_image}
    for name, value in lent.arguments:
        # By name: the value comes from the environment and stands in no process list.
        command += ["--build-arg", name]
        environment[name] = value
    transcript = Transcript(progress)
    code = follow([*command, str(context)], environment, transcript)
    if code:
        raise transcript.error()
    if output:
        return ""
    # An engine that keeps its images in containerd knows them by their manifest, which only buildx names.
    if metadata is not None:
        return str(parse_json(metadata.read_bytes())["containerimage.digest"])
    return image_id_file.read_text(encoding="ascii").strip()


class Reader(Protocol):
    """Takes a builder's output line by line."""

    def feed(self, line: str) -> None:
        """Take one line."""
        ...


def follow(command: list[str], environment: Mapping[str, str], transcript: Reader) -> int:
    """Run a builder to its end, hand its output on and return its status. It is ended with whatever ends this call.

    Raises ``EngineError`` when it cannot be started, ``InterruptedRunError`` on Ctrl-C.
    """
    with os_errors(f"start {command[0]}", EngineError):
        client = Conversation(command, out=Lines(transcript.feed).add, env=dict(environment))
    try:
        return client.finish(patience=_PATIENCE)  # a client that is gone cancels its build in the engine
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            "Cannot finish the build: it was interrupted. Nothing was tagged.",
            hint="Run the same command again. Finished steps are kept.",
        ) from error
