"""Wheels that no index has: envsmith itself, made of the files that run, and the user's own project, built by uv."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envsmith.base.about import DISTRIBUTION, VERSION
from envsmith.base.files import read_bounded, scratch
from envsmith.base.json_types import list_in, object_in
from envsmith.errors import UsageError
from envsmith.knowledge.graph.location import find_matrix
from envsmith.lock.index.interpreters import find_interpreter, running_interpreter
from envsmith.lock.index.metadata import active, parse_metadata
from envsmith.lock.index.uv import Uv
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of
from envsmith.project.declared import read_toml
from envsmith.project.folder import PYPROJECT, SETUP_CFG, SETUP_PY

# The first time that a zip file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)
_MOST = 64 << 20
_SKIPPED = frozenset({"__pycache__", "_matrix"})
# The same moment for what a build backend writes.
_EPOCH = "315532800"

# How the name of a wheel spells it.
_WHEEL_NAME = DISTRIBUTION.replace("-", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalWheel:
    """A wheel that was built here."""

    filename: str
    data: bytes

    @property
    def pin(self) -> Pin:
        """Return the wheel as a package of a lock."""
        name, version, _, _ = parse_wheel_filename(self.filename)
        artifact = Artifact(filename=self.filename, sha256=hashlib.sha256(self.data).hexdigest())
        return Pin(name=name, version=str(version), layer="framework", artifacts=(artifact,))

    def unmet_by(self, lock: Lock) -> dict[str, str]:
        """Return the requirements of the wheel that no package of a lock meets, by name."""
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            requires = parse_metadata(archive.read(name), self.filename).requires
        needed = active(requires, python=minor_of(lock.python_version), platform=lock.cell.platform)
        pins = {name: lock.pin(name) for name in needed}
        return {
            name: str(requirement)
            for name, requirement in needed.items()
            if (pin := pins[name]) is None or not requirement.specifier.contains(pin.version, prereleases=True)
        }


def own_requirements() -> tuple[str, ...]:
    """Return what envsmith needs, without its extras. Of a checkout, what was noted when it was installed may be old."""
    checkout = Path(__file__).parents[3] / PYPROJECT
    if checkout.is_file():
        return list_in(object_in(read_toml(checkout), "project"), "dependencies")
    return tuple(line for line in metadata.requires(DISTRIBUTION) or () if "extra ==" not in line)


@cache
def own_wheel() -> LocalWheel:
    """Return envsmith as a wheel. The same files give the same bytes."""
    info = f"{_WHEEL_NAME}-{VERSION}.dist-info"
    members = {**_files(Path(__file__).parents[2], "envsmith"), **_files(find_matrix(), "envsmith/_matrix")}
    requires = "".join(f"Requires-Dist: {line}\n" for line in own_requirements())
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {VERSION}\n{requires}".encode()
    )
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
    return LocalWheel(filename=f"{_WHEEL_NAME}-{VERSION}-py3-none-any.whl", data=buffer.getvalue())


def is_package(folder: Path) -> bool:
    """Return whether a folder is a package that can be installed, and not only a list of requirements."""
    if (folder / SETUP_PY).is_file() or (folder / SETUP_CFG).is_file():
        return True
    return (folder / PYPROJECT).is_file() and "build-system" in read_toml(folder / PYPROJECT)


@dataclass(frozen=True, kw_only=True, slots=True)
class UserPackage:
    """A package of the user. ``leave_out`` are requirements of it that the user installs another way."""

    folder: Path
    leave_out: tuple[str, ...] = ()


def project_wheel(project: UserPackage, lock: Lock, tags: Collection[str], uv: Uv) -> LocalWheel:
    """Build the user's package as its backend does, for the Python of a lock.

    ``UsageError`` where none of ``tags``, which the lock's host installs, is one of the wheel's, and where the lock does
    not meet what it requires. The errors of uv where it cannot be built.
    """
    folder = project.folder
    minor = minor_of(lock.python_version)
    python = (find_interpreter(minor) or running_interpreter()).path
    arguments = ["build", "--wheel", "--python", python, "--exclude-newer", lock.exclude_newer]
    with scratch() as place:
        command = [*arguments, "--out-dir", str(place), str(folder.absolute())]
        uv.check(command, work=f"build a wheel of {folder}", extra={"SOURCE_DATE_EPOCH": _EPOCH})
        path = next(place.glob("*.whl"))
        wheel = LocalWheel(filename=path.name, data=read_bounded(path, _MOST))
    if not {str(tag) for tag in parse_wheel_filename(wheel.filename)[3]} & set(tags):
        raise UsageError(
            f"Cannot pack {folder}: its wheel {wheel.filename} is not for Python {minor} on {lock.cell.platform.value}.",
            hint=f"Run envsmith pack on such a machine, with a Python {minor} on PATH.",
        )
    unmet = wheel.unmet_by(lock)
    if problems := [text for name, text in unmet.items() if name not in set(map(normal_name, project.leave_out))]:
        raise UsageError(
            f"Cannot pack {folder}: {lock.cell.id} does not meet {len(problems)} of its requirements.",
            details=problems,
            hint="Leave --lock out, so that the project is locked anew, or leave a requirement out with --without NAME.",
        )
    return wheel


def _files(folder: Path, prefix: str) -> dict[str, bytes]:
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}": read_bounded(path, _MOST)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _SKIPPED & set(path.relative_to(folder).parts)
    }


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
