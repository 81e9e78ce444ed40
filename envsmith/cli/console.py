"""What is said while something runs: one line a step, on stderr; live with a terminal, plain lines without."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.base.text import FinishedText, clean, escaped_json, printable, without_secret_values
from envsmith.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from typing_extensions import Self


# How an event that is said in one line is called, and in which colour.
_LABELS = {
    EventKind.DONE: ("done", "green"),
    EventKind.CACHED: ("kept", "green"),
    EventKind.FAILED: ("failed", "red"),
    EventKind.WARNING: ("warning", "yellow"),
    EventKind.NOTE: ("note", "cyan"),
}


def evidence_lines(evidence: Sequence[object], *, indent: str = "  evidence: ", everything: bool = False) -> list[str]:
    """Return the first piece of evidence in a dim line, or ``everything``. The number of those left out stands behind it."""
    pieces = list(evidence) if everything else list(evidence[:1])
    lines = [f"{indent}{clean(str(each))}" for each in pieces]
    if len(evidence) > len(pieces):
        lines[-1] += f" (and {len(evidence) - len(pieces)} more: --verbose)"
    return [click.style(line, dim=True) for line in lines]


def mark(*, passed: bool) -> str:
    """Return the word of an outcome in its colour."""
    return click.style("passed" if passed else "failed", fg="green" if passed else "red", bold=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """How much the running command says, and the lines of its answer that ``--json`` makes one object of."""

    verbose: bool = False
    quiet: bool = False
    lines: list[str] | None = None

    def __post_init__(self) -> None:
        if self.verbose and self.quiet:
            raise UsageError(
                "Cannot combine --verbose with --quiet: they contradict each other.", hint="Leave one of them out."
            )

    @classmethod
    def current(cls) -> Talk:
        """Return that of the command that runs in this thread."""
        context = click.get_current_context(silent=True)
        talk = context.meta.get(_TALK) if context else None
        return talk if isinstance(talk, Talk) else cls()

    def begin(self) -> Talk:
        """Make it that of the command that begins."""
        click.get_current_context().meta[_TALK] = self
        return self

    def finish(self, code: int) -> None:
        """Print what was collected as one object: a document that was the whole answer, else its lines."""
        if self.lines is not None and len(self.lines) == 1 and isinstance(self.lines[0], FinishedText):
            click.echo(self.lines[0])
        elif self.lines is not None:
            answer = {"status": "failed" if code else "ok", "exit_code": code, "output": self.lines}
            click.echo(printable(dumps(answer)))


_TALK = "envsmith.talk"


def say(text: str) -> None:
    """Print one line of talk on stderr, which ``--quiet`` leaves out."""
    if not Talk.current().quiet:
        warn(text)


def warn(text: str) -> None:
    """Print one line on stderr, with ``--quiet`` too."""
    click.echo(printable(text), err=True)


class Commands(str):
    """Lines that the runner of a CI is to obey. The caller has escaped every text in them."""

    __slots__ = ()


def print_out(text: str, *, nl: bool = True) -> None:
    """Print an answer on stdout."""
    if (lines := Talk.current().lines) is not None:
        lines += [text] if isinstance(text, FinishedText) else click.unstyle(text).splitlines()
        return
    click.echo(text if isinstance(text, Commands) else printable(text), nl=nl)


# Columns of a wrapped answer: a longer line is hard to read, however wide the terminal is.
_WIDEST = 110
# The start of a line below which its text is not continued: white space, a bullet or a label.
_MARGIN = re.compile(r"\s*(?:- |[a-z]+: +)?")


def print_answer(text: str) -> None:
    """Print an answer for a person on stdout. On a terminal long lines are wrapped below their own first word."""
    print_out(wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text)


def wrapped(text: str, columns: int) -> str:
    """Return the text with lines of at most ``columns`` columns, and no more than 110. Colours are kept."""
    from rich.console import Console as RichConsole
    from rich.text import Text

    width = max(40, min(columns, _WIDEST))
    screen = RichConsole(width=width, force_terminal=True, color_system="standard", highlight=False)
    lines = []
    for line in text.splitlines():
        content = Text.from_ansi(line)
        if content.cell_len <= width:
            lines.append(line)
            continue
        match = _MARGIN.match(content.plain)
        start = match.end() if match else 0
        margin = min(max(start, 2), width // 3)
        for number, piece in enumerate(content[start:].wrap(screen, width - max(start, margin))):
            piece.rstrip()
            with screen.capture() as captured:
                screen.print((Text(" " * margin) if number else content[:start]) + piece, end="", soft_wrap=True)
            lines.append(captured.get())
    return "\n".join(lines)


def live_terminal() -> bool:
    """Return whether stderr is a terminal on which a display may move."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def received() -> int:
    """Return the bytes that this machine's network interfaces have received, 0 where Linux does not say."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
        rows = [line.partition(":") for line in lines]
        return sum(int(fields.split()[0]) for name, _, fields in rows if name.strip() != "lo")
    except (OSError, ValueError, IndexError):
        return 0


class Traffic:
    """What has come over the network since a step began: gigabytes of wheels, most of the time.

    A build downloads in another process or in an engine, so the machine's own counters are what there is to show.
    """

    def __init__(self, count: Callable[[], int] = received, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self.begin()

    def begin(self) -> None:
        """Start again from nothing."""
        self._bytes, self._began = self._count(), self._clock()
        self._last, self._last_time = self._bytes, self._began
        self._speed = 0.0

    def text(self) -> str:
        """Return ``1.24 GB, 45 MB/s``, or nothing for less than 10 MB and while nothing comes."""
        count, now = self._count(), self._clock()
        if now - self._last_time >= 1:
            self._speed = (count - self._last) / (now - self._last_time)
            self._last, self._last_time = count, now
        total = count - self._bytes
        if total < 10_000_000 or self._speed < 500_000:
            return ""
        return f"{total / 1e9:.2f} GB, {self._speed / 1e6:.0f} MB/s"


class Console:
    """Shows :class:`~envsmith.base.progress.ProgressEvent` s. A context manager, so that a live display is closed whatever happens.

    With a terminal (and no ``CI``): a line for each finished step and a spinner with the last line of output for the
    one that runs. Without: one plain line when a step starts and one when it ends. ``verbose`` shows every line of
    output. What is not given is what the command's flags say.
    """

    def __init__(self, *, verbose: bool | None = None, quiet: bool | None = None) -> None:
        talk = Talk.current()
        self.verbose = talk.verbose if verbose is None else verbose
        self.quiet = talk.quiet if quiet is None else quiet
        self._live: RichProgress | None = None
        self._task: TaskID | None = None
        self._step = ""
        self._traffic = Traffic()

    def __enter__(self) -> Self:
        if not self.quiet and live_terminal():
            from rich.console import Console as RichConsole
            from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.text import Text

            traffic = self._traffic

            class TrafficColumn(ProgressColumn):
                def render(self, task: object) -> Text:  # noqa: ARG002 - rich's signature
                    return Text(traffic.text(), style="cyan")

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", style="bold", markup=False),
                TimeElapsedColumn(),
                TrafficColumn(),
                TextColumn("{task.fields[line]}", style="dim", markup=False),
            )
            self._live = Progress(*columns, console=RichConsole(stderr=True), transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def __call__(self, event: ProgressEvent) -> None:
        """Show one event."""
        if self.quiet and event.kind is not EventKind.WARNING:
            return
        text = clean(event.text)
        if event.kind is EventKind.START:
            self._begin(event.step, text)
        elif event.kind is EventKind.LINE:
            self._line(event.step, text)
        elif event.kind in {EventKind.DONE, EventKind.CACHED, EventKind.FAILED}:
            self._end(event, text)
        else:
            self._print(f"{_label(event.kind)}: {text}")

    def _print(self, text: str) -> None:
        if self._live:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(printable(text)))
        else:
            warn(text)

    def _begin(self, step: str, text: str) -> None:
        self._step = step
        self._traffic.begin()
        if self._live:
            if self._task is not None:
                self._live.remove_task(self._task)
            self._task = self._live.add_task(step, total=None, line=text[:80])
        else:
            self._print(f"{step} ..." + (f" {text}" if text else ""))

    def _line(self, step: str, text: str) -> None:
        if self._live and self._task is not None and step == self._step:
            self._live.update(self._task, line=text[:80])
        if self.verbose:
            self._print(f"  {text}")

    def _end(self, event: ProgressEvent, text: str) -> None:
        if self._live and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        took = f" in {event.seconds:.1f} s" if event.seconds is not None else ""
        self._print(f"{event.step}: {_label(event.kind)}{took}" + (f": {text}" if text else ""))


def _label(kind: EventKind) -> str:
    word, colour = _LABELS[kind]
    return click.style(word, fg=colour)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return left-aligned columns, two spaces apart."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows
    )


def dumps(value: Any, *, compact: bool = False) -> str:
    """Return JSON for stdout: one object, keys in their order, no escapes beyond what JSON needs."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    return FinishedText(escaped_json(json.dumps(without_secret_values(value), ensure_ascii=False, **layout)))


def tell_framework() -> Callable[[str], None]:
    """Tells each framework once while all its releases are judged: it takes a while."""
    announced: set[str] = set()

    def progress(line: str) -> None:
        name = line.split(maxsplit=1)[0]
        if name not in announced:
            announced.add(name)
            say(f"judging every {name} with every torch")

    return progress
