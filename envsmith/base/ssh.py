"""Files signed by an SSH key: OpenSSH's own ``ssh-keygen -Y``, which is there wherever git is.

The signature stands beside the file (``FILE.sig``), in the form that ``git`` and ``ssh-keygen -Y verify`` read.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_bounded, write_whole
from envsmith.base.programs import execute
from envsmith.errors import ContentError, EngineError, UsageError

SUFFIX = ".sig"
# What the signature is for. A signature for another purpose (a commit, a login) is none.
NAMESPACE = "envsmith"
_SECONDS = 60.0
# What is signed is a record or a statement. Keys are smaller.
_MAX_BYTES = 8 << 20
_GOOD = re.compile(r'Good "[^"\n]*" signature (?:for (?P<name>\S+) )?with \S+ key (?P<key>SHA256:\S+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class SshSigner:
    """Whose signature it is: the fingerprint of the key, and the name that a file of signers gives it."""

    key: str
    name: str = ""


def sign_file(path: Path, key: Path) -> Path:
    """Sign a file with an SSH key and return the signature's path.

    ``key`` is a private key without a passphrase, or a public one whose private half ``ssh-agent`` holds.
    ``UsageError`` where it signs nothing.
    """
    answer = _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, feed=read_bounded(path, _MAX_BYTES).decode())
    if answer.returncode or not answer.stdout:
        raise UsageError(
            f"Cannot sign {path.name} with {key}: {_last_line(answer.stderr)}.",
            hint="Name an SSH key. Where it has a passphrase, run ssh-add and name its .pub file.",
        )
    signature = path.with_name(path.name + SUFFIX)
    write_whole(signature, answer.stdout)
    return signature


def signer_of(path: Path, signers: Path) -> SshSigner:
    """Return who signed a file. ``signers`` is OpenSSH's list of names and keys (``allowed_signers``), if it is there.

    ``ContentError`` when the signature is not of this file, ``EngineError`` without ``ssh-keygen``.
    """
    signature, text = str(path.with_name(path.name + SUFFIX)), read_bounded(path, _MAX_BYTES).decode()
    names = (
        _ssh_keygen("find-principals", "-s", signature, "-f", str(signers)).stdout.split() if signers.is_file() else []
    )
    answer = None
    if names:
        whose = ("-f", str(signers), "-I", names[0])
        answer = _ssh_keygen("verify", *whose, "-n", NAMESPACE, "-s", signature, feed=text)
    if answer is None or answer.returncode:
        answer = _ssh_keygen("check-novalidate", "-n", NAMESPACE, "-s", signature, feed=text)
    match = _GOOD.search(answer.stdout)
    if answer.returncode or match is None:
        raise ContentError(
            f"Cannot verify {path.name}: its signature is not valid ({_last_line(answer.stderr or answer.stdout)}).",
            hint="Fetch file and signature again: one of them was changed.",
        )
    return SshSigner(key=match["key"], name=match["name"] or "")


def _ssh_keygen(work: str, *words: str, feed: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return execute(["ssh-keygen", "-Y", work, *words], seconds=_SECONDS, feed=feed)
    except FileNotFoundError:
        raise EngineError(
            "Cannot use a signature by an SSH key: ssh-keygen is not installed.", hint="Install openssh-client."
        ) from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["ssh-keygen gave no reason"])[-1].strip().rstrip(".")[:200]
