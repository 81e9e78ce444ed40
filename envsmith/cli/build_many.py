"""``envsmith build --all-frameworks`` and ``--cells FILE``: many cells in one go."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.build import options_of, outcome_json
from envsmith.cli.console import Console, dumps, say
from envsmith.cli.options import RequestFlags, request_options
from envsmith.errors import StorageError, UsageError
from envsmith.model.cell import CellId

if TYPE_CHECKING:
    from envsmith.batch import Result

__all__ = ["build_cells", "read_cells"]

_FRAMEWORKS = ("deepspeed", "megatron-core", "colossalai")
_MAX_CELLS = 500


@click.command()
@request_options
def _line(*, flags: RequestFlags) -> RequestFlags:
    """One line of a file of cells."""
    return flags


def read_cells(text: str, where: str) -> tuple[RequestFlags, ...]:
    """Every line as request flags; ``UsageError`` lists each line that is neither a cell id nor flags."""
    problems: list[str] = []
    read = [_read(line, f"{where}:{number}", problems) for number, line in enumerate(text.splitlines(), start=1)]
    found = [flags for flags in read if flags is not None]
    if len(found) > _MAX_CELLS:
        problems.append(f"{where}: more than {_MAX_CELLS} cells")
    if problems or not found:
        raise UsageError(
            f"{where}: {len(problems)} lines cannot be understood" if problems else f"{where}: no cell is named",
            details=problems,
            hint="a line is a cell id (ds0.19.8-torch2.13.0-cu130-py312) or the request flags of envsmith build",
        )
    return tuple(found)


def _read(line: str, where: str, problems: list[str]) -> RequestFlags | None:
    try:
        words = shlex.split(line, comments=True)
        return _flags(words) if words else None
    except (ValueError, click.ClickException, click.exceptions.Exit) as error:
        told = error.format_message() if isinstance(error, click.ClickException) else str(error)
        problems.append(f"{where}: {told}")
        return None


def _flags(words: Sequence[str]) -> RequestFlags:
    if len(words) == 1 and not words[0].startswith("-"):
        return _flags_of(CellId.parse(words[0]))
    flags = _line.main(args=list(words), prog_name="cell", standalone_mode=False)
    if not isinstance(flags, RequestFlags):
        raise ValueError("no request flags")  # noqa: TRY004 - --help, told like every other problem
    return flags


def _flags_of(cell: CellId) -> RequestFlags:
    """The request that has this cell as its answer."""
    exact = dict(cell.components)
    torch, cuda, python = (exact.pop(name, None) for name in ("torch", "cuda", "python"))
    frameworks = tuple(f"{name}=={version}" for name, version in exact.items() if name in _FRAMEWORKS)
    others = tuple(f"{name}=={version}" for name, version in exact.items() if name not in _FRAMEWORKS)
    return RequestFlags(
        framework=frameworks,
        with_=others,
        python=python,
        torch=f"=={torch}" if torch else None,
        cuda=cuda,
        nccl=None,
        driver=None,
        gpu=(),
        platform=cell.platform.value,
        exclude_newer=None,
    )


def build_cells(flags: RequestFlags, how: Mapping[str, Any], *, as_json: bool, talk: Mapping[str, bool]) -> int:
    """Build them; exit code 0 when every cell is good."""
    from envsmith.batch import build_many

    asked = _asked(flags, how)
    with Console(**talk) as console:
        results = build_many(
            [options_of(one, how) for one in asked], jobs=int(how["jobs"]), again=how["again"], progress=console
        )
    _write_bake(results, how["output"])
    if as_json:
        click.echo(dumps({"cells": [_json(result) for result in results]}))
    for result in results:
        _show(result, quiet=as_json)
    return 0 if all(result.good for result in results) else 1


def _asked(flags: RequestFlags, how: Mapping[str, Any]) -> tuple[RequestFlags, ...]:
    if flags.framework or (how["all_frameworks"] and how["cells"]):
        raise UsageError("--framework, --all-frameworks and --cells exclude each other")
    if how["locked"] or how["frozen"]:
        raise UsageError(
            "--locked and --frozen are for one cell", hint="a batch takes every lock that is current by itself"
        )
    if how["all_frameworks"]:
        return tuple(dataclasses.replace(flags, framework=(name,)) for name in _FRAMEWORKS)
    path: Path = how["cells"]
    try:
        return read_cells(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeError) as error:
        raise StorageError(f"{path}: cannot be read: {error}") from error


def _write_bake(results: Sequence[Result], output: Path) -> None:
    """One bake file over all cells that have a Dockerfile, beside their folders."""
    from envsmith.lock import store
    from envsmith.render.companions import BAKE_FILE, bake

    done = [r.outcome for r in results if r.outcome]
    locks = {outcome.directory.name: outcome.lock for outcome in done if outcome.lock.base is not None}
    if locks:
        store.write(output, {BAKE_FILE: bake(locks)})


def _json(result: Result) -> dict[str, object]:
    told: dict[str, object] = {"request": result.options.request_text, "good": result.good, "kept": result.kept}
    if result.error is not None:
        return {
            **told,
            "error": {"message": result.error.message, "code": result.error.exit_code, "hint": result.error.hint},
        }
    return {**told, **(outcome_json(result.outcome) if result.outcome else {})}


def _show(result: Result, *, quiet: bool) -> None:
    color = "green" if result.good else "red"
    if result.error is not None:
        say(f"{click.style('failed', fg=color)}: {result.options.request_text}: {result.error}")
        return
    outcome = result.outcome
    if outcome is None or quiet:
        return
    word = "kept" if result.kept else "built" if outcome.record is None else "passed" if result.good else "failed"
    where = outcome.built.reference if outcome.built else str(outcome.directory)
    click.echo(f"{click.style(word, fg=color)}: {where}" + (f": {outcome.record.summary}" if outcome.record else ""))
