"""Text from outside -> typed fields, with every problem collected under its key path.

YAML is hostile until it went through a :class:`Node`: a number where a version belongs, a bool where a text belongs, a key that
nobody reads, an alias bomb. A getter that finds something wrong notes it and returns ``None``; nothing here raises for bad data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from envsmith.errors import DataError, EnvsmithError
from envsmith.model.rule import Evidence, EvidenceKind
from envsmith.model.version import Spec, parse_version

_Member = TypeVar("_Member", bound=Enum)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
# A file of one megabyte has about 10^5 nodes; an alias bomb passes this at once.
_MAX_NODES = 2_000_000


@dataclass(slots=True)
class Problems:
    """What is wrong with the data: file, key path, what, what to do."""

    lines: list[str] = field(default_factory=list)

    def add(self, where: str, what: str, advice: str = "") -> None:
        """Note one problem."""
        self.lines.append(f"{where}: {what}" + (f" — {advice}" if advice else ""))


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a file and the key path that leads to it."""

    file: str
    path: str
    value: Any
    problems: Problems

    @property
    def where(self) -> str:
        """``rules/x.yaml: rules[3].when.torch``."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def wrong(self, what: str, advice: str = "") -> None:
        """Note a problem of this very value."""
        shown = "" if isinstance(self.value, dict | list) or self.value is None else f"`{str(self.value)[:80]}`: "
        self.problems.add(self.where, shown + what, advice)

    def child(self, key: str | int, value: Any) -> Node:
        """The value below ``key``."""
        step = f"[{key}]" if isinstance(key, int) else (f".{key}" if self.path else key)
        return Node(self.file, self.path + step, value, self.problems)

    def items(self) -> Iterator[tuple[str, Node]]:
        """Key and value of a mapping with text keys."""
        if not isinstance(self.value, dict):
            self.wrong("a mapping (key: value) belongs here")
            return
        for key, value in self.value.items():
            if isinstance(key, str):
                yield key, self.child(key, value)
            else:
                self.problems.add(self.where, f"key `{key}`: not text", "quote it")

    def fields(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Node]:
        """The fields of a mapping; missing and unknown ones are noted, with the nearest known name."""
        found = dict(self.items())
        for name in required:
            if name not in found and isinstance(self.value, dict):
                self.problems.add(self.where, f"`{name}` is missing", f"add `{name}:`")
        for name in [n for n in found if n not in required and n not in optional]:
            import difflib

            near = difflib.get_close_matches(name, [*required, *optional], n=1)
            found.pop(name).wrong("unknown key", f"did you mean `{near[0]}`?" if near else "remove it")
        return found

    def sequence(self) -> list[Node]:
        """The entries of a list."""
        if not isinstance(self.value, list):
            self.wrong("a list belongs here")
            return []
        return [self.child(i, v) for i, v in enumerate(self.value)]

    def text(self, *, maximum: int = 2000) -> str | None:
        """A text of 1 to ``maximum`` characters."""
        if not isinstance(self.value, str):
            self.wrong("text belongs here", "quote it" if isinstance(self.value, int | float) else "")
            return None
        clean = self.value.strip()
        if not clean or len(clean) > maximum:
            self.wrong("empty" if not clean else f"longer than {maximum} characters")
            return None
        return clean

    def flag(self) -> bool | None:
        """``true`` or ``false``."""
        if isinstance(self.value, bool):
            return self.value
        self.wrong("true or false belongs here")
        return None

    def day(self) -> str | None:
        """An ISO day that exists."""
        text = self.text(maximum=10)
        if text is None:
            return None
        try:
            if _DAY.fullmatch(text):
                return date.fromisoformat(text).isoformat()
        except ValueError:
            pass
        self.wrong("not a day", "write it as 2026-11-20")
        return None

    def choice(self, kind: type[_Member]) -> _Member | None:
        """A member of a closed set, by its value."""
        for member in kind:
            if isinstance(self.value, str) and member.value == self.value:
                return member
        self.wrong("unknown word", "choose " + ", ".join(str(m.value) for m in kind))
        return None

    def version(self) -> str | None:
        """A version, which must be text: YAML reads ``3.10`` as the number 3.1."""
        parsed: str | None = self._parsed(parse_version, "not a version")
        return parsed

    def spec(self) -> Spec | None:
        """A spec; a list of them is their union."""
        if isinstance(self.value, list):
            parts = [node.spec() for node in self.sequence()]
            if not parts:
                self.wrong("an empty list admits no version")
            texts = [p.text for p in parts if p]
            return Spec.parse(" || ".join(texts)) if texts and len(texts) == len(parts) else None
        parsed: Spec | None = self._parsed(Spec.parse, "not a version spec")
        return parsed

    def _parsed(self, parse: Callable[[str], Any], complaint: str) -> Any:
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            self.wrong("a number where a version belongs", f'quote it: "{self.value}"')
            return None
        text = self.text(maximum=2000)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError:
            self.wrong(complaint, "examples: 2.4.1, ==2.4.*, >=0.16,<0.17, sm_90")
            return None


def parse_yaml(file: str, content: bytes, problems: Problems) -> Node | None:
    """The root of a YAML file; ``None`` with a noted problem when it is not YAML, or no honest one."""
    import yaml

    try:
        value = yaml.load(content, Loader=_loader())  # noqa: S506 - a subclass of the safe loader
        _count(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        what = getattr(error, "problem", None) or ("nested too deeply" if isinstance(error, RecursionError) else error)
        problems.add(file, f"not valid YAML: {what}{line}")
        return None
    return Node(file, "", value, problems)


def parse_json(file: str, content: bytes, problems: Problems) -> Node | None:
    """The root of a JSON file; ``None`` with a noted problem when it is none."""
    try:
        return Node(file, "", json.loads(content), problems)
    except (ValueError, RecursionError) as error:
        problems.add(file, f"not valid JSON: {error}")
        return None


def _count(value: object) -> None:
    """Refuse what expands to more nodes than any honest file has (aliases of aliases, a list that contains itself)."""
    todo = [value]
    seen = 0
    while todo:
        top = todo.pop()
        if isinstance(top, dict):
            todo.extend(top.values())
        elif isinstance(top, list):
            todo.extend(top)
        seen += 1
        if seen > _MAX_NODES or len(todo) > _MAX_NODES:
            raise ValueError("expands to too many nodes (aliases of aliases?)")


def _loader() -> Any:
    """The safe loader (C where it is built in) that refuses duplicate keys and leaves days as text."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            keys = [k.value for k, _ in node.value if isinstance(k.value, str) and k.value != "<<"]
            if len(set(keys)) < len(keys):
                twice = next(k for k in keys if keys.count(k) > 1)
                raise yaml.constructor.ConstructorError(None, None, f"key `{twice}` twice", node.start_mark)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep)
            return mapping

    Loader.yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for letter, resolvers in base.yaml_implicit_resolvers.items()
    }
    return Loader


# The evidence of a file, of a line, of one field of a line.


_SHA256 = re.compile(r"[0-9a-f]{64}")


def _entry(node: Node) -> Evidence | None:
    fields = node.fields(("kind", "source", "date"), ("sha256", "note"))
    kind = fields["kind"].choice(EvidenceKind) if "kind" in fields else None
    source = fields["source"].text() if "source" in fields else None
    day = fields["date"].day() if "date" in fields else None
    sha256 = _sha256(fields["sha256"]) if "sha256" in fields else None
    note = fields["note"].text() if "note" in fields else None
    if kind is None or source is None or day is None:
        return None
    return Evidence(kind=kind, source=source, date=day, sha256=sha256, note=note)


def _sha256(node: Node) -> str | None:
    text = node.text(maximum=64)
    if text is not None and not _SHA256.fullmatch(text):
        node.wrong("not a sha256", "64 hex digits in lower case")
        return None
    return text


def named_evidence(node: Node | None) -> dict[str, Evidence]:
    """The table ``evidence:`` of a file: key to source."""
    found = {key: _entry(entry) for key, entry in node.items()} if node else {}
    return {key: evidence for key, evidence in found.items() if evidence}


def read_evidence(node: Node | None, named: Mapping[str, Evidence], *, owner: Node) -> tuple[Evidence, ...]:
    """What a line says about where it is from: a key, an entry, or a list of those. None at all is a problem of ``owner``."""
    if node is None or node.value in (None, [], ""):
        owner.problems.add(owner.where, "no evidence", "nothing is known without: add `evidence:`")
        return ()
    parts = node.sequence() if isinstance(node.value, list) else [node]
    found = []
    for part in parts:
        if isinstance(part.value, dict):
            entry = _entry(part)
        else:
            key = part.text()
            entry = named.get(key) if key else None
            if key and entry is None:
                part.wrong("no such evidence in this file", "it names " + (", ".join(named) or "none"))
        if entry:
            found.append(entry)
    return tuple(found)


def with_hash(evidence: tuple[Evidence, ...], node: Node | None) -> tuple[Evidence, ...]:
    """The sha256 of a line joins its first entry."""
    sha256 = _sha256(node) if node else None
    if not sha256 or not evidence:
        return evidence
    return (replace(evidence[0], sha256=sha256), *evidence[1:])


# Tables of ``matrix/`` that describe images: YAML -> rows -> values, every problem of a file told at once.


_Value = TypeVar("_Value")


class TableReader:
    """Turns the rows of one file into values and collects problems on the way; :meth:`check` raises them together."""

    def __init__(self, name: str, data: object) -> None:
        self.name = name
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.problems: list[str] = [] if isinstance(data, dict) else [f"{name}: not a mapping"]

    def check(self) -> None:
        """``DataError`` with every problem that was met."""
        if self.problems:
            raise DataError(
                f"{self.name}: {len(self.problems)} problems", details=self.problems, hint="see matrix/README.md"
            )

    def each(self, section: str, parse: Callable[[Mapping[str, Any]], _Value]) -> list[_Value]:
        """The values of a section's rows; a row that ``parse`` refuses is noted with its place, and left out."""
        rows = self.data.get(section)
        if not isinstance(rows, list):
            self.problems.append(f"{section}: a list is wanted")
            return []
        found = [self._one(f"{section}[{number}]", row, parse) for number, row in enumerate(rows)]
        return [value for value in found if value is not None]

    def _one(self, where: str, row: object, parse: Callable[[Mapping[str, Any]], _Value]) -> _Value | None:
        if not isinstance(row, dict):
            self.problems.append(f"{where}: a mapping is wanted")
            return None
        try:
            return parse(row)
        except KeyError as error:
            self.problems.append(f"{where}: {error.args[0]} is missing")
        except EnvsmithError as error:  # a value that is not plain
            self.problems.append(f"{where}: {error.message}")
        except (ValueError, TypeError, AttributeError) as error:
            self.problems.append(f"{where}: {error}")
        return None

    def evidence(self, row: Mapping[str, Any]) -> str:
        """``kind date: source`` of the evidence that a row names; ``ValueError`` when the file defines none of that name."""
        known = self.data.get("evidence")
        entry = known.get(row["evidence"]) if isinstance(known, dict) else None
        if not isinstance(entry, dict):
            raise ValueError(f"evidence {row['evidence']!r} is not defined")  # noqa: TRY004 - told like every other problem
        return f"{entry['kind']} {entry['date']}: {entry['source']}"


def load_table(name: str, folder: Path | None) -> object:
    """The parsed YAML of ``matrix/<name>``, or of that file in ``folder``; ``DataError`` when it cannot be read."""
    import yaml

    from envsmith.graph.files import find_matrix

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(((folder or find_matrix()) / name).read_bytes(), Loader=loader)  # noqa: S506 - a safe loader
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{name}: cannot be read: {error}") from error
