"""``envsmith smoke``: the smoke test in an environment that exists; envsmith is not installed there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from envsmith.base.files import read_text, write_whole
from envsmith.base.interpreter import find_python, named_python
from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.base.text import FinishedText, clean
from envsmith.cli.console import Console, dumps, mark, print_out, say, table
from envsmith.cli.declare import AnyPath, File, Section, verb
from envsmith.errors import EnvsmithError, SmokeError, UsageError
from envsmith.model.cell import distribution_of
from envsmith.model.record import Fault
from envsmith.smoke import run
from envsmith.smoke.bandwidth_plot import rows_of, svg
from envsmith.smoke.kubernetes import KubernetesJob, manifest, result_of
from envsmith.smoke.nodes import (
    Narrowed,
    NodeLauncher,
    NodesOutcome,
    OnNode,
    RemoteShell,
    Rendezvous,
    Slurm,
    narrow,
    parse_nodes,
    plan_for_nodes,
    run_nodes,
    run_rendezvous,
)
from envsmith.smoke.parse_events import events_of
from envsmith.smoke.plan import Plan, import_step
from envsmith.smoke.result import SmokeResult

_WORST = 12
_FEWEST_TO_NARROW = 3


# Headings of ``--help``.
_ENVIRONMENT, _TEST, _OUTPUT, _BANDWIDTH, _MANY_NODES, _KUBERNETES = map(
    Section, ("Environment", "Test", "Output", "Bandwidth", "Many nodes", "Kubernetes")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeFlags:
    """The options of ``smoke``."""

    python: AnyPath | None = _ENVIRONMENT.option(
        "PATH",
        "The environment's interpreter, or its folder. Default: the one on PATH.",
        positional="[ENVIRONMENT]",
    )
    tier: str = _TEST.choice(
        ["import", "quick", "full", "framework", "bandwidth"],
        "How much is tried. envsmith prove tries every tier in turn.",
        default="quick",
    )
    ranks: int = _TEST.option("Processes, per node with --nodes.", type=click.IntRange(1, 64), default=4)
    backend: str = _TEST.choice(["auto", "gloo", "nccl"], "auto: NCCL where there is a GPU.", default="auto")
    nccl_engine: str | None = _TEST.choice(["legacy", "2"], "Which of torch 2.15's two NCCL engines.")
    sharing: str | None = _TEST.choice(
        ["hostid", "multi-rank"], "How two ranks share the first GPU. Default: only with fewer GPUs than ranks."
    )
    machine: str | None = _BANDWIDTH.option(
        "--machine-type", "NAME", "Compare with the published floors of this machine type.", old=("--machine",)
    )
    plot: File | None = _BANDWIDTH.option("FILE.svg", "Draw bus bandwidth over size.")
    nodes: str | None = _MANY_NODES.option(
        "a,b,c|N", "Many nodes: their names (a=ADDRESS where the name does not resolve), or how many."
    )
    rdzv: str | None = _MANY_NODES.option(
        "HOST:PORT", "With --nodes N: this command runs on every node, torchrun brings them together."
    )
    rsh: str | None = _MANY_NODES.option(
        "COMMAND", "How a node is reached. Default: ssh -o BatchMode=yes -o ConnectTimeout=15 {host}"
    )
    narrow: bool = _MANY_NODES.option(
        "--narrow/--no-narrow",
        "When a run of 3 nodes or more fails: find the bad one, in pairs.",
        default=True,
        show_default=False,
    )
    emit: str | None = _KUBERNETES.choice(
        ["jobset", "trainjob"], "Print a Kubernetes job instead (with --nodes N --image)."
    )
    image: str | None = _KUBERNETES.option("IMAGE", "For --emit.")
    gpus: int = _MANY_NODES.option(
        "--gpus-per-node",
        "GPUs per node to ask Slurm or Kubernetes for.",
        old=("--gpus",),
        type=click.IntRange(0, 64),
        default=0,
        show_default=False,
    )
    rdma: str | None = _KUBERNETES.option(
        "RESOURCE[=COUNT]", "For --emit: the resource that gives a pod InfiniBand cards."
    )
    read_logs: tuple[Path, ...] = _KUBERNETES.several(
        "FILE",
        "Judge a Kubernetes job by the logs of its pods; run nothing. Repeatable; - is standard input.",
        type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    )
    import_: tuple[str, ...] = _TEST.several("NAME", "Also import every module of this installed package; repeatable.")
    no_steps: bool = _TEST.flag("Collectives only, no framework step.")
    framework_only: bool = _TEST.flag(
        "Framework steps only, no collectives; with --tier framework every step that is known."
    )
    plan_only: bool = _OUTPUT.flag("Print the plan as JSON (cases, expectations, steps, deadlines) and run nothing.")
    as_json: bool = _OUTPUT.flag("--json", "Everything as one JSON object.")

    def refuse_idle(self) -> None:
        """Refuse flags that would have no effect or leave nothing to run."""
        of_nodes = (self.rdzv, self.rsh, self.emit, self.image, self.gpus, self.rdma)
        if self.plot and self.tier != "bandwidth":
            raise UsageError(
                f"Cannot use --plot with --tier {self.tier}: only --tier bandwidth measures a curve.",
                hint="Leave --plot out, or use --tier bandwidth.",
            )
        if self.nodes is None and any(of_nodes):
            raise UsageError(
                "Cannot use --rdzv, --rsh, --emit, --image, --gpus-per-node or --rdma: they are for --nodes.",
                hint="Add --nodes, or leave them out.",
            )
        if self.import_ and self.nodes is not None:
            raise UsageError(
                "Cannot use --import with --nodes: packages are imported on one machine.", hint="Leave one of them out."
            )
        if self.nodes is None and self.no_steps and self.framework_only:
            raise UsageError(
                "Cannot combine --no-steps with --framework-only: nothing is left to run.",
                hint="Leave one of them out.",
            )


@verb(
    SmokeFlags,
    "envsmith smoke --python .venv",
    "envsmith smoke --python .venv --tier framework",
    "envsmith smoke --nodes n1,n2 --ranks 8 --python /shared/env",
)
def smoke(settings: SmokeFlags) -> int:
    """Run collectives with checked values, then one step of each framework that is installed.

    Exit code 0 when everything passed, 1 when something failed: the last line names the rank, the case and the step. 9
    when the machine is at fault, or the cause is unknown: that says nothing about the environment.
    """
    if settings.read_logs:
        return _finish(_of_logs(settings.read_logs), settings)
    settings.refuse_idle()
    with Console(quiet=True if settings.as_json or settings.emit else None) as console:
        result = _on_nodes(settings, console) if settings.nodes is not None else _here(settings, console)
    return 0 if result is None else _finish(result, settings)


def tested_environment(python: Path | None) -> tuple[run.LocalTarget, Mapping[str, str]]:
    """Return the environment that is meant, and the versions that its metadata names."""
    target = run.LocalTarget(python=_interpreter(python))
    versions = run.probe(target)
    if "torch" not in versions:
        raise UsageError(
            f"Cannot test {target.python}: torch is not installed in it.",
            hint="Name the environment with --python /path/to/env/bin/python.",
        )
    return target, versions


def _interpreter(path: Path | None) -> Path:
    """Return the interpreter that is meant, or the one that a shell would start."""
    return Path(shutil.which("python3") or sys.executable) if path is None else named_python(str(path)).absolute()


def exit_code_of(passed: bool, failed: Sequence[SmokeResult]) -> int:  # noqa: FBT001
    """Return 0, 1, or 9 where nothing that failed speaks against the environment."""
    if passed:
        return 0
    return 1 if not failed or any(result.cause.fault is Fault.CELL for result in failed) else SmokeError.exit_code


def _here(settings: SmokeFlags, console: Console) -> SmokeResult | None:
    """Run in an environment of this machine. ``None``: the plan was printed instead."""
    target, versions = tested_environment(settings.python)
    plan = Plan.build(
        versions,
        tier=settings.tier,
        ranks=settings.ranks,
        backend=settings.backend,
        steps=not settings.no_steps,
        engine=settings.nccl_engine,
        sharing=settings.sharing,
    )
    if settings.framework_only:
        plan = plan.with_(cases=())
    if settings.machine:
        plan = plan.on_machine(settings.machine)
    if settings.import_:
        plan = plan.with_(steps=(*plan.steps, import_step(sorted(map(distribution_of, settings.import_)))))
    if settings.plan_only:
        print_out(dumps(plan.to_json()))
        return None

    def show(progress: run.SmokeProgress) -> None:
        console(ProgressEvent(kind=EventKind.LINE, step="smoke test", text=progress.line))

    return _announced(console, plan, lambda: run.run(plan, target, progress=show))


def _announced(console: Console, plan: Plan, start: Callable[[], SmokeResult], where: str = "") -> SmokeResult:
    console(
        ProgressEvent(
            kind=EventKind.START, step="smoke test", text=f"{len(plan.cases)} cases, {plan.ranks} ranks{where}"
        )
    )
    result = start()
    kind = EventKind.DONE if result.passed else EventKind.FAILED
    console(ProgressEvent(kind=kind, step="smoke test", seconds=result.seconds.get("wall")))
    return result


# A run of every case on 64 ranks writes about 30 MB.
_MAX_LOG = 256 << 20


def _of_logs(paths: tuple[Path, ...]) -> SmokeResult:
    lines: list[str] = []
    for path in paths:
        lines += read_text(path, _MAX_LOG, failure=UsageError, errors="replace").splitlines()
    return result_of(events_of(lines))


def _finish(result: SmokeResult, settings: SmokeFlags) -> int:
    if settings.plot is not None:
        title = f"{result.backend}, {result.ranks} ranks, torch {result.loaded.get('torch', '')}"
        write_whole(settings.plot, svg(result.bandwidth, title=title))
        say(f"plot: {settings.plot}")
    print_out(dumps(result.to_json()) if settings.as_json else "\n".join(_lines(result)))
    return exit_code_of(result.passed, [result])


def _lines(result: SmokeResult) -> list[str]:
    loaded = [f"{name} {version}" for name, version in result.loaded.items() if isinstance(version, str)]
    lines = ["loaded: " + ", ".join(loaded)] if loaded else []
    lines += [f"placement: {result.placement}"] if result.placement else []
    lines += [f"  node {clean(node)}: ranks {', '.join(map(str, on))}" for node, on in result.nodes.items()]
    if result.cases:
        lines.append("cases: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))
    if result.steps:
        lines.append(table([(s.name, s.verdict.value, clean(s.detail)) for s in result.steps]))
    if result.bandwidth:
        lines.append(table(rows_of(result.bandwidth)))
    bad = [c for c in result.cases if not c.verdict.good]
    lines += [f"  {c.verdict.value}: {c.case}: {clean(c.blame or '')}" for c in bad[:_WORST]]
    if len(bad) > _WORST:
        lines.append(f"  and {len(bad) - _WORST} more (--json lists all)")
    for note in result.notes:
        say(f"note: {clean(note)}")
    narrowed = result.narrowed.get("sentence")
    lines += [f"narrowed: {clean(str(narrowed))}"] if narrowed else []
    return [*lines, f"{mark(passed=result.passed)}: {clean(result.summary)}"]


# ``envsmith smoke --nodes``: which way the nodes are reached, the run, and the narrowing after a failure.


def _on_nodes(settings: SmokeFlags, console: Console) -> SmokeResult | None:
    """Run on many nodes. ``None``: a manifest was printed instead."""
    hosts, addresses = parse_nodes(settings.nodes or "")
    if settings.emit:
        _emit(hosts, settings)
        return None
    if settings.image:
        raise UsageError(
            "Cannot test an image with --image alone: that option is for --emit.",
            hint="Run envsmith in the image's environment with docker run, or reach it with --rsh.",
        )
    python = str(settings.python) if settings.python else sys.executable if not settings.rsh else "python3"
    if settings.rdzv:
        if any(hosts):
            raise UsageError(
                "Cannot combine --rdzv with names of nodes: every node runs this command itself.",
                hint="Give a number of nodes: --nodes 2 --rdzv HOST:PORT.",
            )
        meeting = Rendezvous(endpoint=settings.rdzv, nodes=len(hosts), ranks_per_node=settings.ranks)
        return _under_torchrun(meeting, _python_here(python), settings, console)
    return _central(hosts, _launcher(hosts, addresses, settings), python, settings, console)


def _central(
    hosts: Sequence[str], launcher: NodeLauncher, python: str, settings: SmokeFlags, console: Console
) -> SmokeResult:
    """Run one command for all nodes, and two passes in pairs when it fails."""
    # The same path on every node; a folder that exists here too stands for the environment in it.
    python = _python_here(python) if Path(python).is_dir() else python
    versions = _versions_of_any(lambda host: run.probe(OnNode(launcher=launcher, host=host, python=python)), hosts)

    def run_on(nodes: Sequence[str], plan: Plan) -> SmokeResult:
        return run_nodes(plan, nodes, python=python, launcher=launcher, ranks_per_node=settings.ranks)

    plan = _plan(hosts, settings, versions)
    result = _announced(console, plan, lambda: run_on(hosts, plan), f" on {plan.nodes} nodes")
    names = tuple(hosts) if all(hosts) else tuple(result.nodes)
    if result.passed or not settings.narrow or len(names) < _FEWEST_TO_NARROW:
        return result
    unlimited = replace(settings, machine=None)
    narrowed = _narrowed(names, lambda nodes: run_on(nodes, _plan(nodes, unlimited, versions)), console)
    return replace(result, narrowed=narrowed.to_json(), blame=(*result.blame, narrowed.sentence))


def _narrowed(names: tuple[str, ...], run_on: Callable[[Sequence[str]], SmokeResult], console: Console) -> Narrowed:
    def try_group(nodes: tuple[str, ...]) -> NodesOutcome:
        try:
            result = run_on(nodes)
        except EnvsmithError as error:
            return NodesOutcome(group=nodes, passed=False, summary=error.message)
        return NodesOutcome(group=nodes, passed=result.passed, summary=result.summary)

    console(ProgressEvent(kind=EventKind.START, step="narrowing", text=f"{len(names)} nodes, two passes"))
    narrowed = narrow(names, try_group, say=lambda text: None if console.quiet else say(f"  {clean(text)}"))
    console(ProgressEvent(kind=EventKind.DONE, step="narrowing"))
    return narrowed


def _under_torchrun(meeting: Rendezvous, python: str, settings: SmokeFlags, console: Console) -> SmokeResult:
    """Run this node's part of a run that the same command starts on every node."""
    meeting.parts()  # a wrong endpoint is refused before anything is started
    plan = _plan(("",) * meeting.nodes, settings, _probe_here(python))
    return _announced(console, plan, lambda: run_rendezvous(plan, meeting, python=python), f" on {plan.nodes} nodes")


def _versions_of_any(ask: Callable[[str], Mapping[str, str]], hosts: Sequence[str]) -> Mapping[str, str]:
    """Return the versions of the first node that answers: expectations depend on them.

    The versions of all nodes are compared before the first case.
    """
    last: EnvsmithError | None = None
    for host in hosts:
        try:
            versions = ask(host)
        except EnvsmithError as error:
            last = error
            continue
        if "torch" not in versions:
            raise UsageError(
                f"Cannot test {host or 'the node'}: torch is not installed in its environment.",
                hint="Give --python the path of the interpreter on the nodes.",
            )
        return versions
    raise last or UsageError(
        "Cannot plan the test: no node answers.", hint="Check that the nodes can be reached from here, and their names."
    )


def _probe_here(python: str) -> Mapping[str, str]:
    return _versions_of_any(lambda _: run.probe(run.LocalTarget(python=Path(python))), ("",))


def _plan(hosts: Sequence[str], settings: SmokeFlags, versions: Mapping[str, str]) -> Plan:
    if settings.tier not in {"quick", "full", "bandwidth"}:
        raise UsageError(
            f"Cannot run the tier {settings.tier} with --nodes: only tiers of collectives run on many nodes.",
            hint="Use --tier quick, full or bandwidth.",
        )
    plan = Plan.build(
        versions,
        tier=settings.tier,
        ranks=len(hosts) * settings.ranks,
        backend=settings.backend,
        engine=settings.nccl_engine,
        steps=False,
    )
    if settings.machine:
        plan = plan.on_machine(settings.machine)
    return plan_for_nodes(plan, nodes=len(hosts), ranks_per_node=settings.ranks)


def _launcher(hosts: Sequence[str], addresses: Mapping[str, str], settings: SmokeFlags) -> NodeLauncher:
    if settings.rsh is None and (not any(hosts) or "SLURM_JOB_ID" in os.environ):
        if not shutil.which("srun"):
            raise UsageError(
                "Cannot start a number of nodes: Slurm's srun is not on PATH.",
                hint="Name the nodes (--nodes a,b,c), or run this on each of them with --rdzv HOST:PORT.",
            )
        return Slurm(gpus_per_node=settings.gpus)
    if not any(hosts):
        raise UsageError(
            "Cannot use --rsh with a number of nodes: it needs their names.", hint="Name the nodes: --nodes a,b,c."
        )
    if settings.rsh is None:
        return RemoteShell(address=addresses)
    return RemoteShell(template=settings.rsh, address=addresses, name="--rsh")


def _python_here(python: str) -> str:
    """Return an interpreter on this machine. A folder stands for the environment in it."""
    path = Path(python)
    return str((find_python(path) or path).absolute())


def _emit(hosts: Sequence[str], settings: SmokeFlags) -> None:
    if any(hosts) or settings.rdzv or settings.rsh:
        raise UsageError(
            "Cannot combine --emit with names of nodes, --rdzv or --rsh: the job gets its nodes from the scheduler.",
            hint=f"Give a number of nodes: --nodes 2 --emit {settings.emit}.",
        )
    if not settings.image:
        raise UsageError(
            "Cannot write a job with --emit: no image is given.",
            hint="Name the image that holds the environment with --image.",
        )
    python = str(settings.python) if settings.python else "python"
    job = KubernetesJob(
        image=settings.image,
        nodes=len(hosts),
        ranks=settings.ranks,
        gpus=settings.gpus,
        python=python,
        rdma=settings.rdma,
    )
    # Letters of what is packed in it would be taken for keys.
    text = FinishedText(manifest(settings.emit or "", job, _plan(hosts, settings, {})))
    if settings.as_json:
        print_out(dumps({"status": "ok", "manifest": text}))
    else:
        print_out(text, nl=False)
