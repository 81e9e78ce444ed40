"""What ranks ask of torch.distributed, compared: roots, peers, tags, groups. Whose request does not fit to the others'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations

from envsmith.launch.ranks.causes import ranks_text
from envsmith.launch.ranks.evidence import CallArguments


def odd_requests(requests: Mapping[int, CallArguments], turns: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks whose request does not fit. ``turns`` are the numbers of the collectives in which they wait."""
    makers = {rank: call for rank, call in requests.items() if call.operation == "new_group"}
    odd = _odd_waits(requests) or _odd_roots(requests, turns) or _odd_makers(makers)
    if odd or makers or any(call.peer is not None for call in requests.values()):
        return odd
    return minority({rank: _asks(call) for rank, call in requests.items()})


def _asks(call: CallArguments) -> tuple[str, str, int | None]:
    return call.operation, call.group, call.root


def minority(keys: Mapping[int, object]) -> tuple[int, ...]:
    """Return the ranks that differ from the most, or nobody where no key is that of the most."""
    (usual, most), *rivals = Counter(keys.values()).most_common() or [(None, 0)]
    is_majority = bool(rivals) and most > rivals[0][1]
    return tuple(rank for rank, key in keys.items() if is_majority and key != usual)


def _odd_waits(requests: Mapping[int, CallArguments]) -> tuple[int, ...]:
    """Return where the waits of ranks for a single one lead: into a circle, or to one that does something else.

    In a circle it is the one that would meet a rank outside of it. Where as many do what that one does as wait for it,
    either side may be wrong.
    """
    calls = {rank: (call.peer, call) for rank, call in requests.items() if call.peer is not None}
    waits = {rank: peer for rank, (peer, call) in calls.items() if not _meet(rank, call, requests.get(peer))}
    leading: dict[tuple[int, ...], list[int]] = {}
    for rank in waits:
        leading.setdefault(_end(rank, waits), []).append(rank)
    end, ranks = max(leading.items(), key=lambda pair: len(pair[1]), default=((), []))
    if len(end) > 1:
        outside = [pair for rank, pair in calls.items() if rank not in end and pair[0] in end]
        return tuple(sorted({peer for peer, call in outside if requests[peer].is_send != call.is_send})) or end
    last = requests.get(end[0]) if end else None
    if last is None or last.peer is not None:
        return ()
    alike = [rank for rank, call in requests.items() if _asks(call) == _asks(last)]
    return end if len(ranks) > len(alike) else tuple(sorted((*ranks, *end)))


def _end(rank: int, waits: Mapping[int, int]) -> tuple[int, ...]:
    """Return where the waits from a rank lead: the circle, or the one that waits for no single rank."""
    path: list[int] = []
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank]
    return tuple(sorted(path[path.index(rank) :])) if rank in path else (rank,)


def _meet(rank: int, call: CallArguments, theirs: CallArguments | None) -> bool:
    """Tell whether a rank and its peer turn to each other, one to send and one to receive by the same tag."""
    return theirs is not None and theirs.peer == rank and theirs.is_send != call.is_send and theirs.tag == call.tag


def _odd_roots(requests: Mapping[int, CallArguments], turns: Mapping[int, int]) -> tuple[int, ...]:
    """Return the minority by root of one collective, or all that are in it where there is none.

    Who names a third rank as root may have given it its part, and be past that collective.
    """
    rooted: dict[tuple[str, str, int], dict[int, int]] = {}
    for rank, call in requests.items():
        if call.root is not None:
            rooted.setdefault((call.operation, call.group, turns.get(rank, 0)), {})[rank] = call.root
    disputed = next((roots for roots in rooted.values() if len(set(roots.values())) > 1), {})
    return minority(disputed) or tuple(disputed)


def _odd_makers(makers: Mapping[int, CallArguments]) -> tuple[int, ...]:
    """Return the ranks whose new group contradicts those of most others.

    Two contradict each other as other groups at the same turn, or where one that is further on belongs to the group and
    did not come to it. A rank passes the groups to which it does not belong.
    """
    against: Counter[int] = Counter()
    for (one, mine), (peer, theirs) in permutations(makers.items(), 2):
        is_other = one < peer and mine.turn == theirs.turn and mine.ranks != theirs.ranks
        if is_other or (mine.turn < theirs.turn and peer in mine.ranks):
            against.update((one, peer))
    odd = tuple(rank for rank, count in against.items() if count == max(against.values()))
    return odd if len(odd) * 2 < len(makers) else ()


def asking_words(odd: Sequence[int], requests: Mapping[int, CallArguments], texts: Mapping[int, str]) -> str:
    """Return who asks for what the others do not, or who of several disagree."""
    if len({texts[rank] for rank in odd}) == 1:
        return f"{ranks_text(odd)} {'calls' if len(odd) == 1 else 'call'} {texts[odd[0]]}, which the others do not"
    if all(requests[rank].peer in odd for rank in odd):
        return f"{ranks_text(odd)} wait for each other"
    if lone := [rank for rank in odd if requests[rank].peer is not None]:
        wait = "waits" if len(lone) == 1 else "wait"
        return f"A send or recv has no partner, in which {ranks_text(lone, 'r')} {wait}"
    return f"{ranks_text(odd)} do not agree on their {requests[odd[0]].operation}"
