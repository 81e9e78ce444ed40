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
    return _odd_peers(requests) or _odd_pair(requests) or _odd_roots(requests, turns) or _odd_makers(makers)


def _odd_peers(requests: Mapping[int, CallArguments]) -> tuple[int, ...]:
    """Return the ranks that wait for a peer which turns elsewhere, while another one waits for them."""
    odd = []
    for rank, call in requests.items():
        peer = requests.get(call.peer) if call.peer is not None else None
        if call.peer is None or peer is None or (peer.peer == rank and peer.operation != call.operation):
            continue
        senders = [
            sender for sender, theirs in requests.items() if theirs.peer == rank and theirs.is_send != call.is_send
        ]
        if senders and call.peer not in senders:
            odd.append(rank)
    return tuple(odd)


def _odd_pair(requests: Mapping[int, CallArguments]) -> tuple[int, ...]:
    """Return two ranks that turn to each other and do not meet: both send, both receive, or their tags differ."""
    pairs = ((rank, call, requests.get(call.peer)) for rank, call in requests.items() if call.peer is not None)
    meet = (
        (rank, call.peer)
        for rank, call, peer in pairs
        if peer and peer.peer == rank and (peer.is_send == call.is_send or peer.tag != call.tag)
    )
    rank, partner = next(meet, (None, None))
    return () if rank is None or partner is None else tuple(sorted((rank, partner)))


def _odd_roots(requests: Mapping[int, CallArguments], turns: Mapping[int, int]) -> tuple[int, ...]:
    """Return the minority by root of one collective, or all that are in it where there is none.

    Who names a third rank as root may have given it its part, and be past that collective.
    """
    rooted: dict[tuple[str, str, int], dict[int, int]] = {}
    for rank, call in requests.items():
        if call.root is not None:
            rooted.setdefault((call.operation, call.group, turns.get(rank, 0)), {})[rank] = call.root
    for roots in rooted.values():
        (root, most), *rivals = Counter(roots.values()).most_common()
        if rivals:
            is_majority = most > rivals[0][1]
            return tuple(rank for rank, named in roots.items() if not is_majority or named != root)
    return ()


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
    if len({texts[rank] for rank in odd}) > 1:
        return f"{ranks_text(odd)} do not agree on their {requests[odd[0]].operation}"
    return f"{ranks_text(odd)} {'calls' if len(odd) == 1 else 'call'} {texts[odd[0]]}, which the others do not"
