"""``envsmith prove``: all that this machine can show of an environment, as a record that can be sent."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from envsmith.base import ssh
from envsmith.base.files import now, write_whole
from envsmith.base.interpreter import python_in
from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.base.text import clean, table_cell
from envsmith.builder.environment import find_cell, record_of_parts
from envsmith.cli.console import Console, dumps, mark, print_out, say, table
from envsmith.cli.declare import AnyPath, File, Folder, argument, choice, flag, option, verb
from envsmith.cli.smoke import exit_code_of, tested_environment
from envsmith.errors import UsageError
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import find_matrix, list_files
from envsmith.matrix.acceptance import judge_file
from envsmith.model.record import Record, put_record
from envsmith.publish.statement import sign_record
from envsmith.smoke import everything
from envsmith.smoke.bandwidth_plot import svg
from envsmith.smoke.result import SmokeResult

_COLOURS = {"passed": "green", "failed": "red", "not run": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProveFlags:
    """The options of ``prove``."""

    environment: AnyPath | None = argument(required=False)
    output: Folder = option("-o", "Folder for results, record and plot.", default=Path("envsmith-proof"))
    budget: float = option(
        "SECONDS", "Time limit. What does not fit is skipped and listed.", type=click.FloatRange(60, 86400), default=600
    )
    ranks: int = option("Processes on the CPU. On GPUs their number decides.", default=2, type=click.IntRange(1, 64))
    backend: str = choice(["auto", "gloo", "nccl"], "auto: NCCL where there is a GPU.", default="auto")
    key: File | None = option("SSH key that signs the record: ~/.ssh/id_ed25519, or its .pub file with ssh-agent.")
    keyless: bool = flag("Sign with the identity of this CI job through sigstore instead.")
    plan_only: bool = flag("Print what would be run and run nothing.")
    as_json: bool = flag("--json", "Everything as one JSON object.")


@verb(
    ProveFlags,
    "envsmith prove .venv",
    "envsmith prove .venv --key ~/.ssh/id_ed25519.pub",
    "envsmith prove envsmith-build/CELL",
)
def prove(settings: ProveFlags) -> int:
    """Run on this machine all that ten minutes can show of an environment, and write a record that can be sent.

    ENVIRONMENT is the folder of an environment or its interpreter, or a cell's folder. By default it is the python on
    PATH. NCCL comes first where there is a GPU. The record names GPUs, driver, links and kernel, and no host, user or
    path. Exit codes as of envsmith smoke.
    """
    if settings.key and settings.keyless:
        raise UsageError("Cannot sign a record twice: --key and --keyless are given.", hint="Leave one of them out.")
    with Console(quiet=True if settings.as_json else None) as console:
        proof = _prove(settings, console)
    if settings.key and proof.file:
        proof.files.append(ssh.sign_file(proof.file, settings.key))
    elif settings.keyless and proof.file:
        proof.files.append(sign_record(proof.file))
    code = _show(proof, settings)
    if proof.file and not settings.as_json:
        root = find_matrix()
        judged = judge_file(proof.file, root, knowledge(list_files(root)), now())
        say(f"vouched for by: {judged.voucher}")
        for line in judged.objections:
            say(f"would be refused: {clean(line)}")
        say("to send it: a pull request that adds it to matrix/records (docs/how-to/prove.md)")
    return code


def _of_cell(path: Path | None) -> Path | None:
    """Return the environment in a cell's folder, or the path itself."""
    inside = path / "venv" if path else None
    return inside if inside and python_in(inside).exists() else path


@dataclass(kw_only=True, slots=True)
class EnvironmentProof:
    """What came of all parts. ``files`` are what was written, ``file`` is that of the record."""

    parts: list[everything.Done] = field(default_factory=list)
    record: Record | None = None
    file: Path | None = None
    files: list[Path] = field(default_factory=list)
    verdict: str = ""
    plan: tuple[everything.SmokePart, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every part that was run passed, and the full tier among them."""
        return self.record is not None and self.record.passed and not self.failed

    @property
    def failed(self) -> list[SmokeResult]:
        """Return the results of the parts that failed."""
        return [part.result for part in self.parts if part.word == "failed" and part.result]


def _prove(wish: ProveFlags, console: Console) -> EnvironmentProof:
    """Run the parts and write results, plot and record. With ``plan_only`` nothing is run."""
    target, versions = tested_environment(_of_cell(wish.environment))
    if wish.plan_only:
        machine = everything.supposed(versions, wish.backend)
        parts = everything.parts_of(versions, machine, budget=wish.budget)
        return EnvironmentProof(plan=everything.fitted(parts, wish.budget))
    began = time.monotonic()
    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    console(ProgressEvent(kind=EventKind.START, step="what is here"))
    machine = everything.ask(versions, target, wish.backend)
    console(ProgressEvent(kind=EventKind.DONE, step="what is here", text=_machine_line(machine)))
    proof = EnvironmentProof()
    try:
        for item in everything.run_parts(
            everything.parts_of(versions, machine, ranks=wish.ranks, budget=wish.budget),
            target,
            budget=wish.budget - (time.monotonic() - began),
            folder=wish.output,
            begin=lambda part: console(
                ProgressEvent(kind=EventKind.START, step=part.name, text=f"{part.what}, {part.limit:.0f} s at most")
            ),
            progress=lambda p: console(ProgressEvent(kind=EventKind.LINE, step=p.phase, text=p.line)),
        ):
            proof.parts.append(item)
            kind = {"passed": EventKind.DONE, "failed": EventKind.FAILED}.get(item.word, EventKind.NOTE)
            text = item.sentence if item.result else f"{item.part.name}: not run: {item.sentence}"
            console(ProgressEvent(kind=kind, step=item.part.name, text=text, seconds=item.seconds or None))
    finally:  # an interruption does not take away what is finished
        proof.verdict = _verdict(proof.parts, wish.budget)
        proof.record, proof.files = _leave(proof.parts, target.python, wish.output, started, proof.verdict)
        proof.file = proof.files[0] if proof.record else None
    return proof


def _show(proof: EnvironmentProof, wish: ProveFlags) -> int:
    """Print what came of it. Return the exit code, as for one run (:func:`exit_code_of`)."""
    if wish.plan_only:
        print_out(dumps({"budget": wish.budget, "parts": [part.to_json() for part in proof.plan]}))
        return 0
    code = exit_code_of(proof.passed, proof.failed)
    record, files = proof.record, [str(file) for file in proof.files]
    if wish.as_json:
        parts = [item.to_json() for item in proof.parts]
        print_out(dumps({"parts": parts, "record": record.trimmed().to_json() if record else None, "files": files}))
        return code
    print_out(table([_row(item) for item in proof.parts]))
    if record is not None:
        print_out(f"cell: {record.cell}\nproved: {' -> '.join(r.value for r in record.rungs)}")
    for file in files:
        say(f"written: {file}")
    outcome = mark(passed=proof.passed) if proof.passed or proof.failed else "incomplete"
    print_out(f"{outcome}: {proof.verdict}")
    return code


def _row(item: everything.Done) -> tuple[str, ...]:
    sentence = clean(item.sentence)
    short = sentence if len(sentence) <= 160 else sentence[:159] + "…"
    return item.part.name, click.style(item.word, fg=_COLOURS[item.word]), f"{item.seconds:.1f} s", short


def _machine_line(machine: everything.SmokeMachine) -> str:
    if machine.backend != "nccl":
        return f"torch {machine.torch}, no GPU is used: gloo"
    return f"torch {machine.torch}, NCCL {machine.nccl}, {machine.gpus} GPU{'s' if machine.gpus > 1 else ''}"


def _verdict(finished: Sequence[everything.Done], budget: float) -> str:
    """Say in one sentence how many parts passed, in which time, and the first that did not."""
    ran = [item for item in finished if item.result]
    bad = [item for item in ran if item.word == "failed"]
    seconds = sum(item.seconds for item in ran)
    text = f"{len(ran) - len(bad)} of {len(ran)} parts passed in {seconds:.0f} s (budget {budget:.0f} s)"
    skipped = [item.part.name for item in finished if not item.result]
    text += f"; not run: {', '.join(skipped)}" if skipped else ""
    return text + (f"; {bad[0].part.name}: {clean(bad[0].sentence)}" if bad else "")


def _leave(
    finished: Sequence[everything.Done], python: Path, folder: Path, started: str, verdict: str
) -> tuple[Record | None, list[Path]]:
    """Write the plot, the summary and, where something was run, the record, which is the first of the files."""
    files = []
    loaded = next((item.result.loaded for item in finished if item.result and item.result.loaded), None)
    record = None
    if loaded is not None:
        cell = find_cell(python, loaded)
        record = record_of_parts(cell, finished, started=started)
        files.append(put_record(folder / "records", record, env=python.absolute().parent.parent))
    band = next((item.result for item in finished if item.result and item.result.bandwidth), None)
    if band is not None:
        title = f"{band.backend}, {band.place}, torch {band.loaded.get('torch', '')}"
        write_whole(folder / "busbw.svg", svg(band.bandwidth, title=title))
        files.append(folder / "busbw.svg")
    write_whole(folder / "summary.md", _markdown(finished, record, verdict))
    return record, [*files, folder / "summary.md"]


def _markdown(finished: Sequence[everything.Done], record: Record | None, verdict: str) -> str:
    lines = [f"# {record.cell if record else 'Nothing was run'}", ""]
    if record:
        lines += [f"{record.started}, proved: {' -> '.join(r.value for r in record.rungs)}", ""]
    lines += [f"{verdict}.", "", "| part | what | outcome | seconds | |", "|---|---|---|---|---|"]
    for item in finished:
        cells = (item.part.name, item.part.what, item.word, f"{item.seconds:.1f}", clean(item.sentence))
        lines.append("| " + " | ".join(map(table_cell, cells)) + " |")
    return "\n".join(lines) + "\n"
