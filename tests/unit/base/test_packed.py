"""Values as bytes: they come back equal, their types alone decide what is built, and every Python reads them alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

import pytest

from envsmith.base.packed import Lazy, pack, unpack
from envsmith.doctor.tables import every_table


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    colour: Colour


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    colour: Colour = Colour.RED
    day: str | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    leaves: tuple[Leaf, ...] = ()
    below: tuple[Tree, ...] = ()
    named: Mapping[str, Leaf] = field(default_factory=dict)
    near: Mapping[frozenset[str], tuple[Point, ...]] = field(default_factory=dict)
    word: bool | str | tuple[str, ...] = False
    kind: Literal["a", "b"] | None = None
    check: tuple[str, Any] | None = None
    later: Lazy[Leaf] | None = None


LEAF = Leaf("one", Colour.BLUE)
VALUES: dict[str, tuple[Any, Any]] = {
    "a number": (int, 1 << 400),
    "a text": (str, "é\u2028 \n"),
    "nothing": (Leaf | None, None),
    "named tuples": (tuple[Point, ...], (Point(1, Colour.RED), Point(-2, Colour.BLUE))),
    "tuples of tuples": (tuple[tuple[int, ...], ...], ((1, 2), ())),
    "a pair": (tuple[str, Leaf], ("x", LEAF)),
    "one leaf many times": (list[Leaf], [LEAF, Leaf("two"), LEAF, Leaf("one", Colour.BLUE)]),
    "a tree": (Tree, Tree((LEAF,), (Tree((LEAF, LEAF)), Tree()), {"x": LEAF})),
    "keys that are sets": (Tree, Tree(near={frozenset({"a"}): (Point(1, Colour.RED),), frozenset(): ()})),
    "a word": (Tree, Tree(word="x", kind="b", check=("x", {"a": [1, 2.5, None, True]}))),
    "words": (Tree, Tree(word=("x", "y"))),
    "a later part": (Tree, Tree(later=Lazy(LEAF))),
    "a long later part": (Tree, Tree(later=Lazy(Leaf("one" * 4000)))),
    "later parts in parts": (Mapping[str, Lazy[Tree]], {"x": Lazy(Tree(later=Lazy(LEAF), leaves=(LEAF,)))}),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_comes_back_equal_and_is_written_the_same_again(case: str) -> None:
    kind, value = VALUES[case]
    content = pack(kind, value)

    again = unpack(kind, content)

    assert again == value
    assert repr(again) == repr(value)
    assert pack(kind, again) == content


@pytest.mark.parametrize("table", every_table(), ids=lambda table: table.kind)
def test_every_kept_table_comes_back_equal_and_names_only_our_classes(table: Any) -> None:
    value = table.load()
    content = pack(table.shape, value)

    again = unpack(table.shape, content)

    assert pack(table.shape, again) == content
    assert table.kind == "graph" or again == value
    assert {name.partition(".")[0] for name in json.loads(content.partition(b"\n")[0])[0]} <= {"envsmith"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "1"),
        (str, Colour.RED),
        (Leaf, Point(1, Colour.RED)),
        (Leaf, Leaf(b"x")),  # type: ignore[arg-type]
        (object, (1, 2)),
        (object, {1: 2}),
        (tuple[int, str], (1,)),
        (tuple[int, ...], [1]),
        (Leaf | Tree, LEAF),
        (str | Leaf, LEAF),
        (object, len),
    ],
)
def test_what_is_not_of_the_type_is_not_written(kind: Any, value: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        pack(kind, value)


def test_a_class_whose_fields_changed_since_is_not_read() -> None:
    content = pack(tuple[Leaf, ...], (LEAF,)).replace(b'"colour"', b'"shade"')

    with pytest.raises(ValueError, match=r"Leaf has changed$"):
        unpack(tuple[Leaf, ...], content)


def test_an_enumeration_whose_values_changed_since_is_not_read_even_in_a_later_part() -> None:
    content = pack(Lazy[Leaf], Lazy(LEAF)).replace(b'["red","blue"]', b'["red","grey"]')

    with pytest.raises(ValueError, match=r"Colour has changed$"):
        unpack(Lazy[Leaf], content)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"x", lambda c: c.replace(b"\n", b" ")])
def test_content_that_is_not_whole_is_not_read(change: Any) -> None:
    with pytest.raises(ValueError):
        unpack(Lazy[Leaf], change(pack(Lazy[Leaf], Lazy(LEAF))))


def test_a_long_part_takes_less_room_than_its_text() -> None:
    text = "one" * 4000

    assert len(pack(Lazy[str], Lazy(text))) < len(text) / 10


def test_a_part_is_read_when_it_is_asked_for_and_once() -> None:
    read = []
    part = Lazy(read=lambda: read.append(1) or LEAF)

    before = len(read)
    values = [part.value, part.value]

    assert (before, len(read), values) == (0, 1, [LEAF, LEAF])


def test_a_set_of_several_words_comes_back_and_is_written_in_one_order_whatever_its_hashes() -> None:
    value = Tree(near={frozenset({"b", "a", "c"}): (), frozenset({"y", "x"}): (Point(1, Colour.RED),)})
    content = pack(Tree, value)

    again = unpack(Tree, content)

    assert again == value
    assert pack(Tree, again) == content
