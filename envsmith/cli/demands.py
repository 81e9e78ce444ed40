"""``-r``, ``--project``, ``--keep`` and ``--code``: what files ask for, read once and put into the request."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envsmith.cli.console import say
from envsmith.cli.flags import RequestFlags
from envsmith.errors import UsageError
from envsmith.files import read_text
from envsmith.model.cell import Request
from envsmith.project.demand import Demand, Demands


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
    if flags.code is None:
        return Gathered(flags=flags, demands=demands)
    from envsmith.cli.code import with_code  # only who has code waits for its readers

    answer = with_code(flags, demands)
    return Gathered(flags=answer.flags, demands=demands, inferred={"inferred": answer.to_json()})


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
        return folder.read_folder(root, folder.Part(extras=tuple(extras), leave_out=flags.without))

    lists = [pip_format.read_requirement_file(path, read, leave_out=flags.without) for path in flags.requirements]
    if flags.project is not None:
        part = folder.Part(extras=flags.extra, groups=flags.group, leave_out=flags.without)
        lists.append(folder.read_folder(flags.project, part))
    if flags.keep:
        lists.append(versions_to_keep(flags.keep, flags.project))
    demands = Demands()
    for listed in lists:
        demands = demands.joined(listed)
    demands.refuse_problems()
    for note in dict.fromkeys(demands.notes):
        say(note)
    return demands


# ``--keep NAME``: the version that a lock of the project pins, or that is installed in the active environment.

_LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "pixi.lock", "requirements.lock", "requirements-lock.txt")
_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def versions_to_keep(names: Iterable[str], project: Path | None, environ: Mapping[str, str] | None = None) -> Demands:
    """Return each name with the exact version to keep. ``UsageError`` for one that neither lock nor environment has."""
    places = [*_locked(project), *_installed(os.environ if environ is None else environ)]
    demands = []
    for name in names:
        distribution = canonicalize_name(name)
        place = next(((versions[distribution], where) for versions, where in places if distribution in versions), None)
        if place is None:
            looked_at = ", ".join(where for _, where in places) or "no lock and no active environment"
            raise UsageError(
                f"Cannot keep {name}: its version is not in {looked_at}.",
                hint="Name the version with --with, or activate the environment that has it.",
            )
        version, where = place
        requirement = Requirement(f"{distribution}=={version}")
        demands.append(Demand(requirement=requirement, where=f"--keep: {where}"))
    return Demands(demands=tuple(demands))


def _locked(project: Path | None) -> Iterable[tuple[Mapping[str, str], str]]:
    """Yield the distributions of each lock of a project."""
    from envsmith.doctor.read import Draft  # only who keeps something waits for them
    from envsmith.doctor.read import read_text as read_packages_of

    for path in [project / name for name in _LOCKS] if project else ():
        if path.is_file():
            draft = Draft()
            read_packages_of(read_text(path), draft, str(path), ())
            yield dict(draft.done().distributions), str(path)


def _installed(environ: Mapping[str, str]) -> Iterable[tuple[Mapping[str, str], str]]:
    """Yield the distributions of the active environment."""
    from importlib.metadata import distributions  # only who keeps something looks at an environment

    for variable in _ENVIRONMENTS:
        root = environ.get(variable)
        folders = [str(path) for path in Path(root).glob("lib/python3*/site-packages")] if root else []
        if folders:
            installed = ((d.metadata["Name"], d.version) for d in distributions(path=folders))
            yield {canonicalize_name(name): version for name, version in installed if name}, f"{variable} {root}"
