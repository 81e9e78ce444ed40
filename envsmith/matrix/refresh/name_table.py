"""The tables of a distribution from the sources of its releases: its names, and what its import takes from others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from envsmith.matrix.refresh.source_store import SourceStore
from envsmith.names.blocks import Blocks
from envsmith.names.names_file import Table
from envsmith.names.reach import Memo, PackageUses
from envsmith.names.source import read_module
from envsmith.names.stubs import additions
from envsmith.names.takes import takes_of
from envsmith.python.release_sources import Member


def measure(store: SourceStore, versions: Sequence[str], roots: Iterable[str]) -> Table:
    """Return the lines of every module, each with the bits of the releases that have it."""
    table: Table = defaultdict(lambda: defaultdict(int))
    sources: dict[str, dict[str, dict[Member, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    roots = tuple(roots)
    with_compiled = 0
    for at, version in enumerate(versions):
        members, compiled = store.members(version)
        with_compiled |= bool(compiled) << at
        for member in members:
            if _below(module_of(member.path), roots):
                sources[module_of(member.path)][member.path][member] |= 1 << at
        for module in compiled:
            if _below(module, roots):
                table[module][""] |= 1 << at
                table[module]["* !"] |= 1 << at
    binaries = {module: lines[""] for module, lines in table.items()}
    for module, paths in sources.items():
        _add_module(table[module], store, module, paths, with_compiled & ~_compiled_bits(binaries, module))
    _add_folders(table, roots)
    return {module: dict(lines) for module, lines in table.items() if lines[""]}


def _add_module(
    lines: dict[str, int], store: SourceStore, module: str, paths: Mapping[str, Mapping[Member, int]], no_stub: int
) -> None:
    """Add what the sources of a module bind. In the releases of ``no_stub`` a stub alone cannot be imported."""
    contents: list[tuple[frozenset[str], int]] = []
    for path, members in sorted(paths.items(), key=lambda item: (item[0].endswith(".pyi"), item[0])):
        stub, package, blocks = path.endswith(".pyi"), "/__init__." in path, Blocks()
        for member, bits in members.items():
            read = read_module(store.read(member), module, package=package, stub=stub, blocks=blocks)
            if not stub:
                contents.append((read, bits))
                _add(lines, read, bits)
                continue
            alone = bits & ~no_stub
            for source, having in contents:
                _add(lines, additions(read, source), bits & having)
                alone &= ~having
            _add(lines, read, alone)


def _add(lines: dict[str, int], read: Iterable[str], bits: int) -> None:
    if bits:
        for line in ("", *read):
            lines[line] |= bits


def _compiled_bits(binaries: Mapping[str, int], module: str) -> int:
    """Return the releases in which a module is compiled, or lies inside of a compiled one."""
    parts = module.split(".")
    bits = 0
    for depth in range(1, len(parts) + 1):
        bits |= binaries.get(".".join(parts[:depth]), 0)
    return bits


def module_of(path: str) -> str:
    """Return the dotted name of a source."""
    return path.removesuffix(".pyi").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _below(module: str, roots: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{root}.") for root in roots)


def _add_folders(table: Table, roots: Sequence[str]) -> None:
    """Add the packages that have no ``__init__``: a folder can be imported too."""
    for module, lines in list(table.items()):
        bits = lines[""]
        while _below(module := module.rpartition(".")[0], roots):
            table[module][""] |= bits


def merge(*parts: tuple[Table, Sequence[str], Sequence[str]], versions: Sequence[str]) -> Table:
    """Return one table of ``versions`` from tables, each with its releases and those of them that count."""
    merged: Table = defaultdict(lambda: defaultdict(int))
    for table, own, counted in parts:
        places = {at: versions.index(version) for at, version in enumerate(own) if version in set(counted)}
        moved: dict[int, int] = {0: 0}
        for module, lines in table.items():
            for line, bits in lines.items():
                if bits not in moved:
                    moved[bits] = sum(1 << place for at, place in places.items() if bits >> at & 1)
                if moved[bits]:
                    merged[module][line] |= moved[bits]
    return {module: dict(lines) for module, lines in merged.items()}


def add_moves(table: Table, newest: int, roots: Iterable[str]) -> int:
    """Add where a class or function is defined now, where its last place lost it, and return how many.

    The name must be defined once in the newest release: two places would be a guess.
    """
    now: dict[str, set[str]] = defaultdict(set)
    gone: list[tuple[str, str]] = []
    written = tuple(f" ^{root}." for root in roots)
    for module, lines in table.items():
        for line in [line for line in lines if any(mark in line for mark in written)]:
            del lines[line]  # of the refresh before: another release is the newest now
        current = {line.partition(" ")[0] for line, bits in lines.items() if bits & newest}
        for line, bits in lines.items():
            name, _, body = line.partition(" ")
            if "." in name or not body.lstrip("?+-").startswith(("(", ":", "@:", "~(")):
                continue
            if bits & newest:
                now[name].add(module)
            elif name not in current:
                gone.append((module, name))
    moves = {(module, name) for module, name in gone if len(now[name]) == 1 and len(name) > 4}
    for module, name in moves:
        table[module][f"{name} ^{next(iter(now[name]))}.{name}"] = newest
    return len(moves)


def count_names(table: Mapping[str, Mapping[str, int]]) -> int:
    """Return how many names the modules of a table bind."""
    return sum(1 for lines in table.values() for line in lines if line and not line.startswith("*"))


def measure_takes(store: SourceStore, versions: Sequence[str], roots: Sequence[str], entries: Sequence[str]) -> Table:
    """Return the lines of each entry, each with the bits of the releases that have it.

    What an earlier entry takes is not repeated: where it lacks, that one fails too.
    """
    table: Table = {entry: defaultdict(int) for entry in entries}
    memo: Memo[Member] = Memo()
    for at, version in enumerate(versions):
        members, _ = store.members(version)
        uses = PackageUses(roots, {member.path: member for member in members}, store.read, memo)
        before: set[str] = set()
        for entry in entries:
            takes = [take for take in takes_of(uses.at_import(entry)) if take.path not in before]
            for take in takes:
                table[entry][take.line()] |= 1 << at
            before |= {take.path for take in takes}
    return {entry: dict(lines) for entry, lines in table.items()}
