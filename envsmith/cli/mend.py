"""``--apply`` and ``--undo`` of ``doctor`` and ``check``: show what a repair changes, ask, mend environment or file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from envsmith.base.progress import Clock
from envsmith.base.text import clean, counted
from envsmith.cli.console import Console, dumps, print_answer, print_out, say, table
from envsmith.cli.declare import flag, several
from envsmith.errors import LockError, UsageError
from envsmith.knowledge.graph.load import components

if TYPE_CHECKING:
    from envsmith.doctor.diagnosis import Diagnosis
    from envsmith.doctor.mend.apply import MendResult, Proposal
    from envsmith.doctor.mend.project_file import FileMend
    from envsmith.doctor.mend.resolution import PackageChange
    from envsmith.model.finding import Judgement
    from envsmith.project.ranges import Declarations


@dataclass(frozen=True, kw_only=True, slots=True)
class MendFlags:
    """What is done with a repair."""

    apply: bool = flag("Mend the environment of --python: show the changes, ask, try before and after.")
    undo: bool = flag("Put back the environment of before the last --apply.")
    keep: tuple[str, ...] = several("NAME", "With --apply: never change this package (repeatable).")
    yes: bool = flag("With --apply or --undo: do not ask.")

    # The option that names what is changed, what that is, and how it is named.
    _NAMED: ClassVar[tuple[str, str, str]] = (
        "--python",
        "an environment",
        "Name the environment: envsmith doctor --python ENV",
    )

    @property
    def components(self) -> tuple[str, ...]:
        """Return the components that are to stay."""
        return tuple(component.name for component in map(components().find, self.keep) if component)

    def refuse_idle(self, target: str | None) -> None:
        """Refuse options that have no effect or contradict each other, and a change of what the user has not named."""
        if (self.keep or self.yes) and not (self.apply or self.undo):
            raise UsageError(
                f"Cannot use {'--keep' if self.keep else '--yes'} here: nothing is changed without --apply.",
                hint="Add --apply, or leave the option out.",
            )
        if self.keep and self.undo:
            raise UsageError("Cannot use --keep with --undo: all is put back.", hint="Leave --keep out.")
        if self.apply and self.undo:
            raise UsageError(
                "Cannot combine --apply with --undo: one makes a change, the other takes it back.",
                hint="Leave one of them out.",
            )
        if (self.apply or self.undo) and target is None:
            option, what, hint = self._NAMED
            action = "--apply" if self.apply else "--undo"
            raise UsageError(f"Cannot use {action} without {option}: it changes {what}.", hint=f"{hint} {action}.")


def root_of(interpreter: str) -> Path:
    """Return the folder of the environment of an interpreter. The interpreter is a link in most, and not followed."""
    return Path(interpreter).parent.parent.resolve()


def mend_environment(flags: MendFlags, diagnosis: Diagnosis, root: Path, *, as_json: bool) -> int:
    """Mend an environment and print what came of it. Return 0 when it is mended or needs nothing, else 1."""
    # Resolving is most of the program, and no other option of doctor needs it.
    from envsmith.doctor.mend.apply import Mender, MendResult, by_packages

    mender = Mender()
    proposal = mender.propose(by_packages(diagnosis, flags.keep), root, keep=flags.keep)
    by_hand = proposal.treatment.by_hand
    changes = proposal.difference.changes
    if not changes:
        result = MendResult(status="nothing", environment=str(root), by_hand=by_hand)
    else:
        say(_difference_text(proposal))
        agree(f"Change {counted(len(changes), 'package')} of {root}?", yes=flags.yes)
        with Console() as console:
            result = mender.apply(proposal, Clock(console))
    _print(result, as_json=as_json)
    return 0 if result.status == "mended" or (result.status == "nothing" and diagnosis.status != "bad") else 1


def undo_environment(flags: MendFlags, root: Path, *, as_json: bool) -> int:
    """Put back the environment of before the last mend and print what changed."""
    from envsmith.doctor.mend.apply import undo_last

    def ask(changes: Sequence[PackageChange]) -> None:
        say("\n".join([f"changes in {root}:", *(f"  {change.sentence}" for change in changes)]))
        agree(f"Put back {root} as it was before the last --apply?", yes=flags.yes)

    _print(undo_last(root, ask), as_json=as_json)
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
    if result.before and result.after:
        lines += [f"before: {clean(result.before.sentence)}", f"after:  {clean(result.after.sentence)}"]
    lines += [f"by hand: {clean(text)}" for text in result.by_hand if result.status != "undone"]
    if result.status in {"mended", "improved"}:
        lines.append(f"undo: envsmith doctor --python {result.environment} --undo")
    print_answer("\n".join(lines))


# What makes a lock follow a change, by the name of its file. {pins} are requirements.
_OF_LOCKS = {
    "uv.lock": "uv lock --upgrade-package {pin}",
    "poetry.lock": "poetry add --lock {pin}",
    "Pipfile.lock": "pipenv upgrade {pin}",
    "pixi.lock": "pixi add --pypi {pin}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FileMendFlags(MendFlags):
    """What is done with the repair of a file."""

    apply: bool = flag("Change the requirements in the file of --from: show the changes, ask, write.")
    undo: bool = flag("Put back the file of before the last --apply.")
    _NAMED: ClassVar[tuple[str, str, str]] = (
        "--from FILE", "a file", "Name the file first: envsmith check requirements.txt"
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MendSubject:
    """The file that is mended, how it was judged, and what it declares where it is not a lock."""

    path: Path
    judgement: Judgement
    declarations: Declarations | None


def apply_mend(flags: FileMendFlags, subject: MendSubject, again: Callable[[], Judgement], *, as_json: bool) -> int:
    """Mend a file and print what came of it. Return 0 when it is good, else 1. ``again`` judges what was written."""
    from envsmith.doctor.mend.project_file import FileMend, propose_for_file  # resolving is most of the program

    path, judgement = subject.path, subject.judgement
    if judgement.status != "bad":
        return _print_file("nothing", FileMend(path=path), as_json=as_json)
    if subject.declarations is None:
        return _print_commands(path, judgement)
    changed = [change.component for change in judgement.repair.changes] if judgement.repair else []
    mend = propose_for_file(path, subject.declarations.naming(changed), judgement, keep=flags.keep)
    if not mend.texts:
        _print_file("nothing", mend, as_json=as_json)
        return 1
    say(_text_of(mend))
    agree(f"Write {', '.join(map(str, mend.texts))}?", yes=flags.yes)
    mend.write()
    after = again()
    if after.status == "bad" and {f.rule for f in after.findings} & {f.rule for f in judgement.findings}:
        mend.take_back()
        raise LockError(
            f"Cannot mend {path}: after the change it is still judged bad. The file is as it was.",
            details=[f"{finding.message} [{finding.rule}]" for finding in after.findings],
            hint="Change the requirements that envsmith check names by hand.",
        )
    _print_file("mended", mend, as_json=as_json)
    return 1 if after.status == "bad" else 0


def undo_mend(flags: FileMendFlags, path: Path) -> int:
    """Put back the file of before the last mend."""
    from envsmith.doctor.mend.project_file import undo_file

    undo_file(path, lambda: agree(f"Put back {path} as it was before the last --apply?", yes=flags.yes))
    print_answer(f"{path}: as before the last --apply")
    return 0


def _print_commands(path: Path, judgement: Judgement) -> int:
    """Print the commands of the tool that wrote a lock: it is that tool's file."""
    command = _OF_LOCKS.get(path.name)
    if command is None or judgement.repair is None:
        raise UsageError(
            f"Cannot change {path}: by its name another tool writes it.",
            hint="Change what it was made from, and make it again. A list of your own is called requirements.txt.",
        )
    table_ = components().by_name
    lines = []
    for change in judgement.repair.changes:
        distributions = table_[change.component].distributions if change.component in table_ else ()
        if distributions and change.new:
            lines.append(command.format(pin=f"{distributions[0]}=={change.new.partition('+')[0]}"))
        else:
            lines.append(f"by hand: {change.component} {change.old or '(absent)'} -> {change.new or '(removed)'}")
    print_answer("\n".join([f"{path}: not changed. Its own tool changes it:", *(f"  {clean(line)}" for line in lines)]))
    return 1


def _text_of(mend: FileMend) -> str:
    rows = [(change.sentence, f"[{change.why}]") for change in mend.changes]
    return "\n".join([table(rows), *mend.diffs, *(f"by hand: {clean(text)}" for text in mend.by_hand)])


_FILE_WORDS = {"mended": "mended", "nothing": "nothing to change"}


def _print_file(status: str, mend: FileMend, *, as_json: bool) -> int:
    if as_json:
        changes = [change.to_json() for change in mend.changes]
        data = {"status": status, "file": str(mend.path), "changes": changes, "by_hand": list(mend.by_hand)}
        print_out(dumps(data))
        return 0
    lines = [f"{mend.path}: {_FILE_WORDS[status]}", *(f"by hand: {clean(text)}" for text in mend.by_hand)]
    lines += [f"undo: envsmith check --from {path} --undo" for path in mend.texts]
    print_answer("\n".join(lines))
    return 0
