"""``envsmith build``: the main job, from a framework's name to a proved environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith.cli.console import Console, dumps, say, table
from envsmith.cli.flags import cells_option, conda_options, conda_settings, flavour_option, talk_options
from envsmith.cli.options import RequestFlags, request_options
from envsmith.cli.solve import show_refusal
from envsmith.cli.sources import parse_sources, source_options
from envsmith.errors import UnsatisfiableError, UsageError

if TYPE_CHECKING:
    from envsmith.pipeline import Options, Outcome

__all__ = ["build", "options_of", "outcome_json"]


@click.command()
@request_options
@click.option(
    "--engine",
    metavar="NAME",
    help="docker, podman, buildah, venv or conda. Default: docker or podman where it answers, else a virtual environment.",
)
@click.option("--base", metavar="IMAGE", help="Base image (NAME[:TAG][@DIGEST]). Default: python:X.Y-slim by digest.")
@cells_option("Folder for the cell's own folder.")
@click.option(
    "--tier",
    type=click.Choice(["quick", "full", "framework", "bandwidth"]),
    default="quick",
    show_default=True,
    help="How much the smoke test tries.",
)
@click.option("--ranks", type=click.IntRange(2, 64), default=4, show_default=True, help="Processes of the smoke test.")
@flavour_option
@source_options
@conda_options
@click.option(
    "--no-smoke", is_flag=True, help="Build only; without a smoke test nothing is proved and no record is written."
)
@click.option(
    "--oci",
    is_flag=True,
    help="Write the image as an OCI layout into the cell's folder: what is published, by its final digest.",
)
@click.option("--all-frameworks", is_flag=True, help="A cell of each framework under the same flags.")
@click.option(
    "--cells",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Build many cells: one a line, a cell id or request flags; # begins a comment.",
)
@click.option(
    "--jobs", type=click.IntRange(0, 64), default=0, help="Cells at a time. Default: one for every four cores and 8 GB."
)
@click.option("--again", is_flag=True, help="With many cells: also those that are built and proved already.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: cell, files, record.")
@talk_options
def build(*, flags: RequestFlags, as_json: bool, talk: dict[str, bool], **how: Any) -> int:
    """Solve, lock, build an image (or a virtual environment), prove it, write the record.

    Interrupted or failed, the same command takes up what is done. Exit code 0 when the smoke test passed.
    """
    from envsmith import pipeline

    if how["all_frameworks"] or how["cells"]:
        from envsmith.cli.build_many import build_cells

        return build_cells(flags, how, as_json=as_json, talk=talk)
    if not flags.framework:
        raise UsageError("nothing to build", hint="name a framework: envsmith build --framework deepspeed")
    options = options_of(flags, how)
    try:
        with Console(**talk) as console:
            outcome = pipeline.build(options, progress=console)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=as_json)
    if as_json:
        click.echo(dumps(outcome_json(outcome)))
    else:
        _show(outcome, quiet=talk["quiet"])
    return 0 if outcome.record is None or outcome.record.passed else 1


def options_of(flags: RequestFlags, how: Mapping[str, Any]) -> Options:
    """What the flags of ``build`` ask of the pipeline."""
    from envsmith import pipeline

    sources = parse_sources(how)
    request, compiled = sources.read(flags.request(), offline=bool(how["offline"]))
    return pipeline.Options(
        request=request,
        request_text=flags.text(flavour=how["flavour"], sources=sources.text),
        compile=compiled,
        flavour=how["flavour"],
        output=how["output"],
        engine=how["engine"],
        base=how["base"],
        tier=str(how["tier"]),
        ranks=int(how["ranks"]),
        **conda_settings(dict(how)),
        smoke=not how["no_smoke"],
        oci=how["oci"],
    )


def outcome_json(outcome: Outcome) -> dict[str, object]:
    """What ``--json`` prints of one cell."""
    built = outcome.built
    return {
        "cell": outcome.cell.to_json(),
        "lock": outcome.lock.digest,
        "directory": str(outcome.directory),
        "files": {name: str(outcome.directory / name) for name in outcome.files},
        "built": None
        if built is None
        else {"kind": built.kind, "reference": built.reference, "digest": built.digest, "python": built.python},
        "record": None if outcome.record is None else outcome.record.to_json(),
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
    "apptainer.def": "for Apptainer, from the OCI layout",
    "record.json": "the proof",
}


def _show(outcome: Outcome, *, quiet: bool) -> None:
    """Where everything is, and the one line that matters last."""
    rows = [(str(outcome.directory / name), what) for name, what in _SAID.items() if name in outcome.files]
    click.echo(table(rows))
    if outcome.built:
        where = (
            outcome.built.python if outcome.built.kind != "image" else f"docker run --rm -it {outcome.built.reference}"
        )
        click.echo(table([(where, f"{outcome.built.kind} {outcome.built.digest}")]))
    for note in outcome.notes if not quiet else ():
        say(f"note: {note}")
    record = outcome.record
    if record is None:
        say("no smoke test was run: nothing is proved yet")
        return
    skipped = [f"{s.name}: {s.detail}" for s in record.steps if s.verdict.value == "skipped"]
    for line in skipped:
        say(f"not run: {line}")
    click.echo(
        f"{click.style('passed' if record.passed else 'failed', fg='green' if record.passed else 'red', bold=True)}: {record.summary}"
    )
    click.echo(f"proved: {' -> '.join(r.value for r in record.rungs)}")
