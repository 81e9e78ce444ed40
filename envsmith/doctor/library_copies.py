"""Copies of the CUDA libraries and the libstdc++ that the loader, or the wheels, would bring in."""

# ruff: noqa: PTH112, PTH118, PTH119, PTH123, PTH208
# Plain os calls: as in host.py, hundreds of paths are looked at within a second.

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from envsmith.doctor.facts import Draft, SharedLibrary

_LIBRARIES = ("libnccl", "libcudart", "libcudnn")
SYSTEM = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
    "/usr/local/cuda/lib64",
)


def libraries_of(draft: Draft, site: Iterable[Path]) -> None:
    """Add every copy of the watched libraries, in the order in which the loader comes to them for torch."""
    real_paths: set[str] = set()
    loaded_names: set[str] = set()
    for way, folder in _folders(draft, site):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            name = next((n for n in _LIBRARIES if re.fullmatch(rf"{n}\.so(\.\d+)*", entry)), None)
            if name is None:
                continue
            real = os.path.realpath(os.path.join(folder, entry))
            if real in real_paths:
                continue
            real_paths.add(real)
            first = name not in loaded_names and way != "system elsewhere"
            loaded_names.add(name)
            path, version = os.path.join(folder, entry), _library_version(name, real)
            draft.libraries.append(SharedLibrary(name=name, path=path, version=version, how=way, first=first))
    for path in os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":"):  # before every other copy
        if name := next((n for n in _LIBRARIES if n in os.path.basename(path)), None):
            later_copies = [replace(lib, first=False) if lib.name == name else lib for lib in draft.libraries]
            version = _library_version(name, path)
            draft.libraries = [
                SharedLibrary(name=name, path=path, version=version, how="preload", first=True),
                *later_copies,
            ]


def libstdcxx_of(draft: Draft, interpreter: Path) -> None:
    """Add the newest GLIBCXX of the libstdc++ that is loaded. Conda's interpreter finds that of its own folder first.

    libstdc++.so.6.0.30 is the file that ends at GLIBCXX_3.4.30.
    """
    root = interpreter.parent.parent
    own = [str(root / "lib")] if os.path.isdir(root / "conda-meta") else []
    for folder in [*own, *draft.variables.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM]:
        real = os.path.basename(os.path.realpath(os.path.join(folder, "libstdc++.so.6"))) if folder else ""
        if match := re.fullmatch(r"libstdc\+\+\.so\.6\.0\.(\d{1,3})", real):
            draft.host["glibcxx"] = f"3.4.{match[1]}"
            return


def _folders(draft: Draft, site: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Give the loader's folders: LD_LIBRARY_PATH, torch's RUNPATH (``$ORIGIN/../../nvidia/*/lib``), the system's."""
    for folder in draft.variables.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield "ld_library_path", folder
    for root in site:
        yield "rpath", str(root / "torch" / "lib")
        for part in sorted((root / "nvidia").glob("*/lib")):
            yield "wheel", str(part)
    if prefix := draft.variables.get("CONDA_PREFIX"):
        yield "conda", f"{prefix}/lib"
    for folder in SYSTEM:
        yield "system", folder


def _library_version(name: str, path: str) -> str | None:
    """Return the version in the file's own name, else for NCCL that of the banner in its last megabytes."""
    match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", path)
    if match:
        return match[1]
    if name != "libnccl":
        return None
    if version := nccl_of(Path(path).parent.parent / "include" / "nccl.h"):
        return version
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (4 << 20)))
            data = file.read(4 << 20)
    except OSError:
        return None
    candidates = re.search(rb"NCCL version (2\.\d{1,2}\.\d{1,2})", data)
    return candidates[1].decode() if candidates else None


def nccl_of(header: Path) -> str | None:
    """Return the version that a header of NCCL names."""
    parts = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", text_of(header, 20_000))
    return ".".join(parts) if len(parts) == 3 else None


def text_of(path: str | Path, most: int = 100_000) -> str:
    """Return the first bytes of a file as text, or nothing when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
