"""A call as a question, and what a function wants that the call does not give."""

from __future__ import annotations

import ast

import pytest

from envsmith.knowledge.names.whole_calls import WholeCall, whole_call


def question(text: str) -> str:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    return whole_call(call)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("f(a, b, dim=1)", "!2,dim"),
        ("f()", "!0"),
        ("f(*a)", ""),
        ("f(a, **kw)", ""),
        ("f(a, **{'dim': 1})", ""),
    ],
)
def test_a_call_is_asked_for_where_it_says_all_that_it_gives(text, asked):
    assert question(text) == asked


@pytest.mark.parametrize(
    ("signature", "call", "lacking"),
    [
        ("a,b,c=", "f(1)", ("b",)),
        ("a,b,c=", "f(1, b=2)", ()),
        ("a,b,c=", "f(1, 2, 3)", ()),
        ("", "f()", ()),
        ("a,/,b", "f(1)", ("b",)),
        ("a,/,**", "f(a=1)", ("a",)),
        ("a,|,b,c=", "f(1)", ("b",)),
        ("a,*,b", "f(1, 2, 3)", ("b",)),
        ("a,b,**", "f(1, other=2)", ("b",)),
    ],
)
def test_what_has_no_default_and_is_not_given_is_lacking(signature, call, lacking):
    assert WholeCall.of(question(call)).lacks(signature.split(",")) == lacking


@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("a,b", "f(1, 2, 3)"),
        ("a,b", "f(1, a=2)"),
        ("a,b", "f(1, other=2)"),
        ("a,/", "f(a=1)"),
    ],
)
def test_of_a_call_that_a_function_does_not_take_nothing_is_lacking(signature, call):
    assert WholeCall.of(question(call)).lacks(signature.split(",")) is None


def test_an_argument_that_may_be_the_old_name_of_one_leaves_it_open():
    call = WholeCall.of("!1,old")

    assert call.lacks(["a", "new", "|", "old="]) is None
    assert call.lacks(["a", "b", "new", "|", "old="]) == ("b", "new")
