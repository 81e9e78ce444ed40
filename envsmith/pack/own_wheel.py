"""envsmith itself as a wheel, made of the files that run: it proves the environment where no index is."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

from envsmith import __version__
from envsmith.files import read_bounded
from envsmith.graph.location import find_matrix

# The first time that a zip file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)
_MOST = 64 << 20
_SKIPPED = frozenset({"__pycache__", "_matrix"})


def own_requirements() -> tuple[str, ...]:
    """Return what envsmith needs, without its extras."""
    return tuple(line for line in metadata.requires("envsmith") or () if "extra ==" not in line)


def own_wheel() -> tuple[str, bytes]:
    """Return the file name and the bytes of the wheel. The same files give the same bytes."""
    info = f"envsmith-{__version__}.dist-info"
    members = {**_files(Path(__file__).parents[1], "envsmith"), **_files(find_matrix(), "envsmith/_matrix")}
    requires = "".join(f"Requires-Dist: {line}\n" for line in own_requirements())
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: envsmith\nVersion: {__version__}\n{requires}".encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: envsmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{info}/entry_points.txt"] = b"[console_scripts]\nenvsmith = envsmith.__main__:main\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in sorted(members.items()))
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(members.items()):
            member = zipfile.ZipInfo(name, _TIME)
            member.external_attr, member.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return f"envsmith-{__version__}-py3-none-any.whl", buffer.getvalue()


def _files(folder: Path, prefix: str) -> dict[str, bytes]:
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}": read_bounded(path, _MOST)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _SKIPPED & set(path.relative_to(folder).parts)
    }


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
