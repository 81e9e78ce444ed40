"""What a decorator does to the arguments of a function, by its own text."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from envsmith.knowledge.names.decorators import is_handed_on, under, without_decorators
from envsmith.knowledge.names.handing import handing
from envsmith.knowledge.names.source import read_module


def is_known(decorator: str, used: str, argument: str = "gone") -> bool:
    """Return whether ``used`` above a function surely hands on an argument."""
    [definition] = ast.parse(dedent(decorator)).body
    [function] = ast.parse(f"@{used}\ndef f(): ...").body
    assert isinstance(definition, ast.FunctionDef)
    assert isinstance(function, ast.FunctionDef)
    return is_handed_on(argument, under(function.decorator_list).removeprefix("~"), handing(definition))


def wrapping(body: str, *, head: str = "*args, **kwargs") -> str:
    lines = indent(dedent(body), "        ")
    return f"def it(fn):\n    @wraps(fn)\n    def wrapper({head}):\n{lines}\n    return wrapper"


@pytest.mark.parametrize(
    "body",
    [
        "return fn(*args, **kwargs)",
        "log(**kwargs)\nresult = fn(*args, **kwargs)\nreturn result",
        "kwargs.update(defaults)\nkwargs = dict(list(found.items()) + list(kwargs.items()))\nreturn fn(**kwargs)",
        "kwargs = {**defaults, **kwargs}\nkwargs['x'] = len(kwargs)\nreturn fn(**kwargs)",
        "if 'x' in kwargs and kwargs:\n    warn(kwargs['x'])\nreturn fn(*args, **kwargs)",
        "if is_off:\n    return fn(*args, **kwargs)\nwith timer():\n    return fn(*args, **kwargs)",
        "try:\n    return fn(*args, **kwargs)\nexcept Exception as error:\n    raise Other(error)\nfinally:\n    stop()",
        "for value in args:\n    if value is None:\n        raise TypeError\nreturn fn(*args, **kwargs)",
        "return fn(*args, **kwargs) if is_off else record(fn(*args, **kwargs))",
        "yield from fn(*args, **{**kwargs, 'x': 1})",
    ],
)
def test_a_wrapper_that_calls_the_function_with_all_on_every_way_hands_on(body):
    assert is_known(wrapping(body), "it")


@pytest.mark.parametrize(
    "body",
    [
        "return other(*args, **kwargs)",
        "if is_off:\n    return None\nreturn fn(*args, **kwargs)",
        "if is_main:\n    return fn(*args, **kwargs)",
        "try:\n    return fn(*args, **kwargs)\nexcept TypeError:\n    return fn(*args)",
        "with suppress(TypeError):\n    fn(*args, **kwargs)\nreturn 1",
        "for value in args:\n    return value\nreturn fn(*args, **kwargs)",
        "match args:\n    case []:\n        return 1\nreturn fn(*args, **kwargs)",
        "kwargs = {k: v for k, v in kwargs.items() if k in wanted}\nreturn fn(*args, **kwargs)",
        "kwargs, extra = split(kwargs)\nreturn fn(*args, **kwargs)",
        "clean(kwargs)\nreturn fn(*args, **kwargs)",
        "options = kwargs or {}\noptions.pop('gone')\nreturn fn(*args, **kwargs)",
        "for name in renamed:\n    kwargs.pop(name)\nreturn fn(*args, **kwargs)",
        "kwargs.clear()\nreturn fn(*args, **kwargs)",
        "kwargs = dict(strip(kwargs), **kwargs)\nreturn fn(*args, **kwargs)",
        "fn = newer(fn)\nreturn fn(*args, **kwargs)",
        "return is_off or fn(*args, **kwargs)",
        "return [fn(*args, **kwargs) for _ in args]",
        "return lambda: fn(*args, **kwargs)",
        "return fn(*args)",
    ],
)
def test_of_a_wrapper_that_may_drop_an_argument_or_not_come_to_the_function_nothing_is_said(body):
    assert not is_known(wrapping(body), "it")


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("kwargs.pop('gone', None)\nreturn fn(*args, **kwargs)", "*args, **kwargs"),
        ("if 'gone' in kwargs:\n    del kwargs['gone']\nreturn fn(*args, **kwargs)", "*args, **kwargs"),
        ("return fn(*args, **kwargs)", "*args, gone=None, **kwargs"),
        ("return fn(gone, *args, **kwargs)", "gone, *args, **kwargs"),
    ],
)
def test_a_wrapper_that_takes_an_argument_out_by_its_name_hands_on_the_others(body, head):
    assert not is_known(wrapping(body, head=head), "it", "gone")
    assert is_known(wrapping(body, head=head), "it", "other")


RENAMING = """
def renamed(old{default}, new=None):
    def decorate(fn):
        def wrapper(*args, **kwargs):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
            return fn(*args, **kwargs)
        return wrapper
    return decorate
"""
MAPPING = """
def renamed(**names):
    def decorate(fn):
        def wrapper(*args, **kwargs):
            for old, new in names.items():
                kwargs[new] = kwargs.pop(old, None)
            return fn(*args, **kwargs)
        return wrapper
    return decorate
"""


@pytest.mark.parametrize(
    ("decorator", "used", "known"),
    [
        (RENAMING.format(default=""), "renamed('gone', 'new')", False),
        (RENAMING.format(default=""), "renamed('older', 'new')", True),
        (RENAMING.format(default=""), "renamed(OLD, 'new')", False),
        (RENAMING.format(default=""), "renamed", False),
        (RENAMING.format(default="='gone'"), "renamed()", False),
        (RENAMING.format(default="='older'"), "renamed()", True),
        (RENAMING.format(default="=OLD"), "renamed('older')", False),
        (MAPPING, "renamed(gone='new')", False),
        (MAPPING, "renamed(older='new')", True),
        (MAPPING, "renamed(**{'gone': 'new'})", False),
        (MAPPING, "renamed(**NAMES)", False),
        (MAPPING.replace("in names.items()", "in kwargs.items()"), "renamed(older='new')", False),
        (
            MAPPING.replace("**names", "names").replace("def decorate", "names = load(names)\n    def decorate"),
            "renamed('old')",
            False,
        ),
    ],
)
def test_a_decorator_that_takes_out_what_its_arguments_name_hands_on_what_they_do_not(decorator, used, known):
    assert is_known(decorator, used) is known


@pytest.mark.parametrize(
    ("decorator", "used", "known"),
    [
        ("def it(fn):\n    fn.mark = 1\n    return fn", "it", True),
        ("def it(fn):\n    fn = other(fn)\n    return fn", "it", False),
        ("def it(fn):\n    return other(fn)", "it", False),
        ("def it(fn):\n    def w(*a, **k): return fn(*a, **k)\n    return functools.wraps(fn)(w)", "it", True),
        ("def it(fn):\n    def w(*a, **k): return fn(*a, **k)\n    w = other(w)\n    return w", "it", False),
        ("def it(fn):\n    @other\n    def w(*a, **k): return fn(*a, **k)\n    return w", "it", False),
        ("def it(fn):\n    def w(x): return fn(x)\n    return w", "it", False),
        ("def it(fn):\n    def w(*a, **k): return fn(*a, **k)\n    return w", "it()", False),
        ("def it(fn):\n    def w(*a, **k): return fn(*a, **k)\n    return w", "it(other)", False),
        ("def it(x):\n    def inner(fn): return fn\n    return inner", "it(1)", True),
        ("def it(x):\n    if x is None: return same\n    def inner(fn): return fn\n    return inner", "it(1)", False),
        ("def it(x):\n    def inner(fn): return fn\n    return inner", "it", False),
        ("def it(f=None, *, x=1):\n    if f is None: return partial(it, x=x)\n    return f", "it", True),
        ("def it(f=None, *, x=1):\n    if f is None: return partial(it, x=x)\n    return f", "it(x=2)", True),
        ("def it(*, x):\n    if x: return other(x)\n    def inner(fn): return fn\n    return inner", "it(x=1)", False),
        (
            "def it(**kwargs):\n    def inner(fn):\n        def w(*a, **kwargs):\n            for k in kwargs: kwargs.pop(k)\n            return fn(*a, **kwargs)\n        return w\n    return inner",
            "it()",
            False,
        ),
        ("@other\ndef it(fn):\n    return fn", "it", False),
        ("def it(fn):\n    fn()", "it", False),
    ],
)
def test_a_decorator_is_read_as_it_is_used(decorator, used, known):
    assert is_known(decorator, used) is known


def test_the_lines_of_a_module_name_decorators_and_the_tables_do_not():
    source = b"class A:\n    def own(self):\n        return self\n\ndef it(fn):\n    return fn\n\n@it\n@renamed('old', new=NEW)\ndef f(a, b=1): ...\n"

    lines = read_module(source, "pkg", package=True)

    assert lines == {"A :", "A.own (", "it &(fn", "f ~it~renamed[old,new,?](a,b="}
    assert {without_decorators(line) for line in lines} == {"A :", "A.own (", "it (fn", "f ~(a,b="}
