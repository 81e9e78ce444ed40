"""Names that are there all the same: another copy, file or folder is imported, or not yet, or not all of it."""

from __future__ import annotations

import dataclasses

from envsmith.doctor.diagnosis import Weight
from envsmith.doctor.lacks import Lack, Question
from envsmith.doctor.name_explanation import (
    BROKEN,
    PAIR,
    SCRIPT,
    MissingNameExplanation,
    asker_of_name,
    thing_of,
    user_of_name,
)
from envsmith.doctor.read.lines import component_of, fold
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.model.rule import Severity


def another_copy(lack: Lack, question: Question, presence: Presence, version: str) -> MissingNameExplanation:
    """Explain a name that the stated release has: what runs is another copy, or a damaged one."""
    name = presence.distribution
    return MissingNameExplanation(
        rule="installed-is-another",
        message=f"{name} {version} has {thing_of(lack, question)}: what is imported is another copy, its files are damaged,"
        f" or it has this only beside an optional package that is not installed.{asker_of_name(lack, name)}",
        fix=f"{_look(lack, question, presence)} Then reinstall {name} into a clean environment.",
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version},
        lines=(f"pip install --force-reinstall --no-deps {name}=={version}",),
        presence=presence,
    )


def not_set_yet(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a member that methods set on an instance, of a release that sets it or of one that is not known."""
    name, spec = presence.distribution, presence.short_spec()
    is_asked = bool(lack.frames) and lack.frames[-1].package == name and bool(presence.absent)
    is_foreign = bool(version and question.is_guess and presence.absent)
    older = "" if version or is_asked or not presence.absent else ", or the installed release is another"
    before = short_spec_of(presence.releases, presence.absent)
    if is_asked:
        fix = f" Make the object anew with the installed {name} if an older one stored it, or install {name}{before}."
    elif is_foreign:
        fix = f" {lack.owner} is of another package, written for {name}{before}: take that, or a newer release of it."
    else:
        fix = f" If the installed release is another, install {name}{spec}." if older else ""
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{name}{spec} sets {thing_of(lack, question)} on its objects while they are made or used: what sets it has"
        f" not run for this one{older}.{asker_of_name(lack, name)}",
        fix=f"See where {name} sets {lack.name}, and on what condition.{fix}",
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*", **user_of_name(lack, name)},
        needs={name: before} if is_asked or is_foreign else {name: spec} if older else {},
        presence=presence,
    )


def everywhere(
    lack: Lack, question: Question, presence: Presence, version: str | None, *, is_module: bool
) -> MissingNameExplanation:
    """Explain a name that every measured release has, where the installed one is not among them or not known."""
    name, first = presence.distribution, presence.releases[0]
    older = f"{name} {version} is not among them" if version else "the installed one is older"
    if lack.kind == "member":  # a model's own code may have a class of that name
        older = f"{older}, the class is another of that name (a model's own code)"
    if is_module:  # Python before 3.10 says no more of a circle
        older = f"it is a module that was not imported yet, {older}"
    every = f"Each of {len(presence.releases)} releases" if presence.is_sample else "Every release"
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{every} of {name} from {first} to {presence.releases[-1]} has {thing_of(lack, question)}: {older},"
        f" another copy is imported, or its files are damaged.{asker_of_name(lack, name)}",
        fix=f"{_look(lack, question, presence)} "
        + (f"Then install {name}>={first}." if version else f"Then install {name} again, not older than {first}."),
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*"},
        needs={name: f">={first}"} if version else {},
        lines=(f"pip install '{name}>={first}'" if version else f"pip install --force-reinstall --no-deps {name}",),
        presence=presence,
    )


def is_not_imported(lack: Lack, question: Question, presence: Presence, index: NameIndex) -> bool:
    """Return whether nothing imported a module: every release has it with the package around it, which was imported.

    Or the newest has it, and no release of that package imports it itself.
    """
    around = index.ask_module(lack.owner) if "." in lack.owner and index.ask_module(question.path) else None
    if around is None or not presence.absent:
        return False
    is_left_out = lack.name not in index.names_of(lack.owner) and presence.releases[-1] in presence.present
    return around.present <= presence.present or is_left_out


def not_imported(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a module that its caller takes from the package around it, and that nothing has imported."""
    name, user = presence.distribution, lack.user_of(presence.distribution)
    return MissingNameExplanation(
        rule="name-missing",
        message=f"{lack.owner} has no {lack.name} yet: it is a module of {name}{presence.ranges()}, and nothing imported"
        f" it.{asker_of_name(lack, name)}",
        fix=f"Import it by its own path (import {question.path}), or take the release of {user or 'its caller'} that was"
        f" written for the installed {name}.",
        taxonomy=dataclasses.replace(PAIR, cause="package-version-pair"),
        weight=Weight.SYMPTOM,
        components={name: version or "*", **user_of_name(lack, name)},
        presence=presence,
        is_certain=False,
    )


def not_compiled(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a compiled module that is not there."""
    name = presence.distribution
    releases = f" Of the files that were read those of {name}{presence.ranges()} have it." if presence.absent else ""
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{question.path} is a compiled module of {name}, and it is not in what is imported: a folder of sources,"
        f" files for another Python or machine, or files that were built without it.{releases}{asker_of_name(lack, name)}",
        fix=f"{_look(lack, question, presence)} Then reinstall {name} with this Python: pip takes the wheel that fits.",
        taxonomy=BROKEN,
        components={name: version or "*"},
        lines=(f"pip install --force-reinstall --no-deps {name}",),
    )


def in_a_circle(lack: Lack, question: Question, presence: Presence) -> MissingNameExplanation:
    """Explain a name that every release has, asked for while Python was still importing the package."""
    root = lack.root
    return MissingNameExplanation(
        rule="imported-in-a-circle",
        message=f"Python was still importing {root} when {thing_of(lack, question)} was asked for. Every release of"
        f" {presence.distribution} has it: a file {root}.py of your own stands in its place, or what {root} imports"
        " imports it again.",
        fix=f"Look for {root}.py beside the script and rename it. Without one, the first lines of the traceback that are"
        " in no package show the file of yours that is imported twice: it has the name of a module of Python or of a"
        " package.",
        taxonomy=dataclasses.replace(SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        components={presence.distribution: "*"},
        lines=(f"python -c 'import {root} as m; print(m.__file__)'",),
    )


def _look(lack: Lack, question: Question, presence: Presence) -> str:
    """Return how to see what is imported, and what each answer means."""
    root = presence.root or question.path.partition(".")[0]
    is_module = lack.kind == "attribute" and "." in lack.owner
    advice = f"Import it by its own path (import {question.path}), if it is a module. " if is_module else ""
    return (
        f"{advice}See what is imported: python -c 'import {root} as m; print(m.__file__)'. None is a folder {root}"
        f" without __init__.py, a path outside of site-packages is a file or folder of yours: rename it."
    )


def shadowed(lack: Lack, file: str) -> MissingNameExplanation:
    """Explain a package in whose place a file of one's own is imported."""
    return MissingNameExplanation(
        rule="module-shadowed",
        message=f"A file of your own is imported in the place of the package {lack.root}: {file}.",
        fix=f"Rename {file}, and delete its folder __pycache__.",
        taxonomy=dataclasses.replace(SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        confidence="high",
        components={fold(lack.root): "*"},
    )


def beside_checkout(lack: Lack, folder: str) -> MissingNameExplanation:
    """Explain what a module lacks whose name a folder around the script or a clone has: Python may have taken that folder."""
    return MissingNameExplanation(
        rule="module-shadowed",
        message=f"{lack.root} has no {lack.name}, and beside or around the script lies a folder {folder}: Python may have imported"
        f" that in the place of the package, or an older {lack.root} is installed than this checkout.",
        fix=f"See which {lack.root} is imported. Install the checkout (pip install -e .), and run the script elsewhere.",
        taxonomy=dataclasses.replace(SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        components={fold(lack.root): "*"},
        lines=(f"python -c 'import {lack.root} as m; print(m.__file__, m.__path__)'",),
        is_certain=False,
    )


def not_in_file(lack: Lack, file: str) -> MissingNameExplanation:
    """Explain a name that a file lacks which is of no package."""
    return MissingNameExplanation(
        rule="name-not-in-file",
        message=f"{file} does not have {lack.name}. It is of no installed package: no release of one is at fault.",
        fix=f"Look into {file}: the name is misspelt, or was never written there, or the file is of another state of"
        " the source tree than the one that imports it (git status).",
        taxonomy=dataclasses.replace(SCRIPT, cause="name-not-in-file"),
        severity=Severity.WARNING,
        confidence="high",
        components={},
    )


def damaged(lack: Lack) -> MissingNameExplanation:
    """Explain a package that does not find a part of its own while it is imported."""
    name = fold(lack.root)
    kernel = (
        f" Or {name} was installed anew while the kernel ran, which holds parts of the old one." * lack.is_in_notebook
    )
    restart = "Restart the kernel of the notebook first. If that is not enough: " * lack.is_in_notebook
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{name} does not find {lack.owner}.{lack.name}, a part of its own, while it is imported: its files are"
        f" of two releases, or some are missing.{kernel}",
        fix=f"{restart}Uninstall {name} until pip says that it is not installed, delete its folder, and install it again.",
        taxonomy=BROKEN,
        components={name: "*"},
        lines=(f"pip uninstall -y {name}", f"pip install --no-cache-dir {name}"),
    )


def bare_folder(lack: Lack) -> MissingNameExplanation:
    """Explain a package that Python took for a folder without ``__init__.py``, or that says no file of its own."""
    name = component_of(lack.root) or fold(lack.root)
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{lack.root} has no {lack.name} where Python looked, and says no file that it came from. It took a folder"
        f" without __init__.py for {lack.root}, or the release that is installed has no such name.",
        fix=f"See where Python looked. Rename a folder {lack.root} of your own. If it is a checkout of {name}, its"
        " sources lie in a folder below it or have moved: take it from PYTHONPATH, and run pip install . in it again."
        f" If there is none, the release of {name} is not the one that the code was written for.",
        taxonomy=BROKEN,
        weight=Weight.SYMPTOM,
        components={name: "*"},
        lines=(f"python -c 'import {lack.root} as m; print(m.__path__)'",),
        is_certain=False,
    )
