"""The user's settings of pip for reaching an index: uv and envsmith's own clients do not read pip.conf or ``PIP_*``."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from envsmith.errors import DataError
from envsmith.files import read_text


def pip_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return pip's configuration files on Linux, weakest first, as pip documents them."""
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return ()
    home = Path(environ.get("HOME") or Path.home())
    everyone = [Path(d) / "pip" / "pip.conf" for d in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":") if d]
    personal = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    paths = [
        *reversed(everyone),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        personal,
        Path(sys.prefix) / "pip.conf",
    ]
    return (*paths, *([Path(own)] if own else []))


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
