"""What a Linux distribution brings: the glibc of its release, which nobody can change without changing the release.

Source: the libc6 and glibc packages of each release as Debian's and Ubuntu's package lists and the release notes of the others name them.
"""

from __future__ import annotations

import re

__all__ = ["glibc_of"]

_ENTERPRISE = {"7": "2.17", "8": "2.28", "9": "2.34", "10": "2.39"}
_GLIBC = {
    "ubuntu": {"16.04": "2.23", "18.04": "2.27", "20.04": "2.31", "22.04": "2.35", "24.04": "2.39"},
    "debian": {"9": "2.24", "10": "2.28", "11": "2.31", "12": "2.36", "13": "2.41"},
    **dict.fromkeys(("centos", "rhel", "red hat", "rocky", "almalinux", "oracle"), _ENTERPRISE),
    "amazon": {"2": "2.26", "2023": "2.34"},
}
_NAMED = re.compile(
    rf"\b({'|'.join(_GLIBC)})\b(?: (?:enterprise|gnu/linux|linux|server|stream|release|lts|version))*[ :/-]*v?(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


def glibc_of(system: str) -> str | None:
    """``2.31`` of ``Ubuntu 20.04.6 LTS (x86_64)``; ``None`` where the text names no release that is known."""
    match = _NAMED.search(system[:200])
    if match is None:
        return None
    releases = _GLIBC[match[1].lower()]
    return releases.get(match[2]) or releases.get(match[2].split(".")[0])
