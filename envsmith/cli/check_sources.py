"""``check --from``, ``--fact``, ``--env`` and ``--wheel``: what is judged beside versions. Loaded when one is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envsmith.cli.console import say
from envsmith.cli.flags import open_source
from envsmith.doctor.facts import Draft, Facts
from envsmith.doctor.read import read_text
from envsmith.doctor.read.package_lists import note_pins
from envsmith.doctor.stated_environment import read_environment, read_fact, read_variable
from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.symbols.judge_wheel import judge_wheel, stated_version
from envsmith.knowledge.symbols.system_libraries import system_libraries
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.lock.index.compiled import read_needs
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.net.http import HttpClient
from envsmith.project.folder import is_project_file
from envsmith.project.ranges import Declarations

# Lines of a file that are named because nothing can be said of them.
_MOST_SENTENCES = 20
# So many packages are named in a sentence.
_SHOWN = 6


def read(
    sources: tuple[str, ...], facts: tuple[str, ...], variables: tuple[str, ...]
) -> tuple[dict[str, str], Declarations | None, Draft]:
    """Read the components that files name, what files of a project declare, and all else that is stated.

    ``UsageError`` for a file that says nothing, and for what is not a fact.
    """
    draft = Draft()
    stated, declarations = _read_sources(sources, draft) if sources else ({}, None)
    _note_host(facts, variables, draft)
    return stated, declarations, draft


def _note_host(facts: tuple[str, ...], variables: tuple[str, ...], draft: Draft) -> None:
    for text in facts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(
                f"Cannot read --fact {text[:60]!r}: it is not KEY=VALUE.",
                hint="Run envsmith check --fact help to list the keys.",
            )
        read_fact(draft, key, value)
    for text in variables:
        read_variable(draft, text)


def _read_sources(sources: tuple[str, ...], draft: Draft) -> tuple[dict[str, str], Declarations | None]:
    stated: dict[str, str] = {}
    declarations = None
    for source in sources:
        if is_project_file(Path(source)):
            declarations = _declared(Path(source), declarations, draft)
            continue
        text, notes = open_source(source)
        own = read_environment(text, draft, source)
        if own is not None:
            stated |= own
            say(f"{source}: environment as JSON")
            continue
        kinds = read_text(text, draft, source, tuple(notes)).kinds
        say(f"{source}: {', '.join(kinds) or 'not recognised'}")
    versions = {name: fact.version for name, fact in draft.done().components.items() if fact.exact} | stated
    if not versions and not draft.size() and declarations is None:
        raise UsageError(
            f"Cannot check {', '.join(sources)}: no version of a component is in it.",
            hint="Give a lock, pyproject.toml, requirements.txt, environment.yml, an environment as JSON, a log, or the "
            "output of conda list, pip list or pip freeze.",
        )
    return versions, declarations


def _declared(path: Path, earlier: Declarations | None, draft: Draft) -> Declarations:
    """Read what a file of a project declares, beside files that were read before it. What it pins is noted."""
    try:
        declarations = Declarations.of(path)
        note_pins(path, declarations.always, draft)
    except DataError as error:
        raise UsageError(error.message, details=error.details, hint=error.hint) from None
    demands = declarations.always
    say(f"{path}: {len(demands.demands)} requirements, {len(declarations.parts)} extras and groups")
    if demands.problems and not demands.demands and not declarations.parts:
        raise UsageError(
            f"Cannot check {path}: none of its requirements can be judged.",
            details=demands.problems[:_MOST_SENTENCES],
            hint="Give a file with releases of the package index, or the output of pip freeze.",
        )
    sentences = (*demands.problems, *demands.notes)
    for sentence in sentences[:_MOST_SENTENCES]:
        say(f"not judged: {sentence}")
    if len(sentences) > _MOST_SENTENCES:
        say(f"not judged: {len(sentences) - _MOST_SENTENCES} more lines")
    return earlier.joined(declarations) if earlier else declarations


def strangers(facts: Facts) -> dict[str, str]:
    """Return the pins of distributions that are no components."""
    return {name: version for name, version in facts.distributions.items() if components().find(name) is None}


def with_strangers(judgement: Judgement, facts: Facts, *, is_read: bool) -> Judgement:
    """Return a judgement that names the pins of which nothing is known, or only what the index says (``is_read``).

    Beside them only a run of the set is ``ok``.
    """
    releases = [f"{name} {version}" for name, version in strangers(facts).items()]
    if not releases:
        return judgement
    further = f" and {len(releases) - _SHOWN} more" if len(releases) > _SHOWN else ""
    why = "no run is known, and the package index says no more" if is_read else "only the package index knows (--index)"
    sentence = f"whether {', '.join(releases[:_SHOWN])}{further} fit: {why}"
    is_open = judgement.status == "ok" and judgement.proof is None
    status = "unknown" if is_open else judgement.status
    return replace(judgement, status=status, unknown=(*judgement.unknown, sentence))


def judge_linking(
    source: str, versions: Mapping[str, str], facts: Facts, platform: Platform, judgement: Judgement
) -> Judgement:
    """Return a judgement of versions with what the compiled files of a wheel need, and they or the host lack."""
    needs = read_needs(source, HttpClient())
    glibc = stated_version(versions.get("glibc")) or facts.version("glibc")
    host = system_libraries().host(facts.host.get("os", ""), glibc=glibc, glibcxx=facts.host.get("glibcxx"))
    answer = judge_wheel(needs, versions, platform, SymbolTable(find_matrix() / "symbols"), host)
    unknown = (*judgement.unknown, *answer.unknown)
    status = "bad" if answer.is_bad else "unknown" if answer.unknown and judgement.status == "ok" else judgement.status
    return replace(
        judgement, status=status, findings=(*judgement.findings, *answer.findings), unknown=unknown
    ).settled()
