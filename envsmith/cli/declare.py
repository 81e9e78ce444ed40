"""How a command declares its options: a frozen dataclass, whose fields are in the order of ``--help``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from envsmith.cli.console import Talk
from envsmith.errors import UsageError

_Flags = TypeVar("_Flags")
_Result = TypeVar("_Result")


def alternatives(names: Iterable[str]) -> str:
    """Return ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


# Types of fields: what a path must be.
AnyPath = Annotated[Path, click.Path(path_type=Path)]
ExistingPath = Annotated[Path, click.Path(path_type=Path, exists=True)]
File = Annotated[Path, click.Path(path_type=Path, dir_okay=False)]
Folder = Annotated[Path, click.Path(path_type=Path, file_okay=False)]
ExistingFile = Annotated[Path, click.Path(path_type=Path, dir_okay=False, exists=True)]
ExistingFolder = Annotated[Path, click.Path(path_type=Path, file_okay=False, exists=True)]


class Option(click.Option):
    """An option that stands in a section of ``--help``. Its ``old`` names work and are not shown."""

    def __init__(self, names: Sequence[str], *, section: str = "", old: Sequence[str] = (), **settings: Any) -> None:
        super().__init__([*names, *old], **settings)
        self.section, self.old = section, frozenset(old)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names and the line of ``--help``."""
        names, self.opts = self.opts, [name for name in self.opts if name not in self.old]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class Verb(click.Command):
    """A command whose ``--help`` shows its options in sections and ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section in the order of its first option. ``--help`` itself stands with the output."""
        parameters = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        heading = "Output" if any(getattr(parameter, "section", "") for parameter in parameters) else "Options"
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in parameters:
            if record := parameter.get_help_record(ctx):
                sections.setdefault(getattr(parameter, "section", "") or heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples as they are typed."""
        if self.examples:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in self.examples))


def option(*names_and_words: str, positional: str = "", **settings: Any) -> Any:
    """Declare a field that is an option of a command, with click's default as its own. ``--help`` shows a default.

    ``names_and_words`` are its names, what its value is called where that says more, and its line of ``--help``. Without
    a long name it has that of the field, and without a ``type`` the field's.
    ``section`` is its heading there, by default that of its dataclass (:func:`group`). ``old`` are names that still
    work and are not shown. ``positional`` is how ``--help`` calls plain arguments that stand for this option.
    """
    names = [word for word in names_and_words if word.startswith("-")]
    words = [word for word in names_and_words if not word.startswith("-")]
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    named = dict(zip(("help", "metavar"), reversed(words), strict=False))
    settings = {"show_default": "default" in settings, "cls": Option, **named, **settings}
    metadata = {"click": (click.option, names, settings), "positional": positional}
    return dataclasses.field(default=settings.get("default", absent), metadata=metadata)


# An option that may be given several times.
several = functools.partial(option, multiple=True)


def flag(*names_and_help: str, section: str = "") -> Any:
    """Declare a field that is an option without a value: its names, then its line of ``--help``."""
    return option(*names_and_help, is_flag=True, section=section)


def choice(words: Iterable[str], *names_and_help: str, default: str | None = None, section: str = "") -> Any:
    """Declare a field that is an option with one of a few words: its names, then its line of ``--help``."""
    settings: dict[str, Any] = {} if default is None else {"default": default}
    return option(*names_and_help, type=click.Choice(list(words)), section=section, **settings)


class Section:
    """The options under one heading of ``--help``."""

    def __init__(self, heading: str) -> None:
        self.option = functools.partial(option, section=heading)
        self.several = functools.partial(several, section=heading)
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

        return _declared(command, _parameters(kind))

    return decorate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NoFlags:
    """A verb without options of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Common:
    """What every verb takes, unless it declares the same for itself."""

    as_json: bool = flag("--json", "One JSON object on stdout, of a failure too.")
    verbose: bool = flag("-v", "Show every line of every step.")
    quiet: bool = flag("-q", "Print only warnings, errors and the result.")


def verb(kind: type[_Flags], *examples: str, name: str | None = None) -> Callable[[Callable[[_Flags], int]], Verb]:
    """Decorate a function that is a command: it takes its flags as one value and returns the exit code.

    Every command has ``--json``, ``--verbose`` and ``--quiet``. ``--json`` is the command's own field ``as_json``, or
    its ``--format json``, or else puts into one object what the command prints.
    """
    own = {field.name: field for field in _fields(kind)}
    common = [field for field in dataclasses.fields(_Common) if field.name not in own]
    form = own.get("form")
    has_json_form = form is not None and "json" in form.metadata["click"][2]["type"].choices

    def decorate(function: Callable[[_Flags], int]) -> Verb:
        @functools.wraps(function)
        def command(**parameters: Any) -> int:
            as_json, verbose, quiet = (bool(parameters.get(field.name)) for field in dataclasses.fields(_Common))
            if as_json and has_json_form and "as_json" not in own:
                parameters["form"] = _json_form(parameters["form"])
            is_wrapped = as_json and not has_json_form and "as_json" not in own
            talk = Talk(verbose=verbose, quiet=quiet, lines=[] if is_wrapped else None).begin()
            code = function(_value(kind, parameters))
            talk.finish(code)
            return code

        declared = _declared(command, itertools.chain(_parameters(kind), (_parameter(field, bool) for field in common)))
        return click.command(name, cls=Verb, examples=examples)(declared)

    return decorate


def _json_form(form: str) -> str:
    """Return what ``--json`` makes of ``--format``. ``UsageError`` where another format is asked for as well."""
    source = click.get_current_context().get_parameter_source("form")
    if form != "json" and source is not ParameterSource.DEFAULT:
        raise UsageError(
            f"Cannot combine --json with --format {form}: both choose the format of the output.",
            hint="Leave one of them out.",
        )
    return "json"


def _declared(function: Callable[..., _Result], parameters: Iterable[Callable[[Any], Any]]) -> Callable[..., _Result]:
    declared: Any = function
    for parameter in reversed(list(parameters)):
        declared = parameter(declared)
    return cast("Callable[..., _Result]", declared)


def _fields(kind: type) -> Iterator[dataclasses.Field[Any]]:
    """Return the fields that are options or arguments, those of a group in its place."""
    for field in dataclasses.fields(kind):
        yield from _fields(field.metadata["group"]) if "group" in field.metadata else (field,)


def _parameters(kind: type, section: str = "") -> Iterator[Callable[[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            yield from _parameters(field.metadata["group"], field.metadata["section"] or section)
            continue
        if metavar := field.metadata.get("positional"):
            several_words = field.metadata["click"][2].get("multiple")
            number = {"nargs": -1} if several_words else {"required": False, "type": _type(hints[field.name])}
            yield click.argument(_positional(field.name), metavar=metavar, **number)
        yield _parameter(field, hints[field.name], section)


def _parameter(field: dataclasses.Field[Any], hint: Any, section: str = "") -> Callable[[Any], Any]:
    declare, names, settings = field.metadata["click"]
    if declare is click.option:
        settings = {**settings, "section": settings.get("section") or section}
        if not any(name.startswith("--") for name in names):
            names = [f"--{field.name.strip('_').replace('_', '-')}", *names]
    if (kind := _type(hint)) is not bool:
        settings = {"type": kind, **settings}
    parameter: Callable[[Any], Any] = declare(*names, field.name, **settings)
    return parameter


def _type(hint: Any) -> Any:
    """Return click's type for the value of a field, or for one of its values where it has several."""
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    arms = [arm for arm in get_args(hint) if arm not in {NoneType, ...}]
    return _type(arms[0]) if arms else hint


def _positional(name: str) -> str:
    """Return the name of the arguments that stand for an option."""
    return f"{name}_positional"


def _value(kind: type[_Flags], parameters: Mapping[str, Any]) -> _Flags:
    def read(field: dataclasses.Field[Any]) -> Any:
        if group := field.metadata.get("group"):
            return _value(group, parameters)
        if field.metadata.get("positional"):
            plain, named = parameters[_positional(field.name)], parameters[field.name]
            return (*plain, *named) if isinstance(plain, tuple) else _one_of(plain, named, field.name)
        return parameters[field.name]

    return kind(**{field.name: read(field) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def _one_of(plain: Any, named: Any, name: str) -> Any:
    if plain is not None and named is not None:
        raise UsageError(f"Cannot take both {plain} and --{name} {named}: they name one thing.", hint="Leave one out.")
    return named if plain is None else plain


def completion(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes a word: those of ``names`` that begin with it."""
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]
