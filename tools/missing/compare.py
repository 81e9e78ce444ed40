"""Uses of one package against what each release of another offers: which names are missing where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from missing.offered import Has, Offered, Signature
from missing.reach import Place, Stage
from missing.used import Asked, Use

__all__ = ["Gap", "gaps", "missing_in", "span"]

_ORDER = tuple(Stage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """``what`` (a name, ``module:``, or an argument ``name(argument=)``) is used by ``users`` and missing in ``lacking``. ``where``: modules with lines of the newest user."""

    what: str
    stage: Stage
    users: tuple[str, ...]
    lacking: tuple[str, ...]
    where: tuple[str, ...]


def missing_in(use: Use, offered: Offered) -> tuple[str, ...]:
    """What of a use is not there; empty when all is, or when the guards of the use keep it from running."""
    if any(not _holds(asked, offered) for asked in use.guard.asked):
        return ()
    chain = use.chain
    if len(chain) == 1:
        return ()
    module, name = (".".join(chain[:-1]), chain[-1]) if use.imported else offered.follow(chain)
    if name is None:
        return ()
    if offered.has(module, name) is Has.NO:
        return (f"{module}.{name}" if offered.exists(module) else f"module {module}",)
    if use.imported or chain[-1] != name:
        return ()
    return _refused(use, f"{module}.{name}", offered.signatures(module, name))


def _refused(use: Use, what: str, found: Sequence[Signature]) -> tuple[str, ...]:
    """What of a call no signature takes: arguments by name, too many or too few of the others."""
    if not found:
        return ()
    told = []
    if not any(s.any_name for s in found):
        told = [f"{what}({word}=)" for word in use.keywords if not any(word in s.names for s in found)]
    if use.positions is not None:
        most = [s.positions for s in found]
        if all(m is not None and use.positions > m for m in most):
            told.append(f"{what}() with {use.positions} arguments")
        elif all(use.positions + len(use.keywords) < s.needed for s in found):
            told.append(f"{what}() with only {use.positions + len(use.keywords)} arguments")
    return tuple(told)


def _holds(asked: Asked, offered: Offered) -> bool:
    module, name = offered.follow((*asked.chain, asked.name))
    if name is None:
        return asked.there
    has = offered.has(module, name)
    return has is (Has.YES if asked.there else Has.NO)


def gaps(releases: Mapping[str, Sequence[Place]], offers: Sequence[Offered]) -> list[Gap]:
    """Gaps of all releases (oldest first), those that are the same for several of them told once.

    A name that no release of the other package has is left out: it is made at run time, or comes from elsewhere.
    """
    memo: dict[Use, dict[str, frozenset[str]]] = {}
    found: dict[tuple[str, Stage, tuple[str, ...]], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    order = [o.version for o in offers]
    for version, places in releases.items():
        worst: dict[str, tuple[Stage, frozenset[str], list[str]]] = {}
        for place in places:
            key = Use(
                chain=place.use.chain,
                line=0,
                function=None,
                imported=place.use.imported,
                keywords=place.use.keywords,
                positions=place.use.positions,
                guard=place.use.guard,
            )
            if key not in memo:
                memo[key] = _vector(key, offers)
            for what, lacking in memo[key].items():
                _worse(worst, what, place, lacking)
        for what, (stage, lacking, where) in worst.items():
            if len(lacking) < len(order):
                found[what, stage, tuple(v for v in order if v in lacking)][version] = where
    return [
        Gap(
            what=what,
            stage=stage,
            users=tuple(users),
            lacking=lacking,
            where=tuple(sorted(set(list(users.values())[-1]))),
        )
        for (what, stage, lacking), users in found.items()
    ]


def _vector(use: Use, offers: Sequence[Offered]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for offered in offers:
        for what in missing_in(use, offered):
            found[what].add(offered.version)
    if len(found) > 1 and not use.keywords and use.positions is None:
        # The same use is told differently where a whole module is missing: one statement for the use.
        name = ".".join(use.chain)
        return {name: frozenset(v for versions in found.values() for v in versions)}
    return {what: frozenset(versions) for what, versions in found.items()}


def _worse(
    worst: dict[str, tuple[Stage, frozenset[str], list[str]]], what: str, place: Place, lacking: frozenset[str]
) -> None:
    where = f"{place.module}:{place.use.line}" + (f" {place.use.function}" if place.use.function else "")
    known = worst.get(what)
    if known is None or _ORDER.index(place.stage) < _ORDER.index(known[0]):
        worst[what] = (place.stage, lacking, [where])
    elif place.stage is known[0]:
        worst[what] = (known[0], known[1] | lacking, [*known[2], where])


def span(chosen: Iterable[str], every: Sequence[str]) -> str:
    """``>=0.7.0,<0.14.1``: the runs of neighbours in ``every`` (oldest first)."""
    picked = set(chosen)
    runs: list[list[int]] = []
    for at, version in enumerate(every):
        if version in picked:
            if runs and runs[-1][1] == at - 1:
                runs[-1][1] = at
            else:
                runs.append([at, at])
    texts = []
    for first, last in runs:
        low = f">={every[first]}" if first else ""
        high = f"<{every[last + 1]}" if last + 1 < len(every) else ""
        one = f"=={every[first]}" if first == last and high else ""
        texts.append(one or ",".join(t for t in (low, high) if t) or "*")
    return " || ".join(texts)
