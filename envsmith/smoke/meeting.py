"""Where nodes that only share a rendezvous find out which of them is bad: the first one listens, the others report and are told whom to meet next.

With torchrun the same command runs on every node and nobody can start anything on another one. So after the run every node reports what it saw
to the node of the rendezvous, on the port after it; when somebody failed, that one leads the two passes of :mod:`envsmith.smoke.nodes`: it tells
the nodes of a group where to meet (on a free port that the group's first node has named), and hears from all of them how it went. Messages are
lines of JSON; they carry names, ports and sentences, never a command. As torch's own store the meeting trusts the network that it is held in.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.errors import DataError, SmokeError
from envsmith.smoke.nodes import Group, Narrowed, Outcome, narrow

_PROTOCOL = 1
_MAX_LINE = 4 << 20
_MAX_WORDS = 600
_NAME = re.compile(r"[\w][\w.-]{0,252}")
_HELLO = 5.0

Run = Callable[[str, int], "Report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a node says of a run: did it pass, in which words, ``judged`` when its ranks began at all; ``port`` is free there for the next group."""

    passed: bool
    summary: str
    port: int
    judged: bool = True

    def to_json(self) -> dict[str, object]:
        """One message."""
        row = {"passed": self.passed, "summary": self.summary[:_MAX_WORDS], "port": self.port, "judged": self.judged}
        return {"envsmith": _PROTOCOL, **row}


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """Seconds: ``late`` after the last arrival for those that have not come; ``group`` for the run of a group; ``wait`` for the meeting to speak."""

    late: float
    group: float
    wait: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """What came of it: ``narrowed`` where a node failed, ``came`` of ``expected`` nodes, ``failed`` is the first failure that was reported."""

    narrowed: Narrowed | None
    came: int
    expected: int
    failed: str = ""


def port_after(port: int) -> int:
    """The port of the meeting: the one after that of the rendezvous."""
    return port + 1 if port < 65535 else port - 1


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def opened(host: str, port: int) -> socket.socket | None:
    """Listen when ``host`` is this machine; ``None`` on the others, and where another node on this machine listens already."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            own = str(address[0])
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((own, 0))  # fails for an address of another machine
                # /etc/hosts of Debian gives a machine's own name 127.0.1.1, where the others cannot reach it.
                inward = ipaddress.ip_address(own.partition("%")[0]).is_loopback and own not in {"127.0.0.1", "::1"}
                return socket.create_server(("" if inward else own, port), family=family, backlog=512)
    return None


# -- lines of JSON -----------------------------------------------------------------------------------------------------


class _Line:
    """Messages over a connection, one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = connection
        self._rest = b""

    def send(self, row: Mapping[str, object]) -> None:
        """A side that has gone is found out when its answer is due."""
        with contextlib.suppress(OSError):
            self._connection.settimeout(30.0)
            self._connection.sendall(json.dumps(row).encode() + b"\n")

    def receive(self, seconds: float) -> Mapping[str, object] | None:
        """The next message; ``None`` when none came in time, the other side has gone, or it speaks another language."""
        until = time.monotonic() + seconds
        try:
            while b"\n" not in self._rest:
                self._connection.settimeout(max(0.01, until - time.monotonic()))
                data = self._connection.recv(1 << 16)
                if not data or len(self._rest) > _MAX_LINE or time.monotonic() > until:
                    return None
                self._rest += data
        except OSError:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return row if isinstance(row, dict) and row.get("envsmith") == _PROTOCOL else None

    def close(self) -> None:
        """Wakes whoever waits in :meth:`receive`."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _report_of(row: Mapping[str, object] | None) -> Report | None:
    if row is None:
        return None
    passed, summary, port, judged = (row.get(key) for key in ("passed", "summary", "port", "judged"))
    if not (isinstance(passed, bool) and isinstance(judged, bool) and isinstance(summary, str)):
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    return Report(passed=passed, summary=summary[:_MAX_WORDS], port=port, judged=judged)


# -- the node that leads -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seat:
    """A node at the meeting: how it is called, under which address the others reach it, what it said last. The leader has no line to itself."""

    name: str
    address: str
    report: Report
    line: _Line | None = None
    left: bool = False


def hold(
    server: socket.socket,
    own: Report,
    *,
    address: str,
    expected: int,
    run: Run,
    patience: Patience,
    say: Callable[[str], None] = lambda _: None,
) -> Meeting:
    """Hear the other nodes and, when one failed, lead the passes; ``address`` is the one under which the others reach this node."""
    seats = [_Seat(name=socket.gethostname(), address=address, report=own)]
    try:
        seats += _arrivals(server, expected - 1, patience.late)
        _name_apart(seats)
        failed = next((s.report.summary for s in seats if not s.report.passed), "")
        narrowed = None
        if failed and len(seats) > 1:
            say(f"{len(seats)} of {expected} nodes came to the meeting: {', '.join(s.name for s in seats)}")
            narrowed = _passes(seats, run, patience, say)
            narrowed = replace(narrowed, sentence=_with_missing(narrowed.sentence, seats, expected))
        met = Meeting(narrowed=narrowed, came=len(seats), expected=expected, failed=failed)
        end = {"narrowed": narrowed.to_json() if narrowed else None, "came": met.came, "failed": failed}
        for seat in seats:
            if seat.line:
                seat.line.send({"envsmith": _PROTOCOL, "end": end})
        return met
    finally:
        for seat in seats:
            if seat.line:
                seat.line.close()


def _arrivals(server: socket.socket, count: int, late: float) -> Iterator[_Seat]:
    """Nodes as they come, until all are here or nobody has come for ``late`` seconds. Who does not speak as a node is sent away."""
    until, found = time.monotonic() + late, 0
    while found < count and (left := until - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connection, peer = server.accept()
        except OSError:
            return
        line = _Line(connection)
        row = line.receive(_HELLO)
        report, name = _report_of(row), row.get("name") if row else None
        if report is None or not isinstance(name, str):
            line.close()
            continue
        found, until = found + 1, time.monotonic() + late
        known = name if _NAME.fullmatch(name) else str(peer[0])
        yield _Seat(name=known, address=str(peer[0]), report=report, line=line)


def _name_apart(seats: Sequence[_Seat]) -> None:
    """Machines of one image are often called the same: then the address tells them apart, and where that is the same too, a number."""
    names = Counter(seat.name for seat in seats)
    for seat in seats:
        seat.name = f"{seat.name} ({seat.address})" if names[seat.name] > 1 else seat.name
    twice = Counter(seat.name for seat in seats)
    for number, seat in enumerate(seats, 1):
        seat.name = f"{seat.name} #{number}" if twice[seat.name] > 1 else seat.name


def _passes(seats: Sequence[_Seat], run: Run, patience: Patience, say: Callable[[str], None]) -> Narrowed:
    by_name = {seat.name: seat for seat in seats}
    # The leader only listens while a group runs: all groups of a wave at the same time.
    return narrow(
        tuple(by_name),
        lambda group: _group([by_name[name] for name in group], group, run, patience.group),
        say=say,
        at_once=len(seats),
    )


def _group(seats: Sequence[_Seat], group: Group, run: Run, limit: float) -> Outcome:
    """Send the nodes of a group to meet at its first one, and hear from all."""
    endpoint = f"{seats[0].address}:{seats[0].report.port}"
    gone = next((s for s in seats if s.left), None)
    if gone:  # the others are not sent to wait for it
        return Outcome(group=group, passed=False, summary=f"node {gone.name} left the meeting")
    until = time.monotonic() + limit
    for seat in seats:
        if seat.line:
            seat.line.send({"envsmith": _PROTOCOL, "run": {"endpoint": endpoint, "nodes": len(seats)}})
    for seat in seats:
        if seat.line is None:
            seat.report = run(endpoint, len(seats))
    for seat in seats:
        if seat.line is None:
            continue
        report = _report_of(seat.line.receive(max(1.0, until - time.monotonic())))
        if report is None:
            seat.left = True
            seat.line.close()  # whatever it says later would be taken for the answer to another question
            words = f"node {seat.name} left the meeting during the run, or did not answer in {limit:.0f} s"
            report = replace(seat.report, passed=False, summary=words)
        seat.report = report
    failed = sorted((s.report for s in seats if not s.report.passed), key=lambda report: not report.judged)
    return Outcome(group=group, passed=not failed, summary=failed[0].summary if failed else "")


def _with_missing(sentence: str, seats: Sequence[_Seat], expected: int) -> str:
    missing = expected - len(seats)
    if missing <= 0:
        return sentence
    names = ", ".join(seat.name for seat in seats)
    return f"{len(seats)} of {expected} nodes came to the meeting ({names}): look at the {missing} that did not; of those that came: {sentence}"


# -- every other node --------------------------------------------------------------------------------------------------


def attend(
    host: str, port: int, own: Report, *, expected: int, run: Run, patience: Patience, say: Callable[[str], None]
) -> Meeting:
    """Report to the meeting and run what it asks for until it ends. Raises :class:`SmokeError` when there is none, or it breaks off."""
    line = _Line(_connected(host, port, own, patience))
    try:
        line.send({**own.to_json(), "name": socket.gethostname()})
        while row := line.receive(patience.wait):
            if isinstance(row.get("end"), dict):
                return _ended(row["end"], expected)  # type: ignore[arg-type]
            order = row.get("run")
            endpoint, nodes = (order.get("endpoint"), order.get("nodes")) if isinstance(order, dict) else (None, None)
            if not isinstance(endpoint, str) or isinstance(nodes, bool) or nodes not in {2, 3}:
                break
            say(f"narrowing: a run of {nodes} nodes at {endpoint}")
            line.send(run(endpoint, int(nodes)).to_json())
    finally:
        line.close()
    raise SmokeError(f"the meeting at {host}:{port} broke off", hint="what the first node printed says more")


def _connected(host: str, port: int, own: Report, patience: Patience) -> socket.socket:
    """A connection to the meeting. Who has passed was in one run with the first node: it listens already, or never will."""
    until = time.monotonic() + (min(10.0, patience.late) if own.passed else patience.late)
    while True:
        try:
            return socket.create_connection((host, port), timeout=5.0)
        except OSError as error:
            if time.monotonic() > until or (own.passed and isinstance(error, ConnectionRefusedError)):
                raise SmokeError(
                    f"no meeting at {host}:{port} ({error.strerror or error})",
                    hint="the node of the rendezvous leads it, on the port after that of --rdzv; --no-narrow leaves it out",
                ) from error
        time.sleep(0.5)


def _ended(end: Mapping[str, object], expected: int) -> Meeting:
    row, came, failed = end.get("narrowed"), end.get("came"), end.get("failed")
    try:
        narrowed = None if row is None else Narrowed.parse(row)
    except DataError as error:
        raise SmokeError(f"the meeting ended with something that is no answer: {error.message}") from error
    count = came if isinstance(came, int) and 0 < came <= expected else expected
    return Meeting(
        narrowed=narrowed, came=count, expected=expected, failed=failed[:_MAX_WORDS] if isinstance(failed, str) else ""
    )
