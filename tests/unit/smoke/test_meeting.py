"""The meeting of nodes that only share a rendezvous: real sockets on loopback, a thread a node, runs of groups by stand-ins."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from envsmith.errors import DataError, SmokeError, UsageError
from envsmith.smoke.meeting import Meeting, Patience, Report, attend, free_port, hold, opened, port_after
from envsmith.smoke.nodes import Narrowed
from envsmith.smoke.rendezvous import Rendezvous

HOST = "127.0.0.1"
PATIENCE = Patience(late=20.0, group=20.0, wait=40.0)


@dataclass
class Cluster:
    """Nodes by number; a group that holds a bad one fails on all of its nodes. Who meets is known by the endpoint."""

    bad: frozenset[int] = frozenset()
    leaves: int | None = None
    groups: dict[str, set[int]] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=threading.Condition)

    def runner(self, number: int) -> Callable[[str, int], Report]:
        def run(endpoint: str, nodes: int) -> Report:
            with self.lock:
                group = self.groups.setdefault(endpoint, set())
                group.add(number)
                self.lock.notify_all()
                if not self.lock.wait_for(lambda: len(group) == nodes, timeout=15):
                    return Report(passed=False, summary="nobody came", port=self.port(number), judged=False)
            if number == self.leaves:
                raise SystemExit
            failed = group & self.bad
            return Report(
                passed=not failed, summary=f"node {min(failed)} hangs" if failed else "", port=self.port(number)
            )

        return run

    @staticmethod
    def port(number: int) -> int:
        """Distinct ports, so that an endpoint names its group; nobody listens there in these tests."""
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])


def _meet(cluster: Cluster, count: int, *, come: int | None = None, failed: bool = True) -> list[Meeting | SmokeError]:
    """Every node's answer, the leader's first."""
    server = opened(HOST, 0)
    assert server is not None
    port = server.getsockname()[1]
    answers: dict[int, Meeting | SmokeError] = {}

    def node(number: int) -> None:
        own = Report(passed=not failed, summary="all hang" if failed else "", port=cluster.port(number))
        run = cluster.runner(number)
        try:
            if number == 0:
                patience = PATIENCE if come is None else Patience(late=1.0, group=20.0, wait=40.0)
                answers[0] = hold(server, own, address=HOST, expected=count, run=run, patience=patience)
            else:
                answers[number] = attend(
                    HOST, port, own, expected=count, run=run, patience=PATIENCE, say=lambda _: None
                )
        except SmokeError as error:
            answers[number] = error
        except SystemExit:
            return  # the node that leaves

    threads = [threading.Thread(target=node, args=(n,), daemon=True) for n in range(count if come is None else come)]
    with server:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return [answers[n] for n in sorted(answers)]


def _bad(met: Meeting | SmokeError) -> Narrowed:
    assert isinstance(met, Meeting), met
    assert met.narrowed is not None
    return met.narrowed


@pytest.mark.parametrize("bad", range(5))
def test_one_bad_node_is_named_by_all_in_two_passes_the_leader_too(bad: int) -> None:
    met = _meet(Cluster(bad=frozenset({bad})), 5)
    assert len(met) == 5
    assert {_bad(m).sentence for m in met} == {_bad(met[0]).sentence}
    # All nodes have one name and one address here: numbers in the order of arrival tell them apart, the leader is the first.
    assert len(_bad(met[0]).bad) == 1, met[0]
    assert (_bad(met[0]).bad[0].endswith("#1")) == (bad == 0)
    assert f"node {bad} hangs" in _bad(met[0]).sentence
    assert len(_bad(met[0]).first) == 2
    assert len(_bad(met[0]).good) == 4


def test_who_did_not_come_is_counted() -> None:
    met = _meet(Cluster(), 4, come=3)
    assert "3 of 4 nodes came to the meeting" in _bad(met[0]).sentence
    assert "look at the 1 that did not" in _bad(met[1]).sentence
    assert [m.came for m in met if isinstance(m, Meeting)] == [3, 3, 3]


def test_all_passed_ends_at_once_without_a_pass() -> None:
    cluster = Cluster()
    met = _meet(cluster, 4, failed=False)
    assert [m for m in met if isinstance(m, Meeting)] == [Meeting(narrowed=None, came=4, expected=4)] * 4
    assert not cluster.groups


def test_a_node_that_leaves_during_a_pass_is_bad() -> None:
    met = _meet(Cluster(leaves=2), 4)
    found = _bad(met[0])
    assert len(found.bad) == 1, found
    assert "left the meeting" in found.sentence
    assert len(found.good) == 3
    assert len(met) == 3


GOOD = {"envsmith": 1, "name": "x", "passed": True, "summary": "", "port": 5, "judged": True}
WRONG = ({"envsmith": 2}, {"port": 0}, {"port": True}, {"port": 70000}, {"passed": 1}, {"judged": None}, {"name": 3})
NONSENSE = (b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff\n", b"[" * 50_000 + b"\n", b"[]\n", b"null\n")


def test_who_speaks_another_language_is_sent_away_and_has_no_seat() -> None:
    lines = [*NONSENSE, *(json.dumps({**GOOD, **wrong}).encode() + b"\n" for wrong in WRONG)]
    server = opened(HOST, 0)
    assert server is not None
    own = Report(passed=False, summary="hangs", port=1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(server)
        strangers = [stack.enter_context(socket.create_connection(server.getsockname())) for _ in lines]
        for stranger, line in zip(strangers, lines, strict=True):
            stranger.sendall(line)
        met = hold(server, own, address=HOST, expected=2, run=_never, patience=Patience(late=2.0, group=1.0, wait=1.0))
        for stranger in strangers:
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    assert met == Meeting(narrowed=None, came=1, expected=2, failed="hangs")


def _never(endpoint: str, nodes: int) -> Report:
    raise AssertionError((endpoint, nodes))


@pytest.mark.parametrize(
    "row",
    [
        {"run": {"endpoint": "h:1", "nodes": 400}},
        {"run": {"endpoint": 3, "nodes": 2}},
        {"run": None},
        {"end": {"narrowed": {"sentence": 3}}},
        {"end": {"narrowed": {"sentence": "x", "bad": "abc"}}},
    ],
)
def test_a_leader_that_asks_for_nonsense_is_left(row: dict[str, object]) -> None:
    with socket.create_server((HOST, 0)) as server:

        def lead() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(json.dumps({"envsmith": 1, **row}).encode() + b"\n")

        thread = threading.Thread(target=lead, daemon=True)
        thread.start()
        own = Report(passed=False, summary="", port=1)
        with pytest.raises(SmokeError, match=r"broke off|no answer"):
            attend(HOST, server.getsockname()[1], own, expected=3, run=_never, patience=PATIENCE, say=lambda _: None)
        thread.join(5)


def test_who_passed_does_not_wait_for_a_meeting_that_is_refused() -> None:
    own = Report(passed=True, summary="", port=1)
    with pytest.raises(SmokeError, match="no meeting at"):
        attend(HOST, free_port(), own, expected=3, run=_never, patience=PATIENCE, say=lambda _: None)


def test_only_the_node_of_the_rendezvous_listens() -> None:
    assert opened("192.0.2.1", 0) is None  # TEST-NET-1: nobody's address
    assert opened("no-such-host.invalid", 0) is None
    with opened(HOST, 0) or pytest.fail("does not listen") as server:
        assert opened(HOST, server.getsockname()[1]) is None
    assert port_after(29400) == 29401
    assert port_after(65535) == 65534


@pytest.mark.parametrize(
    "endpoint", ["", "n1", "n1:", ":1", "n1:0", "n1:65536", "n1:x", "-n:1", "a b:1", "n1:9" + "9" * 5000, "n1:²"]
)
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Rendezvous(endpoint=endpoint, nodes=3, ranks_per_node=1).parts()


def test_the_answer_survives_the_way() -> None:
    met = _meet(Cluster(bad=frozenset({1})), 4)
    row = json.loads(json.dumps(_bad(met[0]).to_json()))
    assert Narrowed.parse(row) == _bad(met[0])
    with pytest.raises(DataError):
        Narrowed.parse([])
