"""``envsmith completion``: what a shell must read to complete verbs, flags and the names that flags take."""

from __future__ import annotations

import click

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> int:
    """Print what makes SHELL complete verbs, flags, frameworks, components and GPUs.

    For this shell alone: eval "$(envsmith completion bash)". For good: ~/.local/share/bash-completion/completions/envsmith,
    _envsmith in a folder of zsh's $fpath, or ~/.config/fish/completions/envsmith.fish.
    """
    from click.shell_completion import get_completion_class

    from envsmith.cli.app import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.BadParameter(f"{shell} is not known to click")
    click.echo(kind(cli, {}, "envsmith", "_ENVSMITH_COMPLETE").source())
    return 0
