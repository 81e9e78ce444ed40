"""``--keep NAME``: the version that a lock of the project pins, or that is installed in the active environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

from envsmith.base.files import read_text
from envsmith.doctor.read import Draft
from envsmith.doctor.read import read_text as read_packages_of
from envsmith.errors import UsageError
from envsmith.model.project_name import normal_name
from envsmith.project.demand import Demand, Demands

_LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "pixi.lock", "requirements.lock", "requirements-lock.txt")
_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def versions_to_keep(names: Iterable[str], project: Path | None, environ: Mapping[str, str] | None = None) -> Demands:
    """Return each name with the exact version to keep. ``UsageError`` for one that neither lock nor environment has."""
    places = [*_locked(project), *_installed(os.environ if environ is None else environ)]
    demands = []
    for name in names:
        distribution = normal_name(name)
        place = next(((versions[distribution], where) for versions, where in places if distribution in versions), None)
        if place is None:
            looked_at = ", ".join(where for _, where in places)
            reason = (
                f"its version is not in {looked_at}" if looked_at else "no lock and no active environment was found"
            )
            raise UsageError(
                f"Cannot keep {name}: {reason}.",
                hint="Name the version with --with, or activate the environment that has it.",
            )
        version, where = place
        requirement = Requirement(f"{distribution}=={version}")
        demands.append(Demand(requirement=requirement, where=f"--keep: {where}"))
    return Demands(demands=tuple(demands))


def _locked(project: Path | None) -> Iterable[tuple[Mapping[str, str], str]]:
    """Yield the distributions of each lock of a project."""
    for path in [project / name for name in _LOCKS] if project else ():
        if path.is_file():
            draft = Draft()
            read_packages_of(read_text(path), draft, str(path), ())
            yield dict(draft.done().distributions), str(path)


def _installed(environ: Mapping[str, str]) -> Iterable[tuple[Mapping[str, str], str]]:
    """Yield the distributions of the active environment."""
    for variable in _ENVIRONMENTS:
        root = environ.get(variable)
        folders = [str(path) for path in Path(root).glob("lib/python3*/site-packages")] if root else []
        if folders:
            installed = ((d.metadata["Name"], d.version) for d in distributions(path=folders))
            yield {normal_name(name): version for name, version in installed if name}, f"{variable} {root}"
