"""What Python does not find: a name, a module, a member or an argument, of which package, and who asks for it.

The forms of the messages are words (``lacks`` of ``matrix/doctor/words.yaml``). Of a class or a function Python says
only the last part of its name: the imports and calls around the message say which package it is of, and where they do
not, the package whose releases differ in what is asked.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from envsmith.doctor.facts import Facts
from envsmith.doctor.parties import owner_of
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.read.pasted import whole_line
from envsmith.doctor.read.tracebacks import LoggedFrame, callers, frames_before, module_of
from envsmith.doctor.signatures import Hit, Signature, needle_of
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import version_key

_ID = "lacks-"
# How far around a message its imports and calls are looked for.
_REACH = 2500
_IMPORT = re.compile(r"\bfrom ([A-Za-z_][\w.]{0,120}) import ([\w ,*()]{1,400})")
_ALIAS = re.compile(r"\bimport ([A-Za-z_][\w.]{0,120}) as (\w{1,40})")
_CALL = re.compile(r"(?<![\w.\"'])([A-Za-z_]\w{0,60}(?:\.[A-Za-z_]\w{0,60}){0,6})\((?!\))")
# Configurations name a class by its whole path: `Error in call to target 'pytorch_lightning.trainer.trainer.Trainer'`.
_CLASS_PATH = re.compile(r"['\"]([a-z_]\w{0,60}(?:\.\w{1,60}){0,6}\.[A-Z]\w{1,60})['\"]")
# `the pl.Trainer call`: a class by the short name of its package.
_DOTTED_CLASS = re.compile(r"(?<![\w./\\-])([A-Za-z_]\w{0,20}(?:\.[a-z_]\w{0,60}){0,4}\.[A-Z]\w{1,60})\b")
_CLASS_NAME = re.compile(r"\b[A-Z][a-z]\w{2,60}[A-Z]\w{1,60}\b")
# A file of one's own that Python found under the name of a package (Python 3.13 says so itself).
_RENAMING = re.compile(r"consider renaming '([^'\n]{1,300})'")
# The file that Python took for the module: `cannot import name 'a' from 'b' (/home/me/b.py)`.
_IMPORTED = re.compile(r"\(((?![^)\n]*(?:(?:site|dist)-packages|lib/python3))[^()\n]{1,300}\.py)\)")
# The cell of a notebook, in a traceback.
_CELL = re.compile(r"\bCell In ?\[|<ipython-input-|\bipykernel_\d|(?m:^In \[\d{1,5}\])")
# In how many packages a class is looked for by its name alone, and how many questions a message asks at most.
_SEARCHED, _QUESTIONS = 2, 120
# How many classes may take an argument, so that its name alone says which is meant.
_FEW = 4
# Forms of a missing name that are known by the releases that lack it.
_TOLD = frozenset({"bare", "told"})
CONSTRUCTORS = frozenset({"__init__", "init", "__new__"})
_OWN = frozenset({"self", "cls", "super", "super()", "print", "Traceback"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """``owner`` is the module, class or function of the ``message``, ``name`` what it lacks (empty for a module)."""

    kind: str
    owner: str
    name: str
    hit: Hit
    message: str = ""
    frames: Sequence[LoggedFrame] = ()
    around: str = ""

    @property
    def partial(self) -> bool:
        """Return whether Python was still at the first line of the module that lacks it."""
        return "partially initialized" in self.message

    @property
    def is_of_own_part(self) -> bool:
        """Return whether a package does not find a name in a module of its own: its files are not of one release."""
        is_own = bool(self.root and self.frames and fold(self.frames[-1].package or "") == fold(self.root))
        is_imported = self.kind == "name" or (
            is_own and self.kind == "attribute" and _IMPORTING.match(self.frames[-1].function)
        )
        return is_own and (self.partial or (bool(is_imported) and "." in self.owner))

    @property
    def root(self) -> str:
        """Return the import root of the message, empty for a class or a function."""
        return self.owner.partition(".")[0] if self.kind in {"name", "attribute", "module"} else ""

    def user_of(self, distribution: str | None) -> str | None:
        """Return the package whose call asks: the innermost outside of the one that lacks something. ``None`` for a script."""
        return next((f.package for f in reversed(self.frames) if not f.package or f.package != distribution), None)

    @property
    def is_of_class(self) -> bool:
        """Return whether a class lacks it, not an object: what methods set on an instance does not count."""
        return f"type object '{self.owner}' has no attribute '{self.name}" in self.around

    @property
    def is_of_model(self) -> bool:
        """Return whether a model is told that no package was asked for by its path: a newer release may have it."""
        return self.hit.signature.id.removeprefix(_ID) in words().lack_paths

    @property
    def is_told(self) -> bool:
        """Return whether people say it, or a message that leaves out the module: true where releases differ in it."""
        return self.hit.signature.id.removeprefix(_ID) in _TOLD

    @property
    def is_of_bare_folder(self) -> bool:
        """Return whether Python took a folder for the package: a module of its own would have a file."""
        return self.kind == "name" and "." not in self.owner and "(unknown location)" in self.message

    @property
    def file(self) -> str | None:
        """Return the file that Python took for the module, where it is in no folder of installed packages."""
        match = _IMPORTED.search(self.message) if self.kind == "name" else None
        return match[1] if match else None

    @property
    def script(self) -> str | None:
        """Return the file of one's own that asks, where the innermost call is in none of a package."""
        return self.frames[-1].file if self.frames and self.frames[-1].package is None else None

    @property
    def is_in_notebook(self) -> bool:
        """Return whether a cell of a notebook asks: what its kernel imported before may be of an older installation."""
        return _CELL.search(self.around) is not None

    @property
    def is_of_report(self) -> bool:
        """Return whether a script fails that only collects a report: it is of another release than the package."""
        return re.split(r"[/\\]", self.script or "")[-1] in {"collect_env.py", "check_env.py"}

    @property
    def checkout(self) -> str | None:
        """Return the folder of the module's name that holds the script that asks, or into which the text clones it."""
        script = (self.script or "").replace("\\", "/")
        at = script.rfind(f"/{self.root}/") if self.root else -1
        if at >= 0:
            return script[: at + len(self.root) + 1]
        cloned = rf"(?:git clone\s|-e git\+)\S{{1,120}}/{re.escape(self.root)}(?:\.git|[\s@]|$)"
        return self.root if self.root and re.search(cloned, self.around) else None


# The function of a frame that runs while a module is imported: of Python's, of Cython's, of IPython's that names none.
_IMPORTING = re.compile(r"<module>|init \w|$")


@lru_cache(maxsize=1)
def lack_signatures() -> tuple[Signature, ...]:
    """Return the forms of the messages as signatures, so that they are found in any text as others are."""
    evidence = Evidence(
        kind=EvidenceKind.DOCUMENTED, source="CPython: import.c, typeobject.c, ceval.c", date="2026-11-22"
    )
    return tuple(
        Signature(
            id=f"{_ID}{kind}",
            kind="symptom",
            match={pattern: needle_of(pattern) for pattern in patterns},
            message=kind,
            fix="",
            severity=Severity.ERROR if kind in {"name", "module", "bare", *words().lack_paths} else Severity.WARNING,
            stage="import" if kind in {"name", "attribute", "module", *_TOLD} else "train",
            group="python-version-pair",
            cause="package-version-pair",
            pattern="version-and-dependency-management",
            evidence=(evidence,),
        )
        for kind, patterns in words().lacks.items()
    )


def is_lack(hit: Hit) -> bool:
    """Return whether the hit is one of :func:`lack_signatures`."""
    return hit.signature.id.startswith(_ID)


def lack_of(hit: Hit, text: str) -> Lack:
    """Return what a hit says is lacking, with the calls and the lines around it."""
    kind, name, owner = hit.signature.id.removeprefix(_ID), hit.groups.get("name", ""), hit.groups.get("owner", "")
    if kind == "member" and "." in owner and owner.islower() and listed_project(owner.partition(".")[0]):
        kind = "attribute"  # `'jax.interpreters.xla' has no attribute 'x'`: people leave the word module out
    if path := words().lack_paths.get(kind):
        kind, owner = "name" if name else "module", path.format(owner=owner.replace("-", "_"))
    return Lack(
        kind="name" if kind in _TOLD else kind,
        owner=owner.strip("."),
        name=name,
        hit=hit,
        message=whole_line(text[: _REACH + hit.position], hit.position),
        frames=callers(frames_before(text, hit.position)),
        around=text[max(0, hit.position - _REACH) : hit.position + _REACH],
    )


# What a function does not know it hands on as the last argument.
_REST = re.compile(r"\*\*\w+\s?\)\s?$")


def listed_project(root: str) -> str | None:
    """Return the project that is known to bring a module."""
    return distributions_by_module().get(root) or words().folders.get(fold(root)) or component_of(root)


def shadowing_file(lack: Lack) -> str | None:
    """Return the file of one's own that is imported in the place of a package, or ``None``."""
    if not lack.root:
        return None
    if match := _RENAMING.search(lack.around):
        return match[1]
    own = f"{lack.root}.py"
    if f"'{lack.root}' is not a package" in lack.message:
        return own
    if lack.file and re.split(r"[/\\]", lack.file)[-1] == own:
        return lack.file
    files = [f.file for f in lack.frames if f.package is None]
    if shadow := next((f for f in files if re.split(r"[/\\]", f)[-1] == own), None):
        return shadow
    of_package = any(fold(f.package or "") == fold(lack.root) for f in lack.frames[-1:])
    named = re.search(rf"(?<![\w./\\]){re.escape(own)}\b", lack.around)
    return own if lack.partial and named and not of_package else None


def with_module(lack: Lack, facts: Facts, index: NameIndex) -> Lack | None:
    """Return a lack that is told with the module of its name, or ``None`` where no measured releases bear it out.

    A message that leaves the module out is told by the imports around it, and by what the packages of the text import.
    """
    owners = [lack.owner] if lack.owner else []
    if not owners:
        takers = likely_packages("", lack, facts, index)
        owners = [m for m, imported in _IMPORT.findall(lack.around) if lack.name in re.findall(r"\w+", imported)]
        owners += [path.rpartition(".")[0] for path in index.taken(lack.name, takers)]
    answers = {owner: index.ask(f"{owner}.{lack.name}") for owner in owners}
    differing = {owner: each.distribution for owner, each in answers.items() if each and _is_borne_out(each, facts)}
    return dataclasses.replace(lack, owner=next(iter(differing))) if len({*differing.values()}) == 1 else None


def with_import(lack: Lack) -> Lack:
    """Return a lack whose message leaves the module out with that of the one import around it that asks for the name."""
    if lack.kind != "name" or lack.owner:
        return lack
    owners = {module for module, imported in _IMPORT.findall(lack.around) if lack.name in re.findall(r"\w+", imported)}
    return dataclasses.replace(lack, owner=owners.pop()) if len(owners) == 1 else lack


def _is_borne_out(presence: Presence, facts: Facts) -> bool:
    """Return whether releases differ, and the stated one is none that has the name."""
    version = installed_version(presence.distribution, facts)
    inside = is_in(version, presence.present, presence.releases) if version else None
    return bool(presence.present and presence.absent) and inside is not True


# Which question a message asks of the index.


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A path and an argument of it, as :meth:`NameIndex.ask` takes them.

    ``is_guess``: nothing in the text points to the package.
    """

    path: str
    argument: str | None = None
    is_guess: bool = False


def questions(lack: Lack, facts: Facts, index: NameIndex, *, search: bool) -> Iterator[Question]:
    """Yield what may be meant, the likeliest first. A ``search`` reads whole files for where a class is written."""
    paths = _written if search else _paths
    if not lack.name and lack.kind != "module":
        return
    if lack.owner.endswith("*"):
        distribution = index.distribution_of(lack.root)
        yield from (Question(path=path) for path in index.definitions(lack.name, distribution or ""))
    elif lack.kind in {"name", "attribute", "module"}:
        if not search:
            yield Question(path=f"{lack.owner}.{lack.name}".rstrip("."))
    elif lack.kind == "member":
        for path, is_guess in paths(lack.owner, lack, facts, index):
            yield Question(path=f"{path}.{lack.name}", is_guess=is_guess)
    else:
        for callable_name in callables(lack):
            for path, is_guess in paths(callable_name, lack, facts, index):
                argument = by_position(path, lack.name) if lack.kind == "positional" else lack.name
                yield Question(path=path, argument=argument, is_guess=is_guess)
        if search and lack.kind == "argument" and lack.owner.rpartition(".")[2] in CONSTRUCTORS:
            yield from _of_argument(lack, index)


def _of_argument(lack: Lack, index: NameIndex) -> Iterator[Question]:
    """Yield the classes of the packages in the calls that take an argument of that name, where only few do."""
    callers = dict.fromkeys([*index.asked, *(fold(f.package) for f in reversed(lack.frames) if f.package)])
    for distribution in [each for each in callers if each in index.distributions()][:_SEARCHED]:
        paths = index.callables_taking("__init__", lack.name, distribution)
        if len(paths) <= _FEW:
            yield from (Question(path=path, argument=lack.name, is_guess=True) for path in paths)


def by_position(path: str, count: str) -> str:
    """Return the question for as many arguments by position. Python counts the object of a method, the index does not."""
    of_object = any(part[:1].isupper() for part in path.split(".")[-2:])
    return f"#{max(0, int(count) - of_object)}"


def callables(lack: Lack) -> Iterator[str]:
    """Yield what is called: as the message says, or as the code above it does where the message has ``__init__``."""
    head, _, last = lack.owner.rpartition(".")
    if last and last not in CONSTRUCTORS:
        yield lack.owner
    elif head:
        yield head
    if lack.kind == "argument":
        yield from _handing_on(lack)
    if "." in lack.owner:
        return
    before = _before(lack)
    yield from reversed(_CLASS_PATH.findall(before[-600:]))
    yield from called_by(lack)
    yield from dict.fromkeys(_CLASS_NAME.findall(before[-400:]))
    yield from dict.fromkeys(
        name for name in _DOTTED_CLASS.findall(lack.around) if name.split(".")[0] in words().aliases
    )


def _handing_on(lack: Lack) -> Iterator[str]:
    """Yield the functions of packages that handed on what they do not know themselves: ``ResNet(block, **kwargs)``."""
    for frame in reversed(lack.frames):
        if not _REST.search(frame.source) or not (module := module_of(frame.file)):
            return
        yield f"{module}.{frame.function}"


def called_by(lack: Lack) -> list[str]:
    """Return what the innermost line of code calls, or where it is not shown what the lines above the message call."""
    innermost = lack.frames[-1].source if lack.frames else ""
    lines = [innermost] if _CALL.search(innermost) else reversed(_before(lack).split("\n")[-8:])
    calls = [c for line in lines for c in _CALL.findall(line) if c not in _OWN]
    return [*dict.fromkeys(c for c in calls if not c.startswith(("self.", "cls.")))]


def _before(lack: Lack) -> str:
    return lack.around[: min(lack.hit.position, _REACH)]


def _paths(name: str, lack: Lack, facts: Facts, index: NameIndex) -> Iterator[tuple[str, bool]]:
    """Yield dotted paths that a class or function of that name may have, and whether each is a mere guess."""
    first, _, remainder = name.partition(".")
    tail = f".{remainder}" if remainder else ""
    yield from ((path, False) for path in imported_paths(name, lack))
    if first in words().classes:
        yield f"{words().classes[first]}{tail}", False
    if index.distribution_of(name):
        yield name, False
    likely = tuple(likely_packages(first, lack, facts, index))
    for distribution in likely:
        yield from ((f"{root}.{name}", False) for root, of in index.roots.items() if of == distribution)
    for base in bases_of(first) if lack.kind == "member" else ():
        if base.endswith(".Trainer") or index.distribution_of(base) in likely:
            yield f"{base}{tail}", True
    if first[:1].isupper():
        yield from ((f"{root}.{name}", True) for root, of in _by_use(index) if of not in likely)


def imported_paths(name: str, lack: Lack) -> Iterator[str]:
    """Yield the dotted paths of a name that the imports around a message bring, under a name of their own too."""
    first, _, remainder = name.partition(".")
    for module, imported in _IMPORT.findall(lack.around):
        if first in re.findall(r"\w+", imported):
            yield f"{module}.{name}"
    aliases = {**words().aliases, **{alias: module for module, alias in _ALIAS.findall(lack.around)}}
    if first in aliases:
        yield f"{aliases[first]}.{remainder}".rstrip(".")


def _by_use(index: NameIndex) -> list[tuple[str, str]]:
    """Return the import roots with their packages, what most people use first: the order of ``components.yaml``."""
    places = {name: place for place, name in enumerate(components().by_name)}
    return sorted(index.roots.items(), key=lambda item: places.get(item[1], len(places)))


def bases_of(name: str) -> tuple[str, ...]:
    """Return the classes beneath one of a user's own that is named after them: ``transformers.Trainer`` of ``MyTrainer``."""
    return tuple(path for base, path in words().bases.items() if name.endswith(base) and name != base)


def _written(name: str, lack: Lack, facts: Facts, index: NameIndex) -> Iterator[tuple[str, bool]]:
    """Yield where a class or function of that name is written in the packages that the text speaks of."""
    first, _, remainder = name.partition(".")
    for distribution in tuple(likely_packages(first, lack, facts, index))[:_SEARCHED]:
        for path in index.definitions(first, distribution):
            yield f"{path}.{remainder}".rstrip("."), False


def likely_packages(name: str, lack: Lack, facts: Facts, index: NameIndex) -> Iterator[str]:
    """Yield indexed packages that the text speaks of: owners of such names, those of the calls, those it mentions."""
    indexed = index.distributions()
    owner = owner_of(name)
    callers = (fold(f.package) for f in reversed(lack.frames) if f.package)
    lower = lack.around.lower().replace("_", "-").replace(" ", "-")
    stated = (d for d in indexed if installed_version(d, facts) or d in lower)
    likely = ((owner,) if owner else ()) + index.asked + tuple(callers) + tuple(stated)
    yield from dict.fromkeys(d for d in likely if d in indexed)


def installed_version(distribution: str, facts: Facts) -> str | None:
    """Return the release that the facts give a distribution. What is installed wins over what is stated."""
    component = component_of(distribution)
    stated = facts.components.get(component) if component else None
    listed = facts.distributions.get(distribution)
    if stated is not None and (listed is None or stated.strength >= 3):
        return stated.version
    return listed or (stated.version if stated else None)


def is_in(version: str, releases: frozenset[str], measured: Sequence[str]) -> bool | None:
    """Return whether a version is among ``releases``, judged by its neighbours where it was not measured itself.

    ``None`` where it lies outside of what was measured, or between releases that differ.
    """
    plain = version.partition("+")[0]
    if plain in measured:
        return plain in releases
    same = [m for m in measured if m.startswith(f"{plain}.")]  # ``4.44`` stands for its patch releases
    if not same and (key := version_key(plain)) is not None:
        keys = [version_key(m) for m in measured]
        at = sum(1 for each in keys if each is not None and each < key)
        same = [measured[at - 1], measured[at]] if 0 < at < len(measured) else []
    states = {m in releases for m in same}
    return states.pop() if len(states) == 1 else None


def best_answer(lack: Lack, facts: Facts, index: NameIndex) -> tuple[Question, Presence] | None:
    """Return the question whose answer explains the message best, or ``None`` where nothing of it is indexed."""
    best: tuple[int, Question, Presence] | None = None
    for search in (False, True):
        for question in itertools.islice(questions(lack, facts, index, search=search), _QUESTIONS):
            presence = _asked(question, lack, index)
            if presence is None or (lack.kind == "positional" and not has_taken(question, lack, index)):
                continue
            if lack.kind == "required":
                presence = _not_required(presence, index)
            weight = _weight(presence, facts)
            is_better = best is None or weight > best[0] or (weight == best[0] and best[1].is_guess > question.is_guess)
            if best is not None and weight == best[0] == 0 and presence.distribution in index.asked:
                is_better = _is_named(question, index) and not _is_named(best[1], index)
            if is_better and not (question.is_guess and weight < 2):
                best = (weight, question, presence)
            if weight == 3:
                break
        if best is not None and best[0] > 0 and not (best[1].is_guess and owner_of(lack.owner.partition(".")[0])):
            break
    if best is None or (best[0] == 0 and not lack.root and not _is_named(best[1], index)):
        return None
    return best[1], best[2]


def _asked(question: Question, lack: Lack, index: NameIndex) -> Presence | None:
    """Return the answer to a question. A function that is named like a module cannot be imported as one.

    A class has a member or an argument also in releases in which only the module that it is written in has the class.
    """
    presence = _held(question.path, question, lack, index)
    if presence is None:
        return None
    if lack.kind == "module" and (module := index.ask_module(question.path)):
        return dataclasses.replace(module, successor=presence.successor)
    if lack.kind not in {"argument", "member"}:
        return presence
    for path in {*_twins(question, presence, index), index.definition(question.path)} - {question.path}:
        written = _held(path, question, lack, index)
        if written is not None and written.distribution == presence.distribution:
            present, unknown = presence.present | written.present, presence.unknown | written.unknown
            absent = frozenset(presence.releases) - present - unknown
            presence = dataclasses.replace(presence, present=present, unknown=unknown - present, absent=absent)
    return presence


def _held(path: str, question: Question, lack: Lack, index: NameIndex) -> Presence | None:
    """Return which releases have what is asked under a path: of a class not what only its objects have."""
    presence = index.ask(path, question.argument)
    if presence is None or not lack.is_of_class:
        return presence
    later = index.set_later(path)
    return dataclasses.replace(presence, present=presence.present - later, absent=presence.absent | later)


def _twins(question: Question, presence: Presence, index: NameIndex) -> Iterator[str]:
    """Yield the paths of what is asked in other modules of a package that was just read: releases move their classes."""
    if presence.distribution not in index.asked or not _is_named(question, index):
        return
    parts = question.path.split(".")
    last = len(parts) - (question.argument is None)
    at = next((at for at in range(last) if parts[at][:1].isupper()), last - 1)
    for path in index.definitions(parts[at], presence.distribution):
        yield ".".join([path, *parts[at + 1 :]])


def has_taken(question: Question, lack: Lack, index: NameIndex) -> bool:
    """Return whether a release takes as many arguments by position as the message says, and no more."""
    most = lack.hit.groups.get("most", "0")
    enough = index.ask(question.path, by_position(question.path, most))
    too_many = index.ask(question.path, by_position(question.path, str(int(most) + 1)))
    return enough is not None and too_many is not None and bool(enough.present - too_many.present)


def rivals(lack: Lack, question: Question, facts: Facts, index: NameIndex) -> tuple[Presence, ...]:
    """Return the answers of other packages where nothing in the text says which package is meant."""
    if not question.is_guess:
        return ()
    answers: dict[str, Presence] = {}
    for rival in itertools.islice(questions(lack, facts, index, search=False), _QUESTIONS):
        presence = index.ask(rival.path, rival.argument)
        if presence is not None and _weight(presence, facts) >= 2:
            answers.setdefault(presence.distribution, presence)
    return tuple(answers.values())


def overridden(lack: Lack, index: NameIndex, *, is_known: bool) -> tuple[Question, Presence] | None:
    """Return the method of a package that calls a method of one's own in its place, with an argument that this lacks.

    The releases of the answer are those that call it as it is written. ``None`` where all do, or none. A method that is
    not ``is_known`` may be told by its argument alone.
    """
    for path in _overridden_paths(lack, index):
        argument = by_position(path, lack.name) if lack.kind == "positional" else lack.name
        presence = index.ask(path, argument)
        if presence is not None and presence.present and presence.absent:
            givers, silent = presence.present, presence.absent
            present, absent = (givers, silent) if lack.kind == "required" else (silent, givers)
            answer = dataclasses.replace(presence, present=present, absent=absent, successor=None)
            return Question(path=path, argument=argument), answer
    return None if is_known else _given(lack, index)


def _given(lack: Lack, index: NameIndex) -> tuple[Question, Presence] | None:
    """Return the callable of which an argument alone tells the package, that gives it from some release on."""
    path = words().given_arguments.get(lack.name, "") if lack.kind == "argument" else ""
    called, method = path.split("."), lack.owner.rpartition(".")[2]
    # A function gives its argument to the class that it makes an object of, a method to the one in its place.
    is_method = called[-2:-1] and called[-2][:1].isupper()
    fits = f"_{method}".endswith(f"_{called[-1]}") if is_method else method in CONSTRUCTORS
    presence = index.ask(path, lack.name) if path and fits else None
    if presence is None or not presence.present:
        return None
    before = frozenset(presence.releases[: min(map(presence.releases.index, presence.present))])
    later = frozenset(presence.releases) - before
    answer = dataclasses.replace(presence, present=before, absent=later, unknown=frozenset(), successor=None)
    return Question(path=path, argument=lack.name, is_guess=True), answer


def _overridden_paths(lack: Lack, index: NameIndex) -> Iterator[str]:
    """Yield the methods in whose place a method of one's own may stand."""
    owner, _, method = lack.owner.rpartition(".")
    is_method = owner or (lack.frames and f"self.{method}(" in lack.frames[-1].source)  # before Python 3.10: no class
    if lack.kind not in {"argument", "positional", "required"} or not is_method or method in CONSTRUCTORS:
        return
    if lack.frames and lack.frames[-1].package:
        yield from (f"{path}.{method}" for path in index.classes_with(module_of(lack.frames[-1].file), method))
    elif not lack.frames:
        yield from (f"{base}.{method}" for base in bases_of(owner))


def _not_required(presence: Presence, index: NameIndex) -> Presence:
    """Return the releases that can be called without the argument as those that have what is asked for."""
    called, optional = index.ask(presence.path), index.optional(presence.path, presence.argument or "")
    present = presence.absent & (called.present if called else frozenset()) | optional
    absent = frozenset(presence.releases) - present - presence.unknown
    return dataclasses.replace(presence, present=present, absent=absent, successor=None)


def _weight(presence: Presence, facts: Facts) -> int:
    """Return 3 where the installed release is known to fail, 2 where releases differ, 1 where all have it, else 0."""
    if presence.present and (presence.absent or presence.unknown):
        version = installed_version(presence.distribution, facts)
        inside = is_in(version, presence.present, presence.releases) if version else None
        return 3 if inside is False else 2
    return 1 if presence.present else 0


def _is_named(question: Question, index: NameIndex) -> bool:
    """Return whether the thing that lacks a member or an argument is itself one of the index."""
    owner = question.path if question.argument else question.path.rpartition(".")[0]
    presence = index.ask(owner)
    return presence is not None and bool(presence.present)
