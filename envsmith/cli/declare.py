"""How a command declares its options: a frozen dataclass, whose fields are in the order of ``--help``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

_Flags = TypeVar("_Flags")
_Result = TypeVar("_Result")


def alternatives(names: Iterable[str]) -> str:
    """Return ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


class Option(click.Option):
    """An option that stands in a section of ``--help``."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Verb(click.Command):
    """A command whose ``--help`` shows its options in sections and ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section in the order of its first option. ``--help`` itself stands with the output."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections.setdefault(getattr(parameter, "section", "") or "Output", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples as they are typed."""
        if self.examples:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in self.examples))


def verb(*examples: str) -> Callable[[Callable[..., int]], Verb]:
    """Decorate a function that is a command with examples of its use."""
    return click.command(cls=Verb, examples=examples)


def option(*names_and_words: str, **settings: Any) -> Any:
    """Declare a field that is an option of a command, with click's default as its own. ``--help`` shows a default.

    ``names_and_words`` are its names, what its value is called where that says more, and its line of ``--help``.
    ``section`` is its heading there, by default that of its dataclass (:func:`group`).
    """
    names = [word for word in names_and_words if word.startswith("-")]
    words = [word for word in names_and_words if not word.startswith("-")]
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    named = dict(zip(("help", "metavar"), reversed(words), strict=False))
    settings = {"show_default": "default" in settings, "cls": Option, **named, **settings}
    metadata = {"click": (click.option, names, settings)}
    return dataclasses.field(default=settings.get("default", absent), metadata=metadata)


def flag(*names_and_help: str, section: str = "") -> Any:
    """Declare a field that is an option without a value: its names, then its line of ``--help``."""
    return option(*names_and_help, is_flag=True, section=section)


def choice(name: str, words: Iterable[str], text: str, *, default: str | None = None, section: str = "") -> Any:
    """Declare a field that is an option with one of a few words, and its line of ``--help``."""
    settings: dict[str, Any] = {} if default is None else {"default": default}
    return option(name, text, type=click.Choice(list(words)), section=section, **settings)


class Section:
    """The options under one heading of ``--help``."""

    def __init__(self, heading: str) -> None:
        self.option = functools.partial(option, section=heading)
        self.flag = functools.partial(flag, section=heading)
        self.choice = functools.partial(choice, section=heading)


def argument(**settings: Any) -> Any:
    """Declare a field that is an argument of a command."""
    return dataclasses.field(metadata={"click": (click.argument, (), settings)})


def group(kind: type, section: str = "") -> Any:
    """Declare a field whose value is a dataclass of flags itself. ``section`` is their heading in ``--help``."""
    return dataclasses.field(metadata={"group": kind, "section": section})


def takes(kind: type[_Flags]) -> Callable[[Callable[[_Flags], _Result]], Callable[..., _Result]]:
    """Decorate a command that takes one value: its flags."""

    def decorate(function: Callable[[_Flags], _Result]) -> Callable[..., _Result]:
        @functools.wraps(function)
        def command(**parameters: Any) -> _Result:
            return function(_value(kind, parameters))

        decorated: Any = command
        for parameter in reversed(list(_parameters(kind))):
            decorated = parameter(decorated)
        return cast("Callable[..., _Result]", decorated)

    return decorate


def _parameters(kind: type, section: str = "") -> Iterator[Callable[[Any], Any]]:
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            yield from _parameters(field.metadata["group"], field.metadata["section"] or section)
            continue
        declare, names, settings = field.metadata["click"]
        if "cls" in settings:
            settings = {**settings, "section": settings.get("section") or section}
        yield declare(*names, field.name, **settings)


def _value(kind: type[_Flags], parameters: Mapping[str, Any]) -> _Flags:
    groups = {field.name: field.metadata.get("group") for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{n: _value(group, parameters) if group else parameters[n] for n, group in groups.items()})


def completion(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a word: those of ``names`` that begin with it."""
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]
