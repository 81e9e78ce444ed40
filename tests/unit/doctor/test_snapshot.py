"""Snapshots: whole, without names and secrets, judged anywhere, and compared between two nodes."""

from __future__ import annotations

import json

import pytest

from envsmith.base.text import redact
from envsmith.doctor.facts import Facts, StatedVersion
from envsmith.doctor.read import read_texts
from envsmith.doctor.snapshot import compare, dump, load
from envsmith.errors import DataError


def node(**versions: str) -> Facts:
    return Facts(
        components={k.replace("_", "-"): StatedVersion(version=v, source="x", strength=4) for k, v in versions.items()},
        variables={"NCCL_DEBUG": "INFO", "RANK": "0"},
        limits={"memlock": -1},
        interfaces=("lo", "eth0"),
    )


def test_a_snapshot_reads_back_as_the_same_facts():
    facts = read_texts(
        [
            (
                "t",
                "PyTorch version: 2.6.0+cu124\nGPU 0: NVIDIA A100 (UUID: x)\nNCCL_DEBUG=INFO\ntorchrun --nproc_per_node=2 t.py\n",
            )
        ]
    )
    back, _ = load(dump(facts), "x")
    assert back.to_json() == facts.to_json()


def test_secrets_and_names_do_not_reach_a_snapshot():
    facts = Facts(
        variables={
            "NCCL_DEBUG": "INFO",
            "DS_API_KEY": "abc123",
            "TORCH_HOME": "/home/alice/torch",
            "CUDA_X": "https://bob:pw@host/x",
            "CUDA_Y": "hf_abcdefghijklmnop",
            "CUDA_Z": "alice@example.org",
        },
        tools={"ninja": "/home/alice/bin/ninja"},
    )
    text = dump(facts)
    for secret in ("abc123", "alice", "bob", "pw@", "hf_abcdefghijklmnop"):
        assert secret not in text
    assert "INFO" in text


def test_this_users_name_is_removed_as_a_word():
    assert redact("carol in /x/carol/y but not carolina", users=("carol",)) == "USER in /x/USER/y but not carolina"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{",
        '{"kind": "envsmith doctor snapshot"}',
        '{"kind": "envsmith doctor snapshot", "schema": 9, "facts": {}}',
        '{"kind": "envsmith doctor snapshot", "schema": 1, "facts": {"components": 3}}',
    ],
)
def test_a_damaged_snapshot_is_a_clear_error(text):
    with pytest.raises(DataError):
        load(text, "x.json")


def test_two_equal_nodes_do_not_differ():
    assert compare(node(torch="2.6.0"), node(torch="2.6.0")) == []


def test_what_must_agree_is_an_error_and_comes_first():
    a, b = node(torch="2.6.0", nccl="2.21.5", gcc="11.4.0"), node(torch="2.6.0", nccl="2.27.5", gcc="12.3.0")
    found = compare(a, b, ("a.json", "b.json"))
    assert [(d.finding.severity.value, next(iter(d.finding.components))) for d in found] == [
        ("error", "nccl"),
        ("note", "gcc"),
    ]
    assert "a.json has 2.21.5, b.json has 2.27.5" in found[0].finding.message


def test_variables_of_ranks_are_not_compared():
    import dataclasses

    other = dataclasses.replace(node(), variables={"NCCL_DEBUG": "WARN", "RANK": "1"})
    assert [d.finding.rule for d in compare(node(), other)] == ["node-variable-differs"]


def test_nodes_without_a_shared_interface_are_told():
    import dataclasses

    other = dataclasses.replace(node(), interfaces=("lo", "eno1"))
    assert [d.finding.rule for d in compare(node(), other)] == ["node-interfaces-differ"]


def test_a_snapshot_is_judged_anywhere(tmp_path):
    from click.testing import CliRunner

    from envsmith.cli.doctor import doctor

    path = tmp_path / "s.json"
    path.write_text(dump(node(torch="2.6.0", deepspeed="0.14.0")))
    result = CliRunner().invoke(doctor, ["--from", str(path), "--json"], standalone_mode=False)
    assert result.return_value == 1
    assert json.loads(result.stdout)["status"] == "bad"
