"""A lock as part of a uv or a pixi project: what its file needs so that their commands give the versions of the cell.

uv reads ``pyproject.toml``, pixi a ``pixi.toml`` or ``[tool.pixi]`` of a ``pyproject.toml``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from envsmith.base.files import read_text
from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.load import components
from envsmith.lock.cell_query import glibc_of
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock, Pin
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of, public

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Table

PIXI, PYPROJECT = "pixi.toml", "pyproject.toml"
_CHANNEL = "conda-forge"
_COMMENT = "the versions of {cell}, which envsmith locked"


def merged(text: str, lock: Lock) -> str:
    """Return a ``pyproject.toml`` with a lock's versions as constraints. All that is not uv's stays as it is.

    What the cell is named after, and what was asked for beside it, become dependencies where they are none yet.
    ``DataError`` for what is not a project, ``UsageError`` where uv would need the address of an index.
    """
    import tomlkit

    document = _document_for(text, lock, PYPROJECT)
    project = document.get("project")
    if not isinstance(project, dict):
        raise DataError(
            "Cannot write pyproject.toml: it has no table [project].", hint="Run uv init in the folder of the project."
        )
    _depend(project, lock.cell)
    _constrain(document, lock)
    return tomlkit.dumps(document)


def _document_for(text: str, lock: Lock, file: str) -> TOMLDocument:
    """Parse the file of a project into which a lock is to be written. ``DataError`` for what is not TOML.

    ``UsageError`` where the project would need the address of an index.
    """
    import tomlkit
    from tomlkit.exceptions import ParseError

    if lock.cell.index != "default":
        raise UsageError(
            f"Cannot write {file}: torch {lock.cell.components['torch']} is on PyTorch's own index only, and envsmith "
            "does not know its address.",
            hint="Take a torch whose default build will do, with --torch.",
        )
    try:
        return tomlkit.parse(text)
    except ParseError as error:
        raise DataError(f"Cannot read {file}: it is not valid TOML ({error}).") from None


def difference(old: str, new: str, name: str) -> str:
    """Return what changes in a file, as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="")
    return "\n".join(lines)


def _depend(project: Any, cell: Cell) -> None:
    """Add what is asked for and no dependency yet."""
    import tomlkit

    listed = project.setdefault("dependencies", tomlkit.array())
    names = {name for name in map(_name, listed) if name}
    table = components().by_name
    parts = [(table[n].distributions[0], n) for n in cell.chosen if n in table and table[n].distributions]
    lines = [f"{distribution}=={public(cell.components[name])}" for distribution, name in parts]
    lines += [line.partition(" --hash=")[0] for line in cell.further]
    for line in lines:
        name = _name(line)
        if name and name not in names and name != "python":
            listed.append(line)
            names.add(name)
    listed.multiline(multiline=True)


def _name(line: object) -> str | None:
    try:
        return normal_name(Requirement(str(line)).name)
    except InvalidRequirement:
        return None


def _constrain(document: TOMLDocument, lock: Lock) -> None:
    """Write uv's table: every pin as a constraint, where the lock holds, and what is built beside torch."""
    import tomlkit

    uv = document.setdefault("tool", tomlkit.table(is_super_table=True)).setdefault("uv", tomlkit.table())
    cell = lock.cell
    minor = minor_of(cell.components["python"])
    place = f"sys_platform == 'linux' and platform_machine == '{cell.platform.machine}' and python_version == '{minor}'"
    uv["environments"] = _array([place])
    uv["constraint-dependencies"] = _array(f"{pin.name}{_exactly(pin)}" for pin in lock.pins)
    uv["constraint-dependencies"].comment(_COMMENT.format(cell=cell.id))
    if forced := _overrides(lock):
        uv["override-dependencies"] = _array(forced)
    torch = lock.pin("torch")
    if torch is not None and lock.compiled:
        table = tomlkit.table()
        for source in lock.compiled:
            table[source.name] = _array([f"torch=={public(torch.version)}"])
        uv["extra-build-dependencies"] = table


def _exactly(pin: Pin) -> str:
    """Return the specifier of a pin. That of torch leaves its build to the index."""
    return f"=={public(pin.version) if pin.name == 'torch' else pin.version}"


def _overrides(lock: Lock) -> list[str]:
    """Return the pins that count in place of what torch declares: an NCCL of the cell's own."""
    own = components().by_name["nccl"].distributions if "overrides" in lock.facts else ()
    return [f"{pin.name}=={pin.version}" for pin in lock.pins if pin.name in own]


def _array(lines: Iterable[str]) -> Any:
    import tomlkit

    array = tomlkit.array()
    array.extend(lines)
    return array.multiline(multiline=True)


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

    document = _document_for(text, lock, file)
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
    _table(root, "system-requirements")["libc"] = glibc_of(lock)
    _table(root, "dependencies")["python"] = f"{minor_of(cell.components['python'])}.*"
    packages = _table(root, "pypi-dependencies")
    packages.comment(_COMMENT.format(cell=cell.id))
    pinned = {pin.name for pin in lock.pins}
    for pin in (*lock.pins, *(pin for pin in lock.build_pins if lock.compiled and pin.name not in pinned)):
        packages[pin.name] = _requirement(pin)
    _options(root, lock)


def _options(root: TOMLDocument | Table, lock: Lock) -> None:
    """Write what is built beside torch, and whose word counts in place of what torch declares."""
    if lock.compiled:
        _table(root, "pypi-options")["no-build-isolation"] = [source.name for source in lock.compiled]
    for requirement in map(Requirement, _overrides(lock)):
        overrides = _table(_table(root, "pypi-options"), "dependency-overrides")
        overrides[normal_name(requirement.name)] = str(requirement.specifier)


def _requirement(pin: Pin) -> Any:
    """Return the exact version, or the address of a ready wheel."""
    import tomlkit

    if pin.address:
        table = tomlkit.inline_table()
        table["url"] = pin.address
        return table
    return _exactly(pin)


def _table(parent: Any, name: str, *, is_super: bool = False) -> Any:
    import tomlkit

    value = parent.setdefault(name, tomlkit.table(is_super_table=is_super))
    if not isinstance(value, dict):
        raise DataError(f"Cannot write the table {name}: it is not a table.")
    return value
