"""``envsmith check --from FILE --apply`` and ``--undo``: show what a repair changes in a file, ask, write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.cli.console import dumps, print_answer, print_out, say, table
from envsmith.cli.declare import flag, option
from envsmith.cli.mend import agree, refuse_contradiction
from envsmith.errors import LockError, UsageError
from envsmith.graph.load import components
from envsmith.text import clean

if TYPE_CHECKING:
    from envsmith.mend.project_file import FileMend
    from envsmith.model.finding import Judgement
    from envsmith.project.ranges import Declarations

# What makes a lock follow a change, by the name of its file. {pins} are requirements.
_OF_LOCKS = {
    "uv.lock": "uv lock --upgrade-package {pin}",
    "poetry.lock": "poetry add --lock {pin}",
    "Pipfile.lock": "pipenv upgrade {pin}",
    "pixi.lock": "pixi add --pypi {pin}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FileMendFlags:
    """What is done with the repair of a file."""

    apply: bool = flag("--apply", "Change the requirements in the file of --from: show the changes, ask, write.")
    undo: bool = flag("--undo", "Put back the file of before the last --apply.")
    keep: tuple[str, ...] = option(
        "--keep", multiple=True, metavar="NAME", help="With --apply: never change this package (repeatable)."
    )
    yes: bool = flag("--yes", "With --apply or --undo: do not ask.")

    def refuse_idle(self, sources: tuple[str, ...]) -> None:
        """Refuse options that have no effect, and a change of what is not one file."""
        refuse_contradiction(apply=self.apply, undo=self.undo, keep=self.keep, yes=self.yes)
        if (self.apply or self.undo) and (not sources or sources[0] == "-"):
            raise UsageError(
                f"Cannot use {'--apply' if self.apply else '--undo'} without --from FILE: it changes a file.",
                hint="Name the file first: envsmith check --from requirements.txt --apply.",
            )

    @property
    def components(self) -> tuple[str, ...]:
        """The components that are to stay."""
        return tuple(component.name for component in map(components().find, self.keep) if component)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The file that is mended, how it was judged, and what it declares where it is not a lock."""

    path: Path
    judgement: Judgement
    declarations: Declarations | None


def apply_mend(flags: FileMendFlags, subject: Subject, again: Callable[[], Judgement], *, as_json: bool) -> int:
    """Mend a file and print what came of it. Return 0 when it is good, else 1. ``again`` judges what was written."""
    from envsmith.mend.project_file import FileMend, propose_for_file  # resolving is most of the program

    path, judgement = subject.path, subject.judgement
    if judgement.status != "bad":
        return _print("nothing", FileMend(path=path), as_json=as_json)
    if subject.declarations is None:
        return _print_commands(path, judgement)
    changed = [change.component for change in judgement.repair.changes] if judgement.repair else []
    mend = propose_for_file(path, subject.declarations.naming(changed), judgement, keep=flags.keep)
    if not mend.texts:
        _print("nothing", mend, as_json=as_json)
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
    _print("mended", mend, as_json=as_json)
    return 1 if after.status == "bad" else 0


def undo_mend(flags: FileMendFlags, path: Path) -> int:
    """Put back the file of before the last mend."""
    from envsmith.mend.project_file import undo_file

    agree(f"Put back {path} as it was before the last --apply?", yes=flags.yes)
    undo_file(path)
    print_answer(f"{path}: as before the last --apply")
    return 0


def _print_commands(path: Path, judgement: Judgement) -> int:
    """Print the commands of the tool that wrote a lock: it is that tool's file."""
    command = _OF_LOCKS.get(path.name)
    if command is None or judgement.repair is None:
        raise UsageError(
            f"Cannot change {path}: another tool writes it.",
            hint="Change what it was made from, and make it again.",
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
    from envsmith.project.uv_and_pixi import difference

    diffs = [difference(old, new, str(path)) for path, (old, new) in mend.texts.items()]
    rows = [(change.sentence, f"[{change.why}]") for change in mend.changes]
    return "\n".join([table(rows), *diffs, *(f"by hand: {clean(text)}" for text in mend.by_hand)])


_WORDS = {"mended": "mended", "nothing": "nothing to change"}


def _print(status: str, mend: FileMend, *, as_json: bool) -> int:
    if as_json:
        changes = [change.to_json() for change in mend.changes]
        data = {"status": status, "file": str(mend.path), "changes": changes, "by_hand": list(mend.by_hand)}
        print_out(dumps(data))
        return 0
    lines = [f"{mend.path}: {_WORDS[status]}", *(f"by hand: {clean(text)}" for text in mend.by_hand)]
    lines += [f"undo: envsmith check --from {path} --undo" for path in mend.texts]
    print_answer("\n".join(lines))
    return 0
