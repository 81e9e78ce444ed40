"""``envsmith matrix list | show | diff | export | merge``: the records and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import clean, dumps, say, table
from envsmith.cli.flags import matrix_option
from envsmith.errors import UsageError

if TYPE_CHECKING:
    from envsmith.matrix.export.cells import CellState

__all__ = ["diff", "export", "list_", "merge", "show", "tell_framework"]

_COLOURS = {"proved": "green", "failed": "red", "not shown": "yellow"}


@click.command("list")
@click.option("--framework", multiple=True, metavar="NAME[SPEC]", help="Only cells with it (repeatable).")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="COMPONENT[SPEC]",
    help="Only cells with it: torch>=2.9, python==3.12.* …",
)
@click.option("--status", type=click.Choice(["proved", "failed", "not shown"]), help="Only these.")
@click.option("--stale", is_flag=True, help="Only cells whose record is over its time.")
@click.option("--disagreeing", is_flag=True, help="Only cells whose run did not do what the graph said.")
@click.option(
    "--format", "shape", type=click.Choice(["table", "json", "csv", "markdown"]), default="table", show_default=True
)
@matrix_option
def list_(
    *,
    framework: tuple[str, ...],
    others: tuple[str, ...],
    status: str | None,
    stale: bool,
    disagreeing: bool,
    shape: str,
    folder: Path | None,
) -> int:
    """List the cells that were run: how far each was proved, when, and until when that counts."""
    wanted = _specs(framework, "--framework") | _specs(others, "--with")
    found = [
        (state, entry)
        for state in _states(folder)
        if all(n in state.best.components and s.contains(state.best.components[n]) for n, s in wanted.items())
        and (status is None or state.status.value == status)
        and (state.stale or not stale)
        and ((entry := state.to_json())["agrees"] is False or not disagreeing)
    ]
    entries = [entry for _, entry in found]
    if shape == "json":
        click.echo(dumps(entries))
    elif shape == "csv":
        from envsmith.matrix.export.files import csv_text

        click.echo(csv_text(entries), nl=False)
    elif shape == "markdown":
        click.echo("| cell | status | proved up to | on |\n|---|---|---|---|")
        for entry in entries:
            click.echo(f"| `{entry['id']}` | {entry['status']} | {entry['counts_as']} | {entry['date']} |")
    else:
        click.echo(table([_row(state, entry) for state, entry in found])) if found else None
        proved = sum(state.status.value == "proved" for state, _ in found)
        say(f"{len(found)} cells, {proved} proved")
    return 0


def _row(state: CellState, entry: dict[str, Any]) -> tuple[str, ...]:
    word = click.style(state.status.value, fg=_COLOURS[state.status.value])
    age = f"{entry['date']}{' stale' if state.stale else ''}{' flaky' if entry['flaky'] else ''}"
    said = entry["symptom"] if state.status.value != "proved" else ""
    return (state.id, word, entry["counts_as"], age, clean(said or "")[:90])


@click.command()
@click.argument("cell")
@click.option("--json", "as_json", is_flag=True, help="The whole entry with its records.")
@matrix_option
def show(*, cell: str, as_json: bool, folder: Path | None) -> int:
    """Show what is known of a CELL: how far it was proved, by which runs, with which loss, and what to type for it.

    Exit code 1 when it was never run.
    """
    from envsmith.matrix.export.files import commands

    state = next((s for s in _states(folder) if s.id == cell), None)
    if state is None:
        _refuse_malformed(cell)
        say(f"{cell} was never run here; envsmith explain {cell} says what the graph knows of it")
        return 1
    entry = state.to_json()
    if as_json:
        click.echo(dumps({**entry, "records": [r.data for r in state.records], "commands": commands(entry)}))
        return 0
    rows = [("cell", state.id), ("status", click.style(state.status.value, fg=_COLOURS[state.status.value], bold=True))]
    rows += [("proved", " -> ".join(state.best.data["rungs"])), ("counts as", state.counts_as.value)]
    rows += [("run on", f"{entry['date']}, counts until {entry['expires']}{' (over)' if state.stale else ''}")]
    if entry["expected"]:
        rows.append(("the graph said", ", ".join([entry["expected"], *entry["rules"]])))
    if state.best.failure:
        rows += [("failed at", str(entry["failed_at"])), ("symptom", clean(str(entry["symptom"])))]
    rows += [(s["name"], clean(f"{s['verdict']}: {s['detail']}")) for s in state.best.data.get("steps", [])]
    rows += [("record", record.name) for record in state.records]
    click.echo(table(rows))
    if state.best.failure:
        click.echo("\n".join(f"    {clean(line)}" for line in state.best.failure.get("log", [])))
    click.echo(table([(name, line) for name, line in commands(entry).items()]))
    return 0


def _refuse_malformed(cell: str) -> None:
    from envsmith.model.cell import CellId

    try:
        CellId.parse(cell)
    except ValueError as error:
        raise UsageError(str(error)[:300], hint="envsmith matrix list shows the ids") from None


@click.command()
@click.argument("before", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("after", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@matrix_option
def diff(*, before: Path, after: Path | None, as_json: bool, folder: Path | None) -> int:
    """Say what changed between two matrix.json files, or since BEFORE until now: cells, torch builds, releases.

    Exit code 0 when nothing changed, 1 when something did, as diff has it.
    """
    from envsmith.matrix.export.changes import changes, read_document

    old = read_document(before)
    new = read_document(after) if after else _document(folder)
    found = changes(old, new)
    if as_json:
        click.echo(dumps([change.to_json() for change in found]))
    else:
        for change in found:
            click.echo(f"{change.what} {change.name}: {change.before or 'not there'} -> {change.after or 'gone'}")
        say(f"{len(found)} changes")
    return 1 if found else 0


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for matrix.json, matrix.csv, cells/, badges/, feed.xml. [default: matrix.json on stdout]",
)
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Make the tables between the markers of this file anew.",
)
@click.option(
    "--base-url", default="", metavar="URL", help="Where the folder will be served, for the links of the feed."
)
@matrix_option
def export(*, output: Path | None, markdown: Path | None, base_url: str, folder: Path | None) -> int:
    """Write the matrix as data for other programs: JSON with a schema, CSV, a file a cell, badges, an Atom feed."""
    from envsmith.lock.store import prepare
    from envsmith.matrix.campaign.state import write_whole
    from envsmith.matrix.export.files import dumped, with_table

    # Before the minutes of judging, not after them.
    text = _text(markdown) if markdown is not None else ""
    if output is not None:
        prepare(output)
    document = _document(folder)
    if markdown is not None:
        changed = with_table(text, document)
        if changed != text:
            write_whole(markdown, changed)
        say(f"{markdown}: {'changed' if changed != text else 'as it was'}")
    if output is not None:
        from envsmith.matrix.export.write import write_export

        count = write_export(output, document, _root(folder), base_url)
        say(f"{output}: {count} files")
    elif markdown is None:
        click.echo(dumped(document), nl=False)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@matrix_option
def merge(*, sources: tuple[Path, ...], folder: Path | None) -> int:
    """Take the records of SOURCES into the matrix.

    A source is what a build wrote (the cell's folder, or the folder of all cells), a campaign's folder, what `smoke --tier all` left, a folder of
    records, or a file.

    They go into --matrix, else into the matrix that envsmith uses; an installed envsmith has its own in its package, which is left alone:
    `matrix/` in this folder is taken then, as in a checkout.

    Names follow from contents, so nothing is overwritten and the same record twice is one. A file that was changed after it was written is
    refused.
    """
    from envsmith.graph.data import own_matrix
    from envsmith.matrix.records import merge as merged

    target = (folder or own_matrix()) / "records"
    new, known = merged(sources, target)
    if not new and not known:
        raise UsageError(
            f"{', '.join(map(str, sources))}: no record there", hint="give the folder of a campaign, or of its records"
        )
    for name in new:
        click.echo(name)
    say(f"{len(new)} records taken into {target}, {known} were there")
    return 0


def _root(folder: Path | None) -> Path:
    from envsmith.graph.data import find_matrix

    return folder if folder is not None else find_matrix()


def _states(folder: Path | None) -> list[CellState]:
    from envsmith.graph.cached import knowledge_of
    from envsmith.graph.data import list_files
    from envsmith.matrix.export.document import now, states

    root = _root(folder)
    return states(root, knowledge_of(list_files(root)), now().date())[0]


def _document(folder: Path | None) -> dict[str, Any]:
    from envsmith.graph.cached import knowledge_of
    from envsmith.graph.data import list_files
    from envsmith.matrix.export.document import document, now
    from envsmith.solve.api import solver_of

    root = _root(folder)
    return document(root, solver_of(knowledge_of(list_files(root))), moment=now(), progress=tell_framework())


def tell_framework() -> Callable[[str], None]:
    """Tells each framework once while all its releases are judged: it takes a while."""
    said: set[str] = set()

    def progress(line: str) -> None:
        name = line.split(maxsplit=1)[0]
        if name not in said:
            said.add(name)
            say(f"judging every {name} with every torch")

    return progress


def _specs(words: tuple[str, ...], flag: str) -> dict[str, Any]:
    from envsmith.cli.options import parse_component
    from envsmith.graph.names import components
    from envsmith.model.component import Role

    role = Role.FRAMEWORK if flag == "--framework" else None
    parsed = [parse_component(word, components(), flag=flag, role=role) for word in words]
    return {component.name: spec for component, spec in parsed}
