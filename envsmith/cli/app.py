"""The command line. Verbs are imported when they are used. Failures become one clear paragraph and an exit code."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click

from envsmith.base.about import VERSION
from envsmith.base.text import clean, printable
from envsmith.cli.console import dumps, print_out
from envsmith.cli.declare import alternatives, argument, verb
from envsmith.errors import (
    EnvsmithError,
    InterruptedRunError,
    LeftAsideWarning,
    StorageError,
    UsageError,
    is_of_disk,
    storage_error,
)
from envsmith.frameworks import EXAMPLE, FRAMEWORKS

# Verb -> (module under envsmith.cli that holds a click command of the same name, one line for --help). The line stands
# here so that `envsmith --help` imports none of them.
VERBS: dict[str, tuple[str, str]] = {
    "solve": ("solve", "Choose one release per component for a framework, with reasons, or say why none fits."),
    "lock": ("lock", "Pin the cell completely: hashed requirements, pylock.toml, conda-lock.yml, Dockerfile."),
    "build": ("build", "Solve, lock, build an image (or a virtual environment), prove it, write the record."),
    "pack": ("pack", "Write one archive that installs and proves a cell without network and root."),
    "wheel": ("wheel", "List ready wheels of a compiled extension that fit a cell, so that nothing is compiled."),
    "smoke": ("smoke", "Test collectives and one step of the framework in an environment that exists."),
    "prove": ("prove", "Run all that this machine can show of an environment; write a record that can be sent."),
    "check": ("check", "Judge a given set of versions: what is wrong with it, on what evidence, and the repair."),
    "doctor": ("doctor", "Judge this machine or a pasted report, log or lock: root cause, consequences, repair."),
    "run": ("run", "Watch a launch, and say which rank failed first, where and why."),
    "bisect": ("bisect", "Find which package broke a command, between two environments or two days."),
    "explain": ("explain", "Say why a cell is what it is, what a rule says, what an upgrade would change."),
    "publish": ("publish", "Push a proved image with its lock, record, bill of materials and signed statement."),
    "verify": ("publish", "Check a published image against its proof, from its registry or from one file."),
    "matrix": ("matrix", "Look at the knowledge and its proofs, refresh it from its sources, run cells."),
    "ci": ("ci", "Make the CI matrix of a library, and compare its declared ranges with the graph."),
    "init": ("ci", "Write a first envsmith.yaml for a library, from what it declares already."),
    "completion": ("app", "Print what makes a shell (bash, zsh, fish) complete verbs, flags and names."),
}

# Exit code of a failure that is our own mistake, as BSD's sysexits has it.
_INTERNAL = 70
# Where a shell that completes puts what it asks for.
_COMPLETE = "_ENVSMITH_COMPLETE"
# 128 + SIGPIPE, what a shell says of `cat | head`: neither yes (0) nor no (1) was said to the end.
CUT = 141


class LazyGroup(click.Group):
    """A group that looks commands up in a table (name -> module, help line) and imports only the one that runs."""

    def __init__(self, *args: Any, verbs: Mapping[str, tuple[str, str]], heading: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.verbs, self.heading = verbs, heading

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``help`` and ``version`` as the flags of these names."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, ["--version", *args[1:]] if args[:1] == ["version"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the table's order."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command. A name that is not in the table gives ``None``."""
        if cmd_name not in self.verbs:
            return None
        module = importlib.import_module(f"envsmith.cli.{self.verbs[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table's lines, for which no command is imported."""
        with formatter.section(self.heading):
            formatter.write_dl([(name, line) for name, (_, line) in self.verbs.items()])


# What people type out of habit -> the verb that does it here.
_HABITS = {
    "install": "build", "sync": "build", "create": "build", "resolve": "solve", "compile": "lock", "freeze": "lock",
    "test": "smoke", "diagnose": "doctor", "why": "explain", "show": "matrix show", "list": "matrix list",
    "update": "matrix refresh", "push": "publish",
}  # fmt: skip
_NEAR = 0.75


class _Program(LazyGroup):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in VERBS and not name.startswith("-"):
            import difflib

            near = next(iter(difflib.get_close_matches(name, (*VERBS, *_HABITS, "help"), n=1, cutoff=_NEAR)), "")
            near = _HABITS.get(near, near)
            verb = next((word for word in args if word in VERBS), "")
            hint = f"Try envsmith {near}." if near else f"Use one of: {', '.join(VERBS)}."
            hint = f"Write the verb first: envsmith {verb} {name[:60]}." if verb and not near else hint
            raise UsageError(f"Cannot read the command: there is no verb {name[:60]!r}.", hint=hint)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    """Print the program and the day of its knowledge: an answer depends on both."""
    if not value or ctx.resilient_parsing:
        return
    from envsmith.knowledge.graph.load import newest_day

    day = newest_day()
    click.echo(f"envsmith {VERSION}" + (f" (matrix of {day})" if day else ""))
    ctx.exit()


# What a person who types nothing else sees.
_FIRST = """Environments for distributed training that were solved, pinned, built and proved. To begin:

  envsmith build {example}         Make an environment for this machine, and prove it.
  envsmith doctor train.log        Find what is wrong in a log, or with this machine (envsmith doctor).
  envsmith check requirements.txt  Judge versions that you have.

envsmith help lists all verbs, envsmith help VERB the options of one."""


@click.command(
    cls=_Program,
    verbs=VERBS,
    heading="Verbs",
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "auto_envvar_prefix": "ENVSMITH",
    },
)
@click.option(
    "--version",
    "-V",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    allow_from_autoenv=False,  # ENVSMITH_VERSION is a name that a CI job gives to the version it installs
    help="Show the version, and the day of the knowledge.",
)
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    allow_from_autoenv=False,
    help="Show the Python traceback of a failure.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Show the first steps where no verb is named."""
    if context.invoked_subcommand is None:
        click.echo(_FIRST.format(example=EXAMPLE))


cli.help = (
    f"Environments for {alternatives(f.title for f in FRAMEWORKS.values()).replace(' or ', ' and ')} that were solved, "
    f"pinned, built and proved.\n\nStart with `envsmith build {EXAMPLE}`."
)


def _colour() -> bool | None:
    """Return what no-color.org and its counterpart ask for. ``None`` leaves it to whether the stream is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON: a failure is one object too then."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own or ("--format", "json") in itertools.pairwise(own)


def _tell(error: EnvsmithError, *, as_json: bool = False) -> int:
    if as_json:
        with suppress(OSError):  # stdout may be full: the code and stderr say it
            print_out(dumps({"status": "error", **error.to_json()}))

    def say(line: str) -> None:
        with suppress(OSError):  # stderr itself may be full or gone, and the code says it all the same
            click.echo(printable(line), err=True, color=_colour())

    say(f"{click.style('error', fg='red', bold=True)}: {clean(error.message)}")
    for line in error.details:
        say(f"  {clean(line)}")
    if error.hint:
        say(f"{click.style('hint', fg='cyan', bold=True)}: {clean(error.hint)}")
    return error.exit_code


def _usage(error: click.ClickException, argv: Sequence[str]) -> EnvsmithError:
    context = getattr(error, "ctx", None)
    # click does not say where an option that lacks its value stood
    verb = next((word for word in argv if word in VERBS), "")
    group = cli.get_command(click.Context(cli), verb)
    part = next((word for word in argv if word in getattr(group, "verbs", ())), "")
    path = context.command_path if context else " ".join(filter(None, ("envsmith", verb, part)))
    reason, near = " ".join(error.format_message().split()).rstrip("."), ""
    if isinstance(error, click.NoSuchOption):
        import difflib

        reason = f"{path} has no option {error.option_name}"
        near = next(iter(difflib.get_close_matches(error.option_name, error.possibilities or (), cutoff=0.75)), "")
    hint = f"Use {near}, if that is what you mean." if near else f"Run {path} --help to list verbs and options."
    if isinstance(error, click.BadOptionUsage) and (line := _help_of(group, part, error.option_name)):
        hint = f"Give it a value: {line}"
    if isinstance(error, click.NoSuchOption) and context and "--" not in argv and _starts_a_command(context.command):
        hint = f"Write -- before the command that it starts: {path} -- COMMAND {error.option_name}."
    return UsageError(f"Cannot read the command: {reason[:1].lower() + reason[1:]}.", hint=hint)


def _help_of(command: click.Command | None, part: str, name: str) -> str:
    """Return how ``--help`` shows an option that takes a value, nothing where there is none of this name."""
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), part)
    if command is None:
        return ""
    options = (each for each in command.params if isinstance(each, click.Option) and name in each.opts)
    records = [option.get_help_record(click.Context(command)) for option in options if not option.is_flag]
    return ". ".join(records[0] or ()) if records else ""


def _starts_a_command(verb: click.Command) -> bool:
    """Return whether a verb takes a command of the user's, after ``--``."""
    return any(isinstance(each, click.Argument) and (each.metavar or "").startswith("-- ") for each in verb.params)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Say once what the library left aside, in the manner of every other message."""
    before, texts = warnings.showwarning, set()

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if not issubclass(category, LeftAsideWarning):
            before(message, category, *place)
        elif str(message) not in texts:
            texts.add(str(message))
            text = str(message).encode(errors="backslashreplace").decode()
            click.echo(printable(f"{click.style('warning', fg='yellow')}: {clean(text)}"), err=True, color=_colour())

    with warnings.catch_warnings():
        warnings.simplefilter("always", LeftAsideWarning)
        warnings.showwarning = show  # type: ignore[assignment] # its signature has defaults
        yield


def _invoke(argv: Sequence[str]) -> int:
    """Parse and call.

    Not ``cli.main``: that answers a reader who went away (``| head``) with 1, which is our word for no.
    """
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "envsmith", _COMPLETE, instruction)
    try:
        with cli.make_context("envsmith", list(argv), color=_colour()) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as leave:
        result = leave.exit_code
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. It raises only with ``--traceback``."""
    trace = "--traceback" in argv
    words = [word for word in argv if word != "--traceback"]
    tell = functools.partial(_tell, as_json=_wants_json(words))
    try:
        with _warnings_on_stderr():
            return _invoke(words)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(printable(error.format_message()), err=True, color=_colour())
        return UsageError.exit_code
    except click.ClickException as error:
        return tell(_usage(error, words))
    except (KeyboardInterrupt, click.Abort):
        return tell(
            InterruptedRunError(
                "Cannot finish the command: it was interrupted.",
                hint="Run the same command again. It resumes what a build, campaign or upload had finished.",
            )
        )
    except EnvsmithError as error:
        if trace:
            raise
        return tell(error)
    except BrokenPipeError:
        # The reader of our output (head, less) went away; that is its right. Python would complain again when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT
    except OSError as error:
        if trace:
            raise
        if is_of_disk(error):
            return tell(storage_error(error, error.filename or "a file"))
        return tell(
            StorageError(
                f"Cannot use {str(error.filename or 'a file')[:200]}: {error.strerror or error}.",
                hint="Check that the path exists and that you may read it.",
            )
        )
    except Exception as error:
        if trace:
            raise
        bug = EnvsmithError(
            f"Cannot finish the command: envsmith has a bug ({type(error).__name__}: {error}).",
            hint="Run it again with --traceback and report what it prints.",
        )
        bug.exit_code = _INTERNAL
        return tell(bug)


# ``envsmith completion``: what a shell must read to complete verbs, flags and the names that flags take.


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionFlags:
    """The options of ``completion``."""

    shell: str = argument(type=click.Choice(["bash", "zsh", "fish"]))


@verb(CompletionFlags)
def completion(settings: CompletionFlags) -> int:
    """Print what makes SHELL complete verbs, flags, frameworks, components and GPUs.

    For this shell alone: eval "$(envsmith completion bash)". For good:
    ~/.local/share/bash-completion/completions/envsmith, _envsmith in a folder of zsh's $fpath, or
    ~/.config/fish/completions/envsmith.fish.
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[settings.shell]
    print_out(kind(cli, {}, "envsmith", _COMPLETE).source())
    return 0
