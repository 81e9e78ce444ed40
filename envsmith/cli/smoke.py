"""``envsmith smoke``: the smoke test in an environment that exists; envsmith is not installed there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import Console, clean, dumps, say, table
from envsmith.errors import EnvsmithError, StorageError, UsageError

if TYPE_CHECKING:
    from envsmith.smoke.nodes import Launcher, Narrowed
    from envsmith.smoke.plan import Plan
    from envsmith.smoke.rendezvous import Rendezvous
    from envsmith.smoke.run import LocalTarget
    from envsmith.smoke.verdict import SmokeResult


_WORST = 12
_OF_NODES = ("rdzv", "rsh", "emit", "image", "gpus")
_CHOSEN_BY_ALL = ("no_steps", "framework_only", "plan_only", "machine", "nccl_engine", "sharing")


@click.command()
@click.option(
    "--python",
    "python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The environment's interpreter, or its folder. Default: the one on PATH.",
)
@click.option(
    "--tier",
    type=click.Choice(["import", "quick", "full", "framework", "bandwidth", "all"]),
    default="quick",
    show_default=True,
    help="How much is tried; all: every tier in turn, with a record and a plot in --output.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Tier all: where results, record and plot go. [default: envsmith-smoke]",
)
@click.option(
    "--budget",
    type=click.FloatRange(60, 86400),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Tier all: what does not fit is left out, and said.",
)
@click.option(
    "--ranks", type=click.IntRange(1, 64), default=4, show_default=True, help="Processes, per node with --nodes."
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "gloo", "nccl"]),
    default="auto",
    show_default=True,
    help="auto: NCCL where there is a GPU.",
)
@click.option("--nccl-engine", type=click.Choice(["legacy", "2"]), help="Which of torch 2.15's two NCCL engines.")
@click.option(
    "--sharing",
    type=click.Choice(["hostid", "multi-rank"]),
    help="Put two ranks on the first GPU, in this way. Default: only where there are fewer GPUs than ranks.",
)
@click.option(
    "--machine", metavar="NAME", help="Bandwidth tier: hold it against the published floors of a machine type."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.svg",
    help="Bandwidth tier: draw bus bandwidth over size.",
)
@click.option(
    "--nodes",
    metavar="a,b,c|N",
    help="Many nodes: their names (a=ADDRESS where the name does not resolve), or how many.",
)
@click.option(
    "--rdzv",
    metavar="HOST:PORT",
    help="With --nodes N: this command runs on every node, torchrun brings them together.",
)
@click.option(
    "--rsh", metavar="COMMAND", help="How a node is reached. Default: ssh -o BatchMode=yes -o ConnectTimeout=15 {host}"
)
@click.option(
    "--narrow/--no-narrow", default=True, help="When a run of 3 nodes or more fails: find the bad one, in pairs."
)
@click.option(
    "--emit", type=click.Choice(["jobset", "trainjob"]), help="Print a Kubernetes job instead (with --nodes N --image)."
)
@click.option("--image", metavar="IMAGE", help="For --emit.")
@click.option("--gpus", type=click.IntRange(0, 64), default=0, help="GPUs per node to ask Slurm or Kubernetes for.")
@click.option(
    "--read-logs",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    multiple=True,
    metavar="FILE",
    help="Run nothing: the verdict of a Kubernetes job from the logs of its pods (repeatable; - is standard input).",
)
@click.option("--no-steps", is_flag=True, help="Collectives only, no framework step.")
@click.option(
    "--framework-only",
    is_flag=True,
    help="Framework steps only, no collectives; with --tier framework every step that is known.",
)
@click.option(
    "--plan-only", is_flag=True, help="Print the plan as JSON (cases, expectations, steps, deadlines) and run nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@click.option("--verbose", "-v", is_flag=True, help="Show every event.")
def smoke(*, plot: Path | None, read_logs: tuple[Path, ...], as_json: bool, verbose: bool, **how: Any) -> int:
    """Run collectives with checked values, then one step of each framework that is installed.

    Exit code 0 when everything passed, 1 when something failed: the last line names the rank, the case and the step.
    """
    if read_logs:
        return _finish(_of_logs(read_logs), plot=plot, as_json=as_json)
    if plot is not None and how["tier"] != "bandwidth":
        raise UsageError("--plot is for --tier bandwidth")
    if how["nodes"] is None and any(how[name] for name in _OF_NODES):
        raise UsageError("--rdzv, --rsh, --emit, --image and --gpus are for --nodes")
    if how["output"] is not None and how["tier"] != "all":
        raise UsageError("--output is for --tier all")
    with Console(verbose=verbose, quiet=as_json or bool(how["emit"])) as console:
        if how["nodes"] is not None:
            result = _on_nodes(how, console)
        elif how["tier"] == "all":
            return _all_tiers(how, as_json=as_json, console=console)
        else:
            result = _here(how, console)
    return 0 if result is None else _finish(result, plot=plot, as_json=as_json)


def _on_nodes(how: Mapping[str, Any], console: Console) -> SmokeResult | None:
    """On many nodes; ``None`` when a manifest was printed instead."""
    return many(
        how["nodes"],
        python=how["python"],
        ranks=how["ranks"],
        gpus=how["gpus"],
        wanted={**{name: how[name] for name in ("tier", "backend", "machine")}, "engine": how["nccl_engine"]},
        ways={name: how[name] for name in ("rdzv", "rsh", "emit", "image")},
        narrow=how["narrow"],
        console=console,
    )


def _all_tiers(how: Mapping[str, Any], *, as_json: bool, console: Console) -> int:
    from envsmith.cli.smoke_all import everything

    if any(how[name] for name in _CHOSEN_BY_ALL):
        raise UsageError("--tier all chooses tiers, engines and placements by itself", hint="leave the other flags out")
    target, found = _environment(how["python"])
    return everything(
        target,
        found,
        backend=how["backend"],
        ranks=how["ranks"],
        folder=how["output"] or Path("envsmith-smoke"),
        budget=how["budget"],
        as_json=as_json,
        console=console,
    )


def _here(how: Mapping[str, Any], console: Console) -> SmokeResult | None:
    """In an environment of this machine; ``None`` when the plan was printed instead."""
    from envsmith.progress import Event, EventKind
    from envsmith.proof import progress_line
    from envsmith.smoke.plan import Plan
    from envsmith.smoke.run import run

    if how["no_steps"] and how["framework_only"]:
        raise UsageError("--no-steps and --framework-only leave nothing to run")
    target, found = _environment(how["python"])
    plan = Plan.build(
        found,
        tier=how["tier"],
        ranks=how["ranks"],
        backend=how["backend"],
        steps=not how["no_steps"],
        cases=not how["framework_only"],
        engine=how["nccl_engine"],
        sharing=how["sharing"],
        machine=how["machine"],
    )
    if how["plan_only"]:
        click.echo(dumps(plan.to_json()))
        return None
    console(Event(kind=EventKind.START, step="smoke test", text=f"{len(plan.cases)} cases, {plan.ranks} ranks"))
    result = run(
        plan, target, progress=lambda p: console(Event(kind=EventKind.LINE, step="smoke test", text=progress_line(p)))
    )
    kind = EventKind.DONE if result.passed else EventKind.FAILED
    console(Event(kind=kind, step="smoke test", seconds=result.seconds.get("wall")))
    return result


def _environment(python: Path | None) -> tuple[LocalTarget, Mapping[str, str]]:
    """The environment that is meant, and the versions that its metadata names."""
    from envsmith.smoke.run import LocalTarget, probe

    target = LocalTarget(python=_interpreter(python))
    found = probe(target)
    if "torch" not in found:
        raise UsageError(
            f"{target.python}: no torch there", hint="name the environment with --python /path/to/env/bin/python"
        )
    return target, found


def _of_logs(paths: tuple[Path, ...]) -> SmokeResult:
    from envsmith.smoke.logs import events_of, result_of

    lines: list[str] = []
    for path in paths:
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"--read-logs {path}: cannot be read: {error.strerror or error}") from None
        lines += text.splitlines()
    return result_of(events_of(lines))


def _finish(result: SmokeResult, *, plot: Path | None, as_json: bool) -> int:
    if plot is not None:
        _draw(plot, result)
    click.echo(dumps(result.to_json()) if as_json else "\n".join(_lines(result)))
    return 0 if result.passed else 1


def _draw(path: Path, result: SmokeResult) -> None:
    from envsmith.smoke.plot import svg

    title = f"{result.backend}, {result.ranks} ranks, torch {result.loaded.get('torch', '')}"
    try:
        path.write_text(svg(result.bandwidth, title=title), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    say(f"plot: {path}")


def _interpreter(given: Path | None) -> Path:
    """The interpreter that is meant; a folder stands for the environment in it. Symbolic links stay: a venv is known by its own path."""
    if given is None:
        import shutil

        return Path(shutil.which("python3") or sys.executable)
    path = given.expanduser().absolute()
    candidates = [path / "bin" / "python", path / "bin" / "python3"] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise UsageError(f"--python {given}: no interpreter there", hint="give an environment's folder or its bin/python")


def _lines(result: SmokeResult) -> list[str]:
    loaded = [f"{name} {version}" for name, version in result.loaded.items() if isinstance(version, str)]
    lines = ["loaded: " + ", ".join(loaded)] if loaded else []
    lines += [f"placement: {result.placement}"] if result.placement else []
    lines += [f"  node {clean(node)}: ranks {', '.join(map(str, on))}" for node, on in result.nodes.items()]
    if result.cases:
        lines.append("cases: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))
    lines.append(table([(s.name, s.verdict.value, clean(s.detail)) for s in result.steps])) if result.steps else None
    if result.bandwidth:
        from envsmith.smoke.plot import rows_of

        lines.append(table(rows_of(result.bandwidth)))
    bad = [c for c in result.cases if not c.verdict.good]
    lines += [f"  {c.verdict.value}: {c.case}: {clean(c.blame or '')}" for c in bad[:_WORST]]
    if len(bad) > _WORST:
        lines.append(f"  and {len(bad) - _WORST} more (--json lists all)")
    for note in result.notes:
        say(f"note: {clean(note)}")
    mark = click.style("passed", fg="green", bold=True) if result.passed else click.style("failed", fg="red", bold=True)
    narrowed = result.narrowed.get("sentence")
    lines += [f"narrowed: {clean(str(narrowed))}"] if narrowed else []
    return [*lines, f"{mark}: {clean(result.summary)}"]


# ``envsmith smoke --nodes``: which way the nodes are reached, the run, and the narrowing after a failure.


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
        return _under_torchrun(where, _python_here(interpreter), wanted=wanted, console=console)
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
    from envsmith.smoke.nodes import OnNode, run_nodes
    from envsmith.smoke.run import probe

    python = _python_on_nodes(python)
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


def _under_torchrun(
    where: Rendezvous, python: str, *, wanted: Mapping[str, str | None], console: Console
) -> SmokeResult:
    """Run this node's part of a run that the same command starts on every node."""
    from envsmith.smoke.rendezvous import run_rendezvous

    where.parts()  # a wrong endpoint is refused before anything is started
    plan = _plan(("",) * where.nodes, where.ranks_per_node, wanted, _probe_here(python))
    return _shown(console, plan, lambda: run_rendezvous(plan, where, python=python))


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
    from envsmith.progress import Event, EventKind
    from envsmith.smoke.nodes import Outcome, narrow, run_nodes

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
    from envsmith.smoke.nodes import plan_for_nodes
    from envsmith.smoke.plan import Plan

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


def _python_here(python: str) -> str:
    """An interpreter on this machine; a folder stands for the environment in it."""
    inside = Path(python) / "bin" / "python"
    return str(inside if inside.is_file() else Path(python).absolute())


def _python_on_nodes(python: str) -> str:
    """The same path on every node; a folder that is here too stands for the environment in it."""
    return _python_here(python) if Path(python).is_dir() else python


def _probe_here(python: str) -> Mapping[str, str]:
    from envsmith.smoke.run import LocalTarget, probe

    return _versions_of_any(lambda _: probe(LocalTarget(python=Path(_python_here(python)))), ("",))


def _shown(console: Console, plan: Plan, run: Callable[[], SmokeResult]) -> SmokeResult:
    from envsmith.progress import Event, EventKind

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
