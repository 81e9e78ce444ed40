"""What a project says it requires: its requirement files, the lists in a ``setup.py``, ``pip install`` in its texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from envsmith.errors import DataError, EnvsmithError
from envsmith.files import read_bounded
from envsmith.project.declared import MAX_BYTES, read_declared
from envsmith.project.demand import Demand, Demands
from envsmith.project.setup_script import read_setup

# Texts in which a project says what to install: for people, and for an engine.
_GUIDES = re.compile(r"(readme|install)[\w.-]{0,40}\.(md|rst|txt)|(docker|container)file[\w.-]{0,40}", re.IGNORECASE)
_INSTALL = re.compile(r"\bpip3?\s+install\s+([^\n`;|&#)]{1,2000})")
_WITH_VALUE = frozenset(
    {"-r", "-c", "-e", "-i", "-f", "-t", "--index-url", "--extra-index-url", "--find-links", "--editable"}
)
_MOST = 500


def read_stated(root: Path, files: Collection[str]) -> Demands:
    """Read what stands in a project's own folder, one requirement of each distribution.

    A file of requirements comes before an extra, and that before a text among ``files``. What cannot be read states
    nothing, and is one of the ``problems``.
    """
    stated: dict[str, Demand] = {}
    python, unread = None, list[str]()
    try:
        declaration = read_declared(root)
    except EnvsmithError as error:
        declaration = None
        unread += [] if isinstance(error, DataError) and "no file for that" in error.message else [error.reason]
    if declaration is not None:
        python = declaration.python
        unread += declaration.skipped
        for declared in sorted(declaration.requirements, key=lambda d: d.extra is not None):
            # A Conda file lists every package of an environment, libraries of other languages among them.
            is_conda = declared.file.startswith("environment")
            spec = _exact(declared.spec) if is_conda else declared.spec
            where, is_optional = f"{declared.file}:{declared.line}", is_conda or declared.extra is not None
            demand = Demand(requirement=Requirement(f"{declared.name}{spec}"), where=where, is_optional=is_optional)
            stated.setdefault(demand.name, demand)
    guides = [(name, _install_lines) for name in sorted(files) if _is_guide(name)]
    for file, read in (("setup.py", _setup_lines), *guides):
        for line, text in read(_text(root / file)):
            if (one := _stated(text, f"{file}:{line}", is_optional=_is_guide(file))) is not None:
                stated.setdefault(one.name, one)
    return Demands(
        demands=tuple(list(stated.values())[:_MOST]),
        python=((python, ""),) if python else (),
        problems=tuple(unread[:_MOST]),
    )


def _exact(spec: str) -> str:
    """Return Conda's ``=1.19.2``, which was read as ``==1.19.2.*``, as the release that it means."""
    return re.sub(r"^(==\d+\.\d+\.\d+)\.\*$", r"\1", spec)


def _is_guide(name: str) -> bool:
    return "/" not in name and _GUIDES.fullmatch(name) is not None


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8", "replace")
    except EnvsmithError:
        return ""


def _stated(text: str, where: str, *, is_optional: bool) -> Demand | None:
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, ValueError):
        return None
    if requirement.url:
        return None
    return Demand(requirement=requirement, where=where, is_optional=is_optional)


def _setup_lines(text: str) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text, extra in read_setup(text).lines if extra is None)


def _install_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield what ``pip install`` is given in a text for people, without options, addresses and paths."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _INSTALL.finditer(line[:4000]):
            words = iter(match[1].replace('"', " ").replace("'", " ").split())
            for word in words:
                if word in _WITH_VALUE:
                    next(words, None)
                elif re.match(r"[A-Za-z0-9]", word) and "/" not in word:
                    yield number, word
