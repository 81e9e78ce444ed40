"""The evidence of a launch as a file: what one host wrote, read back, and put together with that of others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from envsmith.base.schema import Problems, UnreadableError, check, parse_json, to_json
from envsmith.base.text import without_secrets
from envsmith.errors import DataError
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.evidence import LaunchEvidence, LaunchHost, RankEvidence

# The key by which such a file is recognised, and the number of its format.
KEY, FORMAT = "envsmith_evidence", 1


@dataclass(frozen=True)
class _Document:
    envsmith_evidence: int
    evidence: LaunchEvidence
    verdict: Blame | None = None


def write_evidence(evidence: LaunchEvidence, blame: Blame | None) -> str:
    """Return the text of a file with the evidence and the verdict on it, without secrets."""
    document = {KEY: FORMAT, "verdict": to_json(blame) if blame else None, "evidence": to_json(evidence)}
    return without_secrets(json.dumps(document, indent=1), mail="") + "\n"


def is_evidence(text: str) -> bool:
    """Tell whether a text is such a file, by its beginning."""
    return f'"{KEY}"' in text[:200]


def read_evidence(text: str, source: str) -> LaunchEvidence:
    """Return the evidence of a file. ``DataError`` names every field that is wrong."""
    return _read(text, source).evidence


def read_verdict(text: str, source: str) -> Blame | None:
    """Return what ``run`` said of the evidence of a file. It saw the launch as it stood still."""
    return _read(text, source).verdict


def _read(text: str, source: str) -> _Document:
    problems = Problems()
    try:
        document = check(_Document, parse_json(text), source, problems)
    except UnreadableError as error:
        raise DataError(f"Cannot read {source}: {error}.", hint="Run the launch again with --evidence DIR.") from None
    problems.refuse(f"Cannot read {source}: it is not evidence of this release.", hint="Run the launch again.")
    if document is None:  # problems are refused above
        raise DataError(f"Cannot read {source}: it is empty.")
    return document


def merged(pieces: Sequence[LaunchEvidence]) -> LaunchEvidence:
    """Return the evidence of all pieces. What two of them say of the same thing is taken from the first."""
    if len(pieces) == 1:
        return pieces[0]
    ranks: dict[int, RankEvidence] = {}
    for one in (one for piece in pieces for one in piece.ranks):
        ranks[one.rank] = _joined(ranks[one.rank], one) if one.rank in ranks else one
    return LaunchEvidence(
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        machines=_machines(machine for piece in pieces for machine in piece.machines),
        world=max((piece.world for piece in pieces), default=0),
        is_listed=any(piece.is_listed for piece in pieces),
        stalled=min((piece.stalled for piece in pieces if piece.stalled), default=0.0),
        communicators="".join(piece.communicators for piece in pieces),
        is_interrupted=any(piece.is_interrupted for piece in pieces),
        events=tuple(sorted((event for piece in pieces for event in piece.events), key=lambda event: event.at)),
        unread=tuple(dict.fromkeys(text for piece in pieces for text in piece.unread)),
        launcher=next((piece.launcher for piece in pieces if piece.launcher), None),
        sizes=next((piece.sizes for piece in pieces if piece.sizes), None),
        absent=next((piece.absent for piece in pieces if piece.absent), None),
        line=next((piece.line for piece in pieces if piece.line), 0),
    )


def _joined(first: RankEvidence, second: RankEvidence) -> RankEvidence:
    """Return what both say of a rank: what the first has nothing of is the second's."""
    names = [field.name for field in fields(first)]
    changes: dict[str, Any] = {
        name: getattr(second, name) for name in names if not getattr(first, name) and getattr(second, name)
    }
    own = [error for error in (first.error, second.error) if error]
    if len(own) == 2 and own[1].at and own[0].at and own[1].at < own[0].at:
        changes["error"] = own[1]
    changes["environment"] = {**second.environment, **first.environment}
    changes["stacks"] = first.stacks or second.stacks
    return replace(first, **changes)


def _machines(machines: Iterable[LaunchHost]) -> tuple[LaunchHost, ...]:
    """Return each host once, with the lines of all its logs."""
    hosts: dict[str, LaunchHost] = {}
    for each in machines:
        if (host := hosts.get(each.name)) is None:
            hosts[each.name] = each
            continue
        hosts[each.name] = replace(
            host,
            disks=host.disks or each.disks,
            oom_kills=max(host.oom_kills, each.oom_kills),
            kernel=tuple(dict.fromkeys([*host.kernel, *each.kernel])),
        )
    return tuple(hosts.values())
