"""What one's own code writes in the place of a name or an argument that a release took away.

The files of a package say some of it themselves: a warning of deprecation, or where a name is defined now. Of an argument
that moved in silence, and of a name that went to another package, ``moved_arguments`` and ``moved_names`` of
``matrix/doctor/words.yaml`` say where to. What is offered is always there in
the installed release.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from envsmith import solver
from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, Question, is_in
from envsmith.doctor.stated_environment import versions_of
from envsmith.doctor.vocabulary import words
from envsmith.errors import EnvsmithError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence

# Shorter names are alike by chance.
_LONG = 7
# How alike a name is that came in the release in which another went.
_ALIKE = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewriting:
    """``name`` replaces what is gone. ``taker`` is the class that takes it, where that is another one."""

    gone: str
    name: str
    taker: str = ""

    def sentence(self, script: str | None) -> str:
        """Return what to do in one's own code."""
        place = f" in {script}" if script else " in your code"
        if self.taker:
            return f"Give {self.name} to {self.taker}{place}, not to the call that refuses it."
        return f"Write {self.name} in the place of {self.gone}{place}."


def rewriting_of(
    lack: Lack, question: Question, presence: Presence, version: str | None, index: NameIndex
) -> Rewriting | None:
    """Return what the ``version`` that is installed, or else the newest release, has in the place of what is gone."""
    if presence.releases[-1] in presence.present:
        return None  # what came later is missing from an old release: nothing took its place
    if question.argument is None:
        name = presence.successor or words().moved_names.get(question.path) or _follower(question, presence, index)
        if not name or "._" in f".{name}":  # what is private replaces nothing
            return None
        return Rewriting(gone=lack.name if lack.name and lack.name != name else question.path, name=name)
    release = version or presence.releases[-1]
    for name in _successors(presence, question.argument):
        if _takes(question.path, name, release, index):
            return Rewriting(gone=question.argument, name=name)
    if lack.kind == "argument" and (name := _follower(question, presence, index)):
        return Rewriting(gone=question.argument, name=name)
    for taker in _configurations(question.path):
        for name in (question.argument, *_successors(presence, question.argument)):
            if _takes(taker, name, release, index):
                return Rewriting(gone=question.argument, name=name, taker=taker)
    return None


def _follower(question: Question, presence: Presence, index: NameIndex) -> str:
    """Return the one name much like it that came in the very release in which a name or an argument went, else ``""``."""
    went = [(old, new) for old, new in itertools.pairwise(presence.releases) if old in presence.present]
    went = [(old, new) for old, new in went if new in presence.absent]
    owner, _, last = question.path.rpartition(".")
    path, name = (question.path, question.argument) if question.argument else (owner, last)
    candidates = index.arguments(path) if question.argument else index.names_of(path)
    alike = difflib.get_close_matches(name, set(candidates) - {name}, n=3, cutoff=_ALIKE)
    followers = []
    for each in alike:
        answer = index.ask(path, each) if question.argument else index.ask(f"{path}.{each}")
        if went and answer and went[-1][0] in answer.absent and went[-1][1] in answer.present:
            followers.append(each if question.argument else f"{path}.{each}")
    return followers[0] if len(followers) == 1 and presence.releases[-1] not in presence.present else ""


def nearest_name(lack: Lack, question: Question, index: NameIndex) -> Presence | None:
    """Return the one name of a module that differs from what no release has in case or in a single letter."""
    module, _, name = question.path.rpartition(".")
    if question.argument or lack.kind not in {"name", "attribute"} or len(name) < _LONG:
        return None
    names = index.names_of(module)
    alike = [each for each in names if _plain(each) == _plain(name)] or [each for each in names if _is_near(each, name)]
    presence = index.ask(f"{module}.{alike[0]}") if len(alike) == 1 else None
    return presence if presence and presence.present else None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _is_near(name: str, candidate: str) -> bool:
    """Return whether names differ in a letter behind the first: a digit makes another model."""
    short, long = sorted((name, candidate), key=len)
    at = next((at for at, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    is_longer = len(long) > len(short)
    is_digit = any(map(str.isdigit, short[at : at + 1] + long[at : at + 1]))
    return at > 0 and long[at + 1 :] == short[at + (not is_longer) :] and not is_digit


def _successors(presence: Presence, argument: str) -> Iterator[str]:
    """Give what may replace an argument: what the package says, what people know."""
    if presence.successor:
        yield presence.successor.rpartition(".")[2]
    yield from words().moved_arguments.get(argument, ())


def _takes(path: str, argument: str, release: str, index: NameIndex) -> bool:
    presence = index.ask(path, argument)
    return presence is not None and bool(is_in(release, presence.present, presence.releases))


def _configurations(path: str) -> Iterator[str]:
    """Give the classes that hold the settings of a class: ``SFTConfig`` of ``SFTTrainer``, and those of the table."""
    package, _, name = path.rpartition(".")
    name = name if name[:1].isupper() else package.rpartition(".")[2]  # `trl.SFTTrainer.__init__`
    if name.endswith("Trainer") and name != "Trainer":
        yield f"{path.partition('.')[0]}.{name.removesuffix('Trainer')}Config"
    yield from words().configurations.get(name, ())


def is_borne(presence: Presence, facts: Facts) -> bool:
    """Return whether the newest release that has a name goes with everything else that is stated."""
    stated = versions_of(facts)
    release = next((r for r in reversed(presence.releases) if r in presence.present), None)
    if release is None or not set(stated) - {presence.distribution}:
        return True
    with contextlib.suppress(EnvsmithError):
        return solver.check(stated).status == "bad" or (
            solver.check({**stated, presence.distribution: release}).status != "bad"
        )
    return True
