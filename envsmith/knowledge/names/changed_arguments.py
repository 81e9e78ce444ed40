"""Which packages ever gained or lost an argument on a callable of a name: the name index the other way round.

A message like ``launch() got an unexpected keyword argument 'enable_queue'`` names no package. The table says which
packages have a callable of that name that takes the argument in some releases and not in others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from envsmith.knowledge.graph.location import DataFiles, find_matrix
from envsmith.knowledge.graph.tables import Table
from envsmith.knowledge.names.names_file import SUFFIX, NamesFile, bits_of
from envsmith.knowledge.names.signature_text import positional

_CONSTRUCTORS = frozenset({"__init__", "__new__"})
_MARKS = frozenset({"", "*", "|", "/", "**"})
_LINE = re.compile(r"^(?:@(?P<runs>[\d,-]+)|(?P<name>[\w.]+) [?+-]*(?P<body>(?:~?\(|!|@:).*))$", re.MULTILINE)
# What is asked of a callable beside an argument: one that it wants, and how many it takes by position.
WANTED, COUNTED = "!", "#"


def changed(folder: Path, name: str, what: str) -> tuple[str, ...]:
    """Return the packages in which ``what`` of a callable of that name changed.

    ``what`` is an argument, one with :data:`WANTED` behind it, or :data:`COUNTED`. A class is called by its own name
    and by ``__init__``.
    """
    table = CHANGED_ARGUMENTS.load(_files(folder))
    at = table.find(f"\n{name}\t")
    line = table[at + 1 : table.index("\n", at + 1) + 1] if at >= 0 else ""
    match = re.search(rf"\t{re.escape(what)} ([^\t\n]+)", line)
    return tuple(match[1].split(" ")) if match else ()


def _files(folder: Path) -> DataFiles:
    return DataFiles(folder, tuple(sorted(path.name for path in folder.glob(f"*{SUFFIX}"))))


def _invert(files: DataFiles) -> str:
    """Return a line for each name of a callable: ``launch``, then each argument with its packages."""
    owners: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in files.names:
        pairs = {
            (name, what)
            for path, words in _read(NamesFile(files.root / file)).items()
            for what in _changed_of(words)
            for name in _names(path)
        }
        for name, what in pairs:
            owners[name][what].append(file.removesuffix(SUFFIX))
    lines = (
        "\t".join([name, *(" ".join([what, *of]) for what, of in sorted(owners[name].items()))])
        for name in sorted(owners)
    )
    return "".join(["\n", *(f"{line}\n" for line in lines)])


def _names(path: str) -> tuple[str, ...]:
    """Return the names that a message may have for a callable."""
    head, _, last = path.rpartition(".")
    return (head.rpartition(".")[2], "__init__") if last in _CONSTRUCTORS else (last,)


def _read(file: NamesFile) -> Mapping[str, Mapping[str, int]]:
    """Return each callable of a package by its path below the module, with the words of its signature and their releases.

    The empty word is the callable itself. One that moved to another module is the same.
    """
    callables: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for _, text in file.texts():
        bits = 0
        for line in _LINE.finditer(text):
            if line["runs"] is not None:
                bits = bits_of(line["runs"])
                continue
            path, words = _words(line["name"], line["body"])
            for word in words:
                callables[path][word] |= bits
    return callables


def _words(name: str, body: str) -> tuple[str, list[str]]:
    """Return the callable of a line and what the line says of it. A field is an argument of its class."""
    if body.startswith("@:"):
        return f"{name}.__init__", [""]
    if body.startswith("!"):
        owner, _, field = name.rpartition(".")
        return f"{owner}.__init__", [f"{field}="]
    words = body.partition("(")[2].split(",")
    return name, ["", *words, f"{COUNTED}{len(positional(words))}"]


def _changed_of(words: Mapping[str, int]) -> Iterator[str]:
    """Yield what some releases of a callable have and others have not."""
    releases = words.get("", 0)
    closed = releases & ~words.get("**", 0)
    for word in {word.removesuffix("=") for word in words if word[:1] != COUNTED} - _MARKS:
        required = words.get(word, 0)
        if closed & ~(required | words.get(f"{word}=", 0)):
            yield word
        if required and releases & ~required:
            yield f"{word}{WANTED}"
    if sum(word[:1] == COUNTED for word in words) > 1:
        yield COUNTED


CHANGED_ARGUMENTS = Table("changed-arguments", lambda: _files(find_matrix() / "names"), str, _invert)
