"""Flags that mean the same on several verbs: where cells lie, the flavour, Conda, how much is said, what fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from envsmith.errors import UsageError
from envsmith.model.lock import FLAVOURS, RUNTIME

__all__ = [
    "cells_option",
    "conda_options",
    "conda_settings",
    "fail_on_option",
    "flavour_option",
    "matrix_option",
    "talk_options",
]

F = TypeVar("F", bound=Callable[..., Any])


def cells_option(what: str) -> Callable[[F], F]:
    """``--output``: the folder under which every cell has its own; ``what`` says what this verb does with it."""
    return click.option(
        "--output",
        "-o",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("envsmith-build"),
        show_default=True,
        help=what,
    )


flavour_option = click.option(
    "--flavour",
    type=click.Choice(FLAVOURS),
    default=RUNTIME,
    show_default=True,
    help="runtime: what the cell needs to train; devel: the CUDA compiler and all that compiles its operators as well.",
)
matrix_option = click.option(
    "--matrix",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The folder of the knowledge. [default: the one envsmith uses]",
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note", "never"]),
    default="error",
    show_default=True,
    help="The least severity that makes the exit code 1.",
)


def conda_options(function: F) -> F:
    """Add the flags of the Conda part and of a lock that is there already; the same on ``lock`` and ``build``."""
    options = [
        click.option(
            "--channel", multiple=True, metavar="URL|NAME", help="Conda channel for conda-lock.yml; repeatable."
        ),
        click.option(
            "--conda-platform",
            multiple=True,
            metavar="PLATFORM",
            help="Another platform that conda-lock.yml covers (linux-aarch64); repeatable.",
        ),
        click.option(
            "--conda-tolerate",
            multiple=True,
            type=click.Choice(["nccl", "cudnn", "triton"]),
            help="Components that may differ in conda-lock.yml from the pip lock; told when they do.",
        ),
        click.option("--no-conda", is_flag=True, help="Do not try to write conda-lock.yml."),
        click.option(
            "--locked",
            is_flag=True,
            help="Use the lock that is there; exit 1 when it is not what this request gives (on the lock's own date).",
        ),
        click.option("--frozen", is_flag=True, help="Use the lock that is there; ask neither index nor channel."),
        click.option("--offline", is_flag=True, help="Use no network: what is in the caches must be enough."),
    ]
    decorated: Any = function
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def talk_options(function: F) -> F:
    """Add ``--verbose`` and ``--quiet``; the command receives ``talk``, the fields of :class:`~envsmith.cli.console.Console`."""

    @functools.wraps(function)
    def wrapper(*, verbose: bool, quiet: bool, **given: Any) -> Any:
        if verbose and quiet:
            raise UsageError("--verbose and --quiet exclude each other")
        return function(talk={"verbose": verbose, "quiet": quiet}, **given)

    decorated: Any = wrapper
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Say nothing but warnings, errors and the result."),
        click.option("--verbose", "-v", is_flag=True, help="Show every line of every step."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def conda_settings(how: dict[str, Any]) -> dict[str, Any]:
    """What :func:`conda_options` gave, as fields of :class:`envsmith.pipeline.Options`."""
    from envsmith.cli.options import parse_platform

    if how["locked"] and how["frozen"]:
        raise UsageError(
            "--locked and --frozen exclude each other", hint="--frozen does not look whether it is current"
        )
    return {
        "conda": not how["no_conda"],
        "conda_channels": how["channel"],
        "conda_platforms": tuple(parse_platform(p, "--conda-platform") for p in how["conda_platform"]),
        "conda_tolerate": how["conda_tolerate"],
        "locked": how["locked"],
        "frozen": how["frozen"],
        "offline": how["offline"],
    }
