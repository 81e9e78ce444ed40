"""git, asked about a checkout that anybody may have made. Nothing that its settings name is started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from envsmith.base.programs import execute

_SECONDS = 120.0
# Settings of a repository that name programs, or servers.
_SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.alternateRefsCommand=",
    "core.pager=cat",
    "core.quotePath=false",
    "credential.helper=",
    "log.showSignature=false",
    "protocol.allow=never",
)
_VARIABLES = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
# Filters are named by the repository itself. An empty one changes nothing.
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_SHOWS = frozenset({"diff", "log", "show"})


def git(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Return how a command of git ended, and what it printed. ``OSError``, and ``TimeoutExpired``."""
    names = _run(folder, _SETTINGS, "config", "--name-only", "--get-regexp", _FILTERS).stdout.splitlines()
    filters = [f"{name}={'false' if name.endswith('.required') else ''}" for name in names]
    plain = ("--no-ext-diff", "--no-textconv") if command in _SHOWS else ()
    return _run(folder, (*_SETTINGS, *filters), command, *plain, *words)


def _run(folder: Path, settings: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    options = [part for setting in settings for part in ("-c", setting)]
    return execute(["git", *options, "-C", str(folder), *words], seconds=_SECONDS, env={**os.environ, **_VARIABLES})
