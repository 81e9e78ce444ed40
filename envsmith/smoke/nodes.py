"""The smoke test on many nodes: ranks that a remote shell or ``srun`` starts, or torchrun on every node.

With a remote shell and with ``srun`` this process talks to every rank: source and plan go in through standard input,
events come back through standard output, nothing is copied to the nodes. With torchrun (:func:`run_rendezvous`) the
same command runs on every node.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from envsmith.agent.protocol import Exit
from envsmith.base.files import read_text, scratch
from envsmith.base.json_types import Json
from envsmith.base.programs import Conversation, Kept, Lines, close, converse, execute
from envsmith.base.schema import AsJson, parse_json, written
from envsmith.errors import SmokeError, UsageError, os_errors
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import Fault
from envsmith.smoke.bundle import bundle
from envsmith.smoke.events import MAX_LINE, Events
from envsmith.smoke.fault import Attribution
from envsmith.smoke.parse_events import events_of, parse_events
from envsmith.smoke.plan import Plan, Timeouts
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import BOOTSTRAP, agent_input, torchrun_argv
from envsmith.smoke.verdict import judge_events

# What a host name, an address or a namespace may look like; anything else would be read by a shell or as an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")
_FORWARDED = re.compile(r"(NCCL|GLOO|TORCH|CUDA|UCX|FI|RCCL)_\w+")
_SHELLS = frozenset({"ssh", "rsh", "pdsh"})
_GRACE = 20.0
_MOMENT = 3.0
_MOST_NODES = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A process to start here: ``ranks`` are the ones that it carries, ``node`` what a person calls the place."""

    argv: tuple[str, ...]
    ranks: tuple[int, ...]
    node: str


class NodeLauncher(Protocol):
    """Starts ranks on nodes."""

    @property
    def name(self) -> str:
        """Return what the placement sentence says."""

    def commands(self, hosts: Sequence[str], ranks_per_node: int, python: str, port: int) -> list[Command]:
        """Return the processes whose three standard streams are ours."""

    def one(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` once on ``host``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteShell:
    """A template with ``{host}``: ``ssh -o BatchMode=yes {host}``, ``kubectl exec -i {host} --``.

    Programs that hand their arguments to a shell on the other side (ssh, rsh, pdsh) get one quoted string. ``address``
    maps a node to the name or address under which the others reach it, where that is not its name.
    """

    template: str = "ssh -o BatchMode=yes -o ConnectTimeout=15 {host}"
    address: Mapping[str, str] = field(default_factory=dict)
    name: str = "a remote shell"

    def commands(self, hosts: Sequence[str], ranks_per_node: int, python: str, port: int) -> list[Command]:
        """Return one process per rank."""
        world, master = len(hosts) * ranks_per_node, self.address.get(hosts[0], hosts[0])
        commands = []
        for rank in range(world):
            host = hosts[rank // ranks_per_node]
            flags = ["--rank", str(rank), "--world-size", str(world), "--local-rank", str(rank % ranks_per_node)]
            flags += ["--master-addr", master, "--master-port", str(port)]
            inner = [python, "-I", "-B", "-c", BOOTSTRAP, "rank", *flags]
            commands.append(Command(argv=tuple(self.one(host, inner)), ranks=(rank,), node=host))
        return commands

    def one(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the template with the host, and the command after it.

        Raises :class:`UsageError` for a template that cannot be split into words, or names no ``{host}``.
        """
        try:
            prefix = shlex.split(self.template)
        except ValueError as error:
            raise UsageError(f"Cannot use --rsh {self.template!r}: {error}.") from error
        if not prefix or not any("{host}" in part for part in prefix):
            raise UsageError(
                f"Cannot use --rsh {self.template!r}: it does not say where the name of the node goes.",
                hint="Write {host} where the name goes.",
            )
        outer = [part.replace("{host}", host) for part in prefix]
        return [*outer, shlex.join(argv)] if Path(prefix[0]).name in _SHELLS else [*outer, *argv]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm:
    """One ``srun`` for all ranks; inside an allocation it takes the nodes of that.

    Nodes are named or only counted (``hosts`` of empty names).
    """

    gpus_per_node: int = 0
    name: str = "srun"

    def commands(self, hosts: Sequence[str], ranks_per_node: int, python: str, port: int) -> list[Command]:
        """Return one process. Slurm repeats its input to every task."""
        argv = ["srun", "--kill-on-bad-exit=0", "--nodes", str(len(hosts)), "--ntasks-per-node", str(ranks_per_node)]
        argv += ["--nodelist", ",".join(hosts)] if all(hosts) else []
        argv += ["--overlap"] if "SLURM_JOB_ID" in os.environ else []
        argv += ["--gpus-per-node", str(self.gpus_per_node)] if self.gpus_per_node else []
        argv += [python, "-I", "-B", "-c", BOOTSTRAP, "rank", "--master-port", str(port)]
        ranks = tuple(range(len(hosts) * ranks_per_node))
        return [Command(argv=tuple(argv), ranks=ranks, node=", ".join(filter(None, hosts)) or "Slurm's nodes")]

    def one(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return one task."""
        overlap = ["--overlap"] if "SLURM_JOB_ID" in os.environ else []
        return ["srun", "--nodes", "1", "--ntasks", "1", *(["--nodelist", host] if host else []), *overlap, *argv]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnNode:
    """A :class:`~envsmith.smoke.run.SmokeTarget` for one command on one node, to ask for its versions."""

    launcher: NodeLauncher
    host: str
    python: str

    def argv(self, args: Sequence[str]) -> list[str]:
        """Return the interpreter over there."""
        return self.launcher.one(self.host, [self.python, *args])

    def env(self) -> Mapping[str, str]:
        """Return nothing: a remote shell carries no variables."""
        return {}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process here. The one over there ends with its input."""
        process.kill()


def is_host_name(text: str) -> bool:
    """Return whether ``text`` may stand for a host: no shell or option parser would read it as anything else."""
    return bool(_HOST.fullmatch(text))


def parse_nodes(text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return names and addresses from ``a,b,c``, or empty names from a number.

    ``a=10.0.0.1`` gives the address under which the others reach ``a``. Raises :class:`UsageError`.
    """
    if text.isdecimal() and len(text) < 10:
        if not 2 <= int(text) <= _MOST_NODES:
            raise UsageError(f"Cannot use --nodes {text}: 2 to {_MOST_NODES} nodes are possible.")
        return ("",) * int(text), {}
    hosts, addresses = [], {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, equals, address = part.partition("=")
        if not is_host_name(host) or (equals and not is_host_name(address)):
            raise UsageError(f"Cannot use --nodes {part[:60]!r}: it is not the name of a host.")
        hosts.append(host)
        if equals:
            addresses[host] = address
    if not 2 <= len(hosts) <= _MOST_NODES or len(set(hosts)) < len(hosts):
        raise UsageError(
            f"Cannot use --nodes {text[:60]}: 2 to {_MOST_NODES} nodes are possible, each once.",
            hint="Write --nodes a,b,c or a number.",
        )
    return tuple(hosts), addresses


def plan_for_nodes(plan: Plan, *, nodes: int, ranks_per_node: int) -> Plan:
    """Return the plan without framework steps, with deadlines for a network and for interpreters that start in turn.

    Raises :class:`UsageError` unless ``nodes`` times ``ranks_per_node`` are the plan's ranks.
    """
    if plan.ranks != nodes * ranks_per_node:
        raise UsageError(
            f"Cannot plan the test: {nodes} nodes with {ranks_per_node} ranks each are not {plan.ranks} ranks."
        )
    case = max(10.0, plan.timeouts.case)
    times = Timeouts(init=max(90.0, plan.timeouts.init), case=case, group=max(120.0, plan.timeouts.group), tier=900.0)
    return plan.with_(nodes=nodes, steps=(), timeouts=times)


def extended_plan(plan: Plan, hosts: Sequence[str], ranks_per_node: int, launcher: str, **options: Json) -> bytes:
    """Return the plan's JSON with what only many nodes need. A fault may name a node instead of a rank."""
    row = plan.to_json()
    row.update(launcher=launcher, env={k: v for k, v in os.environ.items() if _FORWARDED.fullmatch(k)}, **options)
    if all(hosts):
        row["node_of_rank"] = [host for host in hosts for _ in range(ranks_per_node)]
    fault = dict(plan.fault or {})
    if "node" in fault:
        node = str(fault.pop("node"))
        row["fault"] = {**fault, "rank": list(hosts).index(node) * ranks_per_node} if node in hosts else None
    return json.dumps(row).encode()


# -- this process talks to every rank ----------------------------------------------------------------------------------


class _Running:
    """A started command, what it has said, and how it ended."""

    def __init__(self, command: Command, text: bytes, events: list[object]) -> None:
        self.command, self.events = command, events
        self.words, self.spoke = Kept(64 << 10), False
        self.ended: float | None = None
        hint = "Check the command that --rsh names. Under Slurm put srun on PATH."
        with os_errors(f"start {command.argv[0]}", SmokeError, hint=hint):
            self.talk = Conversation(
                command.argv, out=Lines(self._receive, MAX_LINE).add, err=self.words.add, feed=text, stays=True
            )

    def _receive(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            event = parse_json(line)
            if isinstance(event, dict):
                self.spoke = True
                self.events.append(event)

    @property
    def status(self) -> int | None:
        """Return how it ended, ``None`` while it runs."""
        return self.talk.process.returncode


def run_nodes(
    plan: Plan, hosts: Sequence[str], *, python: str, launcher: NodeLauncher, ranks_per_node: int
) -> SmokeResult:
    """Run the plan on ``hosts`` and judge it. Raises :class:`SmokeError` when the launcher itself cannot be started."""
    started = time.monotonic()
    text = agent_input(extended_plan(plan, hosts, ranks_per_node, launcher.name))
    commands = launcher.commands(hosts, ranks_per_node, python, 20000 + secrets.randbelow(10000))
    running: list[_Running] = []
    events: list[object] = []
    try:
        for command in commands:
            running += [
                _Running(command, text, events)
            ]  # one by one: what was started is ended when the next cannot be
        patience = plan.timeouts.init + plan.timeouts.case + _GRACE
        _converse(running, limit=plan.outer_deadline, patience=patience)
    finally:
        close(*(each.talk for each in running), grace=3.0, patience=3.0)  # the ranks end with their input
    log = parse_events(events)
    result = judge_events(plan, log)
    result = _with_launch_failures(result, running, log) or with_nodes(result, log)
    return replace(result, seconds={**result.seconds, "wall": round(time.monotonic() - started, 3)})


def _converse(running: Sequence[_Running], *, limit: float, patience: float) -> None:
    """Feed and listen until everybody has ended.

    After the first failure the others get what their own deadlines need (``patience``). When a rank never spoke, no rank
    can meet it: a moment.
    """
    until = time.monotonic() + limit

    def is_over() -> bool:
        now = time.monotonic()
        for each in running:
            if each.ended is None and each.talk.process.poll() is not None:
                each.ended = now
        return now > until or any(
            now > each.ended + (patience if each.spoke else _MOMENT)
            for each in running
            if each.ended is not None and each.status
        )

    converse(*(each.talk for each in running), is_over=is_over)


def _with_launch_failures(result: SmokeResult, running: Sequence[_Running], log: Events) -> SmokeResult | None:
    """Blame a rank that never said a word, if there is one: that is the cause of all that the others say."""
    heard = {row.rank for row in log.rows.nodes}
    sentences = []
    # Those that ended by themselves; the rest was ended by us because of them.
    by_itself = [each for each in running if each.ended is not None and each.status]
    for each in by_itself or running:
        silent = [rank for rank in each.command.ranks if rank not in heard]
        if not silent:
            continue
        lines = [line.strip() for line in each.words.text.splitlines() if line.strip()]
        ending = f"status {each.status}" if each.status is not None else "it had to be ended"
        last = f": {lines[-1][:300]}" if lines else ""
        sentences.append(f"node {each.command.node}: {ranks_text(silent, 'r')} did not start ({ending}){last}")
    if not sentences:
        return None
    suffix = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    blame = (*sentences, *result.blame)
    cause = Attribution(fault=Fault.HOST, sentence="a node could not be reached, or started nothing")
    summary = sentences[0] + suffix
    return replace(
        result, passed=False, exit_code=int(Exit.ERROR), summary=summary, blame=blame, blamed=(), cause=cause,
        nodes=_nodes_of(log),
    )  # fmt: skip


def with_nodes(result: SmokeResult, log: Events) -> SmokeResult:
    """Add which rank was where, and the node's name beside the rank that is blamed."""
    nodes = _nodes_of(log)
    result = replace(result, nodes=nodes)
    where = [node for node, ranks in nodes.items() if set(ranks) & set(result.blamed)]
    if result.passed or not where:
        return result
    verb = "is" if len(result.blamed) == 1 else "are"
    text = f"{result.summary} [{ranks_text(result.blamed, 'r')} {verb} on node {', '.join(where)}]"
    return replace(result, summary=text, blame=(text, *result.blame[1:]))


def _nodes_of(log: Events) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, set[int]] = {}
    for row in log.rows.nodes:
        nodes.setdefault(row.node, set()).add(row.rank)
    return {node: tuple(sorted(ranks)) for node, ranks in sorted(nodes.items())}


# Which node is it? Two passes: nodes in pairs, then every node of a failing pair with one that is known to be good.
#
# The idea is that of Google's cluster-health-scanner: as many runs as nodes, in two rounds, where all pairs would be a
# quadratic number. Planning and conclusion are pure; a run of a group is somebody else's function.


Group = tuple[str, ...]
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesOutcome:
    """What became of a run on a group of nodes; ``summary`` is its sentence."""

    group: Group = field(metadata=written("nodes"))
    passed: bool
    summary: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowed(AsJson):
    """``bad`` fail with a node that works with others. ``links`` work with others, but not together."""

    bad: tuple[str, ...]
    good: tuple[str, ...]
    links: tuple[Group, ...]
    sentence: str
    first: tuple[NodesOutcome, ...] = ()
    second: tuple[NodesOutcome, ...] = ()


def first_pass(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Return disjoint pairs, in order. The last of an odd number makes a group of three."""
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - len(nodes) % 2, 2)]
    if len(nodes) % 2 and groups:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def second_pass(first: Sequence[NodesOutcome]) -> tuple[tuple[Group, ...], ...]:
    """Return waves of disjoint pairs (suspect, good): more than one only where suspects outnumber the good.

    Where no group passed there is no good node: suspects are paired with those of the next group instead, so that one
    bad node shows itself by failing twice.
    """
    good = [node for o in first if o.passed for node in o.group]
    suspects = [node for o in first if not o.passed for node in o.group]
    if not suspects:
        return ()
    if good:
        pairs = [(suspect, good[i % len(good)]) for i, suspect in enumerate(suspects)]
        return tuple(tuple(pairs[i : i + len(good)]) for i in range(0, len(pairs), len(good)))
    if len(first) < 2:
        group = first[0].group
        return tuple(((a, b),) for i, a in enumerate(group) for b in group[i + 1 :]) if len(group) > 2 else ()
    turned = [o.group for o in first]
    pairs = []
    for one, partner in zip(turned, [*turned[1:], turned[0]], strict=True):
        pairs.append((one[0], partner[-1]))
    return (tuple(pairs),) if len(first) > 2 else tuple((pair,) for pair in pairs)


def conclude(first: Sequence[NodesOutcome], second: Sequence[NodesOutcome]) -> Narrowed:
    """Name the bad nodes, or say what the passes do show."""
    good = {node for o in (*first, *second) if o.passed for node in o.group}
    everyone = [node for o in first for node in o.group]
    suspects = [node for node in everyone if node not in good]
    # A failure beside nodes that all passed elsewhere convicts; a failure among suspects proves nothing of either.
    failed = [set(o.group) for o in (*first, *second) if not o.passed]
    bad = [n for n in suspects if any(n in group and group - {n} <= good for group in failed)]
    links = [o.group for o in (*first, *second) if not o.passed and set(o.group) <= good]
    if bad:
        clause = "every other node works" if len(bad) + len(good) == len(everyone) else "the others are not cleared"
        reason = next(o.summary for o in (*second, *first) if not o.passed and bad[0] in o.group)
        sentence = f"node {', '.join(bad)} is bad: it fails with nodes that work with others ({clause}): {reason}"
    elif links:
        names = "; ".join(" and ".join(group) for group in links)
        sentence = f"{names} fail only together: look at the path between them, each works with another node"
    elif not suspects:
        sentence = "every pair passes: the failure needs more than two nodes, or it has gone"
    else:
        sentence = "every group fails, so the cause is not a single node: check the environment, the interface and the network of all nodes"
    return Narrowed(
        bad=tuple(bad),
        good=tuple(n for n in everyone if n in good),
        links=tuple(links),
        sentence=sentence,
        first=tuple(first),
        second=tuple(second),
    )


def narrow(
    nodes: Sequence[str], run: Callable[[Group], NodesOutcome], *, say: Callable[[str], None] | None = None
) -> Narrowed:
    """Run both passes. The groups of a wave are disjoint and run at the same time, at most 16 of them."""
    talk = say or (lambda _: None)
    first = _wave(first_pass(nodes), run, talk, "pass 1")
    second = [o for wave in second_pass(first) for o in _wave(wave, run, talk, "pass 2")]
    return conclude(first, second)


def _wave(
    groups: Sequence[Group], run: Callable[[Group], NodesOutcome], talk: Callable[[str], None], name: str
) -> list[NodesOutcome]:
    if not groups:
        return []
    pool = ThreadPoolExecutor(max_workers=max(1, min(len(groups), _AT_ONCE)))
    try:
        outcomes = list(pool.map(run, groups))
    finally:
        # Not waited for: after Ctrl-C it is for the caller to close what the threads listen to.
        pool.shutdown(wait=False, cancel_futures=True)
    for outcome in outcomes:
        talk(f"{name}: {' and '.join(outcome.group)}: {'passed' if outcome.passed else outcome.summary}")
    return outcomes


# The same command on every node: torchrun brings the ranks together, and every node comes to the same verdict. The
# ranks exchange their events through the store of torch.


# torchrun's own default: how long the first command waits for the last one.
_JOIN = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """``HOST:PORT``, the same on every node, and how many nodes of how many ranks meet there in ``join`` seconds."""

    endpoint: str
    nodes: int
    ranks_per_node: int
    join: float = _JOIN

    def parts(self) -> tuple[str, int]:
        """Return host and port. Raises :class:`UsageError`."""
        host, _, port = self.endpoint.rpartition(":")
        if not is_host_name(host) or not (port.isdecimal() and port.isascii()) or not 0 < int(port[:6]) < 65536:
            raise UsageError(
                f"Cannot use --rdzv {self.endpoint[:80]!r}: it is not HOST:PORT.",
                hint="Write HOST:PORT, the same on every node.",
            )
        return host, int(port)


def run_rendezvous(plan: Plan, where: Rendezvous, *, python: str) -> SmokeResult:
    """Run the part of this node where the same command starts on every node. The verdict is that of all.

    Raises :class:`SmokeError`.
    """
    host, port = where.parts()
    started = time.monotonic()
    with scratch() as here:
        (here / "agent.py").write_bytes(bundle())
        row = extended_plan(plan, ("",) * where.nodes, where.ranks_per_node, "torchrun", gather=True)
        (here / "plan.json").write_bytes(row)
        argv = torchrun_argv(
            python=python,
            agent=str(here / "agent.py"),
            plan=str(here / "plan.json"),
            events=str(here / "events.%r"),
            ranks=where.ranks_per_node,
            nodes=where.nodes,
            rendezvous=where.endpoint,
        )
        mine = _address_towards(host, port)
        conf = [f"join_timeout={max(1, int(where.join))}", *_owner(host, mine)]
        argv[3:3] = [*(["--local-addr", mine] if mine else []), "--rdzv-conf", ",".join(conf)]
        words, status = _torchrun(argv, plan.outer_deadline + where.join)
        texts = [read_text(path, 256 << 20, errors="replace") for path in sorted(here.glob("events.*"))]
        # What came from a rank's own file and through the store is taken once.
        events = events_of(line for text in texts for line in text.splitlines())
    if not events:
        lines = [line for line in words.splitlines() if line.strip()]
        raise SmokeError(
            f"Cannot start a rank on this node: torchrun ended with status {status}.",
            hint=f"Check that {where.endpoint} can be reached from here, and that the command runs on all "
            f"{where.nodes} nodes.",
            details=lines[-5:],
        )
    log = parse_events(events)
    result = with_nodes(judge_events(plan, log, agent_exit=status), log)
    return replace(result, seconds={**result.seconds, "wall": round(time.monotonic() - started, 3)})


def _owner(host: str, mine: str | None) -> list[str]:
    """Return torchrun's setting with which the node that has the endpoint's address opens its store.

    Without it torchrun goes by the machine's name, which may mean loopback.
    """
    with contextlib.suppress(OSError, ValueError):
        if mine and not ipaddress.ip_address(mine.partition("%")[0]).is_loopback:
            return ["is_host=1"] if mine in {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)} else []
    return []


def _torchrun(argv: Sequence[str], limit: float) -> tuple[str, int | None]:
    with os_errors(f"start {argv[0]}", SmokeError):
        try:
            answer = execute(argv, seconds=limit, merged=True, patience=20.0)  # torchrun ends its ranks
        except subprocess.TimeoutExpired:
            return "torchrun had to be ended at the outer deadline", None
    return answer.stdout, answer.returncode


def _address_towards(host: str, port: int) -> str | None:
    """Return the address of this node on the way to the rendezvous. Its own name may resolve to loopback."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None
