"""What ``check`` asks the package index: names that look misspelt, and releases that the graph does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envsmith.cli.console import say
from envsmith.errors import EnvsmithError, UsageError
from envsmith.knowledge.graph.load import version_graph
from envsmith.lock.index.index import is_published
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.project.published.judge_published import Extras, judge_published


def judge_by_index(
    judgement: Judgement,
    versions: Mapping[str, str],
    misspelt: Mapping[str, str],
    platform: Platform,
    *,
    reads_measured: bool,
    extras: Extras,
) -> Judgement:
    """Return a judgement of versions with what the index says of unknown releases, or why it did not.

    ``reads_measured`` reads the code of the other releases too, ``extras`` are those that a release is stated with. ``misspelt`` are names that are like those of
    components: ``UsageError`` for one that the index does not have.
    """
    if unreached := tuple(_unreached(misspelt)):
        return replace(judgement, unknown=(*judgement.unknown, *unreached))
    if unknown := version_graph().unknown_releases(versions):
        say(f"reading on the package index: {', '.join(f'{name} {version}' for name, version in unknown.items())}")
    return judge_published(versions, judgement, platform, reads_measured=reads_measured, extras=extras)


def _unreached(misspelt: Mapping[str, str]) -> Iterator[str]:
    """Yield why the index could not say whether it has a name."""
    for name, component in misspelt.items():
        try:
            is_there = is_published(name)
        except EnvsmithError as error:
            yield f"whether there is a package {name}: the package index did not say, {error.reason}"
            continue
        if not is_there:
            raise UsageError(
                f"Cannot judge {name}: neither envsmith nor the package index has a package of that name.",
                hint=f"Type {component}, if that is what you mean.",
            )
