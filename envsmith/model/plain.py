"""Every value that is written into a Dockerfile or a batch script passes here first, and is refused rather than quoted.

A shell and the Dockerfile parser each have their own quoting. A value that matches one of these patterns needs neither.
Each function returns its argument unchanged or raises :class:`envsmith.errors.UsageError` that names what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from envsmith.errors import UsageError
from envsmith.model.cell import CellId
from envsmith.model.version import version_key


def _plain(pattern: str, what: str) -> Callable[[str], str]:
    """Return the function that returns a text which is ``what``, and refuses any other."""
    compiled = re.compile(pattern)

    def check(text: object) -> str:
        if not isinstance(text, str) or not compiled.fullmatch(text):
            quoted = repr(text) if len(repr(text)) < 90 else repr(text)[:80] + "…"
            raise UsageError(
                f"Cannot use {quoted}: it is not {what}.", hint="Correct the lock or the option that it comes from."
            )
        return text

    return check


# An image reference as in the OCI distribution specification: [host[:port]/]path[:tag][@digest].
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+)(?::\d{{1,5}})?|[A-Za-z0-9-]+:\d{{1,5}}"
image = _plain(
    rf"(?!.{{513}})(?:(?:{_HOST})/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    "an image reference of at most 512 characters",
)
digest = _plain(r"sha256:[0-9a-f]{64}", "a sha256 digest")
# ``.`` and ``..`` cannot occur in a path because a name may not begin with a dot.
path = _plain(r"(?:/[A-Za-z0-9_][A-Za-z0-9._+-]*)+", "a plain absolute path")
file_name = _plain(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}", "a plain file name")
# An absolute path of plain names, or one plain name.
program = _plain(r"(?!-)(?:(?:/[A-Za-z0-9_.+-]+)+|[A-Za-z0-9_.+-]+)", "a program's plain path")
# A partition of Slurm, or several with commas between them.
partition = _plain(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(?:,[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}){0,31}", "a partition")
# What follows a line break in a batch script is a command.
line = _plain(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,4000}", "a single line")
# The word of a torch build that uv knows (``cpu``, ``cu128``), for builds on another index.
torch_backend = _plain(r"cpu|cu\d{2,3}", "a torch build")
# The name of a cell's folder and image.
tag = _plain(r"[a-z][a-z0-9._+-]{0,127}", "a cell's name")
# The code name of a Linux distribution (``bookworm``, ``ubuntu22.04``).
distribution = _plain(r"[a-z][a-z0-9.]{1,30}", "a distribution's code name")
os_package = _plain(r"[a-z0-9][a-z0-9+.-]{1,99}(?::[a-z0-9]{1,16})?", "a Debian package name")
os_version = _plain(r"[0-9][A-Za-z0-9.+:~-]{0,99}", "a Debian package version")
# The key of an image's label is a reversed domain name.
label_key = _plain(r"[a-z][a-z0-9.-]{1,99}", "a label key")
# Printable ASCII without what means something to a shell, to the Dockerfile parser or inside double quotes.
label_value = _plain(r"[A-Za-z0-9 .,:;@/+_=<>()\[\]~^*-]{0,255}", "a label value")
# ``https://`` or ``http://``, a host, and plain names: no user, query or fragment.
address = _plain(
    r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?(?:/[A-Za-z0-9._~%+-]{1,255}){1,16}", "the address of a file"
)
variable = _plain(r"[A-Z][A-Z0-9_]{0,79}", "a variable's name")
# What may stand between single quotes of a shell in a Dockerfile and mean nothing else.
plain_value = _plain(r"[A-Za-z0-9 .,;:+_=-]{0,255}", "a plain value")
_version = _plain(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}", "a version")
_cell = _plain(r"[a-z][a-z0-9._-]{0,127}", "a cell id")


def version(text: str) -> str:
    """Return a version that parses. An epoch (``1!2.0``) is refused: no component has one."""
    _version(text)
    try:
        version_key(text)
    except ValueError as error:
        raise UsageError(f"Cannot use {text!r}: {error}.") from error
    return text


def cell_id(text: str) -> str:
    """Return a cell id that parses and prints back unchanged."""
    _cell(text)
    try:
        same = str(CellId.parse(text)) == text
    except ValueError as error:
        raise UsageError(f"Cannot use {text!r}: {error}.") from error
    if not same:
        raise UsageError(f"Cannot use {text!r}: a cell id has one spelling, and this is another.")
    return text


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
