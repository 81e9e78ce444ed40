"""``envsmith init``: a first envsmith.yaml for a library."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["init"]


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())
@click.option("--force", is_flag=True, help="Overwrite an envsmith.yaml that is there.")
def init(*, directory: Path, force: bool) -> int:
    """Write envsmith.yaml from pyproject.toml, setup.cfg, requirements.txt, environment.yml or METADATA of DIRECTORY (here)."""
    from envsmith.ci.starting import write_config
    from envsmith.cli.console import say
    from envsmith.graph import components

    path, declaration = write_config(directory, components(), force=force)
    for line in declaration.skipped:
        say(f"passed over: {line}")
    click.echo(str(path))
    say("next: envsmith ci check, envsmith ci matrix")
    return 0
