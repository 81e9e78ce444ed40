"""Defaults of dataclasses that Python refuses from 3.11 on: what is read of sources is what Python says of them."""

from __future__ import annotations

import ast
import sys

import pytest

from envsmith.knowledge.names.own_classes import OwnClasses
from envsmith.knowledge.names.refused_defaults import may_have_refused, refused_defaults

_IMPORTS = "from dataclasses import dataclass, field, InitVar\nfrom typing import ClassVar, Generic, TypeVar\n"
_PART = "@dataclass\nclass Part:\n    y: int = 0\n"
_WHOLE = "@dataclass\nclass Whole:\n    x: Part = Part()\n"
_NAMED = "@dataclass\nclass Whole:\n    x: object = {}()\n"

_REFUSED = [
    _PART + _WHOLE,
    _PART + "@dataclass\nclass Whole:\n    x: Part = field(default=Part(y=2))\n",
    _PART + "class Below(Part):\n    pass\n" + _NAMED.format("Below"),
    _PART + "T = TypeVar('T')\nclass Below(Part, Generic[T]):\n    pass\n" + _NAMED.format("Below"),
    "@dataclass(frozen=False)\nclass Part:\n    pass\n" + _WHOLE,
    "class Part:\n    def __eq__(self, other):\n        return True\n" + _WHOLE,
    "@dataclass(eq=False)\nclass Part:\n    def __eq__(self, other):\n        return True\n" + _WHOLE,
    _PART + "def as_is(c):\n    return c\n@as_is\n" + _WHOLE,
    "@dataclass\nclass Whole:\n    @dataclass\n    class Part:\n        pass\n    x: Part = Part()\n",
    _PART + "class Outer:\n" + "".join(f"    {line}\n" for line in _WHOLE.splitlines()),
]
_TAKEN = [
    "@dataclass(frozen=True)\nclass Part:\n    pass\n" + _WHOLE,
    "@dataclass(unsafe_hash=True)\nclass Part:\n    pass\n" + _WHOLE,
    "@dataclass(eq=False)\nclass Part:\n    pass\n" + _WHOLE,
    "@dataclass\nclass Part:\n    def __hash__(self):\n        return 1\n" + _WHOLE,
    "class Part:\n    pass\n" + _WHOLE,
    _PART + "class Below(Part):\n    def __hash__(self):\n        return 1\n" + _NAMED.format("Below"),
    _PART + "@dataclass\nclass Whole:\n    x: ClassVar[Part] = Part()\n",
    _PART + "@dataclass\nclass Whole:\n    x: InitVar[Part] = Part()\n",
    _PART + "@dataclass\nclass Whole:\n    x: Part = field(default_factory=lambda: Part())\n",
    _PART + "@dataclass\nclass Whole:\n    x = Part()\n",
    _PART + "class Whole:\n    x: Part = Part()\n",
    _PART + "@dataclass\nclass Whole:\n    x: Part = Part()\n    x = None\n",
    _PART + "@dataclass\nclass Whole:\n    x: Part = Part()\n    @property\n    def x(self):\n        return 1\n",
]


@pytest.mark.parametrize("source", _REFUSED)
def test_a_default_without_a_hash_is_one_that_python_refuses(source):
    assert [(each.name, each.path) for each in refused(source)] == [("x", "own/__init__.py")]
    assert is_refused_here(source) is (sys.version_info >= (3, 11))


@pytest.mark.parametrize("source", _TAKEN)
def test_a_default_that_python_takes_is_silent(source):
    assert refused(source) == []
    assert not is_refused_here(source)


@pytest.mark.parametrize(
    "source",
    [
        "from other import dataclass\n" + _PART + _WHOLE,
        "from other import Base\n@dataclass\nclass Part(Base):\n    pass\n".replace("@dataclass\n", "") + _WHOLE,
        "from other import changed\n@changed\n" + _PART + _WHOLE,
        "@dataclass(**OPTIONS)\nclass Part:\n    pass\n" + _WHOLE,
        "from other import Meta\n@dataclass\nclass Part(metaclass=Meta):\n    pass\n" + _WHOLE,
        "@dataclass\nclass Part:\n    def __new__(cls):\n        return 1\n" + _WHOLE,
        _PART + "if other():\n    class Part:\n        pass\n" + _WHOLE,
    ],
)
def test_a_class_that_may_have_a_hash_is_silent(source):
    assert refused(source) == []


def test_a_class_is_followed_to_the_module_of_the_package_that_has_it():
    texts = {
        "own/__init__.py": b"from .parts import Part as Piece\nfrom . import parts\n"
        + _IMPORTS.encode()
        + b"@dataclass\nclass Whole:\n    x: Piece = Piece()\n    z: object = parts.Part()\n",
        "own/parts.py": (_IMPORTS + _PART).encode(),
    }

    names = [(each.name, each.maker) for each in refused_defaults("own/__init__.py", classes_of(texts))]

    assert names == [("x", "Part"), ("z", "Part")]


def refused(source: str) -> list:
    text = (_IMPORTS + source).encode()
    defaults = [*refused_defaults("own/__init__.py", classes_of({"own/__init__.py": text}))]
    assert not defaults or may_have_refused(text)
    return defaults


def is_refused_here(source: str) -> bool:
    try:
        exec(compile(_IMPORTS + source, "own", "exec", dont_inherit=True), {"__name__": __name__})
    except ValueError:
        return True
    return False


def classes_of(texts: dict[str, bytes]) -> OwnClasses:
    return OwnClasses(texts, lambda _path, text: ast.parse(text))
