"""``envsmith build``: the main job, from a framework's name to a proved environment; one cell or many."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.base.files import read_text
from envsmith.cli.console import Console, dumps, mark, print_out, say, table, warn
from envsmith.cli.declare import ExistingFile, ExistingPath, Folder, Section, group, takes, verb
from envsmith.cli.flags import LockFlags, RequestFlags, cells_option, flavour_option
from envsmith.cli.solve import show_refusal
from envsmith.cli.sources import SourceFlags, lock_options, plan
from envsmith.errors import SmokeError, StorageError, UsageError
from envsmith.frameworks import EXAMPLE, FRAMEWORKS, frameworks_of
from envsmith.model.cell import CellId
from envsmith.model.finding import UnsatisfiableError

if TYPE_CHECKING:
    from envsmith.builder.batch import BatchResult
    from envsmith.builder.options import BuildOutcome, Options

_MAX_CELLS = 500


# Headings of ``--help``.
_BUILD_AND_TEST, _OUTPUT, _MANY_CELLS = map(Section, ("Build and test", "Output", "Many cells"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildFlags:
    """The options of ``build``."""

    request: RequestFlags = group(RequestFlags, "Request")
    engine: str | None = _BUILD_AND_TEST.option(
        "NAME",
        "docker, podman, buildah, venv or conda. Default: docker or podman where it answers, else a virtual "
        "environment.",
    )
    base: str | None = _BUILD_AND_TEST.option(
        "IMAGE", "Base image (NAME[:TAG][@DIGEST]), or packages: Debian's by version."
    )
    lock: ExistingPath | None = _BUILD_AND_TEST.option("FILE", "Build this lock.json, or its folder, without solving.")
    output: Folder = cells_option("Folder for the cell's own folder.")
    tier: str = _BUILD_AND_TEST.choice(
        ["quick", "full", "framework", "bandwidth"], "How much the smoke test tries.", default="quick"
    )
    ranks: int = _BUILD_AND_TEST.option("Processes of the smoke test.", type=click.IntRange(2, 64), default=4)
    flavour: str = flavour_option()
    sources: SourceFlags = group(SourceFlags, "Sources")
    locking: LockFlags = group(LockFlags, "Lock and network")
    no_smoke: bool = _BUILD_AND_TEST.flag("Build only. Nothing is proved and no record is written.")
    oci: bool = _OUTPUT.flag("Write the image as an OCI layout into the cell's folder, ready to publish.")
    compress: str = _OUTPUT.choice(
        ["none", "gzip", "zstd"], "How the layers of that layout are stored.", default="none"
    )
    all_frameworks: bool = _MANY_CELLS.flag("A cell of each framework under the same flags.")
    cells: ExistingFile | None = _MANY_CELLS.option(
        "Build many cells: one a line, a cell id or request flags; # begins a comment."
    )
    jobs: int = _MANY_CELLS.option(
        "Cells at a time. Default: one for every four cores and 8 GB.",
        type=click.IntRange(0, 64),
        default=0,
        show_default=False,
    )
    again: bool = _MANY_CELLS.flag("Also build cells that are proved already.")
    as_json: bool = _OUTPUT.flag("--json", "One JSON object on stdout: cell, files, record.")


@verb(
    BuildFlags,
    f"envsmith build {EXAMPLE}",
    f"envsmith build {EXAMPLE} --torch '>=2.9' --gpu h100 --engine docker",
    f"envsmith build {EXAMPLE} transformers --engine venv --tier framework",
    "envsmith build --cells cells.txt --jobs 2",
)
def build(settings: BuildFlags) -> int:
    """Solve, lock, build an image (or a virtual environment), prove it, write the record.

    If a build is interrupted or fails, run the same command again to resume. Exit code 0 when the smoke test passed.
    """
    from envsmith.builder import arrow as build

    if settings.lock and (settings.all_frameworks or settings.cells or settings.request.names_something):
        raise UsageError(
            "Cannot combine --lock with a choice of frameworks: the lock names the whole cell.",
            hint="Leave out --framework, --all-frameworks and --cells.",
        )
    if settings.all_frameworks or settings.cells:
        return _build_many([_options(replace(settings, request=each)) for each in _requests(settings)], settings)
    if not settings.lock:
        settings.request.refuse_nothing("build an environment", "build")
    try:
        with Console() as console:
            options, inferred = plan(
                settings.request, lambda flags: _options(replace(settings, request=flags)), console
            )
            outcome = build.build(options, progress=console)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    if settings.as_json:
        print_out(dumps({**_outcome_json(outcome), **inferred}))
    else:
        _show(outcome)
    record = outcome.record
    return 0 if record is None or record.passed else SmokeError.exit_code if record.of_host else 1


def _options(settings: BuildFlags) -> Options:
    return lock_options(
        settings.request,
        settings.sources,
        settings.locking,
        flavour=settings.flavour,
        conda=not settings.locking.no_conda or settings.engine == "conda",  # its engine installs the Conda lock
        output=settings.output,
        engine=settings.engine,
        base=settings.base,
        lock=settings.lock,
        tier=settings.tier,
        ranks=settings.ranks,
        smoke=not settings.no_smoke,
        oci=settings.oci,
        packing=settings.compress,
    )


def _outcome_json(outcome: BuildOutcome) -> dict[str, object]:
    """Return what ``--json`` prints of one cell."""
    built = outcome.built
    return {
        "cell": outcome.cell.to_json(),
        "lock": outcome.lock.digest,
        "directory": str(outcome.directory),
        "files": {name: str(outcome.directory / name) for name in outcome.files},
        "built": None
        if built is None
        else {"kind": built.kind, "reference": built.reference, "digest": built.digest, "python": built.python},
        "record": None if outcome.record is None else outcome.record.trimmed().to_json(),
        "notes": list(outcome.notes),
        "seconds": {step: round(seconds, 3) for step, seconds in outcome.seconds.items()},
    }


_SAID = {
    "Dockerfile": "the image, pinned",
    "requirements.txt": "pip lock: every file by sha256",
    "pylock.toml": "pip lock as PEP 751",
    "conda-lock.yml": "Conda lock",
    "Dockerfile.conda": "the image from the Conda lock",
    "lock.json": "the whole lock",
    "docker-bake.json": "for docker buildx bake",
    ".devcontainer.json": "for editors with dev containers",
    "apptainer.def": "for Apptainer, without a container engine",
    "record.json": "the proof",
}


# What only an image is made of, or started with: no business of who has an environment.
_OF_IMAGES = {"Dockerfile", "Dockerfile.conda", "docker-bake.json", ".devcontainer.json", "apptainer.def"}


def _from_here(text: str) -> str:
    return text.replace(f"{Path.cwd()}/", "")


def _show(outcome: BuildOutcome) -> None:
    """Print where everything is, how it is used, and the one line that matters last."""
    built = outcome.built
    of_image = built is None or built.kind == "image"
    names = [name for name in _SAID if name in outcome.files and (of_image or name not in _OF_IMAGES)]
    rows = [(str(outcome.directory / name), _SAID[name]) for name in names]
    if built:
        where = f"docker run --rm -it {built.reference}" if of_image else built.python
        rows.append((_from_here(where), f"{built.kind} {built.digest}"))
    print_out(table(rows))
    if built:
        print_out(table([(what, _from_here(command)) for what, command in built.usage]))
    for note in outcome.notes:
        say(f"note: {note}")
    record = outcome.record
    if record is None:
        say("no smoke test was run: nothing is proved yet")
        return
    for step in record.steps:
        if step.verdict.value == "skipped":
            say(f"not run: {step.name}: {step.detail}")
    print_out(f"{mark(passed=record.passed)}: {record.summary}")
    print_out(f"proved: {' -> '.join(r.value for r in record.rungs)}")


# ``envsmith build --all-frameworks`` and ``--cells FILE``: many cells in one go.


def _requests(settings: BuildFlags) -> tuple[RequestFlags, ...]:
    flags, locking = settings.request, settings.locking
    if flags.framework or (settings.all_frameworks and settings.cells):
        raise UsageError(
            "Cannot combine --framework, --all-frameworks and --cells: each of them says what to build.",
            hint="Give only one of them.",
        )
    if locking.locked or locking.frozen:
        hint = "Leave them out. A batch uses every lock that is current."
        raise UsageError("Cannot use --locked or --frozen with many cells: they are for one cell.", hint=hint)
    if settings.cells is None:
        return tuple(replace(flags, framework=(name,)) for name in FRAMEWORKS)
    return read_cells(read_text(settings.cells, 1 << 20, failure=StorageError), str(settings.cells))


@click.command()
@takes(RequestFlags)
def _line(flags: RequestFlags) -> RequestFlags:
    """Parse one line of a file of cells."""
    return flags


def read_cells(text: str, where: str) -> tuple[RequestFlags, ...]:
    """Read every line as request flags. ``UsageError`` lists each line that is neither a cell id nor flags."""
    problems: list[str] = []
    lines: list[RequestFlags] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := shlex.split(line, comments=True):
                lines.append(_flags_of(words))
        except (ValueError, click.ClickException, click.exceptions.Exit) as error:  # noqa: PERF203
            message = error.format_message() if isinstance(error, click.ClickException) else str(error)
            problems.append(f"{where}:{number}: {message}")
    if len(lines) > _MAX_CELLS:
        problems.append(f"{where}: more than {_MAX_CELLS} cells")
    if problems or not lines:
        raise UsageError(
            f"Cannot read {where}: {len(problems)} of its lines cannot be understood."
            if problems
            else f"Cannot build from {where}: it names no cell.",
            details=problems,
            hint="Write one cell on each line: its id (ds0.19.8-torch2.13.0-cu130-py312) or the request flags of "
            "envsmith build.",
        )
    return tuple(lines)


def _flags_of(words: Sequence[str]) -> RequestFlags:
    """Return request flags, or the request that has the named cell as its answer."""
    if len(words) == 1 and not words[0].startswith("-"):
        cell = CellId.parse(words[0])
        exact = dict(cell.components)
        frameworks = frameworks_of(exact)
        torch, cuda, python = (exact.pop(name, None) for name in ("torch", "cuda", "python"))
        return RequestFlags(
            framework=tuple(f"{name}=={exact[name]}" if name in exact else name for name in frameworks),
            with_=tuple(f"{name}=={version}" for name, version in exact.items() if name not in frameworks),
            python=python,
            torch=f"=={torch}" if torch else None,
            cuda=cuda,
            platform=cell.platform.value,
        )
    flags = _line.main(args=list(words), prog_name="cell", standalone_mode=False)
    if not isinstance(flags, RequestFlags):
        raise ValueError("no request flags")  # noqa: TRY004 - --help, reported like every other problem
    return flags


def _build_many(options: Sequence[Options], settings: BuildFlags) -> int:
    """Build the cells and return the exit code: 0 when every one is good."""
    from envsmith.builder import batch  # --help waits for no installer

    with Console() as console:
        results = batch.build_many(options, jobs=settings.jobs, again=settings.again, progress=console)
    batch.write_bake(settings.output, results)
    if settings.as_json:
        print_out(dumps({"cells": [_json(result) for result in results]}))
    for result in results:
        _show_one(result, quiet=settings.as_json)
    return 0 if all(result.good for result in results) else 1


def _json(result: BatchResult) -> dict[str, object]:
    row: dict[str, object] = {"request": result.options.request_text, "good": result.good, "kept": result.is_kept}
    if (error := result.error) is not None:
        return row | {"error": {"message": error.message, "code": error.exit_code, "hint": error.hint}}
    return row | (_outcome_json(result.outcome) if result.outcome else {})


def _show_one(result: BatchResult, *, quiet: bool) -> None:
    color = "green" if result.good else "red"
    if result.error is not None:
        warn(f"{click.style('failed', fg=color)}: {result.options.request_text}: {result.error}")
        return
    outcome = result.outcome
    if outcome is None or quiet:
        return
    word = "kept" if result.is_kept else "built" if outcome.record is None else "passed" if result.good else "failed"
    where = outcome.built.reference if outcome.built else str(outcome.directory)
    print_out(f"{click.style(word, fg=color)}: {where}" + (f": {outcome.record.summary}" if outcome.record else ""))
