"""The small language of ``matrix/doctor/rules.yaml``: names of facts, conditions on them, texts with places for them.

A condition is ``true`` or ``false`` (there is a value, or none), a text that the value equals, ``~PATTERN``,
``LOW..HIGH``, ``<VERSION`` or ``>=VERSION`` (several by comma), a list of those (any), and ``!`` before a text negates
it. A place in a text is ``{name}``, ``{name:40}`` (cut), ``{name/1024}`` (divided), ``{a|b|'otherwise'}`` (the first
that has a value). matrix/README.md lists the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from envsmith.doctor.facts import Facts, LaunchCommand
from envsmith.errors import DataError
from envsmith.model.version import version_key

# The kinds of facts that a name with a dot begins with.
KINDS = frozenset({"version", "used", "package", "variable", "limit", "tool", "host", "option", "started"})
_NAME = r"(?:[a-z][\w.+-]*|'[^']*')"
_PLACE = re.compile(rf"\{{({_NAME}(?:\|{_NAME})*)(?::(\d+)|/(\d+))?\}}")
_RANGE = re.compile(r"(\d*)\.\.(\d*)")
_BOUNDS = re.compile(r"(?:<|>=)[\w.+-]+(?:,(?:<|>=)[\w.+-]+)*")
_FEW_DIGITS = 6

Condition = bool | str | tuple[str, ...]


def number_in(text: str | None) -> int | None:
    """Return the number that ``text`` is, when it is one of at most six digits."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _FEW_DIGITS else None


def key_of(version: str) -> Version | None:
    """Return what a version is compared by, or ``None`` for a text that is not a version."""
    try:
        return version_key(version)
    except ValueError:
        return None


def below(version: str, bound: str) -> bool:
    """Return whether both are versions and ``version`` is the smaller."""
    key, limit = key_of(version), key_of(bound)
    return key is not None and limit is not None and key < limit


def at_least(version: str, bound: str) -> bool:
    """Return whether both are versions and ``version`` is not the smaller."""
    key, limit = key_of(version), key_of(bound)
    return key is not None and limit is not None and key >= limit


@dataclass(frozen=True, slots=True)
class Scene:
    """What one rule is judged on: the facts, the start command it is tried for, and the words that its check gave."""

    facts: Facts
    launch: LaunchCommand | None = None
    words: Mapping[str, Any] = field(default_factory=dict)

    def value(self, names: str) -> Any:
        """Return the value of ``name``, or of ``a|b`` the first that there is."""
        values = (name[1:-1] if name.startswith("'") else self._one(name) for name in names.split("|"))
        return next((value for value in values if value is not None and value is not False and value != ""), None)

    def _one(self, name: str) -> Any:
        if name in self.words:
            return self.words[name]
        facts = self.facts
        kind, _, part = name.partition(".")
        mappings: dict[str, Mapping[str, Any]] = {
            "package": facts.distributions,
            "variable": facts.variables,
            "limit": facts.limits,
            "host": facts.host,
            "option": self.launch.options if self.launch else {},
            "tool": {tool: path or "none" for tool, path in facts.tools.items()},
        }
        if kind in mappings:
            return mappings[kind].get(part)
        match kind:
            case "version":
                return facts.version(part)
            case "used":
                return facts.used(part)
            case "started":
                return any(launch.tool == part for launch in facts.launches)
            case "gpus":
                return len(facts.gpus) or None
            case "first_gpu":
                return facts.gpus[0] if facts.gpus else None
            case "gpu_count":
                return facts.gpu_count
        raise DataError(f"Cannot read matrix/doctor/rules.yaml: `{name}` is not the name of a fact or word.")

    def meets(self, conditions: Iterable[Mapping[str, Condition]]) -> bool:
        """Return whether one of ``conditions`` is met: each of its names has a value as it says."""
        return any(all(fits(self.value(name), each) for name, each in one.items()) for one in conditions)

    def fill(self, text: str) -> str | None:
        """Return ``text`` with a value in each place, or ``None`` where a place has none."""
        values = [self._shown(match) for match in _PLACE.finditer(text)]
        if None in values:
            return None
        following = iter(values)
        return _PLACE.sub(lambda _: str(next(following)), text)

    def _shown(self, match: re.Match[str]) -> str | None:
        names, cut, divisor = match.groups()
        value = self.value(names)
        if value is None and (names.endswith("''") or self.words.get(names) == ""):
            value = ""
        if value is None:
            return None
        return f"{value / int(divisor):.0f}" if divisor else str(value)[: int(cut) if cut else None]


def fits(value: Any, condition: Condition) -> bool:
    """Return whether a value meets a condition."""
    if isinstance(condition, bool):
        return bool(value) is condition
    if isinstance(condition, tuple):
        return any(fits(value, each) for each in condition)
    if condition.startswith("!"):
        return not fits(value, condition[1:])
    if value is None:
        return False
    text = str(value)
    if condition.startswith("~"):
        return re.search(condition[1:], text) is not None
    if limits := _RANGE.fullmatch(condition):
        number = value if isinstance(value, int) else number_in(text)
        return number is not None and int(limits[1] or 0) <= number and (not limits[2] or number <= int(limits[2]))
    if _BOUNDS.fullmatch(condition):
        bounds = condition.split(",")
        return all(below(text, b[1:]) if b.startswith("<") else at_least(text, b[2:]) for b in bounds)
    return text == condition


def complaint_about(condition: str) -> str | None:
    """Return what is wrong with a condition, or ``None``."""
    condition = condition.lstrip("!")
    if condition.startswith("~"):
        try:
            re.compile(condition[1:])
        except re.error as error:
            return f"not a regular expression: {error}"
    elif condition[:1] in {"<", ">"}:
        if not _BOUNDS.fullmatch(condition):
            return "not a bound of versions: write <1.10 or >=0.14.1,<0.19.5"
        if not all(at_least(part.lstrip("<>="), "0") for part in condition.split(",")):
            return "not a bound of versions"
    return None


def names_in(text: str) -> list[str]:
    """Return the names of facts and words that the places of a text ask for."""
    return [n for match in _PLACE.finditer(text) for n in match[1].split("|") if not n.startswith("'")]
