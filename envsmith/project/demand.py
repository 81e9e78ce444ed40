"""What a person asks for beside components: a requirement, and where it stands."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envsmith.errors import DataError
from envsmith.model.project_name import normal_name

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Problems that a refusal lists.
_SHOWN = 20
# Nobody writes a longer line, and a pattern need not read one.
LONGEST = 2000
_ADDRESS = re.compile(r"(?:[a-z]+\+)?(?:https?|ssh|file|git)://|git@")
_ARCHIVES = (".whl", ".tar.gz", ".zip")


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One requirement of the package index. ``where`` is ``requirements.txt:12`` or ``--with wandb``.

    ``is_bound`` says that it bounds what is installed and installs nothing itself (``-c``). What ``is_optional`` is
    needed where the code imports it. ``hashes`` are the sha256 of the only files that may be installed for it, where it
    names some.
    """

    requirement: Requirement
    where: str
    is_bound: bool = False
    is_optional: bool = False
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the normalised name of the distribution."""
        return normal_name(self.requirement.name)

    @property
    def spec(self) -> str:
        """Return its specifier as text, empty where any release will do."""
        return str(self.requirement.specifier)

    @property
    def exact(self) -> str | None:
        """Return the one release that it admits, or ``None``."""
        clauses = list(self.requirement.specifier)
        if len(clauses) != 1 or clauses[0].operator not in {"==", "==="} or clauses[0].version.endswith("*"):
            return None
        return clauses[0].version


def name_of_address(text: str) -> str | None:
    """Return what an address that stands for a requirement is called. ``None`` for what is no address or archive.

    That is its ``#egg=``, or else what its path ends with: the name of a repository, or the first word of an archive's.
    """
    if not (_ADDRESS.match(text) or text.endswith(_ARCHIVES)):
        return None
    if egg := re.search(r"[#&]egg=([\w.-]+)", text):
        return normal_name(egg[1])
    last = re.split(r"[/:\\]", re.sub(r"(?<=[^/:])@[^/:]*$", "", text.partition("#")[0]).rstrip("/"))[-1]
    return normal_name(re.split(r"-\d|\.git$|\.whl$|\.zip$|\.tar\.gz$", last)[0])


def parse_line(text: str, where: str, *, is_bound: bool = False, hashes: tuple[str, ...] = ()) -> Demand:
    """Parse a requirement of the package index. ``ValueError`` says what is wrong with it."""
    from packaging.requirements import InvalidRequirement, Requirement  # most requests have none

    if name := name_of_address(text):
        raise ValueError(_elsewhere(name, text))
    try:
        requirement = Requirement(text) if len(text) <= LONGEST else None
    except InvalidRequirement as error:
        raise ValueError(f"{text[:80]!r} is not a requirement: {str(error).splitlines()[0]}") from None
    if requirement is None:
        raise ValueError(f"a requirement of {len(text)} characters is longer than {LONGEST}")
    if requirement.url:
        raise ValueError(_elsewhere(requirement.name, requirement.url))
    return Demand(requirement=requirement, where=where, is_bound=is_bound, hashes=hashes)


def _elsewhere(name: str, address: str) -> str:
    return f"{name} comes from {address[:80]}, and a lock takes releases of the package index only"


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """All that some files ask for.

    ``python`` are specs of Python, ``cuda`` the CUDA versions whose builds of torch an index option names, each with
    where it stands. ``files`` were read. ``notes`` are sentences about what is not used. ``problems`` are lines that
    nothing can follow, each with where it stands and why. ``overridden`` are distributions for which the project puts
    its own word in place of what packages declare (uv's ``override-dependencies``).
    """

    demands: tuple[Demand, ...] = ()
    python: tuple[tuple[str, str], ...] = ()
    cuda: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return 16 hex digits that change with anything that is asked for, wherever it stands."""
        lines = [f"{d.requirement} {d.is_bound} {d.hashes}" for d in self.demands]
        lines += [f"{spec}" for spec, _ in (*self.python, *self.cuda)]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    def of(self, distributions: Iterable[str]) -> Demand | None:
        """Return what is asked of one of some distributions."""
        names = set(distributions)
        return next((demand for demand in self.demands if demand.name in names), None)

    def joined(self, further: Demands) -> Demands:
        """Return both lists as one."""
        return Demands(
            demands=(*self.demands, *further.demands),
            python=(*self.python, *further.python),
            cuda=(*self.cuda, *further.cuda),
            files=(*self.files, *further.files),
            notes=(*self.notes, *further.notes),
            problems=tuple(dict.fromkeys((*self.problems, *further.problems))),
            overridden=(*self.overridden, *further.overridden),
        )

    def refuse_problems(self) -> Demands:
        """Return the same. ``DataError`` lists every line that cannot be followed."""
        if not self.problems:
            return self
        further = [f"and {len(self.problems) - _SHOWN} more"] if len(self.problems) > _SHOWN else []
        raise DataError(
            f"Cannot read the requirements: {len(self.problems)} of their lines cannot be followed.",
            details=[*self.problems[:_SHOWN], *further],
            hint="Change them, or leave a requirement out with --without NAME.",
        )
