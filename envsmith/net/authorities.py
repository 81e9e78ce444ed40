"""Whom this machine trusts: the system's store, and the CA bundle that the user names."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from envsmith.errors import UsageError, os_errors
from envsmith.net.index_settings import pip_values

# Where a CA bundle is named, the first first.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


def ca_bundle(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the CA bundle that the user names, or ``None`` where the system's store is all there is.

    This is the one rule for the index, uv, registries, Conda channels and builds. The first of ``SSL_CERT_FILE``,
    ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``, ``PIP_CERT`` and pip's ``cert`` setting that names a file is the bundle.
    """
    env = os.environ if environ is None else environ
    named = (*(env.get(name) for name in _CA_VARIABLES), pip_values(env).get("cert"))
    # Path.is_file raises where a folder on the way may not be entered.
    return next((Path(name) for name in named if name and os.path.isfile(name)), None)  # noqa: PTH113


def ssl_context() -> ssl.SSLContext:
    """Return a context that trusts the system's store and the bundle of :func:`ca_bundle`.

    ``UsageError`` when the bundle holds no certificate.
    """
    context = ssl.create_default_context()
    if bundle := ca_bundle():
        with os_errors(
            f"use {bundle} as CA bundle",
            UsageError,
            hint=f"Correct the file, or the setting that names it: {', '.join(_CA_VARIABLES)} or pip's cert.",
        ):
            context.load_verify_locations(cafile=bundle)
    return context
