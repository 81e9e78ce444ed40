"""What the user has told pip about the package index: uv does not know pip.conf or ``PIP_*``.

Nothing of a host stands here. An index in a folder of this machine (``file://``) and ``find-links`` are left out on
purpose: another machine cannot see them, and a local build (``torch 2.13.0+cpu``) would silently take the place of the
wheel that a cell names.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PipSettings:
    """pip's settings for reaching an index. ``left_out`` are local indexes and find-links that are not passed on."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: str | None = None
    left_out: tuple[str, ...] = ()


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
        if path.stat().st_size > _MAX_BYTES:
            return {}
        parser.read_string(path.read_text(encoding="utf-8"))
    except (configparser.Error, OSError, UnicodeDecodeError):
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
        value = environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            values[key] = value
    if "timeout" not in values and environ.get("PIP_DEFAULT_TIMEOUT"):
        values["timeout"] = environ["PIP_DEFAULT_TIMEOUT"]
    return values


def read_pip_settings(environ: Mapping[str, str] | None = None) -> PipSettings:
    """Parse :func:`pip_values`: only indexes that can be reached from elsewhere."""
    values = pip_values(os.environ if environ is None else environ)
    extra = values.get("extra-index-url", "").split()
    timeout = values.get("timeout", values.get("default-timeout", "")).strip()
    return PipSettings(
        index_url=next((u for u in values.get("index-url", "").split()[:1] if _remote(u)), None),
        extra_index_urls=tuple(dict.fromkeys(u for u in extra if _remote(u))),
        proxy=values.get("proxy", "").strip() or None,
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        timeout=timeout if timeout.isdigit() else None,
        left_out=(*(u for u in extra if not _remote(u)), *values.get("find-links", "").split()),
    )


def _remote(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"https", "http"} and bool(parts.hostname)
