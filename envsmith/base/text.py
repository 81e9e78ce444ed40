"""What is taken out of a text: what would drive a terminal, and what must stay private when it is sent or published.

The latter are logins, tokens, names, and where things stood on this machine.

One place for the snapshots of the doctor (:func:`redact`) and the records of runs (:func:`redact_values`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

# What makes a text drive a terminal or read otherwise than it is: escape sequences, whole or as single characters of
# C1, control characters, marks that turn the direction of writing or have no width, halves of a character.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,4000}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}[0-Z\\-~]"
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069]"
    r"|[\ufeff\ud800-\udfff\ufffe\uffff]"
)
# The colours of our own words.
_COLOUR = re.compile(r"(\x1b\[(?:[0-2]|3[0-7])(?:;(?:[0-2]|3[0-7])){0,2}m)")
# What GitHub's runner takes for a command: `::NAME::` after spaces only, or `##[` anywhere in a line
# (actions/runner, src/Runner.Common/ActionCommand.cs).
_COMMAND = re.compile(r"(?m)^([^\S\n]*:)(?=:[^\n]*::)|(#)(?=#\[)")

# Compiled when the first text is redacted: most commands redact none.
# The forms of tokens, as detect-secrets 1.5.0 (Apache-2.0, its plugins) and the providers name them.
_ACCESS_KEY = (
    r"\b(?:hf_(?![a-z]{1,20}_)|gh[opsur]_|github_pat_|gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-|GR1348941|sk-(?=[A-Za-z_-]{0,40}\d)|[rsp]k_(?:live|test)_"
    r"|xox[abeoprs]-|AIza|pypi-|npm_|ya29\.|nvapi-|do[opr]_v1_|sq0[a-z]{3}-|SG\.[\w-]{16,}\.)[A-Za-z0-9_-]{8,}"
    r"|\b(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{8,}\b|\bAKC[A-Za-z0-9]{10,}|\b(?:AC|SK)[a-z0-9]{32}\b"
    r"|\b\d{8,10}:[0-9A-Za-z_-]{35}\b|\b[0-9a-z]{32}-us\d{1,2}\b|\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27}"
    r"|\beyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_.-]{10,}"
)
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]{0,20000}?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
# A path that is a login: of Conda's servers, and of the services that take messages.
_PATH = (
    r"(?i)((?://[^/\s\"'<>]{1,200}(?:/[\w.-]{1,100}){0,8}?|(?<![\w./-])[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}(?::\d{1,5})?)/t/"
    r"(?=[^/\s]{0,100}\d)|hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)"
    r"[\w./-]{8,400}?(?=/(?!\w{20})|[^\w./-]|$)"
)
_HEADER = (
    r"(?i)\b(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:\w{1,20}\s{1,4})?|(?:bearer|basic)\s{1,4}(?=\S{0,200}\d))"
    r"[\w.~+/=:-]{8,}"
)
_COOKIE = r"(?i)\b((?:set-)?cookie[\"']?:\s{0,4})[^\s\"'][^\n\"'\\]{0,4000}"
# What stands behind an option of curl or docker, and behind the words of a netrc.
_SPOKEN = (
    r"(?i)((?<!\S)(?:-u|--user)[\s=]{0,4}[^\s:]{1,200}:|\blogin\b[^\n]{0,200}?\s(?:-p|--password)[\s=]{0,4}"
    r"|\blogin\s{1,9}\S{1,200}\s{1,9}(?:account\s{1,9}\S{1,200}\s{1,9})?password\s{1,9})[^\s\"'\\]{1,4000}"
)
# The name of a variable, an option or a field whose value is private, and the value behind it.
_CERTAIN = (
    r"(?:[a-z0-9]{1,40}[_.-]){0,8}(?:passw(?:or)?d|passphrase|api[_-]?key|(?:access|account|auth|private|secret)[_-]?key)"
    r"|(?:[a-z0-9]{1,40}[_.-]){1,8}(?:token|secret|credentials?|pwd)|_?authtoken"
)
_NAME = (
    rf"{_CERTAIN}|[a-z0-9]{{0,40}}(?:token|secret|passw(?:or)?d|credentials?)|pass|(?-i:pwd)"
    r"|(?:[a-z0-9]{1,40}[_.-]){1,8}(?:key|auth|pass)|(?-i:KEY|AUTH)"
)
_VALUE = r"(?:(?P<quote>\\{0,3}[\"'])[^\"'\n]{1,4000}?(?P=quote)|[^\s\"'&,;<>\\]{1,4000})"
_ASSIGNED = (
    rf"(?i)(?<![\w.])((?:{_NAME})(?:[\"']?\]?\s?(?:=>|=(?!=))\s?|\\?[\"']\]?\s?:\s?)|--(?:{_NAME})\s{{1,4}}"
    rf"|[\"']auth\\?[\"']\s?:\s?|(?:{_CERTAIN}):\s{{1,4}}"
    rf"|\w{{0,40}}(?:passw(?:or)?d|secret|token):\s{{1,4}}(?=\S{{0,200}}\d)){_VALUE}"
)
# A variable of a container, whose name and value stand in fields of their own (Kubernetes, GitLab, JSON of Docker).
_FIELDS = rf"(?i)(\bname[\"']?\s?:\s{{0,4}}[\"']?(?:{_NAME})[\"']?\s{{0,4}},?\s{{1,40}}[\"']?value[\"']?\s?:\s{{0,4}}){_VALUE}"
# A line without one of these words assigns no secret. The search for names is the slowest of all.
_WORDS = re.compile("(?i)token|secret|pass|pwd|key|auth|credential")
_SIGNED = r"(?i)([?&;](?:sig|signature|awsaccesskeyid|x-(?:amz|goog|ms)-[a-z-]{1,30})=)[^&\s\"'<>\\]{1,4000}"
_LONG_HEX = r"\b[0-9a-fA-F]{40,}\b"
# A login in an address. A password may hold `@` and `/`: after `user:`, which is not `host:port/`, it goes to the last
# `@` that does not begin a revision of git. Who takes an address for a path leaves one slash of it.
_URL_LOGIN = (
    r"\b(\w{1,30}://|https?:/)(?:(?![\w.-]{1,200}:\d{1,5}(?:[/?#\s]|$))"
    r"[^/\s:@\"'<>]{0,200}:[^\s\"'<>]{0,400}(?<!\.git)@|[^/\s:@]{1,200}@)"
)
_EMAIL = r"\b[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{2,64}\b"
_HOME = r"(/home/|/Users/|/export/home/|/data/home/|/scratch/)[^/\s:'\"]{1,64}"
# An interpreter's or an environment's own folder, wherever it stands; what an operating system or an image has below
# /usr is the same everywhere.
_PYTHON = r"(?<![\w.~>/-])(?!/usr/)/[^\s'\"<>]{0,400}?/lib/python3\.(\d{1,2})/(site-packages/)?"
_SYSTEM_TMP = ("/tmp", "/var/tmp")  # noqa: S108 - not written to: names that are replaced
# Names of users and hosts that say nothing, and would spoil a sentence.
_COMMON = frozenset(
    [
        "admin",
        "cluster",
        "container",
        "debian",
        "default",
        "docker",
        "gpu",
        "host",
        "jovyan",
        "linux",
        "localhost",
        "login",
        "machine",
        "main",
        "master",
        "node",
        "none",
        "nobody",
        "nvidia",
        "root",
        "runner",
        "server",
        "slurm",
        "test",
        "train",
        "ubuntu",
        "user",
        "vscode",
        "worker",
        "workspace",
    ]
)
# The forms that are removed, what stays of each, and the words of which a text has one where it has the form: most texts
# are plain, and to compile these patterns costs more than to read a page with them.
_FORMS = (
    (_PRIVATE_KEY, "", ("-----begin",)),
    (_SIGNED, r"\1", ("sig", "awsaccesskeyid", "x-")),
    (_PATH, r"\1", ("/t/", "services/", "webhooks/")),
    (_HEADER, r"\1", ("authorization", "bearer", "basic")),
    (_COOKIE, r"\1", ("cookie",)),
    (_SPOKEN, r"\1", ("-u", "login")),
    (_FIELDS, r"\1", ("value",)),
)
# A folder that is neither the system's nor one with a name above, and which GPU of all it is.
_FOLDER = (
    r"(?<![\w.~>:/-])/(?!(?:usr|lib|lib64|bin|sbin|etc|dev|proc|sys|run|opt|nix|home|Users)/)(?:[\w.+@-]{1,100}/){1,40}"
)
_UUID = r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
_ENDPOINT = r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?=[:<]\d)"


def clean(text: str) -> str:
    """Return text from outside without what drives a terminal or turns its reading, with Unix line ends.

    What overwrites itself becomes lines.
    """
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub("", _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def printable(text: str) -> str:
    """Return a text as it may go to a terminal or into the log of a CI: clean but for colours, without commands, secrets."""
    if isinstance(text, FinishedText):
        return text
    pieces = _COLOUR.split(text)
    pieces[::2] = [without_secrets(clean(piece), mail="") for piece in pieces[::2]]
    return _COMMAND.sub(r"\g<0> ", "".join(pieces))


class FinishedText(str):
    """A document for a program, printed as it is: its writer has redacted its texts, and it has no control characters."""

    __slots__ = ()


def without_secret_values(value: object) -> object:
    """Return ``value`` (what JSON can hold) without secrets in its texts. Numbers, names of keys, forms and documents stay."""
    if isinstance(value, dict):
        return {
            key: "<removed>" if isinstance(item, str) and _names_secret(str(key)) else without_secret_values(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [without_secret_values(item) for item in value]
    if isinstance(value, str) and not isinstance(value, FinishedText):
        return _short_without_secrets(value) if len(value) < _SHORT else without_secrets(value, mail="")
    return value


# The same few names and versions stand in each of thousands of cells.
_SHORT = 100


@lru_cache(maxsize=4096)
def _short_without_secrets(text: str) -> str:
    return without_secrets(text, mail="")


@lru_cache(maxsize=1024)
def _names_secret(key: str) -> bool:
    return re.fullmatch(f"(?i){_CERTAIN}", key) is not None


def counted(number: int, noun: str) -> str:
    """Return ``1 line`` or ``2 lines``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def escaped_json(document: str) -> str:
    """Return JSON text in which what :func:`printable` would take out is written as escapes."""
    return _CONTROL.sub(lambda c: f"\\u{ord(c[0]):04x}", document).replace("##[", "#\\u0023[")


def table_cell(text: str) -> str:
    """Return text as a cell of a Markdown table, which it cannot leave."""
    line = clean(text).replace("\n", " ")
    return re.sub(r"(\\*)\|", lambda slashes: slashes[1] * 2 + "\\|", line)


def redact(text: str, *, users: tuple[str, ...] | None = None) -> str:
    """Return ``text`` without logins, tokens, mail addresses, names of home folders, of this user and of this host."""
    text = re.sub(_LONG_HEX, "<removed>", without_secrets(text))
    text = re.sub(_HOME, r"\1USER", text)
    for name in _names() if users is None else users:
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "USER", text)
    return text


def redact_values(value: object, places: Mapping[str, str], names: Mapping[str, str]) -> object:
    """Return ``value`` (what JSON can hold) with every string made fit to be published.

    No login or token, no path, no address of this machine, and no name: ``names`` maps each to what stands for it
    (:func:`names_here`). Digests stay: they are what a record is about. ``places`` as for :func:`redact_paths`.
    """
    if isinstance(value, dict):
        return {key: redact_values(item, places, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_values(item, places, names) for item in value]
    if not isinstance(value, str):
        return value
    text = re.sub(_FOLDER, "<folder>/", redact_paths(without_secrets(value), places))
    text = re.sub(_ENDPOINT, "<address>", re.sub(_UUID, r"\1-<removed>", text))
    for name, word in names.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", word, text)
    return text


def private_parts(value: object, where: str = "") -> Iterator[str]:
    """Yield where in ``value`` a string stands that :func:`redact_values` would change."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from private_parts(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from private_parts(item, f"{where}[{number}]")
    elif redact_values(value, {}, {}) != value:
        yield where


def names_here(keep: Container[str]) -> dict[str, str]:
    """Return the names of this user and this host, for :func:`redact_values`, without those in ``keep``."""
    import socket

    host = socket.gethostname()
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "SLURM_JOB_USER")]
    names = {**dict.fromkeys(users, "<user>"), host.split(".")[0]: "<host>", host: "<host>"}
    telling = [name for name in names if len(name) > 2 and name.lower() not in _COMMON and name not in keep]
    return {name: names[name] for name in sorted(telling, key=len, reverse=True)}


def redact_paths(text: str, places: Mapping[str, str]) -> str:
    """Return ``text`` with folders of this machine by what they are: ``places`` maps a folder to what stands for it.

    In this order: what ``.`` stands for, Python's own folders wherever they are
    (``<env>/lib/python3.12/site-packages/…``, ``<python>/lib/python3.12/…``), the other places, the longest first, and
    other people's home folders.
    """
    inner = {folder: name for folder, name in places.items() if name == "."}
    text = re.sub(_PYTHON, _python_folder, _replaced(text, inner))
    return re.sub(_HOME, r"\1USER", _replaced(text, places))


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


def without_logins(text: str) -> str:
    """Return ``text`` with addresses that name no user and no password."""
    return re.sub(_URL_LOGIN, r"\1", text) if ":/" in text else text


def without_secrets(text: str, *, mail: str = "<address>") -> str:
    """Return ``text`` without logins, tokens, private keys, the values of secret variables, signatures of addresses.

    ``mail`` stands for mail addresses.
    """
    text, folded = without_logins(text), text.casefold()
    for form, replacement, words in _FORMS:
        if any(word in folded for word in words):
            text = re.sub(form, rf"{replacement}<removed>", text)
    text = "\n".join(_without_values(line) if _WORDS.search(line) else line for line in text.split("\n"))
    text = re.sub(_ACCESS_KEY, "<removed>", text)
    return re.sub(_EMAIL, mail, text) if mail else text


def _without_values(line: str) -> str:
    return re.sub(_ASSIGNED, lambda match: f"{match[1]}{match['quote'] or ''}<removed>{match['quote'] or ''}", line)


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
