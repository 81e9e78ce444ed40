"""What a project says it requires, beyond what an installer reads: any of its files, and its texts for people."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from envsmith.errors import EnvsmithError
from envsmith.project.declared import declaring_files, read_declared
from envsmith.project.demand import Demand, Demands
from envsmith.project.guides import guide_lines, guides_of

_MOST = 500


def read_stated(root: Path, files: Collection[str]) -> Demands:
    """Read what stands in a project's own folder, one requirement of each distribution.

    A file of requirements comes before an extra, and that before a text among ``files``. What cannot be read states
    nothing, and is one of the ``problems``, as is what stands beside a project of one file.
    """
    stated: dict[str, Demand] = {}
    python, unread = None, list[str]()
    declaration = None
    try:
        declaring = declaring_files(root)
        if any(name in files for name in declaring):
            declaration = read_declared(root)
        elif declaring:
            unread.append(f"{', '.join(declaring)}: beside what was named, and not of it (name the folder to take it)")
    except EnvsmithError as error:
        unread.append(error.reason)
    if declaration is not None:
        python = declaration.python
        unread += declaration.skipped
        for declared in sorted(declaration.requirements, key=lambda d: d.extra is not None):
            # A Conda file lists every package of an environment, libraries of other languages among them.
            is_conda = declared.file.startswith("environment")
            spec = _exact(declared.spec) if is_conda else declared.spec
            where, is_optional = f"{declared.file}:{declared.line}", is_conda or declared.extra is not None
            demand = Demand(requirement=Requirement(f"{declared.name}{spec}"), where=where, is_optional=is_optional)
            stated.setdefault(demand.name, demand)
    for lines in (guide_lines(root / name, name) for name in guides_of(files)):
        python = python or next((text for text, _, _ in lines.python), None)
        for entry in lines.entries:
            try:
                requirement = Requirement(_exact(entry.text))
            except (InvalidRequirement, ValueError):
                continue
            if not requirement.url:
                one = Demand(requirement=requirement, where=entry.where, is_optional=True)
                stated.setdefault(one.name, one)
    return Demands(
        demands=tuple(list(stated.values())[:_MOST]),
        python=((python, ""),) if python else (),
        problems=tuple(unread[:_MOST]),
    )


def _exact(text: str) -> str:
    """Return Conda's ``=1.19.2``, which was read as ``==1.19.2.*``, as the release that it means."""
    return re.sub(r"(==\d+\.\d+\.\d+)\.\*$", r"\1", text)
