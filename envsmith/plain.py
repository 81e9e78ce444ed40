"""Every value that is written into a Dockerfile or a batch script passes here first, and is refused rather than quoted.

A shell and the Dockerfile parser each have their own quoting. A value that matches one of these patterns needs neither.
Each function returns its argument unchanged or raises :class:`envsmith.errors.UsageError` that names what is wrong.
"""

from __future__ import annotations

import re

from envsmith.errors import UsageError
from envsmith.model.cell import CellId
from envsmith.model.version import version_key

# An image reference as in the OCI distribution specification: [host[:port]/]path[:tag][@digest].
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+)(?::\d{{1,5}})?|[A-Za-z0-9-]+:\d{{1,5}}"
_IMAGE = re.compile(
    rf"(?:(?:{_HOST})/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PATH = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)+")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}")
_PROGRAM = re.compile(r"(?:(?:/[A-Za-z0-9_.+-]+)+|[A-Za-z0-9_.+-]+)")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(?:,[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}){0,31}")
_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,4000}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_CELL = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_TAG = re.compile(r"[a-z][a-z0-9._+-]{0,127}")
_BACKEND = re.compile(r"cpu|cu\d{2,3}")
_OS_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]{1,99}(?::[a-z0-9]{1,16})?")
_OS_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]{0,99}")
_DISTRIBUTION = re.compile(r"[a-z][a-z0-9.]{1,30}")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9.-]{1,99}")
# Printable ASCII without what means something to a shell, to the Dockerfile parser or inside double quotes.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9 .,:;@/+_=<>()\[\]~^*-]{0,255}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,79}")
# An address without user, query or fragment.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?(?:/[A-Za-z0-9._~%+-]{1,255}){1,16}")
# What may stand between single quotes of a shell in a Dockerfile and mean nothing else.
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9 .,;:+_=-]{0,255}")


def _match(pattern: re.Pattern[str], text: object, what: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        quoted = repr(text) if len(repr(text)) < 90 else repr(text)[:80] + "…"
        raise UsageError(
            f"Cannot use {quoted}: it is not {what}.",
            hint="Correct the lock or the option that it comes from.",
        )
    return text


def image(text: str) -> str:
    """Return an image reference such as ``python:3.12-slim-bookworm@sha256:…``, of at most 512 characters."""
    return _match(_IMAGE, text if len(text) <= 512 else None, "an image reference of at most 512 characters")


def digest(text: str) -> str:
    """Return ``sha256:`` and 64 hex digits."""
    return _match(_DIGEST, text, "a sha256 digest")


def path(text: str) -> str:
    """Return an absolute path of plain names. ``.`` and ``..`` cannot occur because a name may not begin with a dot."""
    return _match(_PATH, text, "a plain absolute path")


def file_name(text: str) -> str:
    """Return a plain file name without a folder."""
    return _match(_FILE, text, "a plain file name")


def program(text: str) -> str:
    """Return a program: an absolute path of plain names, or one plain name."""
    return _match(_PROGRAM, text if not str(text).startswith("-") else None, "a program's plain path")


def partition(text: str) -> str:
    """Return a partition of Slurm, or several with commas between them."""
    return _match(_PARTITION, text, "a partition")


def line(text: str) -> str:
    """Return a text that is one line: what follows a line break in a batch script is a command."""
    return _match(_LINE, text, "a single line")


def version(text: str) -> str:
    """Return a version that parses. An epoch (``1!2.0``) is refused: no component has one."""
    _match(_VERSION, text, "a version")
    try:
        version_key(text)
    except ValueError as error:
        raise UsageError(f"Cannot use {text!r}: {error}.") from error
    return text


def torch_backend(text: str) -> str:
    """Return the word of a torch build that uv knows (``cpu``, ``cu128``), for builds on another index."""
    return _match(_BACKEND, text, "a torch build")


def cell_id(text: str) -> str:
    """Return a cell id that parses and prints back unchanged."""
    _match(_CELL, text, "a cell id")
    try:
        same = str(CellId.parse(text)) == text
    except ValueError as error:
        raise UsageError(f"Cannot use {text!r}: {error}.") from error
    if not same:
        raise UsageError(f"Cannot use {text!r}: a cell id has one spelling, and this is another.")
    return text


def tag(text: str) -> str:
    """Return the name of a cell's folder and image: letters, digits, dots, ``+``, ``_`` and ``-``, at most 128."""
    return _match(_TAG, text, "a cell's name")


def distribution(text: str) -> str:
    """Return the code name of a Linux distribution (``bookworm``, ``ubuntu22.04``)."""
    return _match(_DISTRIBUTION, text, "a distribution's code name")


def os_package(text: str) -> str:
    """Return a Debian package name."""
    return _match(_OS_NAME, text, "a Debian package name")


def os_version(text: str) -> str:
    """Return a Debian package version."""
    return _match(_OS_VERSION, text, "a Debian package version")


def label_key(text: str) -> str:
    """Return an image label's key, a reversed domain name."""
    return _match(_LABEL_KEY, text, "a label key")


def label_value(text: str) -> str:
    """Return an image label's value: no quote, backslash, dollar, backtick or line break."""
    return _match(_LABEL_VALUE, text, "a label value")


def user(number: int) -> int:
    """Return a user id that is neither root nor one of the distribution's own (1000 to 60000)."""
    if type(number) is not int or not 1000 <= number <= 60000:
        raise UsageError(
            f"Cannot use {number!r}: it is not a user id from 1000 to 60000.",
            hint="Choose another user id. Images never run as root.",
        )
    return number


def epoch(number: int) -> int:
    """Return seconds since 1970 for file times: from 1980 (the first day a wheel can hold) to 2100."""
    if type(number) is not int or not 315532800 <= number <= 4102444800:
        raise UsageError(
            f"Cannot use {number!r}: it is not a time between 1980 and 2100.",
            hint="Set SOURCE_DATE_EPOCH to whole seconds.",
        )
    return number


def address(text: str) -> str:
    """Return the address of a file: ``https://`` or ``http://``, a host, and plain names."""
    return _match(_ADDRESS, text, "the address of a file")


def variable(text: str) -> str:
    """Return the name of an environment variable in capitals."""
    return _match(_VARIABLE, text, "a variable's name")


def plain_value(text: str) -> str:
    """Return a variable's value that means nothing to a shell between single quotes."""
    return _match(_PLAIN_VALUE, text, "a plain value")
