"""An end of the search: the exact packages of an environment, or of a file that pins them."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envsmith.bisect.trial import PackageSet
from envsmith.doctor.facts import Draft
from envsmith.doctor.read import clean, read_text
from envsmith.errors import UsageError
from envsmith.files import read_text as read_file
from envsmith.model.version import minor_of
from envsmith.python.uv import Uv

_LOCK = "lock.json"
_HINT = "Give a virtual environment, the output of pip freeze, pylock.toml, uv.lock, or the folder of a cell."


def read_end(source: str, python: str, uv: Uv) -> PackageSet:
    """Return the packages of an environment, of a cell's folder or of a file. ``UsageError`` where none is pinned.

    ``python`` is the minor version for a file that names none.
    """
    path = Path(source)
    if (path / "pyvenv.cfg").is_file():
        return _of_environment(path, uv)
    if path.is_dir() and (path / _LOCK).is_file():
        path = path / _LOCK
    if not path.is_file():
        raise UsageError(f"Cannot read {source}: it is neither an environment nor a file.", hint=_HINT)
    return _of_file(path, python)


def _of_environment(path: Path, uv: Uv) -> PackageSet:
    answer = uv.check(
        ["pip", "freeze", "--python", str(path.absolute() / "bin" / "python")], work=f"list the packages of {path}"
    )
    pins: dict[str, str] = {}
    unpinned: list[str] = []
    for line in answer.stdout.splitlines():
        name, equals, version = line.partition("==")
        if equals:
            pins[canonicalize_name(name)] = version.strip()
        elif line.strip():
            unpinned.append(line.strip())
    # A project that is installed from its folder is the user's own code: it is the same at both ends.
    addresses = [line for line in unpinned if not line.startswith("-e")]
    if addresses:
        raise UsageError(
            f"Cannot make the environment {path} again: {addresses[0]} was not installed from an index.",
            hint="Leave it out: give the output of pip freeze without it, and put its folder on PYTHONPATH.",
        )
    config = read_file(path / "pyvenv.cfg")
    stated = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+[\d.]*)", config, re.MULTILINE)
    if not stated or not pins:
        raise UsageError(f"Cannot read {path}: it is not an environment with packages.", hint=_HINT)
    return PackageSet(pins=pins, python=minor_of(stated[1]))


def _of_file(path: Path, python: str) -> PackageSet:
    text = read_file(path, failure=UsageError)
    draft = Draft()
    read_text(clean(text), draft, path.name)
    facts = draft.done()
    pins: dict[str, str] = {canonicalize_name(name): version for name, version in facts.distributions.items()}
    pins |= _exact(text)
    if not pins:
        raise UsageError(f"Cannot read {path}: it pins no package.", hint=_HINT)
    stated = facts.components.get("python")
    return PackageSet(pins=pins, python=minor_of(stated.version) if stated else python)


def _exact(text: str) -> dict[str, str]:
    """Return the pins of a requirements file as they stand, local parts and all."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        try:
            requirement = Requirement(line.split(" #")[0].split(" --hash")[0].rstrip("\\ "))
        except InvalidRequirement:
            continue
        specifiers = list(requirement.specifier)
        if len(specifiers) == 1 and specifiers[0].operator == "==" and not specifiers[0].version.endswith("*"):
            pins[canonicalize_name(requirement.name)] = specifiers[0].version
    return pins
