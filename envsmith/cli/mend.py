"""``envsmith doctor --apply`` and ``--undo``: show what a repair changes, ask, mend the environment in place."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import Console, dumps, print_answer, print_out, say, table
from envsmith.cli.declare import flag, option
from envsmith.errors import UsageError
from envsmith.progress import Clock
from envsmith.text import clean

if TYPE_CHECKING:
    from envsmith.doctor.diagnosis import Diagnosis
    from envsmith.mend.apply import MendResult, Proposal


@dataclass(frozen=True, kw_only=True, slots=True)
class MendFlags:
    """What is done with a repair."""

    apply: bool = flag("--apply", "Mend the environment of --python: show the changes, ask, try before and after.")
    undo: bool = flag("--undo", "Put back the environment of before the last --apply.")
    keep: tuple[str, ...] = option(
        "--keep", multiple=True, metavar="NAME", help="With --apply: never change this package (repeatable)."
    )
    yes: bool = flag("--yes", "With --apply or --undo: do not ask.")

    def refuse_idle(self, python: str | None) -> None:
        """Refuse options that have no effect, and a change of an environment that the user has not named."""
        refuse_contradiction(apply=self.apply, undo=self.undo, keep=self.keep, yes=self.yes)
        if (self.apply or self.undo) and python is None:
            raise UsageError(
                f"Cannot use {'--apply' if self.apply else '--undo'} without --python: it changes an environment.",
                hint="Name the environment: envsmith doctor --python ENV --apply.",
            )


def refuse_contradiction(*, apply: bool, undo: bool, keep: Collection[str], yes: bool) -> None:
    """Refuse options of a mend that have no effect, and two that contradict each other. Raises ``UsageError``."""
    if (keep or yes) and not (apply or undo):
        raise UsageError(
            f"Cannot use {'--keep' if keep else '--yes'} here: nothing is changed without --apply.",
            hint="Add --apply, or leave the option out.",
        )
    if apply and undo:
        raise UsageError(
            "Cannot combine --apply with --undo: one makes a change, the other takes it back.",
            hint="Leave one of them out.",
        )


def root_of(interpreter: str) -> Path:
    """Return the folder of the environment of an interpreter."""
    return Path(interpreter).absolute().parent.parent


def mend_environment(flags: MendFlags, diagnosis: Diagnosis, root: Path, *, as_json: bool) -> int:
    """Mend an environment and print what came of it. Return 0 when it is mended or needs nothing, else 1."""
    # Resolving is most of the program, and no other option of doctor needs it.
    from envsmith.mend.apply import Mender, MendResult, by_packages

    mender = Mender()
    proposal = mender.propose(by_packages(diagnosis, flags.keep), root, keep=flags.keep)
    by_hand = proposal.treatment.by_hand
    changes = proposal.difference.changes
    if not changes:
        result = MendResult(status="nothing", environment=str(root), by_hand=by_hand)
    else:
        say(_difference_text(proposal))
        agree(f"Change {len(changes)} package{'s' * (len(changes) > 1)} of {root}?", yes=flags.yes)
        with Console() as console:
            result = mender.apply(proposal, Clock(console))
    _print(result, as_json=as_json)
    return 0 if result.status == "mended" or (result.status == "nothing" and diagnosis.status != "bad") else 1


def undo_environment(flags: MendFlags, root: Path, *, as_json: bool) -> int:
    """Put back the environment of before the last mend and print what changed."""
    from envsmith.mend.apply import undo_last
    from envsmith.mend.twin import recover

    recover(root)
    agree(f"Put back {root} as it was before the last --apply?", yes=flags.yes)
    _print(undo_last(root), as_json=as_json)
    return 0


def agree(question: str, *, yes: bool) -> None:
    """Ask the user, unless ``yes``. ``UsageError`` where nobody can be asked, and where the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "Cannot ask whether to make the change: the input is not a terminal.",
            hint="Add --yes to make it without a question.",
        )
    if not click.confirm(question, default=False, err=True):
        raise UsageError(
            "Cannot go on: the answer was no. Nothing was changed.", hint="Run it again to be asked again."
        )


def _difference_text(proposal: Proposal) -> str:
    rows = [(change.sentence, f"[{change.why}]") for change in proposal.difference.changes]
    lines = [f"changes in {proposal.environment.root}:", table(rows)]
    return "\n".join([*lines, *(f"by hand: {clean(text)}" for text in proposal.treatment.by_hand)])


_WORDS = {
    "mended": "mended",
    "improved": "changed: it comes further than before, and something still fails",
    "rolled back": "not changed: the changes would not have made it better",
    "nothing": "nothing to change with pip or uv",
    "undone": "as before the last --apply",
}


def _print(result: MendResult, *, as_json: bool) -> None:
    if as_json:
        print_out(dumps(result.to_json()))
        return
    lines = [f"{result.environment}: {_WORDS[result.status]}"]
    lines += [f"  {change.sentence}" for change in result.changes if result.status == "undone"]
    if result.before and result.after:
        lines += [f"before: {clean(result.before.sentence)}", f"after:  {clean(result.after.sentence)}"]
    lines += [f"by hand: {clean(text)}" for text in result.by_hand if result.status != "undone"]
    if result.status in {"mended", "improved"}:
        lines.append(f"undo: envsmith doctor --python {result.environment} --undo")
    print_answer("\n".join(lines))
