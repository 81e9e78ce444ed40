"""The verdict of a run from the logs of its pods: what `kubectl logs` prints, or any file that the agent's lines ended up in.

Every line of the agent is a JSON object; what other programs wrote before, after or in front of one (a pod's name, a time, torchrun's tag) is passed
over. The same event in several logs is one: the pods exchange theirs, so that a single log may be enough, and all of them are where one pod died first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envsmith.errors import DataError, UsageError
from envsmith.smoke.blame import SmokeExit
from envsmith.smoke.nodes import with_nodes
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import SmokeResult, judge

_START = '{"event":"'
# As long as a line of the agent may be; a log of other things must not fill the memory.
_MAX_LINE = 8 << 20
_VERSIONED = ("torch", "python", "cuda", "nccl")


def events_of(lines: Iterable[str]) -> list[Mapping[str, Any]]:
    """Every event once, in the order in which it was first seen."""
    unique: dict[str, Mapping[str, Any]] = {}
    decoder = json.JSONDecoder()
    for line in lines:
        at = line.find(_START)
        if at < 0 or len(line) > _MAX_LINE:
            continue
        try:
            event, _ = decoder.raw_decode(line, at)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            unique.setdefault(json.dumps(event, sort_keys=True), event)
    return list(unique.values())


def plan_of(events: Sequence[Mapping[str, Any]], *, tier: str | None = None) -> Plan:
    """The plan that the ranks ran, made again from what rank 0 said of it; its cases must be those that the ranks agreed on.

    Raises :class:`DataError` when the logs hold no such run, or one that this envsmith does not know.
    """
    hello = _first(events, "hello")
    row = hello.get("plan")
    if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in ("ranks", "nodes")):
        raise DataError(
            "the logs do not tell of which run they are",
            hint='the line of rank 0 that begins with {"event":"hello" is missing: give the logs of all pods, from their beginning',
        )
    loaded = _first(events, "loaded")
    versions = {key: str(loaded[key]) for key in _VERSIONED if loaded.get(key)}
    try:
        plan = Plan.build(
            versions, tier=tier or str(row.get("tier")), ranks=row["ranks"], backend=str(row.get("backend") or "auto"),
            engine=row.get("engine"), steps=False, nodes=row["nodes"],
        )  # fmt: skip
    except UsageError as error:
        raise DataError(f"the logs tell of a run that cannot be: {error.message}") from None
    if plan.digest != row.get("digest"):
        raise DataError(
            f"the logs are of other cases ({str(row.get('digest'))[:26]}…) than this envsmith has for the {plan.tier.value} tier",
            hint="read them with the envsmith that made the job",
        )
    return plan


def result_of(events: Sequence[Mapping[str, Any]]) -> SmokeResult:
    """The verdict, with the node beside the rank that is blamed. Raises as :func:`plan_of`.

    Logs that were cut have not passed, whatever the rest of them says.
    """
    plan = plan_of(events)
    result = judge(plan, events)
    lacking = _lacking(events, plan) if result.passed else ""
    if lacking:
        code = int(SmokeExit.ERROR)
        result = replace(result, passed=False, exit_code=code, summary=lacking, blame=(lacking, *result.blame))
    return with_nodes(result, events)


def _lacking(events: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    """Which rank's results are not all there; empty when every rank told of every case."""
    counts = Counter(event.get("rank") for event in events if event.get("row") == "case")
    short = [rank for rank in range(plan.ranks) if counts[rank] < len(plan.cases)]
    if not short:
        return ""
    have = f"{counts[short[0]]} of the {len(plan.cases)} results of rank {short[0]}"
    return f"the logs hold {have}{f' (and lack some of {len(short) - 1} more ranks)' if len(short) > 1 else ''}: give the logs of all pods, whole"


def _first(events: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    return next((event for event in events if event.get("event") == kind), {})
