"""The table of what the import of a distribution takes from others, from the sources of its releases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from envsmith.matrix.refresh.source_store import SourceStore
from envsmith.names.reach import Memo, PackageUses
from envsmith.names.store import Table
from envsmith.names.takes import takes_of
from envsmith.python.sources import Member


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
