"""The evidence of a launch as a file: what one host wrote, and read back."""

from __future__ import annotations

import json
from dataclasses import dataclass

from envsmith.errors import DataError
from envsmith.ranks.blame import Blame
from envsmith.ranks.evidence import Evidence
from envsmith.schema import Problems, UnreadableError, check, parse_json, to_json

# The key by which such a file is recognised, and the number of its format.
KEY, FORMAT = "envsmith_evidence", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    envsmith_evidence: int
    evidence: Evidence
    verdict: dict[str, object] | None = None


def write_evidence(evidence: Evidence, blame: Blame | None) -> str:
    """Return the text of a file with the evidence and the verdict on it."""
    document = {KEY: FORMAT, "verdict": to_json(blame) if blame else None, "evidence": to_json(evidence)}
    return json.dumps(document, indent=1) + "\n"


def is_evidence(text: str) -> bool:
    """Tell whether a text is such a file, by its beginning."""
    return f'"{KEY}"' in text[:200]


def read_evidence(text: str, source: str) -> Evidence:
    """Return the evidence of a file. ``DataError`` names every field that is wrong."""
    problems = Problems()
    try:
        document = check(_Document, parse_json(text), source, problems)
    except UnreadableError as error:
        raise DataError(f"Cannot read {source}: {error}.", hint="Run the launch again with --evidence DIR.") from None
    problems.refuse(f"Cannot read {source}: it is not evidence of this release.", hint="Run the launch again.")
    if document is None:  # problems are refused above
        raise DataError(f"Cannot read {source}: it is empty.")
    return document.evidence
