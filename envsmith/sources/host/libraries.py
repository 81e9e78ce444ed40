"""Copies of the CUDA libraries that the loader, or the wheels, would bring in."""

# ruff: noqa: PTH118, PTH119, PTH123, PTH208
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from envsmith.sources.host.looking import text_of
from envsmith.sources.reports.facts import Draft, Library

__all__ = ["SYSTEM", "libraries_of"]

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
    """Every copy of the watched libraries, in the order in which the loader would come to them for torch."""
    seen: set[str] = set()
    taken: set[str] = set()
    for how, folder in _folders(draft, site):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            name = next((n for n in _LIBRARIES if re.fullmatch(rf"{n}\.so(\.\d+)*", entry)), None)
            if name is None:
                continue
            real = os.path.realpath(os.path.join(folder, entry))
            if real in seen:
                continue
            seen.add(real)
            first = name not in taken and how != "system elsewhere"
            taken.add(name)
            draft.libraries.append(
                Library(
                    name=name,
                    path=os.path.join(folder, entry),
                    version=_library_version(name, real),
                    how=how,
                    first=first,
                )
            )
    for path in os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":"):
        _preload(draft, path)


def _preload(draft: Draft, path: str) -> None:
    """What ``LD_PRELOAD`` names comes before every other copy."""
    name = next((n for n in _LIBRARIES if n in os.path.basename(path)), None)
    if name is None:
        return
    others = [replace(lib, first=False) if lib.name == name else lib for lib in draft.libraries]
    version = _library_version(name, path)
    draft.libraries = [Library(name=name, path=path, version=version, how="preload", first=True), *others]


def _folders(draft: Draft, site: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """LD_LIBRARY_PATH comes before the RUNPATH of torch (``$ORIGIN/../../nvidia/*/lib``), the system's folders last."""
    for folder in draft.variables.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield "ld_library_path", folder
    for root in site:
        yield "rpath", str(root / "torch" / "lib")
        for part in sorted((root / "nvidia").glob("*/lib")):
            yield "wheel", str(part)
    prefix = draft.variables.get("CONDA_PREFIX")
    if prefix:
        yield "conda", f"{prefix}/lib"
    for folder in SYSTEM:
        yield "system", folder


def _library_version(name: str, path: str) -> str | None:
    """From the file's own name, else (NCCL) from the banner inside the file, read in the last megabytes where the data section lies."""
    match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)*)$", path)
    if match:
        return match[1]
    if name != "libnccl":
        return None
    header = Path(path).parent.parent / "include" / "nccl.h"
    parts = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", text_of(header, 20_000))
    if len(parts) == 3:
        return ".".join(parts)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (4 << 20)))
            data = file.read(4 << 20)
    except OSError:
        return None
    found = re.search(rb"NCCL version (2\.\d{1,2}\.\d{1,2})", data)
    return found[1].decode() if found else None
