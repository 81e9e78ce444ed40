"""``envsmith wheel``, on the catalogue that comes with the program."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from envsmith.cli.wheel import wheel
from envsmith.errors import UsageError

CELL = ["--torch", "2.8", "--cuda", "12.8", "--python", "3.11"]


def run(*arguments: str):
    return CliRunner().invoke(wheel, arguments, standalone_mode=False)


def test_a_wheel_that_fits_is_shown_with_address_hash_publisher_and_its_witnesses():
    result = run("flash-attn==2.8.3", *CELL)

    assert result.return_value == 0
    assert "cell torch2.8.0-cu128-py311" in result.stdout
    assert "flash-attn 2.8.3 by Dao-AILab/flash-attention (official)" in result.stdout
    assert "flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl" in result.stdout
    assert "takes it for flash-attn 2.8.3" in result.stdout


def test_where_none_fits_it_says_what_speaks_against_the_nearest_and_what_compiling_takes():
    result = run("flash-attn", "--torch", "2.13")

    assert result.return_value == 1
    assert "0 of " in result.stdout
    assert "built for torch 2.11, not for 2.13" in result.stdout
    assert "compiling takes 3 to 5 minutes on 64 cores" in result.stdout


def test_where_none_fits_it_says_which_torch_and_python_have_one():
    result = run("flash-attn==2.5.8", "--torch", "2.1.2", "--python", "3.11", "--machine", "none")
    assert "there are wheels for torch 2.1 (cp310), 2.3 (cp310)" in result.stdout


def test_the_json_has_every_proof_and_says_that_the_link_is_what_a_name_says():
    document = json.loads(run("flash-attn", *CELL, "--json").stdout)

    first = document["wheels"][0]
    assert first["origin"] == "official"
    assert len(first["sha256"]) == 64
    assert first["built_for"] == {"torch": "2.8", "cuda": "12", "cxx11_abi": True}
    assert first["linked"] == "its name says"
    assert first["evidence"][0]["date"]


def test_a_name_of_the_component_is_enough():
    assert run("flash-attention", *CELL).return_value == 0


@pytest.mark.parametrize("text", ["nothere", "flash attn"])
def test_a_name_without_wheels_is_refused_with_those_that_have_some(text):
    result = run(text, *CELL)

    assert isinstance(result.exception, UsageError)
    assert "flash-attn" in result.exception.hint


def test_a_cell_that_cannot_be_is_refused_as_solve_does():
    result = run("flash-attn", "--torch", "2.8", "--cuda", "11.8")

    assert result.return_value == 1
    assert "no cell satisfies this request" in result.stdout
