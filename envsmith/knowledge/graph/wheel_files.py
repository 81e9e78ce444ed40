"""The files of ``matrix/wheels``: how they are written, and ready wheels made of them.

``publishers.yaml`` is written by people: it says whom we trust and why. The other files hold one distribution each and
are written by ``tools/gather_wheels.py``, which takes every address and hash from files that it read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envsmith.base.json_types import JsonFields
from envsmith.base.schema import Flag, Parsed, Problems, Sha256, Text, WrongValueError, strict
from envsmith.knowledge.graph.fields import Sources, check_file, load_table, plain_text
from envsmith.model import plain
from envsmith.model.component import ComponentTable
from envsmith.model.rule import Evidence
from envsmith.model.wheel import ReadyWheel

FOLDER = "wheels"
PUBLISHERS_FILE = f"{FOLDER}/publishers.yaml"


def _wheel_name(value: Any, _context: object) -> str:
    try:
        parse_wheel_filename(str(value))
    except InvalidWheelFilename as error:
        raise WrongValueError(f"not the name of a wheel: {error}") from None
    return str(value)


_Distribution = Annotated[str, plain_text(plain.os_package)]
_Address = Annotated[str, plain_text(plain.address)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Publisher:
    """Somebody who publishes wheels below ``releases``.

    ``official`` names the distributions that are the publisher's own. ``glibc`` is what its files need where their
    tags do not say so.
    """

    name: Text
    releases: _Address
    evidence: Sources
    official: tuple[_Distribution, ...] = ()
    glibc: Annotated[str, plain_text(plain.version)] | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Publishers:
    """The whole file. ``distributions`` are those that are worth a ready wheel."""

    distributions: tuple[_Distribution, ...]
    publishers: tuple[Publisher, ...]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Requirements:
    """What the wheels with some versions in their METADATA require at run time."""

    versions: tuple[Annotated[str, plain_text(plain.version)], ...]
    requires: tuple[Text, ...]
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLine:
    """One line: a file below the publisher's ``releases``, in the folder ``tag``."""

    by: Text
    tag: Text
    file: Annotated[str, Parsed(_wheel_name)]
    version: Annotated[str, plain_text(plain.version)]
    sha256: Sha256
    evidence: Sources
    torch: Text | None = None
    cuda: Text | None = None
    cxx11_abi: Flag | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class WheelsFile:
    """The whole file of a distribution."""

    distribution: _Distribution
    wheels: tuple[WheelLine, ...]
    requires: tuple[Requirements, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


def read_wheels(name: str, root: Path) -> tuple[ReadyWheel, ...]:
    """Read the ready wheels of a distribution. ``DataError`` for a broken file."""
    return wheels_of(
        load_table(WheelsFile, f"{FOLDER}/{name}.yaml", root), load_table(Publishers, PUBLISHERS_FILE, root)
    )


def wheels_of(file: WheelsFile, publishers: Publishers) -> tuple[ReadyWheel, ...]:
    """Return the wheels of a file. A line by none of ``publishers`` is left out."""
    by_name = {p.name: p for p in publishers.publishers}
    requires = {version: each.requires for each in file.requires for version in each.versions}
    return tuple(_wheel(file.distribution, x, by_name[x.by], requires) for x in file.wheels if x.by in by_name)


def catalogue(documents: JsonFields, problems: Problems, table: ComponentTable) -> dict[str, tuple[ReadyWheel, ...]]:
    """Return the ready wheels of parsed files of the matrix by distribution. What is wrong goes into ``problems``."""
    document = documents.get(PUBLISHERS_FILE)
    publishers = check_file(Publishers, PUBLISHERS_FILE, document, problems, table) if document else None
    wheels = {}
    for name, lines in documents.items():
        if publishers and name.startswith(f"{FOLDER}/") and name != PUBLISHERS_FILE:
            file = check_file(WheelsFile, name, lines, problems, table)
            wheels.update({file.distribution: wheels_of(file, publishers)} if file else {})
    return wheels


def _wheel(name: str, line: WheelLine, publisher: Publisher, requires: Mapping[str, tuple[str, ...]]) -> ReadyWheel:
    return ReadyWheel(
        distribution=name,
        version=line.version,
        address=f"{publisher.releases}/{line.tag}/{quote(line.file)}",
        sha256=line.sha256,
        publisher=publisher.name,
        official=name in publisher.official,
        evidence=line.evidence,
        torch=line.torch,
        cuda=line.cuda,
        cxx11_abi=line.cxx11_abi,
        glibc=publisher.glibc,
        requires=requires.get(line.version),
    )
