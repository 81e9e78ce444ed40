"""Values as bytes and back, by their types alone: what is written names no code, and reading it runs none.

A value consists of dataclasses, named tuples, enumerations, tuples, lists, sets and mappings of these, and of what JSON
has. The reader is given the type and builds nothing else. Every Python reads it alike.

The first line holds the value, in which a :class:`Lazy` part is only a number. The parts follow, the long ones
compressed, and are parsed when they are asked for. A dataclass that can be hashed is written once in each part.

>>> from typing import NamedTuple
>>> class Point(NamedTuple):
...     x: int
...     y: tuple[str, ...]
>>> unpack(Point, pack(Point, Point(1, ("a", "b"))))
Point(x=1, y=('a', 'b'))
"""

from __future__ import annotations

import json
import typing
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import accumulate
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

_Value = TypeVar("_Value")
# What JSON gives back as it was. ``object`` and ``Any`` stand for a document of such values.
_PLAIN: frozenset[Any] = frozenset({str, int, float, bool, NoneType})
_ANYTHING = (object, Any)
_Shapes = dict[str, list[str]]
# A longer part is compressed: what is kept is read and hashed as a whole, and few of its long parts are asked for.
_LONG = 4_000
# Makes of JSON, and of what a part has once, a value. ``None`` stands for the JSON itself.
_Reader = Callable[[Any, "list[Any]"], Any]
_Writer = Callable[[Any, "_Once"], Any]


class _Once(NamedTuple):
    """What is written once in a part: its number by value, and by number what is written."""

    numbers: dict[Any, int]
    shared: list[Any]


class Lazy(Generic[_Value]):
    """A part of a value that is read when it is asked for."""

    __slots__ = ("_read", "_value")

    def __init__(self, value: _Value | None = None, read: Callable[[], _Value] | None = None) -> None:
        self._value, self._read = value, read

    @property
    def value(self) -> _Value:
        """Return the part."""
        read = self._read
        if read is not None:
            self._value = read()
            self._read = None
        return typing.cast("_Value", self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Lazy({self.value!r})"


def pack(kind: Any, value: Any) -> bytes:
    """Return a value of a type as bytes. ``TypeError`` for one that is not of the type, or holds what has no place."""
    writers = _Writers()
    first = writers.part(kind, value)
    head = _dump([writers.shapes, [len(part) for part in writers.parts], *first])
    return b"\n".join([head, b"".join(writers.parts)])


def unpack(kind: Any, content: bytes) -> Any:
    """Return the value of a type that :func:`pack` wrote.

    ``ValueError``, ``LookupError`` or ``TypeError`` when it was of another type, or of one that has changed since.
    """
    start = content.index(b"\n") + 1
    shapes, lengths, shared, data = json.loads(content[:start])
    offsets = list(accumulate(lengths, initial=start))
    if offsets[-1] != len(content):
        raise ValueError(f"{len(content)} bytes instead of {offsets[-1]}")
    readers = _Readers(shapes, content, offsets)
    read = readers.of(kind)
    return data if read is None else read(data, shared)


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def _plain_of(kind: Any) -> frozenset[Any]:
    """Return the exact types of what is plain of a type."""
    if get_origin(kind) is Literal:
        return frozenset(map(type, get_args(kind)))
    return frozenset({float, int}) if kind is float else _PLAIN & {kind}


def _is_container(kind: Any) -> bool:
    return get_origin(kind) not in {None, Lazy, Literal}


def _shape(kind: type) -> list[str]:
    """Return what must be the same when a value is read: the fields of a class, the values of an enumeration."""
    if issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return list(kind._fields)  # type: ignore[attr-defined]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@cache
def _hints(kind: type) -> tuple[Any, ...]:
    """Return the types of the fields of a class, in order."""
    hints = typing.get_type_hints(kind)
    return tuple(hints[name] for name in _shape(kind))


def _arm(kind: Any) -> Any | None:
    """Return the one type that a union admits beside what is plain. In JSON it must not look like that."""
    plain = [arm for arm in get_args(kind) if arm in _PLAIN or get_origin(arm) is Literal]
    arms = [arm for arm in get_args(kind) if arm not in plain]
    if len(arms) > 1 or (arms and plain != [NoneType] and not _is_container(arms[0])):
        raise TypeError(f"{kind} admits kinds that look alike when they are packed")
    return arms[0] if arms else None


class _Writers:
    """Builds the writer of each type that occurs, and writes the parts of one value."""

    def __init__(self) -> None:
        self.shapes: _Shapes = {}
        self.parts: list[bytes] = []
        self._writers: dict[Any, _Writer] = {}

    def part(self, kind: Any, value: Any) -> list[Any]:
        """Return what is written once, and the value."""
        once = _Once({}, [])
        data = self.of(kind)(value, once)
        return [once.shared, data]

    def of(self, kind: Any) -> _Writer:
        if kind not in self._writers:
            self._writers[kind] = self._make(kind)
        return self._writers[kind]

    def _make(self, kind: Any) -> _Writer:
        origin, kinds = get_origin(kind), get_args(kind)
        if kind in _ANYTHING:
            return lambda value, _: _document(value)
        if kind in _PLAIN or origin is Literal:
            plain = _plain_of(kind)
            return lambda value, _: _exactly(value, plain)
        if origin in {Union, UnionType}:
            arm, plain = _arm(kind), frozenset().union(*map(_plain_of, kinds))
            write = self.of(arm) if arm is not None else lambda value, _: _exactly(value, plain)
            return lambda value, once: value if type(value) in plain else write(value, once)
        if origin is Lazy:
            return lambda value, _: self._lazy(kinds[0], _of(value, Lazy).value)
        if origin is tuple and not (len(kinds) == 2 and kinds[1] is ...):
            writers = [self.of(each) for each in kinds]
            return lambda value, once: [w(x, once) for w, x in zip(writers, _of(value, tuple), strict=True)]
        if origin is not None and issubclass(origin, Mapping):
            write_key, write_item = self.of(kinds[0]), self.of(kinds[1])
            pairs: _Writer = lambda value, once: [  # noqa: E731
                [write_key(key, once), write_item(item, once)] for key, item in _of(value, Mapping).items()
            ]
            return (lambda value, once: dict(pairs(value, once))) if kinds[0] is str else pairs
        if origin in {tuple, list} or (origin is not None and issubclass(origin, Sequence | AbstractSet)):
            write_one, expected = self.of(kinds[0]), tuple if origin is tuple else origin
            if issubclass(origin, AbstractSet):
                return lambda value, once: sorted([write_one(x, once) for x in _of(value, expected)], key=_dump)
            return lambda value, once: [write_one(x, once) for x in _of(value, expected)]
        if not isinstance(kind, type):
            raise TypeError(f"{kind} has no place among packed values")
        self.shapes[_name(kind)] = _shape(kind)
        if issubclass(kind, Enum):
            return lambda value, _: _of(value, kind).value
        return self._fields(kind)

    def _fields(self, kind: type) -> _Writer:
        """Return the writer of a class. One that holds itself finds the writer before it is whole."""
        writers: list[_Writer] = []
        values_of, is_tuple = attrgetter(*_shape(kind), "__class__"), _is_named_tuple(kind)

        def fields_of(value: Any, once: _Once) -> list[Any]:
            *values, own = values_of(value)
            if own is not kind:
                raise TypeError(f"{own.__name__} where {kind.__name__} belongs")
            return [write(item, once) for write, item in zip(writers, values, strict=True)]

        def write(value: Any, once: _Once) -> Any:
            try:
                number = None if is_tuple else once.numbers.get(value)
            except TypeError:  # it holds a mapping
                return fields_of(value, once)
            if is_tuple:
                return fields_of(value, once)
            if number is None:
                number = once.numbers[value] = len(once.shared)
                once.shared.append(None)
                once.shared[number] = fields_of(value, once)
            return number

        self._writers[kind] = write
        writers += [self.of(each) for each in _hints(kind)]
        return write

    def _lazy(self, kind: Any, value: Any) -> int:
        part = _dump(self.part(kind, value))
        self.parts.append(zlib.compress(part) if len(part) > _LONG else part)
        return len(self.parts) - 1


def _of(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def _exactly(value: Any, kinds: Container[type]) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{type(value).__name__} has no place among plain values")
    return value


def _document(value: Any) -> Any:
    if isinstance(value, dict):
        return {_exactly(key, {str}): _document(item) for key, item in value.items()}
    return [_document(item) for item in value] if isinstance(value, list) else _exactly(value, _PLAIN)


class _Readers:
    """Builds the reader of each type that occurs, and refuses a type that is not as it was when it was written."""

    def __init__(self, shapes: _Shapes, content: bytes, offsets: Sequence[int]) -> None:
        self._shapes, self._content, self._offsets = shapes, content, offsets
        self._readers: dict[Any, _Reader | None] = {}

    def of(self, kind: Any) -> _Reader | None:
        if kind not in self._readers:
            self._readers[kind] = self._make(kind)
        return self._readers[kind]

    def _make(self, kind: Any) -> _Reader | None:
        origin, kinds = get_origin(kind), get_args(kind)
        if kind in _ANYTHING or kind in _PLAIN or origin is Literal:
            return None
        if origin in {Union, UnionType}:
            arm = _arm(kind)
            return _or_plain(self.of(arm), is_list=_is_container(arm)) if arm is not None else None
        if origin is Lazy:
            read = self.of(kinds[0])
            return lambda data, _: Lazy(read=lambda: self._part(data, read))
        if origin is tuple:
            if len(kinds) == 2 and kinds[1] is ...:
                return _all(self.of(kinds[0]), tuple)
            return _each([self.of(each) for each in kinds])
        if origin is not None and issubclass(origin, Mapping):
            return _mapping(kinds[0], self.of(kinds[0]), self.of(kinds[1]))
        if origin is not None and issubclass(origin, AbstractSet):
            return _all(self.of(kinds[0]), frozenset)
        if origin is not None and issubclass(origin, Sequence):
            return _all(self.of(kinds[0]), list)
        if not isinstance(kind, type):
            raise TypeError(f"{kind} has no place among packed values")
        if self._shapes.get(_name(kind), shape := _shape(kind)) != shape:
            raise ValueError(f"{_name(kind)} has changed")
        if issubclass(kind, Enum):
            members = {member.value: member for member in kind}
            return lambda data, _: members[data]
        return self._fields(kind, tuple(shape))

    def _fields(self, kind: type, names: tuple[str, ...]) -> _Reader:
        """Return the reader of a class. One that holds itself finds the reader before it is whole."""
        count, active = len(names), list[tuple[int, _Reader]]()
        is_tuple, put, new = _is_named_tuple(kind), object.__setattr__, object.__new__

        def read(data: Any, shared: list[Any]) -> Any:
            if type(data) is int:
                value = shared[data]
                if type(value) is list:
                    value = shared[data] = read(value, shared)
                return value
            if len(data) != count:
                raise ValueError(f"{len(data)} fields of {kind.__name__} instead of {count}")
            for place, reader in active:
                data[place] = reader(data[place], shared)
            if is_tuple:
                return tuple.__new__(kind, data)
            instance: Any = new(kind)
            for name, value in zip(names, data, strict=True):
                put(instance, name, value)
            return instance

        self._readers[kind] = read
        active += [(place, reader) for place, each in enumerate(_hints(kind)) if (reader := self.of(each))]
        return read

    def _part(self, number: int, read: _Reader | None) -> Any:
        part = self._content[self._offsets[number] : self._offsets[number + 1]]
        shared, data = json.loads(part if part[:1] == b"[" else zlib.decompress(part))
        return data if read is None else read(data, shared)


def _or_plain(read: _Reader | None, *, is_list: bool) -> _Reader | None:
    """Return the reader of what may be plain instead: anything but a list or mapping, else only null."""
    if read is None:
        return None
    if is_list:
        return lambda data, shared: read(data, shared) if isinstance(data, list | dict) else data
    return lambda data, shared: None if data is None else read(data, shared)


def _all(read: _Reader | None, kind: Callable[[Any], Any]) -> _Reader:
    if read is None:
        return _plain_tuple if kind is tuple else lambda data, _: kind(data)
    if read is _plain_tuple:
        return lambda data, _: kind(map(tuple, data))
    return lambda data, shared: kind([read(item, shared) for item in data])


def _plain_tuple(data: Any, _shared: list[Any]) -> tuple[Any, ...]:
    return tuple(data)


def _each(readers: Sequence[_Reader | None]) -> _Reader:
    if not any(readers):
        return _plain_tuple
    return lambda data, shared: tuple([x if r is None else r(x, shared) for r, x in zip(readers, data, strict=True)])


def _mapping(key: Any, read_key: _Reader | None, read: _Reader | None) -> _Reader | None:
    if key is str:
        return read and (lambda data, shared: {name: read(item, shared) for name, item in data.items()})
    return lambda data, shared: {
        (name if read_key is None else read_key(name, shared)): item if read is None else read(item, shared)
        for name, item in data
    }
