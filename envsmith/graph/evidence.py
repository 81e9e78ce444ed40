"""The evidence of a file, of a line, of one field of a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from envsmith.graph.parse import Node
from envsmith.model.evidence import Evidence, EvidenceKind

__all__ = ["named_evidence", "read_evidence", "with_hash"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


def _entry(node: Node) -> Evidence | None:
    fields = node.fields(("kind", "source", "date"), ("sha256", "note"))
    kind = fields["kind"].choice(EvidenceKind) if "kind" in fields else None
    source = fields["source"].text() if "source" in fields else None
    day = fields["date"].day() if "date" in fields else None
    sha256 = _sha256(fields["sha256"]) if "sha256" in fields else None
    note = fields["note"].text() if "note" in fields else None
    if kind is None or source is None or day is None:
        return None
    return Evidence(kind=kind, source=source, date=day, sha256=sha256, note=note)


def _sha256(node: Node) -> str | None:
    text = node.text(maximum=64)
    if text is not None and not _SHA256.fullmatch(text):
        node.wrong("not a sha256", "64 hex digits in lower case")
        return None
    return text


def named_evidence(node: Node | None) -> dict[str, Evidence]:
    """The table ``evidence:`` of a file: key to source."""
    found = {key: _entry(entry) for key, entry in node.items()} if node else {}
    return {key: evidence for key, evidence in found.items() if evidence}


def read_evidence(node: Node | None, named: Mapping[str, Evidence], *, owner: Node) -> tuple[Evidence, ...]:
    """What a line says about where it is from: a key, an entry, or a list of those. None at all is a problem of ``owner``."""
    if node is None or node.value in (None, [], ""):
        owner.problems.add(owner.where, "no evidence", "nothing is known without: add `evidence:`")
        return ()
    parts = node.sequence() if isinstance(node.value, list) else [node]
    found = []
    for part in parts:
        if isinstance(part.value, dict):
            entry = _entry(part)
        else:
            key = part.text()
            entry = named.get(key) if key else None
            if key and entry is None:
                part.wrong("no such evidence in this file", "it names " + (", ".join(named) or "none"))
        if entry:
            found.append(entry)
    return tuple(found)


def with_hash(evidence: tuple[Evidence, ...], node: Node | None) -> tuple[Evidence, ...]:
    """The sha256 of a line joins its first entry."""
    sha256 = _sha256(node) if node else None
    if not sha256 or not evidence:
        return evidence
    return (replace(evidence[0], sha256=sha256), *evidence[1:])
