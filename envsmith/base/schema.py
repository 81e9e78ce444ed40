"""Declare the schema of a file from outside, and report every problem of a file at once, each with its key path.

A schema is a frozen dataclass whose fields carry the types of this module or any plain annotation. :func:`check` turns
a parsed document into a value of it. pydantic does the work. It is imported by the first check, so that a module may
declare schemas at no cost.

>>> @strict
... @dataclass(frozen=True, kw_only=True, slots=True)
... class Line:
...     name: Text
...     day: Day | None = None
>>> problems = Problems()
>>> check(Line, {"name": 3, "dya": "2026-01-01"}, "a.yaml", problems)
>>> problems.lines
['a.yaml: name: `3`: text belongs here — quote it', 'a.yaml: dya: `2026-01-01`: unknown key — did you mean `day`?']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from envsmith.base.json_types import JsonFields
from envsmith.errors import DataError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import CoreSchema, ErrorDetails

_Value = TypeVar("_Value")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
# A file of one megabyte has about 10^5 nodes; an alias bomb passes this at once.
_MAX_NODES = 2_000_000
# libyaml took 20,000 levels on a stack of 8 MiB.
_MAX_DEPTH = 2_000
# What opens a level of YAML, or may.
_OPENING = re.compile(rb"[\[{]|[-?]\s")
# No honest document is nested more deeply. Whatever walks a value by calling itself is safe to this depth.
_DEPTH = 100
# A whole number of fewer digits is a float, too.
_BITS = 990
_DIGITS = re.compile(rb"[\d_]{300}")
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Half of a pair, which only an escape can write.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Problems:
    """Collect what is wrong with files: where, what, and what to do."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, what: str, advice: str = "") -> None:
        """Note one problem."""
        self.lines.append(f"{where}: {what}" + (f" — {advice}" if advice else ""))

    def refuse(self, headline: str, *, hint: str | None = None) -> None:
        """Raise ``DataError`` with every problem, if there is one."""
        if self.lines:
            raise DataError(headline, details=self.lines, hint=hint)


class WrongValueError(ValueError):
    """A value that a field refuses.

    ``path`` leads on from the field to the part that is wrong, ``part`` is that part.
    """

    def __init__(self, what: str, advice: str = "", *, path: str = "", part: object = None) -> None:
        super().__init__(what)
        self.what, self.advice, self.path, self.part = what, advice, path, part


class _Mark:
    """What stands beside a type in ``Annotated`` and says more of the field than the type does."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class Parsed(_Mark):
    """The function gets the raw value and the context of the check.

    It returns the value or raises :class:`WrongValueError`.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_plain_validator_function(
            lambda value, info: _called(self.function, value, info.context)
        )


class Checked(_Mark):
    """The function gets the value, which has its type already, and the context. It returns what takes its place."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_after_validator_function(
            lambda value, info: _called(self.function, value, info.context), handler(source)
        )


class Prepared(_Mark):
    """The function gets the raw value and returns the one that is checked."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.function, handler(source))


class Named(_Mark):
    """The value is written in full, or by a name: the function gets the name and the context and returns the value."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_wrap_validator_function(
            lambda value, check_in_full, info: (
                _called(self.function, value, info.context) if isinstance(value, str) else check_in_full(value)
            ),
            handler(source),
        )


class Made(_Mark):
    """The value is written as another type, ``kind``: the function gets that with the context and returns the value."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.kind = kind

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_after_validator_function(
            lambda value, info: _called(self.function, value, info.context), handler.generate_schema(self.kind)
        )


class Otherwise:
    """What has not the type of the field counts as ``default``, and is no problem."""

    __slots__ = ("default",)

    def __init__(self, default: object) -> None:
        self.default = default

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_default_schema(handler(source), default=self.default, on_error="default")


def not_empty(complaint: str) -> Checked:
    """Return the mark of a list or an object that has a member at least."""

    def some(members: Any, _context: object) -> Any:
        if not members:
            raise WrongValueError(complaint)
        return members

    return Checked(some)


def each_once(name_of: Callable[[Any], str]) -> Checked:
    """Return the mark of a list of which no two members have the same name."""

    def once(members: Any, _context: object) -> Any:
        names: set[str] = set()
        for number, name in enumerate(map(name_of, members)):
            if name in names:
                raise WrongValueError(f"{name} stands in this file twice", "remove one line", path=f"[{number}]")
            names.add(name)
        return members

    return Checked(once)


def one_or_many() -> Prepared:
    """Return the mark of a tuple for which a single value may stand."""
    return Prepared(lambda value: value if isinstance(value, list) else [value])


def _called(function: Callable[[Any, Any], Any], value: object, context: object) -> object:
    try:
        return function(value, context)
    except WrongValueError as error:
        details = {"what": error.what, "advice": error.advice, "path": error.path, "part": error.part}
    except ValueError as error:
        details = {"what": str(error), "advice": "", "path": "", "part": None}
    from pydantic_core import PydanticCustomError

    raise PydanticCustomError("wrong", "{what}", details)


def text_of(
    maximum: int = 2000,
    pattern: re.Pattern[str] | None = None,
    advice: str = "",
    complaint: str = "not a value of this field",
    minimum: int = 1,
) -> Parsed:
    """Return the mark of a text of ``minimum`` to ``maximum`` characters, trimmed, of the form of ``pattern``."""

    def parse(value: object, _context: object = None) -> str:
        if not isinstance(value, str):
            raise WrongValueError("text belongs here", "quote it" if isinstance(value, (int, float)) else "")
        clean = value.strip()
        if not minimum <= len(clean) <= maximum:
            raise WrongValueError("empty" if not clean else f"longer than {maximum} characters")
        if pattern is not None and not pattern.fullmatch(clean):
            raise WrongValueError(complaint, advice)
        return clean

    return Parsed(parse)


def whole_number(lowest: int, highest: int, what: str = "a whole number") -> Parsed:
    """Return the mark of an integer between two bounds."""

    def parse(value: object, _context: object = None) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise WrongValueError(f"{what} from {lowest} to {highest} belongs here")
        return value

    return Parsed(parse)


def exactly(expected: object, advice: str) -> Parsed:
    """Return the mark of a field that has one value only, such as the number of a schema."""

    def parse(value: object, _context: object = None) -> object:
        if value != expected or isinstance(value, bool):
            raise WrongValueError(advice)
        return value

    return Parsed(parse)


_TEN = text_of(10)


def _day(value: object, _context: object) -> str:
    text: str = _TEN.function(value, None)
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text).isoformat()
    except ValueError:
        pass
    raise WrongValueError("not a day", "write it as 2026-11-20")


def _flag(value: object, _context: object) -> bool:
    if not isinstance(value, bool):
        raise WrongValueError("true or false belongs here")
    return value


Text = Annotated[str, text_of()]
Flag = Annotated[bool, Parsed(_flag)]
Day = Annotated[str, Parsed(_day)]
Sha256 = Annotated[str, text_of(64, re.compile("[0-9a-f]{64}"), "64 hex digits in lower case", "not a sha256")]


# Metadata of a dataclass field that no file has.
UNWRITTEN = {"unwritten": True}


def written(key: str | None = None, *, when_set: bool = False) -> dict[str, object]:
    """Return the metadata of a field that a file has under another ``key``, or only ``when_set``.

    When it is neither empty nor the default.
    """
    return {"key": key, "when_set": when_set}


def strict(kind: type[_Value]) -> type[_Value]:
    """Mark a dataclass: a key that is not one of its fields is a problem. :func:`written` says how fields are spelt."""
    return _configured(kind, "forbid")


def spelt(kind: type[_Value]) -> type[_Value]:
    """Mark a dataclass whose fields :func:`written` spells. A key that is not one of them is passed over."""
    return _configured(kind, "ignore")


def _configured(kind: type[_Value], extra: str) -> type[_Value]:
    keys = {f.name: key for f in fields(kind) if (key := f.metadata.get("key")) is not None}  # type: ignore[arg-type]
    config: dict[str, Any] = {"extra": extra}
    if keys:
        config["alias_generator"] = lambda name: keys.get(name, name)
    kind.__pydantic_config__ = config  # type: ignore[attr-defined]
    return kind


class AsJson:
    """A dataclass whose fields say how it is written: under which key, and when."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the fields, as :func:`check` reads them."""
        return _fields_json(self)


def to_json(value: Any) -> Any:
    """Return the JSON of a value. A value with a ``to_json`` of its own is asked for it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    own = getattr(value, "to_json", None)
    return own() if own else _fields_json(value) if is_dataclass(value) else value


def _fields_json(value: Any) -> dict[str, Any]:
    document = {}
    for place in fields(value):
        item, marks = getattr(value, place.name), place.metadata
        if not marks.get("unwritten") and not (marks.get("when_set") and (not item or item == place.default)):
            document[marks.get("key") or place.name] = to_json(item)
    return document


def check(
    kind: type[_Value], value: object, file: str, problems: Problems, *, root: str = "", context: object = None
) -> _Value | None:
    """Turn a parsed document into ``kind``.

    Every problem is noted with its key path, which begins at ``root``, and gives ``None``.
    """
    from pydantic import ValidationError

    adapter: TypeAdapter[_Value] = _adapter(kind)  # type: ignore[arg-type] # every class is hashable
    try:
        return adapter.validate_python(value, context=context)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            _note(problem, file, root, adapter, problems)
        return None


def parse_value(kind: type[_Value], value: object) -> _Value:
    """Turn a parsed document into ``kind``. ``ValueError`` tells the first problem."""
    problems = Problems()
    parsed = check(kind, value, kind.__name__, problems)
    if parsed is None:
        raise ValueError(problems.lines[0])
    return parsed


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# What pydantic finds, in the words of a message: what belongs there.
_BELONGS = {
    "dataclass_type": "a mapping (key: value) belongs here",
    "dict_type": "a mapping (key: value) belongs here",
    "mapping_type": "a mapping (key: value) belongs here",
    "list_type": "a list belongs here",
    "tuple_type": "a list belongs here",
    "string_type": "text belongs here",
    "bool_type": "true or false belongs here",
    "int_type": "a whole number belongs here",
}


def _note(problem: ErrorDetails, file: str, root: str, adapter: TypeAdapter[Any], problems: Problems) -> None:
    kind, steps, value, details = problem["type"], problem["loc"], problem["input"], problem.get("ctx", {})
    if steps and steps[-1] == "[key]":
        if kind == "wrong":
            problems.add(_place(file, root, steps[:-1]), details["what"], details["advice"])
        else:
            problems.add(_place(file, root, steps[:-2]), f"key `{steps[-2]}`: not text", "quote it")
    elif kind == "missing":
        problems.add(_place(file, root, steps[:-1]), f"`{steps[-1]}` is missing", f"add `{steps[-1]}:`")
    elif kind == "unexpected_keyword_argument":
        import difflib

        near = difflib.get_close_matches(str(steps[-1]), set(_keys(adapter.core_schema)), n=1)
        advice = f"did you mean `{near[0]}`?" if near else "remove it"
        problems.add(_place(file, root, steps), _shown(value) + "unknown key", advice)
    elif kind in {"enum", "literal_error"}:
        words = re.findall(r"'([^']*)'", str(details["expected"]))
        problems.add(_place(file, root, steps), _shown(value) + "unknown word", "choose " + ", ".join(words))
    elif kind == "wrong":
        part = value if details["part"] is None else details["part"]
        problems.add(_place(file, root, steps) + details["path"], _shown(part) + details["what"], details["advice"])
    else:
        advice = "quote it" if kind == "string_type" and isinstance(value, (int, float)) else ""
        problems.add(_place(file, root, steps), _shown(value) + _BELONGS.get(kind, problem["msg"]), advice)


def _place(file: str, root: str, steps: tuple[int | str, ...]) -> str:
    path = root
    for step in filter(lambda step: step != "", steps):
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return f"{file}: {path}" if path else file


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)) or value is None:
        return ""
    text = str(value)[:80].encode("utf-8", "backslashreplace").decode()
    return f"`{text}`: "


def _keys(schema: object) -> Iterator[str]:
    """Return every key that the dataclasses of a schema read."""
    if isinstance(schema, Mapping):
        if schema.get("type") == "dataclass-field":
            yield str(schema.get("validation_alias") or schema["name"])
        for value in schema.values():
            yield from _keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keys(value)


class UnreadableError(ValueError):
    """The bytes of a file are not a document of its format."""


def parse_document(name: str, content: bytes) -> Any:
    """Return the parsed JSON of a file whose name ends so, else its YAML.

    ``UnreadableError`` says what is wrong, and where.
    """
    if name.endswith(".json"):
        return parse_json(content)
    import yaml

    try:
        _refuse_digits(content)
        value = _plain_yaml(content)
        if value is not _NOT_PLAIN:
            return value
        _refuse_depth(content)
        value = yaml.load(content, Loader=_loader())  # noqa: S506 - a subclass of the safe loader
        _refuse_bomb(value)
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:  # a wrong tag can raise any of these
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        what = getattr(error, "problem", None) or ("nested too deeply" if isinstance(error, RecursionError) else error)
        raise UnreadableError(f"not valid YAML: {what}{line}") from None
    return value


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text from outside: a file, an answer, a line of a log. ``UnreadableError``.

    Depth and digits are bounded before the parser runs. Every text of the value can be written as UTF-8.
    """
    try:
        raw = content.encode() if isinstance(content, str) else content
        if raw.count(b"[") + raw.count(b"{") > _DEPTH or _DIGITS.search(raw):
            bare = _QUOTED.sub(b"0", raw)
            _refuse_digits(bare)
            _refuse_brackets(bare.translate(_BRACKETS, _NO_BRACKETS))
        value = json.loads(raw.decode("utf-8-sig"))
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise UnreadableError("not valid JSON: not UTF-8") from None
    except ValueError as error:
        raise UnreadableError(f"not valid JSON: {error}") from None
    return value


def parse_object(content: bytes | str) -> JsonFields:
    """Return the object of a JSON text from outside, an empty one for a text that is none: a reader of logs goes on."""
    try:
        value = parse_json(content)
    except UnreadableError:
        return {}
    return value if isinstance(value, dict) else {}


def _refuse_digits(content: bytes) -> None:
    if _DIGITS.search(content):
        raise ValueError("a number with too many digits")


def _refuse_brackets(marks: bytes) -> None:
    """Refuse brackets, without anything between them, that are nested more deeply than ``_DEPTH``."""
    for _ in range(_DEPTH):
        marks = marks.replace(b"[]", b"")
    if b"[]" in marks or len(marks) > _DEPTH:
        raise ValueError("nested too deeply")


def read_document(
    kind: type[_Value], name: str, content: bytes, problems: Problems, *, context: object = None
) -> _Value | None:
    """Parse the bytes of a file and check them. ``None`` when there is a problem, which is noted."""
    try:
        value = parse_document(name, content)
    except UnreadableError as error:
        problems.add(name, str(error))
        return None
    return check(kind, value, name, problems, context=context)


def _refuse_depth(content: bytes) -> None:
    """Refuse nesting that would overflow the stack of libyaml's composer, which ends the process."""
    import yaml

    if len(_OPENING.findall(content)) <= _MAX_DEPTH:
        return
    depth = 0
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")


def _refuse_bomb(value: object) -> None:
    """Refuse what no honest file has: aliases of aliases, a list that contains itself, depth, a huge number."""
    level, count = [value], 0
    for _ in range(_DEPTH):
        following: list[object] = []
        for item in level:
            if isinstance(item, dict):
                following += item.values()
            elif isinstance(item, list):
                following += item
            elif isinstance(item, int) and item.bit_length() > _BITS:
                raise ValueError("a number with too many digits")
            if len(following) > _MAX_NODES:
                break
        level, count = following, count + len(following)
        if not level:
            return
        if count > _MAX_NODES:
            break
    raise ValueError("too many nodes or levels (aliases of aliases?)")


# What a reading gives up with: the whole of YAML is read, and refused, by its loader.
_NOT_PLAIN = object()


def _plain_yaml(content: bytes) -> Any:
    """Return the value of a document without anchors, tags, merges and oddities, in a third of the loader's time."""
    import yaml

    loader = _loader()(content)
    root: list[Any] = []
    # The open collections, and the key whose value comes next in each: ``_NOT_PLAIN`` where a key does.
    stack, keys, count = list[Any](), list[Any](), 0
    container: Any = root
    key: Any = _NOT_PLAIN
    try:
        for event in iter(loader.get_event, None):
            kind = type(event)
            if kind is yaml.ScalarEvent:
                if event.anchor or event.tag:
                    return _NOT_PLAIN
                value = _resolved(event.value) if event.implicit[0] else event.value
                if type(value) is int and value.bit_length() > _BITS:
                    return _NOT_PLAIN
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                if event.anchor or event.tag or len(stack) > _DEPTH - 2:
                    return _NOT_PLAIN
                value = {} if kind is yaml.MappingStartEvent else []
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                container, key = stack.pop(), keys.pop()
                continue
            elif kind is yaml.AliasEvent:
                return _NOT_PLAIN
            else:
                continue
            count += 1
            if type(container) is list:
                container.append(value)
            elif key is _NOT_PLAIN:
                if type(value) is not str or value in container or value == "<<":
                    return _NOT_PLAIN
                key = value
                continue
            else:
                container[key] = value
                key = _NOT_PLAIN
            if kind is not yaml.ScalarEvent:
                stack.append(container)
                keys.append(key)
                container, key = value, _NOT_PLAIN
    except (yaml.YAMLError, ValueError, LookupError):
        return _NOT_PLAIN
    finally:
        loader.dispose()
    return root[0] if len(root) == 1 and count <= _MAX_NODES else _NOT_PLAIN


@lru_cache(maxsize=4096)
def _resolved(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    import yaml

    loader = _loader()("")
    node = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text)
    return loader.construct_object(node)


@cache
def _loader() -> Any:
    """Return the safe loader (C where it is built in) of what JSON has: no days, no sets, and no key twice."""
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

    Loader.yaml_constructors = {
        tag: constructor
        for tag, constructor in base.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in {"null", "bool", "int", "float", "str", "seq", "map"}
    }
    Loader.yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for letter, resolvers in base.yaml_implicit_resolvers.items()
    }
    return Loader
