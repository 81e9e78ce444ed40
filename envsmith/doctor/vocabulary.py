"""Names: those of reports, logs, people and package managers (``matrix/doctor/words.yaml``), and of variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from envsmith.base.schema import Parsed, Text, WrongValueError, strict
from envsmith.doctor.rule_conditions import at_least, below
from envsmith.knowledge.graph.data import file_table, read_table
from envsmith.knowledge.graph.fields import Sources

_FILE = "doctor/words.yaml"


def _pattern(value: Any, _context: object) -> str:
    try:
        return str(re.compile(value).pattern)
    except (re.error, TypeError) as error:
        raise WrongValueError(f"not a regular expression: {error}") from None


Pattern = Annotated[str, Parsed(_pattern)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class VersionLine:
    """A line of a log that names a version. ``strength`` as in :class:`~envsmith.doctor.facts.StatedVersion`."""

    component: Text
    origin: Text
    strength: int
    pattern: Pattern


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A configuration that counts as a launch: JSON with one of ``keys``, or calls of ``names``."""

    tool: Text
    kind: Text
    keys: tuple[Text, ...] = ()
    names: tuple[Text, ...] = ()


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The file. Its comments say what each part is for."""

    keys: Mapping[Text, tuple[Text, ...]]
    values: Mapping[Text, tuple[Text, ...]]
    enumerated: tuple[Pattern, ...]
    kinds: Mapping[Text, Pattern]
    failure: Pattern
    training: Pattern
    source: Pattern
    quoted_by: Pattern
    supposed: Pattern
    not_packages: tuple[Text, ...]
    notices: Pattern
    chained: Pattern
    named_cause: Pattern
    lacks: Mapping[Text, tuple[Pattern, ...]]
    lack_paths: Mapping[Text, Text]
    aliases: Mapping[Text, Text]
    moved_arguments: Mapping[Text, tuple[Text, ...]]
    moved_names: Mapping[Text, Text]
    configurations: Mapping[Text, tuple[Text, ...]]
    bases: Mapping[Text, Text]
    classes: Mapping[Text, Text]
    constructors: Mapping[Text, Text]
    given_arguments: Mapping[Text, Text]
    header_packages: Mapping[Text, Text]
    exceptions: Mapping[Text, Text]
    versions: tuple[VersionLine, ...]
    folders: Mapping[Text, Text]
    modules: Mapping[Text, Text]
    launchers: Mapping[Text, Pattern]
    launcher_hints: tuple[Text, ...]
    configuration: Configuration
    plugins: Configuration
    facts: Mapping[Text, Text]
    pip_names: Mapping[Text, Text]
    conda_names: Mapping[Text, Text]
    not_on_conda: tuple[Text, ...]
    own_causes: Mapping[Text, Text]
    own_fixes: tuple[Text, ...]


@lru_cache(maxsize=1)
def words() -> Words:
    """Return the installed words. ``DataError`` lists every problem of the file with its key path."""
    return WORDS.load()


WORDS = file_table("words", _FILE, Words, lambda content: read_table(Words, _FILE, content))


# ``matrix/environment.yaml``: environment variables with the releases that read them.

_VARIABLES = "environment.yaml"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """``reads`` is the component that reads it, from ``since`` up to but not including ``until``."""

    name: Text
    reads: Text
    since: Text | None = None
    until: Text | None = None
    renamed: Text | None = None
    note: Text | None = None
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _VariableFile:
    evidence: Mapping[Text, Any]
    variables: tuple[Variable, ...]


def variables() -> Mapping[str, Variable]:
    """Return every known variable by name. ``DataError`` lists every problem of the file."""
    return VARIABLES.load()


def _read_variables(content: bytes) -> Mapping[str, Variable]:
    return {row.name: row for row in read_table(_VariableFile, _VARIABLES, content).variables}


VARIABLES = file_table("variables", _VARIABLES, Mapping[str, Variable], _read_variables)


def is_read(variable: Variable, version: str) -> str | None:
    """Return why ``version`` of the component does not read the variable, or ``None``."""
    if variable.since and below(version, variable.since):
        return f"read from {variable.reads} {variable.since} on, here is {version}"
    if variable.until and at_least(version, variable.until):
        return f"no longer read from {variable.reads} {variable.until} on, here is {version}"
    return None
