"""Commands for many nodes and what is made of silence; nothing is started but small scripts."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence

import pytest

from envsmith.cli.app import run
from envsmith.errors import SmokeError, UsageError
from envsmith.smoke.nodes import Command, RemoteShell, Slurm, extended_plan, parse_nodes, plan_for_nodes, run_nodes
from envsmith.smoke.plan import Plan, Timeouts


def test_nodes_are_names_addresses_or_a_number() -> None:
    assert parse_nodes("a, b.example,c=10.0.0.3") == (("a", "b.example", "c"), {"c": "10.0.0.3"})
    assert parse_nodes("3") == (("", "", ""), {})


@pytest.mark.parametrize(
    "text", ["", "a", "1", "0", "513", "a,a", "a,-oProxyCommand=id", "a,b;id", "a,$(id)", "a,b c", "a,b=", "a,b\n"]
)
def test_nonsense_and_hostile_names_are_usage_errors(text: str) -> None:
    if text == "a,b\n":  # white space around a name is not a harm
        assert parse_nodes(text)[0] == ("a", "b")
        return
    with pytest.raises(UsageError):
        parse_nodes(text)


def test_ssh_gets_one_quoted_string_and_others_a_list() -> None:
    hosts = ("a", "b")
    over_ssh = RemoteShell().commands(hosts, 2, "/env/bin/python", 1234)
    assert [c.ranks for c in over_ssh] == [(0,), (1,), (2,), (3,)]
    assert [c.node for c in over_ssh] == ["a", "a", "b", "b"]
    assert over_ssh[2].argv[:-1] == ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "b")
    words = shlex.split(over_ssh[2].argv[-1])
    assert words[0] == "/env/bin/python"
    plain = RemoteShell(template="ip netns exec {host}", address={"a": "10.0.0.1"}).commands(
        hosts, 2, "/env/bin/python", 1234
    )
    assert plain[2].argv[:4] == ("ip", "netns", "exec", "b")
    assert list(plain[2].argv[4:]) == [w if w != "a" else "10.0.0.1" for w in words]
    assert plain[2].argv[-4:] == ("--master-addr", "10.0.0.1", "--master-port", "1234")


@pytest.mark.parametrize("template", ["", "ssh", "ssh '{host}"])
def test_template_needs_the_host(template: str) -> None:
    with pytest.raises(UsageError):
        RemoteShell(template=template).commands(("a", "b"), 1, "python", 1)


def test_srun_carries_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (command,) = Slurm(gpus_per_node=8).commands(("", ""), 4, "python", 1)
    assert command.ranks == tuple(range(8))
    assert "--nodelist" not in command.argv
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (command,) = Slurm().commands(("n1", "n2"), 1, "python", 1)
    assert {"--overlap", "--nodelist", "n1,n2"} <= set(command.argv)


def test_fault_of_a_node_becomes_that_of_its_first_rank_and_is_absent_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no")
    plan = Plan.build({}, ranks=4, steps=False).with_(fault={"kind": "raise", "node": "b"})
    row = json.loads(extended_plan(plan, ("a", "b"), 2, "x"))
    assert row["fault"] == {"kind": "raise", "rank": 2}
    assert row["node_of_rank"] == ["a", "a", "b", "b"]
    assert row["env"]["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "AWS_SECRET_ACCESS_KEY" not in row["env"]
    assert json.loads(extended_plan(plan, ("a", "c"), 2, "x"))["fault"] is None


class _Scripts:
    """A launcher whose ranks are small scripts."""

    name = "scripts"

    def __init__(self, *scripts: str) -> None:
        self.scripts = scripts

    def commands(self, hosts: Sequence[str], ranks_per_node: int, python: str, port: int) -> list[Command]:
        return [
            Command(argv=(sys.executable, "-c", script), ranks=(rank,), node=hosts[rank])
            for rank, script in enumerate(self.scripts)
        ]

    def one(self, host: str, argv: Sequence[str]) -> list[str]:
        return list(argv)


def _tiny() -> Plan:
    plan = plan_for_nodes(Plan.build({}, ranks=2, steps=False), nodes=2, ranks_per_node=1)
    return plan.with_(timeouts=Timeouts(imports=1, init=1, first=1, case=1, group=1, tier=1))


def test_ranks_that_never_speak_are_the_cause() -> None:
    quiet = "import sys; sys.stderr.write('Permission denied (publickey).\\n'); sys.exit(255)"
    result = run_nodes(_tiny(), ("a", "b"), python="x", launcher=_Scripts(quiet, quiet), ranks_per_node=1)
    # Both end at once: whichever is seen first is named, and the other one is counted where it was seen before the rest was ended.
    told = (
        r"node (a: rank 0|b: rank 1) did not start \(status 255\): Permission denied \(publickey\)\.( \(and 1 more\))?"
    )
    assert re.fullmatch(told, result.summary)
    assert result.exit_code == 1
    assert not result.passed


def test_when_one_rank_cannot_start_the_others_are_not_waited_for() -> None:
    waits = 'import sys; print(\'{"event": "row", "run": "collectives", "row": "node", "rank": 1, "node": "b"}\', flush=True); sys.stdin.read()'
    for script in (waits, "import sys; sys.stdin.read()"):
        plan = _tiny().with_(timeouts=Timeouts())
        launcher = _Scripts("raise SystemExit(255)", script)
        result = run_nodes(plan, ("a", "b"), python="x", launcher=launcher, ranks_per_node=1)
        assert result.summary == "node a: rank 0 did not start (status 255)"
        assert result.seconds["wall"] < plan.timeouts.init


def test_a_launcher_that_is_not_there_is_a_smoke_error() -> None:
    shell = RemoteShell(template="/nonexistent/ssh {host}")
    with pytest.raises(SmokeError):
        run_nodes(_tiny(), ("a", "b"), python="x", launcher=shell, ranks_per_node=1)


def test_nonsense_on_standard_output_is_no_result() -> None:
    noise = "import sys; sys.stdin.buffer.readline(); print('{\"event\": 3}'); print('[]'); print('x' * 100000)"
    result = run_nodes(_tiny(), ("a", "b"), python="x", launcher=_Scripts(noise, noise), ranks_per_node=1)
    assert not result.passed


@pytest.mark.parametrize(
    "argv",
    [
        ["--nodes", "2", "--emit", "jobset"],
        ["--nodes", "a,b", "--emit", "jobset", "--image", "x:1"],
        ["--nodes", "a,b", "--rdzv", "a:1"],
        ["--nodes", "2", "--rdzv", "a"],
        ["--nodes", "2", "--rsh", "ssh {host}"],
        ["--nodes", "a,b", "--image", "x:1"],
        ["--rdzv", "a:1"],
        ["--nodes", "2", "--emit", "jobset", "--image", "x;y"],
        ["--nodes", "2", "--emit", "jobset", "--image", "x:1", "--tier", "framework"],
    ],
)
def test_flags_that_do_not_go_together_are_usage_errors(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envsmith.cli.smoke._probe_here", lambda _: {"torch": "2.13.0"})
    assert run(["smoke", *argv]) == 2


def test_emit_prints_a_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["smoke", "--nodes", "2", "--ranks", "8", "--emit", "trainjob", "--image", "registry.example/cell:1"]) == 0
    )
    assert "kind: TrainJob" in capsys.readouterr().out
