"""What differs between the ranks that should be the same: versions, variables, the world they believe in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envsmith.ranks.blame import Blame, Cause, ranks_text
from envsmith.ranks.evidence import Evidence, RankEvidence

# What is a rank's own by its nature: which GPU it sees.
_OWN = ("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE")
_MOST = 5


def different_environments(ranks: Sequence[RankEvidence]) -> tuple[str, ...]:
    """Return one line for each version or variable that differs, the odd ranks first."""
    names = dict.fromkeys(name for one in ranks for name in one.environment if name not in _OWN)
    lines = []
    for name in sorted(names, key=lambda each: not each.startswith("version of ")):
        # A package that a rank has not imported yet says nothing.
        values = {
            one.rank: one.environment.get(name, "")
            for one in ranks
            if one.environment and (name in one.environment or not name.startswith("version of "))
        }
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (common, most), (_, second), *_ = counts.most_common()
        rows = ", ".join(
            f"{ranks_text([rank for rank, value in values.items() if value == each], 'r')}: {each[:80] or 'unset'}"
            for each, _ in sorted(counts.items(), key=lambda pair: (most > second and pair[0] == common, pair[1]))
        )
        lines.append(f"{name} differs ({rows})")
    return tuple(lines[:_MOST])


def different_worlds(evidence: Evidence) -> Blame | None:
    """Blame the ranks that believe in another size of the world than the most."""
    worlds = {one.rank: one.world for one in evidence.ranks if one.world}
    counts = Counter(worlds.values())
    if len(counts) < 2:
        return None
    (common, most), (_, second), *_ = counts.most_common()
    odd = tuple(rank for rank, world in worlds.items() if world != common) if most > second else ()
    rows = tuple(f"rank {rank}: WORLD_SIZE={world}" for rank, world in sorted(worlds.items()))
    return Blame(
        cause=Cause.WORLD_SIZE,
        ranks=odd,
        message=f"The ranks do not agree on how many they are: {', '.join(rows)}.",
        fix="Give every rank the same WORLD_SIZE.",
        evidence=rows,
    )
