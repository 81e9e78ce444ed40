"""A package index in a folder: wheels and sdists of a few hundred bytes, made anew with the same bytes every time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# A PEP 517 backend: copies the module of the project into a wheel.
_BACKEND = """
import os, tomllib, zipfile
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open("project.txt") as file:
        name, version = file.read().split()
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    file_name = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, file_name), "w") as wheel:
        def put(path, text):
            wheel.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
        module = name.replace("-", "_") + ".py"
        put(module, "BUILT = True\\n")
        put(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        put(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: tiny\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        put(f"{info}/RECORD", f"{module},,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
    return file_name
"""


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def wheel(
    name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """File name and bytes of a pure wheel that provides a module of its name."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    members = dict(files or {f"{stem}.py": f"__version__ = '{version}'\n"})
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    members[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tiny\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_hash(text.encode())},{len(text)}\n" for path, text in members.items())
    members[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return f"{stem}-{version}-py3-none-any.whl", buffer.getvalue()


def sdist(
    name: str, version: str, *, requires: Sequence[str] = (), extra: Mapping[str, str] | None = None
) -> tuple[str, bytes]:
    """File name and bytes of a source distribution that is built with ``tiny-backend``; its PKG-INFO is static (metadata 2.2)."""
    top = f"{name}-{version}"
    info = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    members = {
        "PKG-INFO": info,
        "project.txt": f"{name} {version}",
        "pyproject.toml": '[build-system]\nrequires = ["tiny-backend>=1"]\nbuild-backend = "tiny_backend"\n',
        **(extra or {}),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in members.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{top}.tar.gz", gzip.compress(buffer.getvalue(), mtime=0)


@dataclass(slots=True)
class TinyIndex:
    """A simple index under ``root``; ``url`` is what uv and pip are given."""

    root: Path
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def add(self, name: str, *files: tuple[str, bytes], hashes: bool = True) -> None:
        """Publish files of a project."""
        known = self.files.setdefault(name, {})
        known.update(files)
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        links = []
        for filename, data in known.items():
            (folder / filename).write_bytes(data)
            fragment = f"#sha256={hashlib.sha256(data).hexdigest()}" if hashes else ""
            links.append(f'<a href="{filename}{fragment}">{filename}</a>')
        (folder / "index.html").write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")


def framework_index(root: Path) -> TinyIndex:
    """Stand-ins for a deepspeed cell: torch with an exact NCCL pin, a framework that is an sdist, and what both need."""
    index = TinyIndex(root)
    index.add("torch", wheel("torch", "2.9.1", ["nvidia-nccl-cu12==2.27.5", "filelock"]))
    index.add("nvidia-nccl-cu12", wheel("nvidia-nccl-cu12", "2.27.5"), wheel("nvidia-nccl-cu12", "2.28.9"))
    index.add("filelock", wheel("filelock", "3.20.0"))
    index.add("numpy", wheel("numpy", "2.3.0"), wheel("numpy", "1.26.4"))
    index.add("ninja", wheel("ninja", "1.13.0"))
    index.add("setuptools", wheel("setuptools", "80.9.0"))
    index.add(
        "tiny-backend", wheel("tiny-backend", "1.2", files={"tiny_backend.py": _BACKEND.replace(", tomllib", "")})
    )
    index.add("deepspeed", sdist("deepspeed", "0.18.5", requires=["torch", "ninja", "numpy"]))
    return index
