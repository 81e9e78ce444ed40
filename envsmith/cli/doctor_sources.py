"""What ``doctor`` judges: this machine, or the files and folders of ``--from``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.cli.console import say
from envsmith.cli.flags import open_source
from envsmith.doctor.facts import Draft
from envsmith.doctor.host import collect
from envsmith.doctor.read import read_text
from envsmith.doctor.read.remains import has_texts, read_folder, read_kept
from envsmith.doctor.snapshot import load, looks_like_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection

    from envsmith.doctor.case import PublishedPackages
    from envsmith.doctor.facts import Facts
    from envsmith.launch.ranks.stored import Occasion

Texts = list[tuple[str, str]]


def _opened(source: str) -> list[tuple[str, str, list[str]]]:
    """Read a file, or every text of a folder."""
    if Path(source).is_dir():
        return read_folder(Path(source))
    return [(source, *open_source(source))]


def stored_launches(sources: tuple[str, ...]) -> dict[str, list[Occasion]]:
    """Return what `run` stored in the files and folders of ``--from``, by the names of the files."""
    return {name: file for source in sources for name, file in read_kept(source).items()}


def _has_texts(source: str, launches: Collection[str]) -> bool:
    """Tell whether there is more to read than what `run` stored."""
    place = Path(source)
    return source not in launches and not (launches and place.is_dir() and not has_texts(place))


def gather(
    sources: tuple[str, ...], python: str | None, *, deep: bool, launches: Collection[str] = ()
) -> tuple[Facts, Texts]:
    """Collect facts and texts of this machine, or of every ``--from`` but what `run` stored, which is in ``launches``."""
    if not sources:
        facts = collect(python, deep=deep)
        imports = facts.host.get("deep")
        return facts, [("imports", imports)] if imports else []
    draft, texts, snapshots = Draft(), [], []
    for source, text, notes in (opened for each in sources if _has_texts(each, launches) for opened in _opened(each)):
        if looks_like_snapshot(text):
            snapshots.append(load(text, source))
            continue
        read_text(text, draft, source, tuple(notes))
        texts.append((source, text))
    facts = draft.done()
    for snapshot, further in snapshots:
        # A snapshot's facts are completed by what the texts beside it say.
        facts = dataclasses.replace(
            snapshot,
            components={**facts.components, **snapshot.components},
            variables={**snapshot.variables, **facts.variables},
            launches=(*snapshot.launches, *facts.launches),
            read=(*snapshot.read, *facts.read),
        )
        texts += list(further)
    return facts, texts


def read_published() -> PublishedPackages:
    """Return what reads packages on the user's package index."""
    from envsmith.doctor.asked_index import AskedIndex  # most texts ask for nothing that was not measured
    from envsmith.lock.index.index import quick_index

    return AskedIndex(quick_index, say)
