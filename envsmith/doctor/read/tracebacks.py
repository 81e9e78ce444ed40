"""The tracebacks of a text: who called what, and of which installed package each line of code is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from envsmith.doctor.read.lines import OWN_MODULES, fold
from envsmith.doctor.read.pasted import by_speaker, of_last_speaker, unprefixed
from envsmith.doctor.vocabulary import words

# Python's own frames, those of IPython and Jupyter (new and old), and those in the boxes of rich.
_FRAME = re.compile(
    r'File "(?P<plain>[^"\n]{1,300})", line (?P<line>\d{1,7})(?:, in (?P<function>[^\n]{1,80}))?'
    r"|^\s{0,4}File (?P<cell>[^\n\"]{1,300}?\.py):\d{1,7}(?:, in (?P<called>[^\n(]{1,80}))?"
    r"|^\s{0,4}\[(?P<linked>[^\]\n]{1,300}\.py)\]\(\S{1,300}\) in (?P<named>[^\n(]{1,80})"
    r"|^(?P<old>[/~][^\n]{1,300}?\.py) in (?P<entered>[^\n(]{1,80})\("
    r"|^│ (?P<boxed>[/~][^\n│]{1,300}?\.py)(?=[: ])"
)
_ARROW = re.compile(r"^(?:-{1,9}> ?(\d{1,7})|│ ❱ +(\d{1,7}))\s(?:│   )*(.{1,300}?)(?:\s*│)?$")
_FILES = ("plain", "cell", "linked", "old", "boxed")
_FUNCTIONS = ("function", "called", "named", "entered")
_INSTALLED_FRAME = re.compile(r"[/\\](?:site|dist)-packages[/\\]([A-Za-z_][\w.-]{1,60})")
# The folder of an old installation: `pytorch_lightning-1.8.0-py3.7.egg`.
_EGG = re.compile(r"-\d[\w.+]*-py3\.\d{1,2}(?:-[\w-]+)?\.egg$")
_INSTALLED_PATH = re.compile(r"[/\\]+(?:site|dist)-packages[/\\]+([A-Za-z_][\w/\\]{1,200}\.py)\b")
# A frame of a checkout that is run where it lies: its own folder says whose code it is.
_CHECKOUT = re.compile(rf"[/\\]({OWN_MODULES}|transformers|accelerate|op_builder)[/\\]")
# A decorator hands on what it was given: `return func(*args, **kwargs)`.
_HANDED_ON = re.compile(r"\(\s?(?:self, ?)?\*\w+, ?\*\*\w+\s?\)\s?$")
# How far back the frames of the exception at a place are looked for.
_REACH = 6000
# Up to Python 3.6, and where a writer cut the line, the message does not say which module lacks the name.
_CUT = re.compile(r"^(.{0,40}?ImportError: cannot import name '?(\w{1,80})'?)(?: from)?[ \t]*$")
_FROM = re.compile(r"\bfrom ([A-Za-z_][\w.]{0,120}) import\b")


@dataclass(frozen=True, slots=True)
class LoggedFrame:
    """One call: ``source`` is the line of code under it and ``line`` its number, where the text has them."""

    file: str
    function: str
    source: str = ""
    line: int = 0

    @property
    def package(self) -> str | None:
        """Return the distribution the code is of, or ``None`` for a script of one's own."""
        return package_of(self.file)


def package_of(file: str) -> str | None:
    """Return the distribution of the folder under ``site-packages``, or of the source tree, that ``file`` lies in."""
    match = _INSTALLED_FRAME.search(file) or _CHECKOUT.search(file)
    if match is None:
        return None
    name = fold(_EGG.sub("", match[1]).removesuffix(".py"))
    return words().folders.get(name, name)


def installed_path(file: str) -> str:
    """Return the path of a file below ``site-packages``, empty for a file elsewhere."""
    match = _INSTALLED_PATH.search(file)
    return re.sub(r"[/\\]+", "/", match[1]) if match else ""


def module_of(file: str) -> str:
    """Return the dotted name of the module in a file under ``site-packages``, empty for a file elsewhere."""
    return installed_path(file).removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def frames_before(text: str, position: int) -> list[LoggedFrame]:
    """Return the calls of the traceback that ends at ``position``, outermost first."""
    window = of_last_speaker(text[max(0, position - _REACH) : position])
    start = window.rfind("Traceback (most recent call last)")
    return _frames(window[max(start, 0) :].split("\n"))


def callers(frames: Sequence[LoggedFrame]) -> Sequence[LoggedFrame]:
    """Return the calls that say what they want. Decorators, torch around a module and ``__getattr__`` only hand it on."""
    return [f for f in frames if not (_HANDED_ON.search(f.source) or f.function.endswith("__getattr__"))]


def frames_in(text: str) -> list[LoggedFrame]:
    """Return the calls of all tracebacks of a text, those of each process together."""
    return _frames(by_speaker(text)[1])


def _frames(lines: Sequence[str]) -> list[LoggedFrame]:
    frames: list[LoggedFrame] = []
    for number, line in enumerate(lines):
        if match := _FRAME.search(line):
            parts = match.groupdict()
            file = next(part for kind in _FILES if (part := parts[kind]))
            function = next((part for kind in _FUNCTIONS if (part := parts[kind])), "").strip()
            source = _source(line, match, lines[number + 1 : number + 2])
            frames.append(LoggedFrame(file, function, source, int(match["line"] or 0)))
        elif frames and (arrow := _ARROW.match(line)):
            frames[-1] = dataclasses.replace(frames[-1], source=arrow[3].strip(), line=int(arrow[1] or arrow[2]))
    return frames


def _source(line: str, frame: re.Match[str], following: Sequence[str]) -> str:
    """Return the line of code of one of Python's own frames: behind it or in the next line."""
    if not frame["plain"]:
        return ""
    below = following[0].strip() if following else ""
    return (line[frame.end() :].strip() or ("" if _FRAME.search(below) else below))[:300]


# In how many lines at its end a text shows where it ends.
_LAST_LINES = 300
# What stands below the line of code that failed: carets, and in a notebook or a box the code that follows.
_BELOW = re.compile(r"[\s^~]*$|\s{0,10}\d{1,6}(?:\s|$)|[│╰]|\s*\.{3}\s*$")


def unanswered_line(text: str) -> tuple[int, str] | None:
    """Return the number (from 0) and the code of the last line that the last traceback quotes, where no error follows."""
    all_lines = text.split("\n")
    first = max(0, len(all_lines) - _LAST_LINES)
    lines = unprefixed("\n".join(all_lines[first:])).split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if arrow := _ARROW.match(lines[number]):
            return (first + number, arrow[3].strip()) if _is_unanswered(lines[number + 1 :]) else None
        if match := _FRAME.search(lines[number]):
            code = _source(lines[number], match, lines[number + 1 : number + 2]) if match["plain"] else ""
            return (first + number + 1, code) if code and _is_unanswered(lines[number + 2 :]) else None
    return None


def _is_unanswered(following: Sequence[str]) -> bool:
    """Return whether what follows a line of code is apart from it and shows no failure."""
    ending = "\n".join(line for line in following if not _BELOW.match(line))
    return all(map(_BELOW.match, following[:1])) and not re.search(words().failure, ending, re.MULTILINE)


def completed(text: str) -> str:
    """Return ``text`` with the module in import errors that do not name it, from the line of code above or below.

    Lines stay lines.
    """
    if "cannot import name" not in text:
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if match := _CUT.match(line):
            below = (line for line in lines[number + 1 : number + 2] if match[2] in line)
            around = [*reversed(lines[max(0, number - 3) : number]), *below]
            if module := next((m for line in around if (m := _FROM.search(line))), None):
                quoted = repr(match[2])
                message = match[1] if quoted in match[1] else match[1].replace(match[2], quoted)
                lines[number] = f"{message} from '{module[1]}'"
    return "\n".join(lines)
