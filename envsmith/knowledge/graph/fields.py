"""The fields of the files of ``matrix/``.

Versions, specs, components and evidence, as marks for :mod:`envsmith.base.schema`.

A reference (to a component, to a named source) is looked up in the :class:`FileContext` of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from envsmith.base.files import read_bounded
from envsmith.base.schema import (
    Checked,
    Named,
    Parsed,
    Prepared,
    Problems,
    UnreadableError,
    WrongValueError,
    check,
    parse_document,
    text_of,
)
from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.location import DataFiles, find_matrix
from envsmith.knowledge.graph.tables import Table
from envsmith.model.component import ComponentTable
from envsmith.model.rule import Evidence
from envsmith.model.version import Spec, parse_version

_File = TypeVar("_File")
_TEXT, _NAME = text_of(), text_of(100)
_VERSIONS = "examples: 2.4.1, ==2.4.*, >=0.16,<0.17, sm_90"


@dataclass(frozen=True, slots=True)
class FileContext:
    """What a file may refer to. ``sources`` is ``None`` when the file's own table of evidence is broken."""

    components: ComponentTable
    sources: Mapping[str, Evidence] | None = field(default_factory=dict)


def _parse_version(value: object, _context: object) -> str:
    try:
        return parse_version(_text_of_version(value))
    except WrongValueError:
        raise
    except ValueError:
        raise WrongValueError("not a version", _VERSIONS) from None


def _text_of_version(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise WrongValueError("a number where a version belongs", f'quote it: "{value}"')
    text: str = _TEXT.function(value, None)
    return text


def _parse_spec(value: object, _context: object) -> Spec:
    if not isinstance(value, list):
        return _one_spec(value)
    if not value:
        raise WrongValueError("an empty list admits no version")
    return Spec.parse(" || ".join(_one_spec(part, f"[{number}]").text for number, part in enumerate(value)))


def _one_spec(value: object, path: str = "") -> Spec:
    try:
        return Spec.parse(_text_of_version(value))
    except WrongValueError as error:
        raise WrongValueError(error.what, error.advice, path=path, part=value) from None
    except ValueError:
        raise WrongValueError("not a version spec", _VERSIONS, path=path, part=value) from None


def _known_component(value: object, context: FileContext, subject: str = "") -> str:
    name: str = _NAME.function(value, None)
    if name not in context.components.by_name:
        near = context.components.nearest(name)
        advice = f"did you mean {near[0]}?" if near else "see components.yaml"
        raise WrongValueError(f"unknown component{subject}", advice)
    return name


def _known_key(value: object, context: FileContext) -> str:
    return _known_component(value, context, f" `{value}`")


def _named_source(name: str, context: FileContext) -> Evidence | None:
    if context.sources is None:
        return None  # the table that it stands in is refused already
    if name not in context.sources:
        names = ", ".join(context.sources) or "none"
        raise WrongValueError("no such evidence in this file", f"it names {names}")
    return context.sources[name]


def _some_evidence(sources: tuple[Evidence, ...], _context: object) -> tuple[Evidence, ...]:
    if not sources:
        raise WrongValueError("no evidence", "nothing is known without: add `evidence:`")
    return sources


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


Version = Annotated[str, Parsed(_parse_version)]
SpecText = Annotated[Spec, Parsed(_parse_spec)]
ComponentName = Annotated[str, Parsed(_known_component)]
Specs = Mapping[Annotated[str, Parsed(_known_key)], SpecText]
# A source that the file names, one in full, or a list of those.
Sources = Annotated[tuple[Annotated[Evidence, Named(_named_source)], ...], Prepared(_listed), Checked(_some_evidence)]


@dataclass(frozen=True, slots=True)
class _Sources:
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


def check_file(kind: type[_File], name: str, document: Any, problems: Problems, table: ComponentTable) -> _File | None:
    """Check a document whose lines refer to components and to the sources that it names under ``evidence``."""
    sources = check(_Sources, document, name, problems) if isinstance(document, dict) else _Sources()
    value = check(kind, document, name, problems, context=FileContext(table, sources.evidence if sources else None))
    return value if sources else None


def load_table(kind: type[_File], name: str, folder: Path | None = None) -> _File:
    """Read ``matrix/<name>``, or that file in ``folder``, whose lines refer to no component.

    ``DataError`` with every problem and its key path.
    """
    problems = Problems()
    value: _File | None = None
    try:
        document = parse_document(name, read_bounded((folder or find_matrix()) / name, 16 << 20))
        value = check_file(kind, name, document, problems, ComponentTable.of(()))
    except (DataError, UnreadableError) as error:
        problems.add(name, str(error))
    problems.refuse(f"Cannot read {name}: {len(problems.lines)} of its values are wrong.", hint="See matrix/README.md.")
    assert value is not None  # noqa: S101 - without a value there is a problem
    return value


def kept_table(kind: str, name: str, shape: type[_File]) -> Table[_File]:
    """Return the table of one file as :func:`load_table` reads it."""
    return Table(
        kind, lambda: DataFiles(find_matrix(), (name,)), shape, lambda files: load_table(shape, name, files.root)
    )


def plain_text(refuse: Callable[[str], str]) -> Parsed:
    """Return the mark of a value that may stand in a Dockerfile: ``refuse`` is a function of :mod:`envsmith.model.plain`."""

    def parse(value: Any, _context: object) -> str:
        try:
            return refuse(value)
        except UsageError as error:
            raise WrongValueError(error.message) from None

    return Parsed(parse)
