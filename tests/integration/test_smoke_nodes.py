"""Many nodes for real: network namespaces (each with an address of its own), and Slurm where one answers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.smoke.nodes import Narrowed, NodesOutcome, RemoteShell, narrow, plan_for_nodes, run_nodes
from envsmith.smoke.plan import Plan, Timeouts

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON") or ""
COUNT = 4
NAMES = tuple(f"esm-t{i}" for i in range(1, COUNT + 1))
ADDRESSES = {name: f"10.99.8.{i}" for i, name in enumerate(NAMES, 1)}
SHELL = "ip netns exec {host}"
CASE = "all_reduce[int64,sum,1027]"
pytestmark = [pytest.mark.torch, pytest.mark.integration]


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=30)


def _clean() -> None:
    for command in (*(["netns", "del", name] for name in NAMES), ["link", "del", "esm-tbr"]):
        with contextlib.suppress(subprocess.SubprocessError):
            _ip(*command)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, ...]]:
    """Four namespaces on one bridge."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    _clean()
    try:
        _ip("link", "add", "esm-tbr", "type", "bridge")
        _ip("link", "set", "esm-tbr", "up")
        for number, name in enumerate(NAMES, 1):
            _ip("netns", "add", name)
            _ip("link", "add", f"esm-v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", f"esm-v{number}", "master", "esm-tbr", "up")
            _ip("-n", name, "addr", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except subprocess.SubprocessError as error:
        _clean()
        pytest.skip(f"network namespaces are not permitted here: {error}")
    yield NAMES
    _clean()


def _launcher() -> RemoteShell:
    return RemoteShell(template=SHELL, address=ADDRESSES)


def _plan(hosts: tuple[str, ...], ranks: int = 1, **fault: object) -> Plan:
    plan = Plan.build({}, ranks=len(hosts) * ranks, backend="gloo", steps=False).with_(nodes=len(hosts))
    plan = plan_for_nodes(plan, nodes=len(hosts), ranks_per_node=ranks)
    return plan.with_(fault={"case": CASE, **fault}) if fault else plan


def _left(words: str) -> list[str]:
    done = subprocess.run(["pgrep", "-af", words], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "rank --rank" in line]


def test_two_nodes_of_two_ranks_pass_and_nothing_is_left(nodes: tuple[str, ...]) -> None:
    result = run_nodes(_plan(nodes[:2], 2), nodes[:2], python=PYTHON, launcher=_launcher(), ranks_per_node=2)
    assert result.passed, result.blame
    assert result.nodes == {nodes[0]: (0, 1), nodes[1]: (2, 3)}
    assert result.counts()["pass"] == len(result.cases)
    assert "4 ranks on 2 nodes" in result.placement
    assert not _left(ADDRESSES[nodes[0]])


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("hang", 5, "never entered"),
        ("segv", 6, "ended without a word"),
        ("version", 3, "does not match"),
    ],
)
def test_a_fault_on_one_node_is_told_with_its_name(nodes: tuple[str, ...], kind: str, code: int, words: str) -> None:
    pair = nodes[:2]
    result = run_nodes(
        _plan(pair, kind=kind, node=pair[1]), pair, python=PYTHON, launcher=_launcher(), ranks_per_node=1
    )
    assert result.exit_code == code, result.blame
    assert words in result.summary
    assert f"is on node {pair[1]}" in result.summary
    assert not _left(ADDRESSES[pair[0]])


def test_a_node_without_that_interpreter_is_told(nodes: tuple[str, ...]) -> None:
    shell = RemoteShell(
        template=f"sh -c 'test {{host}} != {nodes[1]} && exec ip netns exec {{host}} \"$@\"' sh", address=ADDRESSES
    )
    result = run_nodes(_fast(_plan(nodes[:2])), nodes[:2], python=PYTHON, launcher=shell, ranks_per_node=1)
    assert not result.passed
    assert result.summary.startswith(f"node {nodes[1]}: rank 1 did not start (status 1)")


def _fast(plan: Plan) -> Plan:
    return plan.with_(timeouts=Timeouts(init=12.0, case=8.0, group=20.0, tier=60.0, first=10.0, imports=60.0))


def _narrowed(nodes: tuple[str, ...], **fault: object) -> Narrowed:
    def run(group: tuple[str, ...]) -> NodesOutcome:
        plan = _fast(_plan(group, **fault)) if not fault else _plan(group, **fault)
        result = run_nodes(plan, group, python=PYTHON, launcher=_launcher(), ranks_per_node=1)
        return NodesOutcome(group=group, passed=result.passed, summary=result.summary)

    return narrow(nodes, run)


def test_two_passes_name_the_node_with_an_injected_fault(nodes: tuple[str, ...]) -> None:
    found = _narrowed(nodes, kind="raise", node=nodes[2])
    assert found.bad == (nodes[2],), found
    assert set(found.good) == set(nodes) - {nodes[2]}
    assert len(found.first) + len(found.second) == 4


def test_two_passes_name_the_node_whose_cable_is_out(nodes: tuple[str, ...]) -> None:
    _ip("link", "set", "esm-v2", "nomaster")
    try:
        found = _narrowed(nodes)
    finally:
        _ip("link", "set", "esm-v2", "master", "esm-tbr")
    assert found.bad == (nodes[1],), found
    assert set(found.good) == set(nodes) - {nodes[1]}


def _smoke(*args: str) -> list[str]:
    return [sys.executable, "-m", "envsmith", "smoke", "--python", PYTHON, "--backend", "gloo", "--ranks", "1", *args]


def test_torchrun_brings_two_nodes_together_and_both_have_the_verdict_of_all(nodes: tuple[str, ...]) -> None:
    where = ["--nodes", "2", "--rdzv", f"{ADDRESSES[nodes[0]]}:29477", "--json"]
    started = [
        subprocess.Popen(["ip", "netns", "exec", name, *_smoke(*where)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in nodes[:2]
    ]
    answers = [process.communicate(timeout=400) for process in started]
    for process, (out, err) in zip(started, answers, strict=True):
        assert process.returncode == 0, err.decode()
        answer = json.loads(out)
        # Of two ranks every other one is not a group.
        assert answer["counts"] == {"pass": len(answer["cases"]) - 2, "skipped": 2}
        assert sorted(rank for ranks in answer["nodes"].values() for rank in ranks) == [0, 1]


def test_command_line_with_a_remote_shell(nodes: tuple[str, ...], tmp_path: Path) -> None:
    names = ",".join(f"{name}={ADDRESSES[name]}" for name in nodes[:2])
    done = subprocess.run(
        _smoke("--nodes", names, "--rsh", SHELL), capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert f"node {nodes[0]}: ranks 0" in done.stdout
    assert "2 ranks on 2 nodes started by --rsh" in done.stdout


def _slurm() -> bool:
    if "SLURM_CONF" not in os.environ or not shutil.which("srun"):
        return False
    done = subprocess.run(["sinfo", "-h", "-N"], capture_output=True, timeout=10, check=False, text=True)
    return len(done.stdout.splitlines()) >= 2


@pytest.mark.skipif(not _slurm(), reason="SLURM_CONF names no Slurm with two nodes")
def test_srun_starts_every_rank_without_a_file_on_the_nodes() -> None:
    done = subprocess.run(
        _smoke("--nodes", "2", "--json"),
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "MASTER_ADDR": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sorted(answer["nodes"].values()) == [[0], [1]]
    assert answer["placement"] == "2 ranks on 2 nodes started by srun"
