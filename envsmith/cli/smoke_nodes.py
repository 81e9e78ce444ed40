"""``envsmith smoke --nodes``: which way the nodes are reached, the run, and the narrowing after a failure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import Console, clean, say
from envsmith.errors import EnvsmithError, UsageError

if TYPE_CHECKING:
    from envsmith.smoke import SmokeResult
    from envsmith.smoke.narrow import Narrowed, Outcome
    from envsmith.smoke.nodes import Launcher
    from envsmith.smoke.plan import Plan
    from envsmith.smoke.rendezvous import Rendezvous

__all__ = ["many"]

_FEWEST_TO_NARROW = 3


def many(
    nodes: str,
    *,
    python: Path | None,
    ranks: int,
    gpus: int,
    wanted: Mapping[str, str | None],
    ways: Mapping[str, str | None],
    narrow: bool,
    console: Console,
) -> SmokeResult | None:
    """The result, or ``None`` when a manifest was printed instead."""
    from envsmith.smoke.nodes import parse_nodes
    from envsmith.smoke.rendezvous import Rendezvous

    hosts, addresses = parse_nodes(nodes)
    if ways["emit"]:
        _emit(hosts, python=python, ranks=ranks, gpus=gpus, wanted=wanted, ways=ways)
        return None
    if ways["image"]:
        raise UsageError(
            "--image is for --emit; an image's environment is tested with `docker run … envsmith`, or through --rsh"
        )
    interpreter = str(python) if python else sys.executable if not ways["rsh"] else "python3"
    if ways["rdzv"]:
        if any(hosts):
            raise UsageError("--rdzv goes with a number of nodes: each of them runs this command")
        where = Rendezvous(endpoint=ways["rdzv"], nodes=len(hosts), ranks_per_node=ranks)
        return _met(where, _here(interpreter), wanted=wanted, narrow=narrow, console=console)
    launcher = _launcher(hosts, addresses, ways["rsh"], gpus)
    return _central(hosts, launcher, interpreter, ranks=ranks, wanted=wanted, narrow=narrow, console=console)


def _central(
    hosts: Sequence[str],
    launcher: Launcher,
    python: str,
    *,
    ranks: int,
    wanted: Mapping[str, str | None],
    narrow: bool,
    console: Console,
) -> SmokeResult:
    """One command for all nodes, and two passes in pairs when it fails."""
    from envsmith.smoke import probe
    from envsmith.smoke.nodes import OnNode, run_nodes

    python = _on_nodes(python)
    versions = _versions_of_any(lambda host: probe(OnNode(launcher=launcher, host=host, python=python)), hosts)
    plan = _plan(hosts, ranks, wanted, versions)
    result = _shown(
        console, plan, lambda: run_nodes(plan, hosts, python=python, launcher=launcher, ranks_per_node=ranks)
    )
    names = tuple(hosts) if all(hosts) else tuple(result.nodes)
    if result.passed or not narrow or len(names) < _FEWEST_TO_NARROW:
        return result
    found = _narrow(names, launcher, python, ranks=ranks, wanted=wanted, versions=versions, console=console)
    return replace(result, narrowed=found.to_json(), blame=(*result.blame, found.sentence))


def _met(
    where: Rendezvous, python: str, *, wanted: Mapping[str, str | None], narrow: bool, console: Console
) -> SmokeResult:
    """The same command on every node: torchrun brings the ranks together, and a meeting the nodes when it failed."""
    from envsmith.smoke.rendezvous import run_rendezvous, run_until_narrowed

    where.parts()  # a wrong endpoint is told before anything is started
    versions = _probe_here(python)

    def plan_of(nodes: int) -> Plan:
        few = {**wanted, "machine": None} if nodes < where.nodes else wanted
        return _plan(("",) * nodes, where.ranks_per_node, few, versions)

    def talk(text: str) -> None:
        if not console.quiet:
            say(f"  {clean(text)}")

    plan = plan_of(where.nodes)
    if not narrow or where.nodes < _FEWEST_TO_NARROW:
        return _shown(console, plan, lambda: run_rendezvous(plan, where, python=python))
    return _shown(console, plan, lambda: run_until_narrowed(plan, where, python=python, plan_of=plan_of, say=talk))


def _versions_of_any(ask: Callable[[str], Mapping[str, str]], hosts: Sequence[str]) -> Mapping[str, str]:
    """Expectations depend on versions; the first node that answers tells them (all are compared before the first case)."""
    last: EnvsmithError | None = None
    for host in hosts:
        try:
            found = ask(host)
        except EnvsmithError as error:
            last = error
            continue
        if "torch" not in found:
            raise UsageError(
                f"{host or 'the node'}: no torch there", hint="--python is the interpreter's path on the nodes"
            )
        return found
    raise last or UsageError("no node answers")


def _narrow(
    names: Sequence[str],
    launcher: Launcher,
    python: str,
    *,
    ranks: int,
    wanted: Mapping[str, str | None],
    versions: Mapping[str, str],
    console: Console,
) -> Narrowed:
    from envsmith.engine.base import Event, EventKind
    from envsmith.smoke.narrow import Outcome, narrow
    from envsmith.smoke.nodes import run_nodes

    def group(nodes: tuple[str, ...]) -> Outcome:
        plan = _plan(nodes, ranks, {**wanted, "machine": None}, versions)
        try:
            result = run_nodes(plan, nodes, python=python, launcher=launcher, ranks_per_node=ranks)
        except EnvsmithError as error:
            return Outcome(group=nodes, passed=False, summary=error.message)
        return Outcome(group=nodes, passed=result.passed, summary=result.summary)

    console(Event(kind=EventKind.START, step="narrowing", text=f"{len(names)} nodes, two passes"))
    found = narrow(names, group, say=lambda text: None if console.quiet else say(f"  {clean(text)}"))
    console(Event(kind=EventKind.DONE, step="narrowing"))
    return found


def _plan(hosts: Sequence[str], ranks: int, wanted: Mapping[str, str | None], versions: Mapping[str, str]) -> Plan:
    from envsmith.smoke import Plan
    from envsmith.smoke.nodes import plan_for_nodes

    tier = wanted["tier"] or "quick"
    if tier in {"import", "framework"}:
        raise UsageError(f"--nodes is for collectives: --tier quick, full or bandwidth, not {tier}")
    plan = Plan.build(
        versions,
        tier=tier,
        ranks=len(hosts) * ranks,
        backend=wanted["backend"] or "auto",
        engine=wanted["engine"],
        machine=wanted["machine"],
        steps=False,
        nodes=len(hosts),
    )
    return plan_for_nodes(plan, nodes=len(hosts), ranks_per_node=ranks)


def _launcher(hosts: Sequence[str], addresses: Mapping[str, str], rsh: str | None, gpus: int) -> Launcher:
    from envsmith.smoke.nodes import RemoteShell, Slurm

    if rsh is None and (not any(hosts) or "SLURM_JOB_ID" in os.environ):
        if not shutil.which("srun"):
            raise UsageError(
                "a number of nodes needs Slurm's srun, which is not on PATH",
                hint="name the nodes (--nodes a,b,c), or run this on each of them with --rdzv HOST:PORT",
            )
        return Slurm(gpus_per_node=gpus)
    if not any(hosts):
        raise UsageError("--rsh goes with the names of the nodes")
    return RemoteShell(address=addresses) if rsh is None else RemoteShell(template=rsh, address=addresses, name="--rsh")


def _here(python: str) -> str:
    """An interpreter on this machine; a folder stands for the environment in it."""
    inside = Path(python) / "bin" / "python"
    return str(inside if inside.is_file() else Path(python).absolute())


def _on_nodes(python: str) -> str:
    """The same path on every node; a folder that is here too stands for the environment in it."""
    return _here(python) if Path(python).is_dir() else python


def _probe_here(python: str) -> Mapping[str, str]:
    from envsmith.smoke import LocalTarget, probe

    return _versions_of_any(lambda _: probe(LocalTarget(python=Path(_here(python)))), ("",))


def _shown(console: Console, plan: Plan, run: Callable[[], SmokeResult]) -> SmokeResult:
    from envsmith.engine.base import Event, EventKind

    text = f"{len(plan.cases)} cases, {plan.ranks} ranks on {plan.nodes} nodes"
    console(Event(kind=EventKind.START, step="smoke test", text=text))
    result = run()
    kind = EventKind.DONE if result.passed else EventKind.FAILED
    console(Event(kind=kind, step="smoke test", seconds=result.seconds.get("wall")))
    return result


def _emit(
    hosts: Sequence[str],
    *,
    python: Path | None,
    ranks: int,
    gpus: int,
    wanted: Mapping[str, str | None],
    ways: Mapping[str, str | None],
) -> None:
    from envsmith.smoke.kubernetes import Job, manifest

    if any(hosts) or ways["rdzv"] or ways["rsh"]:
        raise UsageError("--emit goes with a number of nodes")
    if not ways["image"]:
        raise UsageError("--emit needs --image: the one that holds the environment")
    job = Job(image=ways["image"], nodes=len(hosts), ranks=ranks, gpus=gpus, python=str(python) if python else "python")
    click.echo(manifest(ways["emit"] or "", job, _plan(hosts, ranks, wanted, {})), nl=False)
