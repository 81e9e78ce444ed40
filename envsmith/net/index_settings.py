"""The user's settings of uv and pip for package indexes and their logins.

Resolver, image build and our own client obey the same settings: :func:`uv_settings`, which is uv's configuration with
pip's settings in it where uv has none. It holds passwords: it is for a pipe or a secret, never for an environment, an
argument or a message.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from envsmith.base.files import expand_home, read_text, read_toml
from envsmith.errors import DataError, UsageError

# Beginnings of the variables that say what is in :func:`uv_settings`. Some of them are passwords.
VARIABLES = (
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_CONFIG_FILE",
    "UV_NO_CONFIG",
    "UV_INSECURE_HOST",
    "UV_PUBLISH_",
    "PIP_",
)


def pip_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return pip's configuration files on Linux, weakest first, as pip documents them."""
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return ()
    own_folder, folders = _config_folders(environ)
    paths = [
        *(folder / "pip" / "pip.conf" for folder in reversed(folders)),
        Path("/etc/pip.conf"),
        expand_home("~", environ) / ".pip" / "pip.conf",
        own_folder / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    return (*paths, *([Path(own)] if own else []))


def _config_folders(environ: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Return the user's folder of configurations, and those of the system, strongest first."""
    system = [Path(folder) for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if folder]
    return Path(environ.get("XDG_CONFIG_HOME") or expand_home("~", environ) / ".config"), system


def _file_values(path: Path) -> dict[str, str]:
    """Return the options of ``[global]`` and ``[install]``.

    A file that cannot be read or parsed says nothing, as if it were not there.
    """
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(read_text(path, 1 << 20))
    except (configparser.Error, DataError):
        return {}
    values: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            values |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    return values


def pip_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's options by their long names, as text: files first, then ``PIP_*`` variables, which win.

    What is malformed is ignored.
    """
    values: dict[str, str] = {}
    for path in pip_files(environ):
        values |= _file_values(path)
    for key in ("index-url", "extra-index-url", "cert", "proxy", "trusted-host", "timeout", "find-links", "no-index"):
        if value := environ.get("PIP_" + key.upper().replace("-", "_"), "").strip():
            values[key] = value
    if "timeout" not in values and environ.get("PIP_DEFAULT_TIMEOUT"):
        values["timeout"] = environ["PIP_DEFAULT_TIMEOUT"]
    return values


def netrc_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of logins that uv and pip read, or ``None`` where there is none."""
    path = Path(environ.get("NETRC") or expand_home("~", environ) / ".netrc")
    return path if os.access(path, os.R_OK) else None


def uv_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return uv's configuration: its variables before the user's file before the system's, else pip's.

    ``UsageError`` for a file of uv that is not TOML: uv would refuse it too.
    """
    document = _uv_files(environ)
    stated = [
        *({**index, "default": True} for index in _indexes(environ, "UV_DEFAULT_INDEX", "UV_INDEX_URL")[:1]),
        *_indexes(environ, "UV_INDEX", "UV_EXTRA_INDEX_URL"),
    ]
    pip = pip_values(environ)
    if strategy := environ.get("UV_INDEX_STRATEGY"):
        document["index-strategy"] = strategy
    if not stated and not environ.get("UV_NO_INDEX") and not _INDEX_KEYS & {*document, *document.get("pip", {})}:
        # An index in a folder of this host is left out: another host cannot see it, and a build that lies in it would
        # take the place of the wheel that a cell names.
        own = [{"url": url, "default": True} for url in _remote(pip.get("index-url", ""))[:1]]
        further = [{"url": url} for url in _remote(pip.get("extra-index-url", ""))]
        # pip takes the best version of all its indexes. uv's default would stop at the first that has the name.
        if further:
            document.setdefault("index-strategy", "unsafe-best-match")
        stated = [*own, *further]
    if any("default" in index for index in stated):
        for table in (document, document.get("pip", {})):
            table.pop("index-url", None)
        document["index"] = [index for index in document.get("index", []) if not index.get("default")]
    if indexes := [*stated, *document.get("index", [])]:
        document["index"] = [_with_login(index, environ) for index in indexes]
    if hosts := (environ.get("UV_INSECURE_HOST") or pip.get("trusted-host", "")).replace(",", " ").split():
        document["allow-insecure-host"] = [*hosts, *document.get("allow-insecure-host", [])]
    return document


_INDEX_KEYS = {"index", "index-url", "extra-index-url", "no-index"}


def _uv_files(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what uv's files say, found as uv finds them."""
    if named := environ.get("UV_CONFIG_FILE"):
        return _document(Path(named))
    if environ.get("UV_NO_CONFIG"):
        return {}
    own_folder, folders = _config_folders(environ)
    system = next(
        (path for folder in (*folders, Path("/etc")) if os.access(path := folder / "uv/uv.toml", os.R_OK)), None
    )
    return _combined(_document(own_folder / "uv" / "uv.toml"), _document(system) if system else {})


def _document(path: Path) -> dict[str, Any]:
    try:
        document = read_toml(read_text(path, 1 << 18))
        for table in (document, document.get("pip", {})):
            for index in (table, *table.get("index", [])):
                index.items()  # a table has them
    except DataError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"Cannot read {path}: {error}.", hint="Correct this configuration of uv.") from None
    return document


def _combined(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both: lists one after the other, tables key by key, of other values the first."""
    for key, value in second.items():
        mine = first.setdefault(key, value)
        if mine is not value and isinstance(mine, list) and isinstance(value, list):
            first[key] = [*mine, *value]
        elif mine is not value and isinstance(mine, dict) and isinstance(value, dict):
            _combined(mine, value)
    return first


def _indexes(environ: Mapping[str, str], *variables: str) -> list[dict[str, Any]]:
    """Return what the first of ``variables`` that is set lists: addresses, or NAME=ADDRESS."""
    words = next((words for name in variables if (words := environ.get(name, "").split())), [])
    pairs = [re.fullmatch(r"(?:([^:=]+)=)?(.*)", word, re.DOTALL) for word in words]
    return [{**({"name": pair[1]} if pair[1] else {}), "url": pair[2]} for pair in pairs if pair]


def _remote(urls: str) -> list[str]:
    """Return the addresses that can be reached from elsewhere."""
    return [url for url in dict.fromkeys(urls.split()) if re.match(r"https?://(\[[0-9A-Fa-f:]+\]|[^/\[\]])", url)]


def _with_login(index: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an index with the login that uv's variables give to its name, in its address."""
    word = re.sub(r"[^A-Z0-9]", "_", str(index.get("name", "")).upper())
    user, password = (environ.get(f"UV_INDEX_{word}_{part}") for part in ("USERNAME", "PASSWORD"))
    if not word or user is None is password:
        return index
    scheme, _, place = str(index.get("url")).partition("://")
    host, slash, path = place.partition("/")
    login = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}"
    return {**index, "url": f"{scheme}://{login}@{host.rpartition('@')[2]}{slash}{path}"}


def index_addresses(settings: Mapping[str, Any]) -> list[str]:
    """Return the addresses of all indexes in :func:`uv_settings`, in no order that means anything."""
    tables = (settings, settings.get("pip", {}))
    named = [index.get("url") for table in tables for index in table.get("index", [])]
    old = [url for table in tables for url in (table.get("index-url"), *table.get("extra-index-url", []))]
    return [str(url) for url in (*named, *old) if url]


def as_toml(settings: Mapping[str, Any]) -> str:
    """Return settings as TOML, one line a key."""
    return "".join(f"{_value(str(key))} = {_value(value)}\n" for key, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(str(key))} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, (bool, str)):
        # JSON's strings are TOML's but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
