"""``envsmith ci``, for maintainers of libraries: the matrix of their CI, and whether their ranges hold."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.ci.check import check_library
from envsmith.ci.declared import read_metadata
from envsmith.ci.jobs import config_schema, make_matrix, write_config, write_matrix
from envsmith.ci.library import read_library
from envsmith.ci.possible import unjudged
from envsmith.ci.run import run_job
from envsmith.ci.since import changed, compare
from envsmith.cli import findings
from envsmith.cli.console import Console, clean, dumps, say, table, write_file
from envsmith.cli.findings import finding_lines
from envsmith.cli.options import exit_code, fail_on_option
from envsmith.errors import StorageError, UsageError
from envsmith.graph.load import components
from envsmith.solve import default_solver

if TYPE_CHECKING:
    from envsmith.ci.check import Located
    from envsmith.ci.jobs import Matrix
    from envsmith.ci.library import Library
    from envsmith.ci.since import Comparison


_MATRIX_FORMATS = ("table", "github", "gitlab", "nox", "json")
_CHECK_FORMATS = ("text", "json", "sarif", "junit", "github", "markdown")


@click.group()
def ci() -> None:
    """The matrix of a library's CI, and whether what it declares agrees with the version graph."""


_root = click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())


@ci.command(short_help="Jobs that cover every pair of versions.")
@_root
@click.option(
    "--format",
    "form",
    type=click.Choice(_MATRIX_FORMATS),
    default="table",
    show_default=True,
    help="How the jobs are written.",
)
@click.option(
    "--since",
    metavar="REF",
    help="When nothing that decides the matrix differs from this git revision, only the newest and the oldest cell.",
)
@click.option(
    "--known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="An earlier matrix (--format json): its cells are kept where that costs nothing.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write it there instead of stdout."
)
@click.option("--github-output", is_flag=True, help="Append matrix=… and jobs=N to the file that $GITHUB_OUTPUT names.")
def matrix(
    *, directory: Path, form: str, since: str | None, known: Path | None, output: Path | None, github_output: bool
) -> int:
    """Jobs that cover every pair of versions that can occur, newest and oldest always, known-bad ones as expected failures."""
    library = read_library(directory)
    small = None
    if since and not changed(directory, since):
        small = f"nothing that decides the matrix differs from {since}"
    result = make_matrix(library, small=small, earlier=_known(known, library))
    text = _table(result) if form == "table" else write_matrix(result, form)
    if github_output:
        _append("GITHUB_OUTPUT", f"matrix={write_matrix(result, 'github')}\njobs={len(result.jobs)}\n")
    _write(text, output)
    failing = sum(job.expect == "fail" for job in result.jobs)
    covered = f"{len(result.jobs) - failing} jobs cover the pairs of {result.possible} possible combinations"
    say(
        f"{library.name}: {covered} (no fewer than {result.cover.bound} could)"
        + (f", {failing} more must fail" if failing else "")
    )
    for note in result.notes:
        say(f"note: {note}")
    return 0


def _known(path: Path | None, library: Library) -> list[tuple[str, ...]]:
    if path is None:
        return []

    try:
        jobs = json.loads(path.read_text(encoding="utf-8"))["jobs"]
        names = [n.replace("-", "_") for n in library.axes]
        return [tuple(str(job[n]) for n in names) for job in jobs if job.get("expect") == "pass"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--known {path}: not a matrix of these axes: {error!r}", hint="give a file written by --format json"
        ) from error


def _table(result: Matrix) -> str:
    if not result.jobs:
        return "no jobs"
    head = (*result.jobs[0].axes, "expect", "cell")
    return table(
        [
            head,
            *((*job.axes.values(), job.expect if not job.rule else f"fail: {job.rule}", job.id) for job in result.jobs),
        ]
    )


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text)
        return
    write_file(output, text + "\n")


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if not path:
        raise UsageError(
            f"${variable} is not set", hint="that is where GitHub Actions wants outputs; elsewhere use --output"
        )
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error


@ci.command(short_help="Do the declared ranges agree with the version graph?")
@_root
@click.option(
    "--metadata",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Judge a wheel's METADATA (or PKG-INFO) instead of a checkout.",
)
@click.option(
    "--since",
    metavar="REF",
    help="Compare with a git revision: what becomes possible or impossible, which release it asks for.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(_CHECK_FORMATS),
    default="text",
    show_default=True,
    help="How findings are written.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write them there instead of stdout."
)
@click.option("--summary", is_flag=True, help="Append Markdown to the file that $GITHUB_STEP_SUMMARY names.")
@fail_on_option
def check(
    *,
    directory: Path,
    metadata: Path | None,
    since: str | None,
    form: str,
    output: Path | None,
    summary: bool,
    fail_on: str,
) -> int:
    """Ranges that admit known-bad cells or exclude proved ones, Pythons without wheels, bounds that block the newest torch, CUDA majors."""
    library = _library(directory, metadata)
    located = list(check_library(library))
    comparison = None
    if since:
        comparison = compare(directory, since, library)
        located += comparison.findings
    if summary:
        _append("GITHUB_STEP_SUMMARY", findings.summary(library.name, located, comparison) + "\n")
    texts = {
        "json": lambda: findings.to_json(library.name, located, comparison),
        "sarif": lambda: findings.located_sarif(located),
        "junit": lambda: findings.junit(library.name, located),
        "github": lambda: findings.workflow_commands(located),
        "markdown": lambda: findings.summary(library.name, located, comparison),
        "text": lambda: _text(library, located, comparison),
    }
    _write(texts[form](), output)
    return exit_code((each.finding for each in located), fail_on)


def _library(directory: Path, metadata: Path | None) -> Library:
    if metadata is None:
        return read_library(directory)
    try:
        text = metadata.read_text(encoding="utf-8", errors="replace")[: 4 << 20]
    except OSError as error:
        raise UsageError(f"--metadata {metadata}: {error.strerror or error}") from error
    declaration = read_metadata(text, metadata.name)
    return read_library(metadata.parent / ".no-configuration", declaration=declaration)


def _text(library: Library, findings_: list[Located], comparison: Comparison | None) -> str:
    lines = [f"{library.name}: " + ", ".join(f"{n} {s}" for n, s in library.ranges.items())]
    for located in findings_:
        first, *further = finding_lines(located.finding)
        lines += [f"{clean(located.file)}:{located.line}: {first}", *further]
    lines += [f"passed over: {clean(line)}" for line in library.declaration.skipped]
    left_out = unjudged(library, default_solver())
    if left_out:
        lines.append(f"not judged, for no release in the declared range is known here: {', '.join(left_out)}")
    if not findings_:
        lines.append("what is declared agrees with the version graph")
    if comparison is not None:
        lines.append(
            f"since {comparison.base}: {comparison.before} -> {comparison.after} combinations; "
            f"asks for a {comparison.asks} release"
        )
        for word, values in (("no longer possible", comparison.lost), ("now possible", comparison.gained)):
            lines += [f"  {word}: {name} {', '.join(listed)}" for name, listed in values.items()]
        lines += [f"  communication API: {clean(what)}" for what in comparison.breaks]
    return "\n".join(lines)


@ci.command(short_help="Run one job of the matrix here.")
@click.argument("job")
@_root
@click.option(
    "--environment",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the environment there; else it is removed.",
)
@click.option(
    "--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Processes of envsmith's own smoke test."
)
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the outcome there as JSON."
)
@click.option("--verbose", "-v", is_flag=True, help="Show every line.")
def run(*, job: str, directory: Path, environment: Path | None, ranks: int, record: Path | None, verbose: bool) -> int:
    """Run one JOB of the matrix (its id) here: environment, library, test. Exit code 0 when it ended as expected: known-bad jobs must fail."""
    library = read_library(directory)
    jobs = {j.id: j for j in make_matrix(library).jobs}
    if job not in jobs:
        near = difflib.get_close_matches(job, jobs, n=3)
        raise UsageError(
            f"no job {job!r} in the matrix",
            hint=f"did you mean {' or '.join(near)}?" if near else "envsmith ci matrix lists them",
        )
    with Console(verbose=verbose) as console:
        verdict = run_job(library, jobs[job], directory, environment=environment, ranks=ranks, progress=console)
    if record is not None:
        _write(dumps(verdict.to_json()), record)
    mark = (
        click.style("ok", fg="green", bold=True) if verdict.as_expected else click.style("not ok", fg="red", bold=True)
    )
    click.echo(f"{mark}: {job}: {clean(verdict.sentence)}")
    return 0 if verdict.as_expected else 1


@ci.command()
def schema() -> int:
    """Print the JSON Schema of envsmith.yaml."""
    click.echo(dumps(config_schema(components())))
    return 0


# ``envsmith init``: a first envsmith.yaml for a library.


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())
@click.option("--force", is_flag=True, help="Overwrite an envsmith.yaml that is there.")
def init(*, directory: Path, force: bool) -> int:
    """Write envsmith.yaml from pyproject.toml, setup.cfg, requirements.txt, environment.yml or METADATA of DIRECTORY (here)."""
    path, declaration = write_config(directory, components(), force=force)
    for line in declaration.skipped:
        say(f"passed over: {line}")
    click.echo(str(path))
    say("next: envsmith ci check, envsmith ci matrix")
    return 0
