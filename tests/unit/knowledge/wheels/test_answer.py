"""The answer of ``envsmith wheel``."""

from __future__ import annotations

from wheel_catalogue import CELL, line

from envsmith.knowledge.wheels.answer import answer
from envsmith.model.cell import WheelPolicy
from envsmith.model.version import Spec

EVERY = Spec("*")


def test_the_answer_names_what_a_lock_takes_of_each_release(catalogue):
    root = catalogue(line("1.0"), line("1.1"), line("1.1+cu128", by="somebody/else"))

    result = answer("ext", EVERY, CELL, policy=WheelPolicy.LISTED, root=root)

    assert [w.version for w in result.fitting] == ["1.1", "1.0", "1.1+cu128"]
    assert [w.version for w in result.locked] == ["1.1", "1.0"]
    assert [w["origin"] for w in result.to_json()["wheels"]] == ["official", "official", "listed"]


def test_where_nothing_fits_each_kind_of_difference_is_shown_once(catalogue):
    root = catalogue(line("1.1", python="cp312"), line("1.0", python="cp312"), line("1.1", cuda="13"))

    result = answer("ext", EVERY, CELL, root=root)

    assert result.fitting == ()
    assert [offer.against for offer in result.nearest] == [
        ("built for Python cp312, not for 3.11",),
        ("built for CUDA 13, not for 12.8",),
    ]


def test_a_spec_narrows_the_releases(catalogue):
    root = catalogue(line("1.0"), line("1.1"))

    assert [w.version for w in answer("ext", Spec.parse("<1.1"), CELL, root=root).fitting] == ["1.0"]
