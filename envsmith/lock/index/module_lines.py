"""What one module binds in several releases: the lines of its sources, each with the releases that have it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from envsmith.knowledge.names.blocks import Blocks
from envsmith.knowledge.names.source import read_module
from envsmith.knowledge.names.stubs import additions
from envsmith.lock.index.release_sources import SourceMember


@dataclass(frozen=True, slots=True)
class ModuleMemo:
    """The lines of each source of each module that was read, and the blocks of the module."""

    lines: dict[tuple[str, SourceMember], frozenset[str]] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=lambda: defaultdict(Blocks))


def module_of(path: str) -> str:
    """Return the dotted name of a source."""
    return path.removesuffix(".pyi").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_lines(
    module: str,
    sources: Mapping[str, Mapping[SourceMember, int]],
    read: Callable[[SourceMember], bytes],
    *,
    no_stub: int,
    compiled: Collection[str],
    memo: ModuleMemo | None = None,
) -> dict[str, int]:
    """Return the lines of a module, from the bits of the releases that have each member of each path.

    In the releases of ``no_stub`` a stub alone cannot be imported. Of what a source takes from ``compiled`` modules its
    stub tells more.
    """
    memo = memo or ModuleMemo()
    lines: dict[str, int] = defaultdict(int)
    contents: list[tuple[frozenset[str], int]] = []
    for path, members in sorted(sources.items(), key=lambda item: (item[0].endswith(".pyi"), item[0])):
        stub, package, blocks = path.endswith(".pyi"), "/__init__." in path, memo.blocks[path]
        for member, bits in members.items():
            if (module, member) not in memo.lines:
                read_lines = read_module(read(member), module, package=package, stub=stub, blocks=blocks)
                memo.lines[module, member] = read_lines
            text_lines = memo.lines[module, member]
            if not stub:
                contents.append((text_lines, bits))
                _add(lines, text_lines, bits)
                continue
            alone = bits & ~no_stub
            for source, having in contents:
                _add(lines, additions(text_lines, source, compiled), bits & having)
                alone &= ~having
            _add(lines, text_lines, alone)
    return lines


def _add(lines: dict[str, int], read: Iterable[str], bits: int) -> None:
    if bits:
        for line in ("", *read):
            lines[line] |= bits
