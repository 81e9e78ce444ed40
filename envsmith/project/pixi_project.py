"""A lock as a pixi project: a ``pixi.toml``, or ``[tool.pixi]`` of a ``pyproject.toml``, that gives the cell's versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.errors import DataError
from envsmith.files import read_text
from envsmith.lock.resolve import DEFAULT_GLIBC
from envsmith.model.lock import Lock, Pin
from envsmith.model.version import minor_of, public
from envsmith.project.demand import parse_line
from envsmith.project.uv_project import document_for

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Table

PIXI, PYPROJECT = "pixi.toml", "pyproject.toml"
_CHANNEL = "conda-forge"


def manifest_of(folder: Path) -> Path:
    """Return the file in which a project has, or would have, what pixi reads."""
    pyproject = folder / PYPROJECT
    is_pixi = pyproject.is_file() and "[tool.pixi" in read_text(pyproject)
    return pyproject if is_pixi and not (folder / PIXI).is_file() else folder / PIXI


def with_pixi(text: str, lock: Lock, file: str) -> str:
    """Return ``pixi.toml`` or ``pyproject.toml`` with a lock's versions. What is not about them stays as it is.

    Python comes from Conda, everything else from the package index, each in its exact version. ``DataError`` for what is
    not TOML, ``UsageError`` where pixi would need the address of an index.
    """
    import tomlkit

    document = document_for(text, lock, file)
    root = document if file == PIXI else _table(_table(document, "tool", is_super=True), "pixi", is_super=True)
    _fill(root, lock)
    return tomlkit.dumps(document)


def _fill(root: TOMLDocument | Table, lock: Lock) -> None:
    cell = lock.cell
    workspace = _table(root, "workspace")
    if not {"name", "channels"} & set(workspace):
        workspace["name"] = re.sub(r"[^a-z0-9.-]", "-", str(cell.id))
    workspace.setdefault("channels", [_CHANNEL])
    platforms = workspace.setdefault("platforms", [])
    if cell.platform.value not in platforms:
        platforms.append(cell.platform.value)
    _table(root, "system-requirements")["libc"] = cell.components.get("glibc") or DEFAULT_GLIBC
    _table(root, "dependencies")["python"] = f"{minor_of(cell.components['python'])}.*"
    packages = _table(root, "pypi-dependencies")
    packages.comment(f"the versions of {cell.id}, which envsmith locked")
    pinned = {pin.name for pin in lock.pins}
    for pin in (*lock.pins, *(pin for pin in lock.build_pins if lock.compiled and pin.name not in pinned)):
        packages[pin.name] = _requirement(pin)
    _options(root, lock)


def _options(root: TOMLDocument | Table, lock: Lock) -> None:
    """Write what is built beside torch, and whose word counts in place of what torch declares."""
    if lock.compiled:
        _table(root, "pypi-options")["no-build-isolation"] = [source.name for source in lock.compiled]
    if forced := lock.facts.get("overrides", "").partition(" in place of")[0]:
        overrides = _table(_table(root, "pypi-options"), "dependency-overrides")
        for line in forced.split(", "):
            demand = parse_line(line, "")
            overrides[demand.name] = str(demand.requirement.specifier)


def _requirement(pin: Pin) -> Any:
    """Return the exact version, or the address of a ready wheel."""
    import tomlkit

    if pin.address:
        table = tomlkit.inline_table()
        table["url"] = pin.address
        return table
    return f"=={public(pin.version) if pin.name == 'torch' else pin.version}"


def _table(parent: Any, name: str, *, is_super: bool = False) -> Any:
    import tomlkit

    value = parent.setdefault(name, tomlkit.table(is_super_table=is_super))
    if not isinstance(value, dict):
        raise DataError(f"Cannot write the table {name}: it is not a table.")
    return value
