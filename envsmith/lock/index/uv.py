"""The one place that runs uv: which binary, in which environment, and what its failures mean.

uv is run in an empty folder, so that no ``pyproject.toml`` or ``uv.toml`` of a project changes what is resolved; the
user's own configuration of uv, or pip's where uv has none, reaches it by a pipe.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from envsmith.agent.compiler_words import refusal_of
from envsmith.base.files import scratch
from envsmith.base.json_types import JsonFields
from envsmith.base.os_packages import IN_IMAGES, NAMES, install_command
from envsmith.base.programs import Conversation, Kept, Lines
from envsmith.base.text import clean as clean_text
from envsmith.base.text import without_secrets
from envsmith.errors import (
    ContentError,
    ContradictionError,
    EngineError,
    EnvsmithError,
    InterruptedRunError,
    LockError,
    MissingProgramError,
    NetworkError,
    StorageError,
    refusal_of_disk,
)
from envsmith.model.project_name import normal_name
from envsmith.net.authorities import ca_bundle
from envsmith.net.index_settings import VARIABLES, as_toml, pip_values, uv_settings

OnLine = Callable[[str], None]

# Variables of uv that would change what is resolved or installed: the lock alone decides that.
_DECIDED_BY_US = (
    "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_BUILD_CONSTRAINT", "UV_TORCH_BACKEND", "UV_RESOLUTION", "UV_PRERELEASE",
    "UV_FORK_STRATEGY", "UV_EXCLUDE_NEWER", "UV_FIND_LINKS", "UV_NO_BUILD", "UV_NO_BINARY", "UV_REQUIRE_HASHES", "UV_NO_VERIFY_HASHES",
    "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR", "UV_PROJECT", "UV_PYTHON", "UV_CUSTOM_COMPILE_COMMAND",
    "UV_NO_BUILD_ISOLATION", "UV_COMPILE_BYTECODE", "UV_BREAK_SYSTEM_PACKAGES", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME",
)  # fmt: skip
# What a pipe holds until somebody reads it.
_PIPE = 1 << 16
# Lines that are kept of a run, and of a failure: uv prints one line a package, a failed build prints the backend's
# whole output.
_MAX_LINES = 5000
# Seconds that uv has to end by itself.
_PATIENCE = 5.0
# What is judged of a line, and what is shown of it: uv's reason why nothing can be solved is one line.
_MAX_LINE, SHOWN = 1 << 16, 2000
_TAIL = 30
# Of a command of a compiler nobody reads more.
_LONGEST = 240


@lru_cache(maxsize=1)
def find_uv() -> str:
    """Return the path of the uv binary: the one of the ``uv`` distribution, else the one on PATH.

    ``EngineError`` when there is none.
    """
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        path = shutil.which("uv")
    if not path:
        raise EngineError("Cannot run uv: it is not installed.", hint="Install it: pip install uv.")
    return path


def uv_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of uv: the user's without what changes the outcome, and without settings of indexes.

    What uv builds has the same environment, so no login may be in it: uv gets :func:`uv_settings` another way. Python
    is never downloaded unless the user has set ``UV_PYTHON_DOWNLOADS``.
    """
    user = os.environ if environ is None else environ
    env = {key: value for key, value in user.items() if key not in _DECIDED_BY_US and not key.startswith(VARIABLES)}
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    env |= {"NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
    env.pop("FORCE_COLOR", None)
    pip = pip_values(user)
    if (timeout := pip.get("timeout") or pip.get("default-timeout", "")).isdigit():
        env.setdefault("UV_HTTP_TIMEOUT", timeout)
    if proxy := pip.get("proxy"):
        for name in ("HTTPS_PROXY", "HTTP_PROXY"):
            if not (env.get(name) or env.get(name.lower())):
                env[name] = proxy
    if bundle := ca_bundle(user):
        env["SSL_CERT_FILE"] = str(bundle)
    elif (
        not {"SSL_CERT_DIR", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS"} & env.keys() and ssl.get_default_verify_paths().cafile
    ):
        env["UV_SYSTEM_CERTS"] = "true"
    return env


@contextmanager
def _configured(settings: JsonFields) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """Yield the variable that names uv's configuration, and the open file that it names.

    It is a pipe: uv reads it first of all, and what uv starts later finds it empty.
    """
    if not settings:
        yield {"UV_NO_CONFIG": "1"}, ()
        return
    text = as_toml(settings).encode(errors="replace")
    reading, writing = os.pipe()
    try:
        if len(text) > _PIPE:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, len(text))
        os.write(writing, text)
        os.close(writing)
        yield {"UV_CONFIG_FILE": f"/dev/fd/{reading}"}, (reading,)
    finally:
        os.close(reading)


def clean(line: str) -> str:
    """Return a line of a tool's output without terminal codes, credentials and endless length."""
    return without_secrets(clean_text(line.rstrip("\r\n")))[:_MAX_LINE]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What a run of uv left: its exit status, stdout, and every line of stderr, cleaned."""

    status: int
    stdout: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Uv:
    """Runs uv.

    ``environ`` is the user's environment, from which uv's own is made. ``cache`` is another cache folder than the user's; ``offline`` forbids the network; ``inherit`` are open files that
    uv keeps open as well (a lock that must outlive a killed parent).
    """

    binary: str = field(default_factory=find_uv)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cache: Path | None = None
    offline: bool = False
    inherit: tuple[int, ...] = ()

    @property
    def version(self) -> str:
        """Return ``uv 0.13.8``, or ``EngineError`` when the binary does not run."""
        answer = self.run(["--version"])
        return " ".join(answer.stdout.split()[:2])

    def check(
        self,
        arguments: Sequence[str],
        *,
        work: str,
        on_line: OnLine | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run and raise the error that :func:`explain_failure` makes of a failure. ``work`` is its verb and object."""
        finished = self.run(arguments, on_line=on_line, extra=extra)
        if finished.status != 0:
            raise explain_failure(finished, work=work)
        return finished

    def run(
        self, arguments: Sequence[str], *, on_line: OnLine | None = None, extra: Mapping[str, str] | None = None
    ) -> Finished:
        """Run uv to its end. Ctrl-C ends uv first and then raises ``InterruptedRunError``.

        ``EngineError`` when uv cannot be started.
        """
        options = [*(["--cache-dir", str(self.cache)] if self.cache else []), *(["--offline"] if self.offline else [])]
        command = [self.binary, *arguments, *options]
        output = Kept()
        # The beginning and the end: what a compiler refuses stands anywhere, and uv's own word is the last.
        first: list[str] = []
        last: deque[str] = deque(maxlen=_MAX_LINES // 2)

        def hear(raw: str) -> None:
            line = clean(raw)
            (first if len(first) < _MAX_LINES // 2 else last).append(line)
            if on_line and line.strip():
                on_line(line[:SHOWN])

        with scratch() as empty, _configured(uv_settings(self.environ)) as (variable, files):
            environment = {**uv_environment(self.environ), **variable, **(extra or {})}
            try:
                uv = Conversation(
                    command,
                    out=output.add,
                    err=Lines(hear, _MAX_LINE).add,
                    cwd=empty,
                    env=environment,
                    pass_fds=(*self.inherit, *files),
                )
            except OSError as error:
                raise EngineError(
                    f"Cannot run uv: {error}.", hint="Install it again: pip install --force-reinstall uv."
                ) from None
            try:
                status = uv.finish(patience=_PATIENCE)
            except KeyboardInterrupt:
                raise InterruptedRunError(
                    "Cannot finish the work of uv: it was interrupted.",
                    hint="Run the same command again. Downloaded files are not fetched again.",
                ) from None
        return Finished(status=status, stdout=output.text, lines=(*first, *last))


# What a failure means, by what uv 0.9 to 0.13 prints; the first that matches wins.
_HASH = re.compile(r"Hash mismatch for `?([^`\n]+)`?")
_NETWORK = re.compile(
    r"error sending request|Failed to fetch|client error|dns error|Connection (?:refused|reset)|timed? ?out|UnknownIssuer|invalid peer certificate"
    r"|Request failed after|error decoding response body|status (?:code|server error|client error)",
    re.IGNORECASE,
)
_OFFLINE = re.compile(r"network was disabled|Network connectivity is disabled")
_BUILD = re.compile(
    r"(?:Failed to (?:download and )?build|Failed to prepare distributions?)[:\s]*`?(?:[^`\s]*/)?([A-Za-z0-9._-]+(?:==[^`\s]+)?)`?"
)
# The words of a backend are those of any compiler: files named timeout.cc, addresses in warnings.
_BACKEND = re.compile(r"The build backend returned an error")
# uv's word on a project that is taken for another one.
_CONFUSED = re.compile(r"`([\w.-]{1,100})` is often confused for `([\w.-]{1,100})`")
# What a backend raised. The last one is what ended it.
_RAISED = re.compile(r"^\s+([A-Z]\w*(?:Error|Exception): .{1,300})$", re.MULTILINE)
_UNSOLVED = re.compile(r"No solution found when resolving")
_UNKNOWN = re.compile(r"Because ([A-Za-z0-9._-]+) was not found in the package registry")
_VARIANTS = re.compile(r"(?:Because|and) ([A-Za-z0-9._-]+==\S+) has only unsupported wheel variants")
_NO_VERSION = re.compile(r"Because there is no version of ([A-Za-z0-9._-]+(?:\[[^\]]*\])?[=<>!~][^\s,]*)")
_DEPENDS = re.compile(r"([A-Za-z0-9][\w.-]{0,80})(?:\[[^\]]{0,200}\])?(?:[=<>!~][^ ]{0,300})? depends? on")
_SPECIFIED = re.compile(r"(?<![\w.\[-])([A-Za-z0-9][\w.-]{0,80})(?:\[[^\]]{0,200}\])?[=<>!~]{1,2}\d")
# uv ends with what it was asked for: "And because you require protobuf==4.21.4 and scann, we can conclude …".
_REQUIRED = re.compile(r"you require ([^,\n]{1,2000})")
_ADDRESS = re.compile(r"(?:https?|file)://[^\s)`'\"]+")

_CACHE = re.compile(r"Failed to initialize cache")


def explain_failure(finished: Finished, *, work: str) -> EnvsmithError:
    """Return the error of a failed run: storage, network, content, a program that is missing, a lock that cannot be.

    Its details are uv's last lines.
    """
    text = "\n".join(finished.lines)
    last_lines = _told(finished.lines)
    details = tuple(line[:SHOWN] for line in last_lines)
    if disk := refusal_of_disk(text):
        hint = "Set UV_CACHE_DIR to a folder that can be written." if _CACHE.search(text) else disk.hint
        if disk.is_full:
            hint = "Free some space (or set UV_CACHE_DIR to another disk) and run the same command again."
        return StorageError(f"Cannot {work}: {disk.sentence}.", details=details, hint=hint)
    if match := _HASH.search(text):
        return ContentError(
            f"Cannot {work}: the hash of {match[1]} is not the one of the lock.",
            details=details,
            hint="Check the index or proxy: it serves another file than the one that was locked. Nothing was "
            "installed from it.",
        )
    if _OFFLINE.search(text):
        return NetworkError(
            f"Cannot {work}: the cache does not hold everything, and --offline switches the network off.",
            details=details,
            hint="Run once with the network.",
        )
    if (match := _BUILD.search(text)) and (refusal := refusal_of(text)) and refusal.missing:
        return _build_error(match[1], text, details, work)
    of_network = "\n".join(last_lines) if _BACKEND.search(text) else text
    if _NETWORK.search(of_network) and not _UNSOLVED.search(text):
        address = _ADDRESS.search(of_network)
        return NetworkError(
            f"Cannot {work}: {address[0].rstrip('.,') if address else 'the package index'} cannot be reached.",
            details=details,
            hint="Check the network, the proxy and the CA settings (SSL_CERT_FILE), then run the same command again.",
        )
    return _lock_error(text, details, work)


def _lock_error(text: str, details: tuple[str, ...], work: str) -> LockError:
    if match := _BUILD.search(text):
        return _build_error(match[1], text, details, work)
    if match := _UNKNOWN.search(text):
        return LockError(
            f"Cannot {work}: {match[1]} is not on the package index.",
            details=details,
            hint="Check its name. A private package needs its index in the settings of uv or pip.",
            names=_normal([match[1]]),
        )
    if match := _VARIANTS.search(text):
        return LockError(
            f"Cannot {work}: {match[1]} has only wheel variants (PEP 825), and uv does not choose among these.",
            details=details,
            hint="Choose a release that has a wheel without a variant label.",
            names=_normal([match[1]]),
        )
    if match := _NO_VERSION.search(text):
        return LockError(
            f"Cannot {work}: the package index has no {match[1]}.",
            details=details,
            hint="Check that it was not withdrawn, is not newer than --exclude-newer and is on your mirror.",
            names=_normal([match[1]]),
        )
    if unsolved := _UNSOLVED.search(text):
        return ContradictionError(
            f"Cannot {work}: the packages of this cell contradict each other.",
            details=details,
            hint="Choose another release of one of the packages that the lines above name.",
            names=_mentioned(text[unsolved.start() :]),
            required=_normal(_REQUIRED.findall(text)[-1].split(" and ")) if _REQUIRED.search(text) else (),
        )
    return LockError(f"Cannot {work}: uv failed.", details=details)


def _build_error(package: str, text: str, details: Sequence[str], work: str) -> LockError:
    """Return the error of a source that does not build: what was refused first, and what this host lacks."""
    undeclared = re.search(r"ModuleNotFoundError: No module named '([^']+)'", text)
    refusal = refusal_of(text)
    why = f", because its setup imports {undeclared[1]}, which it does not declare" if undeclared else ""
    if refusal:
        why = f": {refusal.line.rstrip('.')}"
    elif not why and (raised := _RAISED.findall(text)):
        why = f": {raised[-1].rstrip('.')}"
    message = f"Cannot {work}: {package} does not build from source{why}."
    details = [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in details]
    if refusal and refusal.missing:
        command = install_command([refusal.missing]) or NAMES[refusal.missing]
        engine = ", or use a container engine (--engine docker)" if refusal.missing in IN_IMAGES else ""
        hint = f"Install what is missing ({command}), or choose a release that has a wheel{engine}."
        return MissingProgramError(message, details=details, hint=hint, names=_normal([package]))
    hint = "Choose a release that has a wheel or builds on this Python."
    if confusion := _CONFUSED.search(text):
        hint = f"Ask for {confusion[2]} instead of {confusion[1]} (of a file: --without {confusion[1]} --package {confusion[2]})."
    if not undeclared and shutil.which("c++") is None:
        command = install_command(["c++"])
        hint += f" This host has no {NAMES['c++']}{f': {command}' if command else ''}."
    return LockError(message, details=details, hint=hint, names=_normal([package]))


def _mentioned(text: str) -> tuple[str, ...]:
    """Return the packages that uv's reason mentions with a version, those that depend on something first."""
    parents = (match[1] for match in _DEPENDS.finditer(text))
    names = (match[1] for match in _SPECIFIED.finditer(text))
    return _normal((*parents, *names))


def _normal(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the names of requirements as an index writes them, each once."""
    names = (re.split(r"[\s\[=<>!~]", text.strip(), maxsplit=1)[0] for text in requirements)
    return tuple(dict.fromkeys(normal_name(name) for name in names))


def _told(lines: Sequence[str]) -> tuple[str, ...]:
    """Return what follows uv's ``error:``, or the last lines. Of more than :data:`_TAIL` the beginning and the end."""
    start = next((n for n, line in enumerate(lines) if line.startswith("error:")), max(0, len(lines) - _TAIL))
    tail = _without_tracebacks(line for line in lines[start:] if line.strip())
    if len(tail) > _TAIL:
        tail = [*tail[:6], f"… {len(tail) - _TAIL} lines …", *tail[-(_TAIL - 6) :]]
    return tuple(tail)


_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def _without_tracebacks(lines: Iterable[str]) -> list[str]:
    """Return what a build backend said without the way to it: of a traceback its last line, the exception."""
    remaining: list[str] = []
    frames: int | None = None
    for line in lines:
        text = line.lstrip()
        indent = len(line) - len(text)
        if frames is not None and indent > frames:
            continue
        frames = indent if text == _TRACEBACK else None
        if frames is None and not text.startswith(_CHAINED):
            remaining.append(line)
    return remaining
