"""``-r``, ``--project``, ``--keep`` and ``--code``: what files ask for, read once and put into the request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from envsmith.cli.console import say
from envsmith.cli.flags import RequestFlags
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.model.cell import Request
from envsmith.project.demand import Demands
from envsmith.solver.words import join_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """The flags, and what their files ask for. ``inferred`` are further keys of an answer in JSON."""

    flags: RequestFlags
    demands: Demands | None = None
    inferred: Mapping[str, object] = field(default_factory=dict)

    def request(self) -> Request:
        """Return the request that all of it makes."""
        return self.flags.request(self.demands)

    def text(self, *, flavour: str, sources: str) -> str:
        """Return what a lock says that it was made from."""
        return self.flags.text(flavour=flavour, sources=sources, demands=self.demands)


def gather(flags: RequestFlags) -> Gathered:
    """Read the files that flags name. ``UsageError`` or ``DataError`` for what cannot be read or followed."""
    demands = demands_of(flags)
    if (machine := flags.where()) and machine.has_gpus:
        _say_once(f"this machine: {machine}" if flags.machine is None else f"{flags.machine}: {machine}")
    if flags.code is None:
        return Gathered(flags=flags, demands=demands)
    from envsmith.cli.code import with_code  # only who has code waits for its readers

    answer = with_code(flags, demands)
    return Gathered(flags=answer.flags, demands=demands, inferred={"inferred": answer.to_json()})


def _say_once(text: str) -> None:
    """Print a line of talk, once in a command that asks for many cells."""
    notices = click.get_current_context().find_root().meta.setdefault("envsmith.said", set())
    if text not in notices:
        notices.add(text)
        say(text)


def demands_of(flags: RequestFlags) -> Demands | None:
    """Return what the files that flags name ask for. ``None`` where no file is named."""
    if flags.project is None and (flags.extra or flags.group):
        raise UsageError(
            "Cannot use --extra or --group without --project: they are parts of a project.", hint="Add --project DIR."
        )
    if flags.without and not (flags.project or flags.requirements):
        raise UsageError(
            "Cannot use --without: no file of requirements is named.", hint="Add --project DIR or -r FILE."
        )
    if not (flags.requirements or flags.project or flags.keep):
        return None
    from envsmith.project import folder, pip_format  # only who names files waits for their readers

    def read(root: Path, extras: Collection[str]) -> Demands:
        return folder.read_folder(root, folder.ProjectPart(extras=tuple(extras), leave_out=flags.without))

    lists = [
        folder.read_declaring_file(path, flags.without)
        or pip_format.read_requirement_file(path, read, leave_out=flags.without)
        for path in flags.requirements
    ]
    if flags.project is not None:
        part = folder.ProjectPart(
            extras=flags.extra, groups=flags.group, leave_out=flags.without, further_files=tuple(flags.requirements)
        )
        lists.append(folder.read_folder(flags.project, part))
    if flags.keep:
        from envsmith.cli.keep import versions_to_keep  # only who keeps something looks at locks and environments

        lists.append(versions_to_keep(flags.keep, flags.project))
    demands = Demands()
    for listed in lists:
        demands = demands.joined(listed)
    demands.refuse_problems()
    for note in demands.notes:
        _say_once(note)
    if demands.files and not demands.demands:
        where = join_words(demands.files)
        if not replace(flags, requirements=()).names_packages:
            raise UsageError(
                f"Cannot read what is required: {where} names no package.",
                hint=f"Add a package to it, or name a framework beside it: {EXAMPLE}. For PyTorch alone: torch.",
            )
        _say_once(f"{where}: no package is required there")
    return demands
