"""Credentials of a registry as Docker keeps them: in ``config.json`` itself, or with a helper program that it names.

``DOCKER_CONFIG`` or ``~/.docker``, then podman's ``REGISTRY_AUTH_FILE``. A helper (``docker-credential-NAME get``) is run only when the
configuration names it, with the registry on its standard input, as the specification of credential helpers says.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Login", "login"]

_DEFAULT_REGISTRY = "docker.io"
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a helper prints instead of a user name when the secret is an identity token.
_TOKEN_USER = "<token>"  # noqa: S105
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """``basic`` is base64 of ``user:password``; ``identity`` a refresh token that is exchanged for access tokens. One of them is set."""

    basic: str = ""
    identity: str = ""

    def __repr__(self) -> str:
        return "Login(…)"


def login(registry: str) -> Login | None:
    """What is known for ``registry``; ``None`` when nothing is, or when the configuration cannot be understood."""
    for path in _files():
        try:
            text = path.read_text(encoding="utf-8")
            config = json.loads(text) if len(text) <= _MAX_BYTES else None
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and (found := _helped(config, registry) or _kept(config, registry)):
            return found
    return None


def _files() -> Iterator[Path]:
    yield Path(os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")) / "config.json"
    if more := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(more)


def _keys(registry: str) -> list[str]:
    hub = [f"https://index.{registry}/v1/"] if registry == _DEFAULT_REGISTRY else []
    return [registry, f"https://{registry}", *hub]


def _kept(config: dict[str, object], registry: str) -> Login | None:
    auths = config.get("auths")
    for key in _keys(registry):
        entry = auths.get(key) if isinstance(auths, dict) else None
        if not isinstance(entry, dict):
            continue
        if isinstance(token := entry.get("identitytoken"), str) and token:
            return Login(identity=token)
        basic = entry.get("auth")
        try:
            if isinstance(basic, str) and b":" in base64.b64decode(basic, validate=True):
                return Login(basic=basic)
        except (binascii.Error, ValueError):
            continue
    return None


def _helped(config: dict[str, object], registry: str) -> Login | None:
    helpers = config.get("credHelpers")
    for key in _keys(registry):
        named = helpers.get(key) if isinstance(helpers, dict) else None
        name = named or config.get("credsStore")
        if isinstance(name, str) and _HELPER.fullmatch(name) and (found := _ask(name, key)):
            return found
    return None


def _ask(name: str, key: str) -> Login | None:
    program = shutil.which(f"docker-credential-{name}")
    if program is None:
        return None
    try:
        ran = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=30, check=False)
        told = json.loads(ran.stdout) if ran.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    user, secret = (told.get("Username"), told.get("Secret")) if isinstance(told, dict) else (None, None)
    if not isinstance(user, str) or not isinstance(secret, str):
        return None
    if user == _TOKEN_USER:
        return Login(identity=secret)
    return Login(basic=base64.b64encode(f"{user}:{secret}".encode()).decode())
