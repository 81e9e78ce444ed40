"""The platforms for which cells are solved."""

from __future__ import annotations

import platform
from enum import Enum

__all__ = ["Platform"]


class Platform(str, Enum):
    """A platform by its Conda name; ``machine`` is what ``uname -m`` prints there."""

    LINUX_64 = "linux-64"
    LINUX_AARCH64 = "linux-aarch64"

    @property
    def machine(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return "x86_64" if self is Platform.LINUX_64 else "aarch64"

    @property
    def docker(self) -> str:
        """The OCI name: ``linux/amd64`` or ``linux/arm64``."""
        return "linux/amd64" if self is Platform.LINUX_64 else "linux/arm64"

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Accept Conda, OCI and ``uname`` spellings; ``ValueError`` names the two that exist."""
        for member in cls:
            if text.strip().lower() in {
                member.value,
                member.machine,
                member.docker,
                member.docker.split("/")[1],
                "linux-" + member.machine,
            }:
                return member
        raise ValueError(f"unknown platform {text!r}: choose linux-64 or linux-aarch64")

    @classmethod
    def host(cls) -> Platform:
        """The platform of this machine; anything that is not 64-bit Arm is treated as linux-64."""
        return cls.LINUX_AARCH64 if platform.machine() in {"aarch64", "arm64"} else cls.LINUX_64
