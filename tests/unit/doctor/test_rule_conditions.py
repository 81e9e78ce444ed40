"""Conditions over facts and texts with places for them, as matrix/doctor/rules.yaml writes them."""

from __future__ import annotations

import pytest

from envsmith.doctor.facts import Facts, LaunchCommand, StatedVersion
from envsmith.doctor.rule_conditions import Scene, complaint_about, fits
from envsmith.errors import DataError

FACTS = Facts(
    components={"deepspeed": StatedVersion(version="0.14.3", source="given", strength=4)},
    limits={"memlock": 65536, "nofile": 0},
    tools={"ninja": None, "nvcc": "/usr/bin/nvcc"},
    variables={"NCCL_DEBUG": "INFO", "EMPTY": ""},
    host={"present": "colossalai"},
    gpus=("NVIDIA A100",),
)


@pytest.mark.parametrize(
    ("value", "condition", "met"),
    [
        (None, True, False),
        ("", False, True),
        ("x", True, True),
        ("a", "a", True),
        ("b", ("a", "b"), True),
        (None, "!a", True),
        ("abc", "~^ab", True),
        ("abc", "!~^ab", False),
        (0, "0..5", True),
        ("7", "..5", False),
        ("many", "0..", False),
        (None, "0..", False),
        ("0.14.3", ">=0.14.1,<0.19.5", True),
        ("0.14.3", "<0.14", False),
        ("cpu", ">=1", False),
        ("sm_70", "<sm_80", True),
        ("no version", "!>=1", True),
    ],
)
def test_condition_is_met_by_its_values_only(value, condition, met):
    assert fits(value, condition) is met


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version.deepspeed", "0.14.3"),
        ("used.deepspeed", "0.14.3"),
        ("used.colossalai", "*"),
        ("used.torch", None),
        ("version.torch|version.deepspeed", "0.14.3"),
        ("limit.nofile", 0),
        ("tool.ninja", "none"),
        ("tool.nvcc", "/usr/bin/nvcc"),
        ("tool.gcc", None),
        ("variable.EMPTY", None),
        ("option.nnodes", "2"),
        ("gpus", 1),
        ("first_gpu", "NVIDIA A100"),
    ],
)
def test_name_leads_to_the_fact(name, value):
    assert Scene(FACTS, LaunchCommand(tool="torchrun", options={"nnodes": "2"})).value(name) == value


def test_unknown_name_is_refused():
    with pytest.raises(DataError, match="no_such_word"):
        Scene(FACTS).value("no_such_word")


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{limit.memlock/1024} kB", "64 kB"),
        ("{first_gpu:6}", "NVIDIA"),
        ("{version.torch|'none'}", "none"),
        ("torch {version.torch|''} is", "torch  is"),
        ("torch {version.torch}", None),
        ('"fp16": {"enabled": true}', '"fp16": {"enabled": true}'),
        ("{word}.", "."),
    ],
)
def test_places_of_a_text_are_filled(text, filled):
    assert Scene(FACTS, words={"word": ""}).fill(text) == filled


@pytest.mark.parametrize("condition", ["~(", "<", ">=x y", ">1"])
def test_condition_that_cannot_be_read_is_told(condition):
    assert complaint_about(condition)
