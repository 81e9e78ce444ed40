"""What is taken out of a text: what would drive a terminal, and what is nobody's business when it is sent or published.

The latter are logins, tokens, names, and where things stood on this machine.

One place for the snapshots of the doctor (:func:`redact`) and the records of runs (:func:`redact_values`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_TOKEN = re.compile(
    r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|ASIA|pypi-)[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_.-]{10,}"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_LONG_HEX = re.compile(r"\b[0-9a-fA-F]{40,}\b")
_URL_LOGIN = re.compile(r"(\w+://)[^/\s:@]{1,200}(?::[^/\s@]{0,200})?@")
_EMAIL = re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{2,64}\b")
_HOME = re.compile(r"(/home/|/Users/|/export/home/|/data/home/|/scratch/)[^/\s:'\"]{1,64}")
# An interpreter's or an environment's own folder, wherever it stands; what an operating system or an image has below
# /usr is the same everywhere.
_PYTHON = re.compile(r"(?<![\w.~>/-])(?!/usr/)/[^\s'\"<>]{0,400}?/lib/python3\.(\d{1,2})/(site-packages/)?")
_SYSTEM_TMP = ("/tmp", "/var/tmp")  # noqa: S108 - not written to: names that are replaced
# A host's name that could be an English word, or a framework, says nothing and would spoil a sentence.
_TELLING = re.compile(r"[\d.-]")


def clean(text: str) -> str:
    """Return text from outside without escape sequences and control characters: a log must not drive the terminal."""
    return _CONTROL.sub("", text)


def table_cell(text: str) -> str:
    """Return text as a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def redact(text: str, *, users: tuple[str, ...] | None = None) -> str:
    """Return ``text`` without logins, tokens, mail addresses, names of home folders, of this user and of this host."""
    text = _LONG_HEX.sub("<removed>", _without_secrets(text))
    text = _HOME.sub(r"\1USER", text)
    for name in _names() if users is None else users:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "USER", text)
    return text


def redact_values(value: object, places: Mapping[str, str]) -> object:
    """``value`` (what JSON can hold) with every string made fit to be published.

    No login or token, no path of this machine, no name of it.

    Digests stay: they are what a record is about. ``places`` as for :func:`redact_paths`.
    """
    if isinstance(value, dict):
        return {key: redact_values(item, places) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(item, places) for item in value]
    if not isinstance(value, str):
        return value
    text = redact_paths(_without_secrets(value), places)
    import socket

    host = socket.gethostname()
    for name in (host, host.split(".")[0]) if _TELLING.search(host) else ():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "<host>", text)
    return text


def redact_paths(text: str, places: Mapping[str, str]) -> str:
    """``text`` with folders of this machine by what they are: ``places`` maps a folder to what stands for it.

    In this order: what ``.`` stands for, Python's own folders wherever they are
    (``<env>/lib/python3.12/site-packages/…``, ``<python>/lib/python3.12/…``), the other places, the longest first, and
    other people's home folders.
    """
    inner = {folder: name for folder, name in places.items() if name == "."}
    text = _PYTHON.sub(_python_folder, _replaced(text, inner))
    return _HOME.sub(r"\1USER", _replaced(text, places))


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for folder in sorted(places, key=len, reverse=True):
        if folder in text:
            name = places[folder]
            text = re.sub(rf"(?<![\w.~>-]){re.escape(folder)}(?![\w.-])", name, text)
    return text


def _python_folder(match: re.Match[str]) -> str:
    inside = match[2] or ""
    return f"<{'env' if inside else 'python'}>/lib/python3.{match[1]}/{inside}"


def places_here(**folders: Path) -> dict[str, str]:
    """Return the folders of this process, for :func:`redact_paths`: home, temporary files, caches.

    ``folders`` by the word that stands for each (``state=``).
    """
    import tempfile  # it and socket cost milliseconds, which the help texts do not need

    places: dict[str, str] = dict.fromkeys((*_SYSTEM_TMP, tempfile.gettempdir()), "<tmp>")
    places["/root"] = places[os.path.expanduser("~")] = "~"  # noqa: PTH111 - Path.home() raises where there is none
    for name in ("XDG_CACHE_HOME", "UV_CACHE_DIR", "PIP_CACHE_DIR", "HF_HOME"):
        places[os.environ.get(name, "")] = "<cache>"
    for word, folder in folders.items():
        for path in {str(folder), str(folder.resolve())}:
            places[path.rstrip("/")] = "." if word == "cell" else f"<{word}>"
    # A relative name, or the root, stands in every second sentence.
    return {folder: name for folder, name in places.items() if folder.startswith("/") and len(folder) > 1}


def _without_secrets(text: str) -> str:
    return _EMAIL.sub("<address>", _TOKEN.sub("<removed>", _URL_LOGIN.sub(r"\1", text)))


def _names() -> tuple[str, ...]:
    import socket

    names = {
        os.environ.get("USER", ""),
        os.environ.get("LOGNAME", ""),
        socket.gethostname(),
        socket.gethostname().split(".")[0],
    }
    return tuple(
        sorted((n for n in names if len(n) > 2 and n not in {"root", "user", "localhost"}), key=len, reverse=True)
    )
