"""A Conda channel with a real PyTorch: wheels of the package index, and this interpreter, packed again as Conda packages.

Names, build strings, dependencies and constraints have the shape of conda-forge's own records; the bytes are those of the wheels, which
carry inside what conda-forge splits off (OpenMP, MKL, protobuf). The compilers are names without content: the host's are used.
"""

from __future__ import annotations

import email.parser
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from envsmith.model.lock import Artifact, Pin

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = PYTHON.replace(".", "")
STAMP = 1700000000000
# What conda-forge's records of these say, where this channel has the package; read in real_records.json (pytorch 2.7.1, cpu).
NOARCH = {
    "typing-extensions": ["python >=3.9", "python"],
    "sympy": ["__unix", "cpython", "mpmath >=0.19", "python >=3.9"],
    "networkx": ["python >=3.11", "python"],
    "jinja2": ["markupsafe >=2.0", "python >=3.9"],
    "fsspec": ["python >=3.9"],
    "filelock": ["python >=3.9"],
    "mpmath": ["python >=3.9"],
    "setuptools": ["python >=3.9"],
}
BOUND = [
    "__glibc >=2.17,<3.0.a0",
    f"python >={PYTHON},<3.{sys.version_info[1] + 1}.0a0",
    f"python_abi {PYTHON}.* *_cp{TAG}",
]
TORCH = [
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "numpy >=1.23,<3",
    "setuptools",
    "sympy >=1.13.3",
    "typing_extensions >=4.10.0",
]


@dataclass(frozen=True, slots=True)
class Wheel:
    path: Path
    name: str
    version: str
    requires: tuple[str, ...]


def wheels_of(python: str, folder: Path, torch: str, deepspeed: str) -> list[Wheel]:
    """torch, DeepSpeed and all that they need, as wheels; ``RuntimeError`` says why they cannot be had.

    ``python`` has torch and setuptools: DeepSpeed is a source distribution whose setup imports torch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "DS_BUILD_OPS": "0"}
    common = [python, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder)]
    for more in (
        ["--no-deps", "--no-build-isolation", f"deepspeed=={deepspeed}"],
        ["--find-links", str(folder), f"torch=={torch}", "numpy", "setuptools", f"deepspeed=={deepspeed}"],
    ):
        done = subprocess.run([*common, *more], capture_output=True, text=True, env=environ, check=False)
        if done.returncode:
            raise RuntimeError("wheels cannot be had: " + done.stderr[-300:])
    found = [_wheel(path) for path in sorted(folder.glob("*.whl"))]
    if not any(w.name == "torch" and w.version.endswith("+cpu") for w in found):
        raise RuntimeError("the package index gives no CPU build of torch")
    return found


def _wheel(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        told = email.parser.Parser().parsestr(archive.read(name).decode())
    parsed = [Requirement(text) for text in told.get_all("Requires-Dist") or ()]
    env = {**default_environment(), "extra": ""}
    needs = {canonicalize_name(r.name) for r in parsed if r.marker is None or r.marker.evaluate(env)}
    return Wheel(path, canonicalize_name(told["Name"]), str(parse_wheel_filename(path.name)[1]), tuple(sorted(needs)))


def pins_of(wheels: list[Wheel]) -> tuple[Pin, ...]:
    """The pip lock of these very files."""
    names = {w.name for w in wheels}
    return tuple(
        Pin(
            name=w.name,
            version=w.version,
            layer="torch" if w.name == "torch" else "framework",
            artifacts=(
                Artifact(
                    filename=w.path.name,
                    sha256=hashlib.sha256(w.path.read_bytes()).hexdigest(),
                    url=w.path.as_uri(),
                ),
            ),
            requires=tuple(n for n in w.requires if n in names),
        )
        for w in wheels
    )


def make_channel(local: ModuleType, wheels: list[Wheel], folder: Path, scratch: Path) -> Path:
    """Pack and index; what is in :data:`NOARCH`, numpy, markupsafe and torch become packages, the rest stays pip's."""
    by_name = {w.name: w for w in wheels}
    plain: dict[str, Any] = {"build_number": 0, "subdir": "linux-64", "timestamp": STAMP}

    def make(name: str, version: str, build: str, depends: list[str], fill: Any = None, **more: Any) -> None:
        record = {**plain, "name": name, "version": version, "build": build, "depends": depends, **more}
        local.make_package(folder, record, fill, scratch=scratch, conda=True)

    python = local.python_record()
    local.make_package(
        folder,
        {**python, "constrains": [f"python_abi {PYTHON}.* *_cp{TAG}"]},
        local.python_fill,
        scratch=scratch,
        conda=True,
    )
    make(
        "python_abi",
        PYTHON,
        f"8_cp{TAG}",
        [],
        subdir="noarch",
        noarch="generic",
        constrains=[f"python {PYTHON}.* *_cpython"],
    )
    make("cpython", python["version"], f"py{TAG}hd8ed1ab_0", [f"python {PYTHON}.*"], subdir="noarch", noarch="generic")
    make("pip", "25.3", "pyh8b19718_0", ["python >=3.10"], subdir="noarch", noarch="python")
    for name in ("c-compiler", "cxx-compiler"):
        make(name, "1.11.0", "h0_0", [])
    for name, depends in NOARCH.items():
        wheel = by_name[name]
        conda = name.replace("typing-extensions", "typing_extensions")
        make(
            conda,
            wheel.version,
            "pyhd8ed1ab_0",
            depends,
            unpack(wheel, "site-packages"),
            subdir="noarch",
            noarch="python",
        )
    site = f"lib/python{PYTHON}/site-packages"
    for name in ("markupsafe", "numpy"):
        make(name, by_name[name].version, f"py{TAG}h0_0", BOUND, unpack(by_name[name], site))
    torch = by_name["torch"]
    make(
        "pytorch",
        torch.version.partition("+")[0],
        f"cpu_generic_py{TAG}_h0_0",
        [*BOUND, *TORCH],
        unpack(torch, site),
        constrains=["pytorch-gpu <0.0a0", f"pytorch-cpu {torch.version.partition('+')[0]}"],
    )
    local.index_channel(folder)
    return folder


def unpack(wheel: Wheel, where: str) -> Callable[[Path], None]:
    """The files of a wheel, as an installer would lay them (its scripts left out)."""

    def fill(work: Path) -> None:
        target = work / where
        target.mkdir(parents=True)
        with zipfile.ZipFile(wheel.path) as archive:
            for member in archive.infolist():
                if ".data/" not in member.filename and not member.is_dir():
                    out = Path(archive.extract(member, target))
                    if (member.external_attr >> 16) & 0o111:
                        out.chmod(0o755)

    return fill
