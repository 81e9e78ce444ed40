"""``envsmith smoke --tier all``: every part that this machine can run, and a record of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import Console, clean, dumps, say, table

if TYPE_CHECKING:
    from envsmith.model.record import Record
    from envsmith.smoke.everything import Done, Machine, Part
    from envsmith.smoke.run import LocalTarget


_COLOURS = {"passed": "green", "failed": "red", "not run": "yellow"}


def everything(
    target: LocalTarget,
    versions: Mapping[str, str],
    *,
    backend: str,
    ranks: int,
    folder: Path,
    budget: float,
    as_json: bool,
    console: Console,
) -> int:
    """Run the parts, write results, plot and record into ``folder``. 0 when no part failed and the record passed, 1 otherwise."""
    from envsmith.progress import Event, EventKind
    from envsmith.proof import progress_line
    from envsmith.smoke.everything import ask, parts_of, run_parts

    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    console(Event(kind=EventKind.START, step="what is here"))
    machine = ask(versions, target, backend)
    console(Event(kind=EventKind.DONE, step="what is here", text=_told(machine)))
    done: list[Done] = []

    def begin(part: Part) -> None:
        console(Event(kind=EventKind.START, step=part.name, text=f"{part.what}, {part.limit:.0f} s at most"))

    parts = parts_of(versions, machine, ranks=ranks)
    try:
        for item in run_parts(
            parts, target, budget=budget, folder=folder, begin=begin,
            progress=lambda p: console(Event(kind=EventKind.LINE, step=p.phase, text=progress_line(p))),
        ):  # fmt: skip
            done.append(item)
            _say(item, console)
    finally:  # an interruption does not take away what is done
        verdict = _verdict(done, budget)
        record, files = _leave(done, target.python, folder, started, verdict)
    if as_json:
        parts_json = [d.to_json() for d in done]
        click.echo(dumps({"parts": parts_json, "record": record.to_json() if record else None, "files": files}))
    else:
        _show(done, record, files, verdict)
    return 0 if record is not None and record.passed and all(d.word != "failed" for d in done) else 1


def _say(item: Done, console: Console) -> None:
    from envsmith.progress import Event, EventKind

    kind = {"passed": EventKind.DONE, "failed": EventKind.FAILED}.get(item.word, EventKind.NOTE)
    text = item.sentence if item.result else f"{item.part.name}: not run: {item.sentence}"
    console(Event(kind=kind, step=item.part.name, text=text, seconds=item.seconds or None))


def _told(machine: Machine) -> str:
    if machine.backend != "nccl":
        return f"torch {machine.torch}, no GPU is used: gloo"
    return f"torch {machine.torch}, NCCL {machine.nccl}, {machine.gpus} GPU{'s' if machine.gpus > 1 else ''}"


def _verdict(done: Sequence[Done], budget: float) -> str:
    """One sentence: how many parts passed, in which time, and the first that did not."""
    ran = [d for d in done if d.result]
    bad = [d for d in ran if d.word == "failed"]
    took = f"{sum(d.seconds for d in ran):.0f} s (budget {budget:.0f} s)"
    text = f"{len(ran) - len(bad)} of {len(ran)} parts passed in {took}"
    left = [d.part.name for d in done if not d.result]
    text += f"; not run: {', '.join(left)}" if left else ""
    return text + (f"; {bad[0].part.name}: {clean(bad[0].sentence)}" if bad else "")


def _leave(
    done: Sequence[Done], python: Path, folder: Path, started: str, verdict: str
) -> tuple[Record | None, list[str]]:
    """The plot, the summary and the record; a record only where something was run."""
    from envsmith.files import write_whole
    from envsmith.model.record import put_record
    from envsmith.proof import find_cell, record_of_parts
    from envsmith.smoke.plot import svg

    files = []
    said = next((d.result for d in done if d.result and d.result.loaded), None)
    record = None
    if said is not None:
        found = find_cell(python, said.loaded)
        record = record_of_parts(found, done, started=started)
        files.append(str(put_record(folder / "records", record, env=python.absolute().parent.parent)))
    band = next((d.result for d in done if d.result and d.result.bandwidth), None)
    if band is not None:
        title = f"{band.backend}, {band.placement.partition(';')[0]}, torch {band.loaded.get('torch', '')}"
        write_whole(folder / "busbw.svg", svg(band.bandwidth, title=title))
        files.append(str(folder / "busbw.svg"))
    write_whole(folder / "summary.md", _markdown(done, record, verdict))
    return record, [*files, str(folder / "summary.md")]


def _markdown(done: Sequence[Done], record: Record | None, verdict: str) -> str:
    lines = [f"# {record.cell_id if record else 'Nothing was run'}", ""]
    if record:
        lines += [f"{record.started}, proved: {' -> '.join(r.value for r in record.rungs)}", ""]
    lines += [f"{verdict}.", ""]
    lines += ["| part | what | outcome | seconds | |", "|---|---|---|---|---|"]
    for item in done:
        cells = (item.part.name, item.part.what, item.word, f"{item.seconds:.1f}", clean(item.sentence))
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _show(done: Sequence[Done], record: Record | None, files: Sequence[str], verdict: str) -> None:
    rows = [
        (d.part.name, click.style(d.word, fg=_COLOURS[d.word]), f"{d.seconds:.1f} s", _short(clean(d.sentence)))
        for d in done
    ]
    click.echo(table(rows))
    if record is not None:
        click.echo(f"cell: {record.cell_id}")
        click.echo(f"proved: {' -> '.join(r.value for r in record.rungs)}")
    for file in files:
        say(f"written: {file}")
    good = record is not None and record.passed and all(d.word != "failed" for d in done)
    click.echo(f"{click.style('passed' if good else 'failed', fg='green' if good else 'red', bold=True)}: {verdict}")
