"""What a call gives, and what is done with its result."""

from __future__ import annotations

import ast

import pytest

from envsmith.knowledge.names.calls import attributes_of


def attributes_in(body: str) -> set[str]:
    tree = ast.parse(body)
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "load")
    return set(attributes_of(call, tree.body))


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        ("load(f).eval()", {"eval"}),
        ("m = load(f)\nm.eval()\nm(x)", {"eval", "()"}),
        (
            "c = load(f)\nmodel = (c.get('ema') or c['model']).to(d).float()\nmodel.fuse()",
            {"get", "to", "float", "fuse"},
        ),
        ("c = load(f)\nargs = c['args']\nif args.share: pass", {"share"}),
        ("m = load(f)\nm = Model(m)\nm.eval()", set()),
        ("m = load(f)\nfor m in models:\n    m.eval()", set()),
        ("m = load(f)\nif isinstance(m, Module):\n    m.eval()", set()),
        ("m = load(f)\ndef g(m):\n    m.eval()", set()),
        ("model.load_state_dict(load(f))\nmodel.eval()", set()),
    ],
)
def test_what_is_attributes_of_a_result_and_of_its_items_is_noted(body, attributes):
    assert attributes_in(body) == attributes
