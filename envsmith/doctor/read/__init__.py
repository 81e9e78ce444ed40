"""Texts that people paste -> facts. The kind is recognised by content; several kinds may stand in one text.

Every reader runs over the whole text and takes what it knows; what no reader knows is not an error. Nothing here raises for
bad input.
"""

from __future__ import annotations

from envsmith.doctor.facts import Draft, Facts, Read
from envsmith.doctor.read.launching import read_launches, read_modules
from envsmith.doctor.read.lines import read_lines
from envsmith.doctor.read.logs import kinds_of_log, read_files, read_log
from envsmith.doctor.read.package_lists import is_dockerfile, read_dockerfile, read_packages, read_whole
from envsmith.doctor.read.pasted import clean, decode, read_bounded, unprefixed
from envsmith.knowledge.graph.tables import one_state

__all__ = ["Draft", "Facts", "Read", "clean", "decode", "read_bounded", "read_text", "read_texts"]


def read_text(text: str, draft: Draft, source: str, notes: tuple[str, ...] = ()) -> Read:
    """Add what ``text`` (already cleaned) says to ``draft``, and return what was understood."""
    before = draft.size()
    text = unprefixed(text)
    document = read_whole(text, draft, source)
    kinds = [document] if document else _read_parts(text, draft, source)
    _settle(draft)
    new_facts = draft.size() - before
    if new_facts and not kinds:
        kinds.append("named versions")
    if not text.strip():
        notes = (*notes, "the text is empty")
    read = Read(
        source=source,
        kinds=tuple(dict.fromkeys(kinds)),
        lines=text.count("\n") + 1,
        characters=len(text),
        facts=new_facts,
        notes=notes,
    )
    draft.read.append(read)
    return read


def _read_parts(text: str, draft: Draft, source: str) -> list[str]:
    """Let every reader read a text, and return the kinds that were recognised."""
    kinds = kinds_of_log(text)
    if is_dockerfile(text):
        kinds.append("Dockerfile")
        read_dockerfile(text, draft, source)
    kinds += read_packages(text, draft, source)
    kinds += read_launches(text, draft, source)
    read_log(text, draft, source)
    read_lines(text, draft, source)
    kinds += read_modules(text, draft, source)
    read_files(text, draft, source)
    return kinds


@one_state()
def read_texts(texts: list[tuple[str, str]]) -> Facts:
    """Return the facts of several ``(source, text)`` together."""
    draft = Draft()
    for source, text in texts:
        read_text(clean(text), draft, source)
    return draft.done()


def _settle(draft: Draft) -> None:
    """Keep, of several NCCL wheels, the one that torch loads: that of its CUDA major."""
    cuda = draft.components.get("cuda")
    if cuda is None or cuda.version == "cpu":
        return
    major = cuda.version.split(".")[0]
    for name in ("nccl", "cudnn"):
        own = draft.distributions.get(f"nvidia-{name}-cu{major}")
        wheels = [d for d in draft.distributions if d.startswith(f"nvidia-{name}-cu")]
        if own and len(wheels) > 1:
            draft.components.pop(name, None)
            draft.component(name, own, f"nvidia-{name}-cu{major}", 4)
            draft.disagreements = [line for line in draft.disagreements if not line.startswith(f"{name}:")]
