"""``envsmith ci``, for maintainers of libraries: the matrix of their CI, and whether their ranges hold."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.base.files import read_text, write_whole
from envsmith.base.text import clean
from envsmith.cli import findings
from envsmith.cli.app import LazyGroup
from envsmith.cli.console import Console, dumps, print_out, say, table
from envsmith.cli.declare import (
    ExistingFile,
    ExistingFolder,
    File,
    Folder,
    NoFlags,
    argument,
    choice,
    flag,
    option,
    verb,
)
from envsmith.cli.findings import finding_lines
from envsmith.cli.flags import exit_code, fail_on_option
from envsmith.errors import UsageError, os_errors
from envsmith.project.ci.check import check_library
from envsmith.project.ci.jobs import make_matrix, write_config, write_matrix
from envsmith.project.ci.library import PAIRS, config_schema, read_library
from envsmith.project.ci.local import run_job
from envsmith.project.ci.possible import unjudged
from envsmith.project.ci.published import as_published
from envsmith.project.ci.since import changed, compare
from envsmith.project.declared import MAX_BYTES, read_metadata
from envsmith.solver import default_solver

if TYPE_CHECKING:
    from envsmith.project.ci.check import Located
    from envsmith.project.ci.jobs import Matrix
    from envsmith.project.ci.library import Library
    from envsmith.project.ci.since import Comparison


_MATRIX_FORMATS = ("table", "github", "gitlab", "nox", "json")
_CHECK_FORMATS = ("text", "json", "sarif", "junit", "github", "markdown")


_VERBS = {
    "matrix": ("ci", "Jobs that hold every version."),
    "check": ("ci", "Do the declared ranges agree with the version graph?"),
    "run": ("ci", "Run one job of the matrix here."),
    "schema": ("ci", "Print the JSON Schema of envsmith.yaml."),
}


@click.group(cls=LazyGroup, verbs=_VERBS, heading="Commands")
def ci() -> None:
    """Make the matrix of a library's CI, and compare what it declares with the version graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixFlags:
    """The options of ``ci matrix``."""

    directory: ExistingFolder = argument(default=Path())
    form: str = choice(_MATRIX_FORMATS, "--format", "How the jobs are written.", default="table")
    since: str | None = option(
        "REF",
        "When nothing that decides the matrix differs from this git revision, only the newest and the oldest cell.",
    )
    output: File | None = option("-o", "Write it there instead of stdout.")
    github_output: bool = flag("Append matrix=… and jobs=N to the file that $GITHUB_OUTPUT names.")


@verb(MatrixFlags)
def matrix(settings: MatrixFlags) -> int:
    """List jobs that hold every version that can occur, newest and oldest always, each extra, known-bad ones as expected failures."""
    library = read_library(settings.directory, published=as_published)
    small = None
    if settings.since and not changed(settings.directory, settings.since):
        small = f"nothing that decides the matrix differs from {settings.since}"
    result = make_matrix(library, small=small)
    text = _table(result) if settings.form == "table" else write_matrix(result, settings.form)
    if settings.github_output:
        _append("GITHUB_OUTPUT", f"matrix={write_matrix(result, 'github')}\njobs={len(result.jobs)}\n")
    _write(text, settings.output)
    failing = sum(job.expect == "fail" for job in result.jobs)
    covered = "every pair of values" if library.settings.cover == PAIRS else "every value"
    if result.uncovered:
        covered = covered.replace("every", "not every")
    bound = "" if result.uncovered else f" (no fewer than {result.lower_bound} could)"
    say(
        f"{library.name}: {len(result.jobs) - failing} jobs hold {covered} of {result.possible} possible combinations"
        + bound
        + (f", {failing} more must fail" if failing else "")
    )
    for note in result.notes:
        say(f"note: {note}")
    return 0


def _table(result: Matrix) -> str:
    if not result.jobs:
        return "no jobs"
    rows = [(*result.jobs[0].axes, "expect", "job")]
    rows += [(*job.axes.values(), f"fail: {job.rule}" if job.rule else "pass", job.id) for job in result.jobs]
    return table(rows)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print_out(text)
    else:
        write_whole(output, text + "\n")


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if not path:
        raise UsageError(
            f"Cannot write the outputs of the job: the variable {variable} is not set.",
            hint="Use --output. Only GitHub Actions sets that variable.",
        )
    with os_errors(f"write {path}"), Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class CiCheckFlags:
    """The options of ``ci check``."""

    directory: ExistingFolder = argument(default=Path())
    metadata: ExistingFile | None = option("FILE", "Judge a wheel's METADATA (or PKG-INFO) instead of a checkout.")
    since: str | None = option(
        "REF", "Compare with a git revision: what becomes possible or impossible, which release it asks for."
    )
    form: str = choice(_CHECK_FORMATS, "--format", "How findings are written.", default="text")
    output: File | None = option("-o", "Write them there instead of stdout.")
    summary: bool = flag("Append Markdown to the file that $GITHUB_STEP_SUMMARY names.")
    fail_on: str = fail_on_option()


@verb(CiCheckFlags)
def check(settings: CiCheckFlags) -> int:
    """Find ranges that admit known-bad cells or exclude proved ones, Pythons without wheels, bounds that block the newest torch, CUDA majors."""
    library = _library(settings.directory, settings.metadata)
    located = list(check_library(library))
    comparison = None
    if settings.since:
        comparison = compare(settings.directory, settings.since, library)
        located += comparison.findings
    if settings.summary:
        _append("GITHUB_STEP_SUMMARY", findings.summary(library.name, located, comparison) + "\n")
    at_lines = [replace(each.finding, where=f"{each.file}:{each.line}") for each in located]
    texts = {
        "json": lambda: findings.to_json(library.name, located, comparison),
        "sarif": lambda: findings.machine_text(at_lines, "sarif"),
        "junit": lambda: findings.junit(library.name, located),
        "github": lambda: findings.machine_text(at_lines, "github"),
        "markdown": lambda: findings.summary(library.name, located, comparison),
        "text": lambda: _text(library, located, comparison),
    }
    _write(texts[settings.form](), settings.output)
    return exit_code((each.finding for each in located), settings.fail_on)


def _library(directory: Path, metadata: Path | None) -> Library:
    if metadata is None:
        return read_library(directory, published=as_published)
    declaration = read_metadata(read_text(metadata, MAX_BYTES, failure=UsageError, errors="replace"), metadata.name)
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
        lines += [f"  {clean(line)}" for line in comparison.differences]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class CiRunFlags:
    """The options of ``ci run``."""

    job: str = argument()
    directory: ExistingFolder = argument(default=Path())
    environment: Folder | None = option("DIR", "Keep the environment there; else it is removed.")
    ranks: int = option("Processes of envsmith's own smoke test.", type=click.IntRange(2, 64), default=2)
    record: File | None = option("FILE", "Write the outcome there as JSON.")


@verb(CiRunFlags)
def run(settings: CiRunFlags) -> int:
    """Run one JOB of the matrix (its id) here: environment, library, test. Exit code 0 when it ended as expected: known-bad jobs must fail."""
    library = read_library(settings.directory, published=as_published)
    jobs = {j.id: j for j in make_matrix(library).jobs}
    if settings.job not in jobs:
        near = difflib.get_close_matches(settings.job, jobs, n=3)
        raise UsageError(
            f"Cannot run the job {settings.job!r}: the matrix has no such job.",
            hint=f"Try {' or '.join(near)}." if near else "Run envsmith ci matrix to list the jobs.",
        )
    with Console() as console:
        verdict = run_job(
            library,
            jobs[settings.job],
            settings.directory,
            environment=settings.environment,
            ranks=settings.ranks,
            progress=console,
        )
    if settings.record is not None:
        write_whole(settings.record, dumps(verdict.to_json()) + "\n")
    word, colour = ("ok", "green") if verdict.as_expected else ("not ok", "red")
    mark = click.style(word, fg=colour, bold=True)
    print_out(f"{mark}: {settings.job}: {clean(verdict.sentence)}")
    return 0 if verdict.as_expected else 1


@verb(NoFlags)
def schema(_settings: NoFlags) -> int:
    """Print the JSON Schema of envsmith.yaml."""
    print_out(dumps(config_schema()))
    return 0


# ``envsmith init``: a first envsmith.yaml for a library.


@dataclass(frozen=True, kw_only=True, slots=True)
class InitFlags:
    """The options of ``init``."""

    directory: ExistingFolder = argument(default=Path())
    force: bool = flag("Overwrite an envsmith.yaml that is there.")


@verb(InitFlags)
def init(settings: InitFlags) -> int:
    """Write envsmith.yaml from pyproject.toml, setup.cfg, requirements.txt, environment.yml or METADATA of DIRECTORY (here)."""
    path, declaration = write_config(settings.directory, force=settings.force)
    for line in declaration.skipped:
        say(f"passed over: {line}")
    print_out(str(path))
    say("next: envsmith ci check, envsmith ci matrix")
    return 0
