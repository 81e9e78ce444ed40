"""``envsmith matrix merge``: records that others made go into the matrix, or are judged before they do."""

from __future__ import annotations

from dataclasses import dataclass

import click

from envsmith.base.files import now
from envsmith.base.text import clean
from envsmith.cli.console import print_out, say
from envsmith.cli.declare import ExistingFolder, ExistingPath, argument, flag, verb
from envsmith.cli.flags import matrix_option
from envsmith.errors import UsageError
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import find_matrix, list_files, own_matrix
from envsmith.matrix.acceptance import judge_file
from envsmith.matrix.vouchers import SIGNERS_FILE, voucher_of
from envsmith.model.record import merge as merged
from envsmith.model.record import records_of


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeFlags:
    """The options of ``matrix merge``."""

    sources: tuple[ExistingPath, ...] = argument(nargs=-1, required=True)
    check: bool = flag("Only say whether each record would be taken, and who vouches for it.")
    folder: ExistingFolder | None = matrix_option()


@verb(MergeFlags)
def merge(settings: MergeFlags) -> int:
    """Take the records of SOURCES into the matrix, and say who vouches for each.

    A source is what a build wrote (the cell's folder, or the folder of all cells), a campaign's folder, what `prove`
    left, a folder of records, or a file. A signature beside a record goes with it.

    They go into --matrix, else into the matrix that envsmith uses. An installed envsmith has its own in its package,
    which is left alone: `matrix/` in this folder is taken then, as in a checkout.

    Names follow from contents, so nothing is overwritten and the same record twice is one. A file that was changed
    after it was written is refused. With --check, exit code 1 says that a record is refused, and why: it is none, it
    tells something private, its signature is not its own, or it does not show what it claims.
    """
    if settings.check:
        return _judged(settings)
    root = settings.folder or own_matrix()
    new, existing = merged(settings.sources, root / "records")
    if not new and not existing:
        raise UsageError(
            f"Cannot merge {', '.join(map(str, settings.sources))}: it holds no record.",
            hint="Give the folder of a campaign, or of its records.",
        )
    for name in new:
        print_out(f"{name}: {clean(str(voucher_of(root / 'records' / name, root / SIGNERS_FILE)))}")
    say(f"{len(new)} records taken into {root / 'records'}, {existing} were there")
    return 0


def _judged(settings: MergeFlags) -> int:
    root = settings.folder or find_matrix()
    graph = knowledge(list_files(root))
    files = [path for source in settings.sources for path in records_of(source)]
    refused = 0
    for path in files:
        judged = judge_file(path, root, graph, now())
        word = click.style("refused", fg="red") if judged.objections else click.style("accepted", fg="green")
        print_out(f"{word}: {clean(judged.name)}, vouched for by: {clean(str(judged.voucher))}")
        for line in judged.objections:
            print_out(f"  {clean(line)}")
        refused += bool(judged.objections)
    say(f"{len(files) - refused} of {len(files)} records would be taken")
    return 1 if refused else 0
