"""Makes channels for tests: an index of real records (no packages), or a whole channel of small packages that install."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from envsmith.model.cell import Cell, Platform
from envsmith.model.lock import Artifact, Pin

CASES = Path(__file__).resolve().parents[3] / "cases" / "conda"
PLACEHOLDER = "/opt/envsmith_placehold" + "_placehold" * 20
Record = dict[str, Any]


def real_records(*names: str) -> list[Record]:
    """The records of tests/cases/conda, of both files."""
    found = [
        r for n in names or ("records.json", "standins.json") for r in json.loads((CASES / n).read_text())["records"]
    ]
    for record in found:
        record.setdefault("md5", hashlib.md5(record["file"].encode()).hexdigest())
        record.setdefault("sha256", hashlib.sha256(record["file"].encode()).hexdigest())
    return found


def write_index(root: Path, records: Iterable[Record], *, subdirs: tuple[str, ...] = ("linux-64", "noarch")) -> Path:
    """``root/<channel>/<subdir>/repodata.json`` for each channel the records name."""
    by_place: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        body = {k: v for k, v in record.items() if k not in {"channel", "file"}}
        body.setdefault("constrains", [])
        by_place.setdefault((record["channel"], record["subdir"]), {})[record["file"]] = body
    for channel in {c for c, _ in by_place}:
        for subdir in subdirs:
            packages = by_place.get((channel, subdir), {})
            data = {
                "info": {"subdir": subdir},
                "packages": {f: r for f, r in sorted(packages.items()) if f.endswith(".tar.bz2")},
                "packages.conda": {f: r for f, r in sorted(packages.items()) if f.endswith(".conda")},
                "removed": [],
                "repodata_version": 1,
            }
            place = root / channel / subdir
            place.mkdir(parents=True, exist_ok=True)
            (place / "repodata.json").write_text(json.dumps(data, indent=1, sort_keys=True))
    return root


def pin(
    name: str, version: str, *requires: str, layer: str = "framework", url: str | None = None, sha256: str | None = None
) -> Pin:
    """A pin of a pure wheel whose hash is that of its own name, unless given."""
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    digest = sha256 or hashlib.sha256(filename.encode()).hexdigest()
    artifact = Artifact(filename=filename, sha256=digest, url=url or f"https://files.example/{filename}")
    return Pin(name=name, version=version, layer=layer, artifacts=(artifact,), requires=tuple(requires))


def cell(platform: Platform = Platform.LINUX_64, **components: str) -> Cell:
    """A cell of the given components, ``_`` for ``-``; its id names the framework, torch, cuda and python."""
    named = {n.replace("_", "-"): v for n, v in components.items()}
    chosen = tuple(n for n in named if n in {"deepspeed", "megatron-core", "colossalai", "torch", "cuda", "python"})
    return Cell(components=named, chosen=chosen, platform=platform)


DEEPSPEED = {
    "deepspeed": "0.18.2",
    "torch": "2.8.0+cu129",
    "cuda": "12.9",
    "python": "3.10",
    "nccl": "2.28.9",
    "cudnn": "9.10.2.21",
    "triton": "3.4.0",
}
MEGATRON = {"megatron_core": "0.16.1", **{k: v for k, v in DEEPSPEED.items() if k != "deepspeed"}}
COLOSSALAI = {
    "colossalai": "0.5.0",
    "torch": "2.4.1+cu124",
    "cuda": "12.4",
    "python": "3.12",
    "nccl": "2.20.5",
    "cudnn": "9.1.0.70",
    "triton": "3.0.0",
}


def pins_for(components: dict[str, str]) -> tuple[Pin, ...]:
    """What a pip lock of the cell has: torch with the NVIDIA wheels, the framework, and a dependency that Conda lacks."""
    major = components["cuda"].split(".")[0]
    torch = [
        pin(
            "torch",
            components["torch"],
            f"nvidia-nccl-cu{major}",
            f"nvidia-cudnn-cu{major}",
            "triton",
            "numpy",
            layer="torch",
        ),
        pin(f"nvidia-nccl-cu{major}", components["nccl"], layer="torch"),
        pin(f"nvidia-cudnn-cu{major}", components["cudnn"], layer="torch"),
        pin("triton", components["triton"], layer="torch"),
        pin("numpy", "2.2.6" if components["python"] == "3.10" else "2.1.1"),
        pin("packaging", "25.0"),
        pin("hjson", "3.1.0"),
    ]
    name = next(n for n in components if n in {"deepspeed", "megatron_core", "colossalai"})
    return (*torch, pin(name.replace("_", "-"), components[name], "torch", "numpy", "packaging", "hjson"))


def make_package(
    folder: Path, record: Record, fill: Callable[[Path], None] | None = None, *, scratch: Path, conda: bool = False
) -> Path:
    """A ``.tar.bz2`` (or ``.conda``: far faster for large ones) package that rattler installs.

    Without ``fill`` it holds one text file (a module for Python packages).
    """
    stem = f"{record['name']}-{record['version']}-{record['build']}"
    work = scratch / stem
    work.mkdir(parents=True)
    (fill or _default_fill(record))(work)
    paths = [_path_entry(work, p) for p in sorted(work.rglob("*")) if p.is_symlink() or p.is_file()]
    out = folder / record["subdir"] / f"{stem}{'.conda' if conda else '.tar.bz2'}"
    out.parent.mkdir(parents=True, exist_ok=True)
    info = _info(record, paths)
    if conda:
        _write_conda(out, stem, info, work, paths)
    else:
        with tarfile.open(out, "w:bz2", compresslevel=1) as tar:
            _fill_tar(tar, info, work, paths)
    shutil.rmtree(work)
    return out


def _info(record: Record, paths: list[dict[str, Any]]) -> dict[str, bytes]:
    index = {k: v for k, v in record.items() if k not in {"channel", "file", "md5", "sha256", "size", "entry_points"}}
    index |= (
        {"arch": None, "platform": None} if record["subdir"] == "noarch" else {"arch": "x86_64", "platform": "linux"}
    )
    info = {
        "index.json": json.dumps(index).encode(),
        "paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "about.json": b"{}",
        "files": "".join(p["_path"] + "\n" for p in paths).encode(),
    }
    if record.get("noarch") == "python":
        link = {
            "noarch": {"type": "python", "entry_points": record.get("entry_points", [])},
            "package_metadata_version": 1,
        }
        info["link.json"] = json.dumps(link).encode()
    return info


def _fill_tar(tar: tarfile.TarFile, info: dict[str, bytes], work: Path, paths: list[dict[str, Any]]) -> None:
    for name, data in info.items():
        _add(tar, f"info/{name}", data)
    for entry in paths:
        tar.add(work / entry["_path"], entry["_path"], recursive=False)


def _write_conda(out: Path, stem: str, info: dict[str, bytes], work: Path, paths: list[dict[str, Any]]) -> None:
    """The second format: a stored zip of two zstd archives."""
    import zstandard

    def packed(info: dict[str, bytes], paths: list[dict[str, Any]], target: Path) -> Path:
        with (
            target.open("wb") as file,
            zstandard.ZstdCompressor(level=1).stream_writer(file) as stream,
            tarfile.open(fileobj=stream, mode="w|") as tar,
        ):
            _fill_tar(tar, info, work, paths)
        return target

    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("metadata.json", json.dumps({"conda_pkg_format_version": 2}))
        for kind, body in (("pkg", ({}, paths)), ("info", (info, []))):
            part = packed(*body, work.with_name(f"{kind}-{stem}.tar.zst"))
            archive.write(part, part.name)
            part.unlink()


def _default_fill(record: Record) -> Callable[[Path], None]:
    def fill(work: Path) -> None:
        if record.get("noarch") == "python":
            module = record["name"].replace("-", "_")
            (work / "site-packages" / module).mkdir(parents=True)
            (work / "site-packages" / module / "__init__.py").write_text(f"__version__ = {record['version']!r}\n")
            info = work / "site-packages" / f"{module}-{record['version']}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {record['name']}\nVersion: {record['version']}\n"
            )
        else:
            (work / "share" / "test").mkdir(parents=True)
            (work / "share" / "test" / f"{record['name']}.txt").write_text(f"{record['version']} in {PLACEHOLDER}\n")

    return fill


def _path_entry(work: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(work).as_posix()
    if path.is_symlink():
        return {"_path": name, "path_type": "softlink", "sha256": hashlib.sha256(b"").hexdigest(), "size_in_bytes": 0}
    data = path.read_bytes()
    entry: dict[str, Any] = {
        "_path": name,
        "path_type": "hardlink",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_in_bytes": len(data),
    }
    if PLACEHOLDER.encode() in data:
        entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "binary" if b"\0" in data else "text"}
    return entry


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def index_channel(folder: Path) -> None:
    """Let rattler index the packages of a folder."""
    import asyncio

    from rattler.index.index import index_fs

    asyncio.run(index_fs(folder, write_zst=True, write_shards=False, force=True))


def python_record() -> Record:
    """A ``python`` package that is the interpreter of this very test run."""
    version = ".".join(map(str, sys.version_info[:3]))
    return {
        "name": "python",
        "version": version,
        "build": "h0_0_cpython",
        "build_number": 0,
        "subdir": "linux-64",
        "depends": ["__glibc >=2.17"],
        "timestamp": 1700000000000,
    }


def python_fill(work: Path) -> None:
    """Copy the interpreter, its headers and its standard library, without tests and site-packages."""
    base = Path(sys.base_prefix)
    tag = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (work / "bin").mkdir()
    (work / "lib").mkdir()
    program = (base / "bin" / tag).read_bytes()
    here, there = f"{base / 'lib'}".encode(), b"$ORIGIN/../lib"
    if len(here) >= len(there):  # where it looks for libpython: beside itself, as an interpreter of Conda does
        program = program.replace(here + b"\0", there.ljust(len(here), b"\0") + b"\0")
    (work / "bin" / tag).write_bytes(program)
    (work / "bin" / tag).chmod(0o755)
    if (base / "include" / tag).is_dir():
        shutil.copytree(base / "include" / tag, work / "include" / tag)
    for alias in ("python3", "python"):
        (work / "bin" / alias).symlink_to(tag)
    skip = (
        "__pycache__",
        "test",
        "tests",
        "site-packages",
        "idlelib",
        "tkinter",
        "config-*",
        "lib2to3",
        "turtledemo",
        "*.a",
    )
    shutil.copytree(base / "lib" / tag, work / "lib" / tag, ignore=shutil.ignore_patterns(*skip), symlinks=True)
    (work / "lib" / tag / "site-packages").mkdir(exist_ok=True)
    (work / "lib" / tag / "site-packages" / "README").write_text("here\n")
    for library in base.glob("lib/libpython3*.so*"):
        shutil.copy2(library, work / "lib", follow_symlinks=False)


def make_wheel(folder: Path, name: str, version: str, body: str = "") -> Path:
    """A pure wheel with one module; its bytes depend on nothing but the arguments."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    texts = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n{body}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()).rstrip(b'=').decode()},{len(t)}"
        for n, t in texts.items()
    ]
    texts[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in texts.items():
            archive.writestr(zipfile.ZipInfo(entry), text)
    return path


def wheel_pin(path: Path, name: str, version: str, *requires: str) -> Pin:
    """The pin of a wheel that exists."""
    return pin(name, version, *requires, url=path.as_uri(), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
