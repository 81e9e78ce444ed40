"""What gives way where a project asks for what no cell can have."""

from __future__ import annotations

from envsmith.cli.flags import RequestFlags
from envsmith.code.settle import settle


def request_of(wishes, date=None):
    lines = tuple(f"{name}{'' if spec == '*' else spec}" for name, spec in wishes.items())
    return RequestFlags(package=lines, python="3.11", date=date).request()


def test_wishes_that_go_together_stay():
    wishes = {"torch": "==2.0.1", "peft": "==0.4.0"}
    assert settle(wishes, {}, request_of) == (wishes, ())


def test_a_pin_gives_way_to_what_the_code_needs():
    wishes = {"torch": "==2.0.0", "xformers": "==0.0.20"}
    settled, sentences = settle(wishes, {"torch": "*", "xformers": "*"}, request_of)
    assert settled == {"torch": "==2.0.0", "xformers": "*"}
    assert sentences == ("xformers ==0.0.20 gives way: no cell has it together with the rest",)


def test_what_must_be_compiled_does_not_move_torch_by_years():
    settled, sentences = settle({"torch": "*", "flash-attn": "*"}, {}, lambda w: request_of(w, "2023-05-01"))
    assert settled == {"torch": "*"}
    assert "flash-attn is left out" in sentences[0]


def test_where_nothing_helps_the_wishes_stay_for_the_refusal():
    wishes = {"torch": "==2.0.0"}
    assert (
        settle(
            wishes,
            {"torch": "==2.0.0"},
            lambda w: RequestFlags(torch="2.1", package=("torch==2.0.0",), nccl="1").request(),
        )[0]
        == wishes
    )
