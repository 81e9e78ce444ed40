"""A lock as part of a uv project: what its ``pyproject.toml`` needs so that ``uv sync`` gives the versions of the cell."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envsmith.errors import DataError, UsageError
from envsmith.graph.load import components
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock
from envsmith.model.version import minor_of, public

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_COMMENT = "the versions of {cell}, which envsmith locked"


def merged(text: str, lock: Lock) -> str:
    """Return a ``pyproject.toml`` with a lock's versions as constraints. All that is not uv's stays as it is.

    What the cell is named after, and what was asked for beside it, become dependencies where they are none yet.
    ``DataError`` for what is not a project, ``UsageError`` where uv would need the address of an index.
    """
    import tomlkit

    document = document_for(text, lock, "pyproject.toml")
    project = document.get("project")
    if not isinstance(project, dict):
        raise DataError(
            "Cannot write pyproject.toml: it has no table [project].", hint="Run uv init in the folder of the project."
        )
    _depend(project, lock.cell)
    _constrain(document, lock)
    return tomlkit.dumps(document)


def document_for(text: str, lock: Lock, file: str) -> TOMLDocument:
    """Parse the file of a project into which a lock is to be written. ``DataError`` for what is not TOML.

    ``UsageError`` where the project would need the address of an index.
    """
    import tomlkit
    from tomlkit.exceptions import ParseError

    if lock.cell.index != "default":
        raise UsageError(
            f"Cannot write {file}: torch {lock.cell.components['torch']} is on PyTorch's own index only, and envsmith "
            "does not know its address.",
            hint="Leave --cuda out to get the build of the default index.",
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
        return canonicalize_name(Requirement(str(line)).name)
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
    pins = [f"{pin.name}=={public(pin.version) if pin.name == 'torch' else pin.version}" for pin in lock.pins]
    uv["constraint-dependencies"] = _array(pins)
    uv["constraint-dependencies"].comment(_COMMENT.format(cell=cell.id))
    if forced := lock.facts.get("overrides", "").partition(" in place of")[0]:
        uv["override-dependencies"] = _array(forced.split(", "))
    torch = lock.pin("torch")
    if torch is not None and lock.compiled:
        table = tomlkit.table()
        for source in lock.compiled:
            table[source.name] = _array([f"torch=={public(torch.version)}"])
        uv["extra-build-dependencies"] = table


def _array(lines: Iterable[str]) -> Any:
    import tomlkit

    array = tomlkit.array()
    array.extend(lines)
    return array.multiline(multiline=True)
