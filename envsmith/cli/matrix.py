"""``envsmith matrix``: the records, and what is made of them: lists, exports, the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.base.files import claim, now, read_text, write_folder, write_whole
from envsmith.base.json_types import list_in
from envsmith.base.text import clean
from envsmith.cli.app import LazyGroup
from envsmith.cli.console import dumps, print_out, say, table, tell_framework
from envsmith.cli.declare import ExistingFolder, File, Folder, argument, choice, flag, option, several, verb
from envsmith.cli.flags import matrix_option
from envsmith.cli.values import parse_component
from envsmith.errors import UsageError
from envsmith.frameworks import FRAMEWORKS, frameworks_of
from envsmith.knowledge.graph.load import components, knowledge
from envsmith.knowledge.graph.location import find_matrix, list_files
from envsmith.matrix.document import document, states
from envsmith.matrix.tables import EXPORT, commands, csv_text, export_texts, with_table
from envsmith.model.cell import CellId
from envsmith.solver import solver_of

if TYPE_CHECKING:
    from envsmith.matrix.cells import CellState


_VERBS = {
    "refresh": ("refresh", "Read the package index and its artifacts, show what changed, write it with --write."),
    "run": ("campaign", "Run a campaign: climb the evidence ladder with many cells, record each."),
    "follow": ("follow", "Prove the newest release of a framework: refresh, solve, run, merge and page in one go."),
    "merge": ("merge", "Take the records of campaigns into the matrix."),
    "list": ("matrix", "The cells that were run, how far each was proved, and when."),
    "show": ("matrix", "One cell: rungs, steps, symptom, records, and the commands for it."),
    "export": ("matrix", "matrix.json, CSV, a file a cell, feed, tables of a README."),
    "graph": ("graph", "The version graph, or the part around a component, as DOT or JSON."),
    "site": ("site", "Write the static page: selector, grid, search, a page for each cell that was run."),
}


@click.group(cls=LazyGroup, verbs=_VERBS, heading="Commands")
def matrix() -> None:
    """Look at the knowledge and its proofs, refresh it from its sources, run cells."""


_COLOURS = {"proved": "green", "failed": "red", "not shown": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListFlags:
    """The options of ``matrix list``."""

    framework: tuple[str, ...] = several("-f", "NAME[SPEC]", "Only cells with it (repeatable).")
    companions: tuple[str, ...] = several(
        "--with",
        "COMPONENT[SPEC]",
        "Only cells with it: torch>=2.9, python==3.12.* …",
        positional="[COMPONENT[SPEC]...]",
    )
    status: str | None = choice(["proved", "failed", "not shown"], "Only these.")
    stale: bool = flag("Only cells whose record is over its time.")
    disagreeing: bool = flag("Only cells whose run did not do what the graph said.")
    form: str = choice(["table", "json", "csv", "markdown"], "--format", "How they are listed.", default="table")
    folder: ExistingFolder | None = matrix_option()


@verb(ListFlags, name="list")
def list_(settings: ListFlags) -> int:
    """List the cells that were run: how far each was proved, when, and until when that counts."""
    frameworks = _specs(settings.framework, "--framework")
    specs = frameworks | _specs(settings.companions, "--with")
    rows = [
        (state, entry)
        for state in _states(settings.folder)
        if frameworks.keys() <= {*frameworks_of(state.best.components)}
        and all(n in state.best.components and s.contains(state.best.components[n]) for n, s in specs.items())
        and (settings.status is None or state.status.value == settings.status)
        and (state.stale or not settings.stale)
        and ((entry := state.to_json())["agrees"] is False or not settings.disagreeing)
    ]
    entries = [entry for _, entry in rows]
    if settings.form == "json":
        print_out(dumps(entries))
    elif settings.form == "csv":
        print_out(csv_text(entries), nl=False)
    elif settings.form == "markdown":
        print_out("| cell | status | proved up to | on |\n|---|---|---|---|")
        for entry in entries:
            print_out(f"| `{entry['id']}` | {entry['status']} | {entry['counts_as']} | {entry['date']} |")
    else:
        if rows:
            print_out(table([_row(state, entry) for state, entry in rows]))
        proved = sum(state.is_proved for state, _ in rows)
        say(f"{len(rows)} cells, {proved} proved")
    return 0


def _row(state: CellState, entry: dict[str, Any]) -> tuple[str, ...]:
    word = click.style(state.status.value, fg=_COLOURS[state.status.value])
    age = f"{entry['date']}{' stale' if state.stale else ''}{' flaky' if entry['flaky'] else ''}"
    symptom = "" if state.is_proved else entry["symptom"]
    return (state.id, word, entry["counts_as"], age, clean(symptom or "")[:90])


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowFlags:
    """The options of ``matrix show``."""

    cell: str = argument()
    as_json: bool = flag("--json", "The whole entry with its records.")
    folder: ExistingFolder | None = matrix_option()


@verb(ShowFlags)
def show(settings: ShowFlags) -> int:
    """Show what is known of a CELL: how far it was proved, by which runs, with which loss, and what to type for it.

    Exit code 1 when it was never run.
    """
    cell = settings.cell
    state = next((s for s in _states(settings.folder) if s.id == cell), None)
    if state is None:
        try:
            CellId.parse(cell)
        except ValueError as error:
            raise UsageError(
                f"Cannot show {cell[:100]!r}: {str(error)[:200]}.", hint="Run envsmith matrix list to list the ids."
            ) from None
        if settings.as_json:
            print_out(dumps({"id": cell, "status": "never run"}))
        say(f"{cell} was never run here; envsmith explain {cell} says what the graph knows of it")
        return 1
    entry = state.to_json()
    if settings.as_json:
        print_out(dumps({**entry, "records": [r.to_json() for r in state.records], "commands": commands(entry)}))
        return 0
    rows = [("cell", state.id), ("status", click.style(state.status.value, fg=_COLOURS[state.status.value], bold=True))]
    rows += [("proved", " -> ".join(rung.value for rung in state.best.rungs)), ("counts as", state.counts_as.value)]
    rows += [("run on", f"{entry['date']}, counts until {entry['expires']}{' (over)' if state.stale else ''}")]
    if entry["expected"]:
        rows.append(("the graph said", ", ".join([str(entry["expected"]), *list_in(entry, "rules")])))
    if state.best.failure:
        rows += [("failed at", str(entry["failed_at"])), ("symptom", clean(str(entry["symptom"])))]
    rows += [(s.name, clean(f"{s.verdict.value}: {s.detail}")) for s in state.best.steps]
    rows += [
        ("record", f"{record.name}, vouched for by: {clean(str(state.voucher(record)))}") for record in state.records
    ]
    print_out(table(rows))
    if state.best.failure:
        print_out("\n".join(f"    {clean(line)}" for line in state.best.failure.log))
    print_out(table([(name, line) for name, line in commands(entry).items()]))
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFlags:
    """The options of ``matrix export``."""

    output: Folder | None = option(
        "-o", "Folder for matrix.json, matrix.csv, cells/, feed.xml. [default: matrix.json on stdout]"
    )
    markdown: File | None = option("Make the tables between the markers of this file anew.")
    base_url: str = option(
        "URL", "Where the folder will be served, for the links of the feed.", default="", show_default=False
    )
    as_json: bool = flag("--json", "What stdout has without --output and --markdown anyway: matrix.json.")
    folder: ExistingFolder | None = matrix_option()


@verb(ExportFlags)
def export(settings: ExportFlags) -> int:
    """Write the matrix as data for other programs: JSON with a schema, CSV, a file a cell, an Atom feed."""
    output, markdown, folder = settings.output, settings.markdown, settings.folder
    # Before the minutes of judging, not after them.
    text = read_text(markdown, failure=UsageError) if markdown is not None else ""
    if output is not None:
        claim(output, EXPORT)
    document = _document(folder)
    if markdown is not None:
        changed = with_table(text, document)
        if changed != text:
            write_whole(markdown, changed)
        say(f"{markdown}: {'changed' if changed != text else 'as it was'}")
    if output is not None:
        texts = export_texts(document, folder or find_matrix(), settings.base_url)
        write_folder(output, EXPORT, texts)
        say(f"{output}: {len(texts)} files")
    elif markdown is None:
        print_out(dumps(document, compact=True))
    return 0


def _states(folder: Path | None) -> list[CellState]:
    root = folder or find_matrix()
    return states(root, knowledge(list_files(root)), now().date())[0]


def _document(folder: Path | None) -> dict[str, Any]:
    root = folder or find_matrix()
    return document(root, solver_of(knowledge(list_files(root))), moment=now(), progress=tell_framework())


def _specs(words: tuple[str, ...], flag: str) -> dict[str, Any]:
    frameworks = FRAMEWORKS if flag == "--framework" else ()
    parsed = [parse_component(word, components(), flag=flag, frameworks=frameworks) for word in words]
    return {component.name: spec for component, spec in parsed}
