"""The whole answer of the judge, every word and number of it, for recorded faults and for events made up here. The texts were read by people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from envsmith.frameworks.framework import Step
from envsmith.model.record import Rung
from envsmith.smoke.cases import Case, quick_cases
from envsmith.smoke.expect import Expect, Expectation, Selectors
from envsmith.smoke.failure import failure_of
from envsmith.smoke.plan import Plan, Tier
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge

Golden = Callable[[str, str], None]
SMOKE = Path(__file__).parents[2] / "smoke"
RECORDED = sorted([*(SMOKE / "faults").glob("*.json"), *(SMOKE / "launched").glob("*.json")])
CASES = tuple(Case(op=op, dtype="int64", redop="sum", n=5) for op in ("all_reduce", "reduce", "reduce_scatter"))
NAMES = tuple(case.id for case in CASES)
STEP = Step(name="zero", kind="deepspeed-zero", ranks=2, issues=("all_reduce",), native=False)
WHERE = {"rank": 0, "case": 1, "step": "entered", "age": 2.5, "pid": 100, "signature": "call 1"}
HELLO, BYE = {"event": "hello", "pid": 1}, {"event": "bye", "seconds": {"all": 2}}
PLACEMENT = {"event": "placement", "backend": "gloo", "ranks": 3, "sentence": "3 ranks on the CPU"}


def _plan(**changes: Any) -> Plan:
    plan = Plan.build({}, ranks=3, backend="gloo", steps=False)
    return plan.with_(**{"cases": CASES, "expected": {}, "versions": {"torch": "2.9.1"}, **changes})


def _row(rank: int, case: int = 0, status: str = "ok", **more: Any) -> dict[str, Any]:
    name = {"event": "row", "run": "collectives", "row": "case", "rank": rank, "case": case, "status": status}
    return {**name, "ms": 10.0 * (rank + 1), "sig": f"call {case}", **more}


def _rows(cases: Sequence[int] = (0, 1, 2), ranks: Sequence[int] = (0, 1, 2), **more: Any) -> list[dict[str, Any]]:
    return [_row(rank, case, **more) for case in cases for rank in ranks]


def _one(case: int, statuses: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    return [_row(rank, case, status, **more) for rank, status in enumerate(statuses)]


def _step(rank: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    row = {"event": "row", "run": "zero", "row": "step", "rank": rank, "status": status, "seconds": 1.0 + rank}
    losses = {
        "losses": [2.0, 1.5, 1.0],
        "reference": [2.0, 1.5, 1.0],
        "collectives": {"all_reduce": {"count": 3, "bytes": 9}},
    }
    return {**row, **losses, **more}


def _halt(reason: str, *where: dict[str, Any], run: str = "collectives", **more: Any) -> dict[str, Any]:
    return {"event": "halt", "run": run, "reason": reason, "where": [{**WHERE, **row} for row in where], **more}


def _at(case: int, step: str, ranks: Sequence[int] = (0, 1, 2), **more: Any) -> list[dict[str, Any]]:
    return [{"rank": rank, "pid": 100 + rank, "case": case, "step": step, "age": rank + 1.25, **more} for rank in ranks]


def _exits(**codes: int) -> list[dict[str, int]]:
    return [{"rank": int(name[1:]), "code": code} for name, code in codes.items()]


def _words(result: SmokeResult) -> str:
    answer = result.to_json()
    answer["failure"] = dataclasses.asdict(failure) if (failure := failure_of(result, [Rung.IMPORTED])) else None
    answer["early"] = failure.rung.value if (failure := failure_of(result, [])) else None
    answer["enough"], answer["cause"] = result.enough, dataclasses.asdict(result.cause)
    answer["good"], answer["known"] = result.collectives_good, result.known_defects
    answer["digest"] = bool(answer["digest"])
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}\n" for key, value in answer.items())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_fault_gives_the_answer_that_was_read(path: Path, golden: Golden) -> None:
    document = json.loads(path.read_text())
    cases = tuple(Case(**case) for case in document["cases"])
    plan = Plan.build({}, ranks=document["ranks"], backend="gloo", steps=False).with_(cases=cases, expected={})

    result = judge(plan, document["events"], agent_exit=document["agent_exit"])

    golden(f"verdict/{path.parent.name}-{path.stem}.txt", _words(result))


LEGS = [{"rank": rank, "code": 0} for rank in range(3)]
WRONG = Expectation(id="gloo-rounds", when=Selectors(), expect=Expect.WRONG, evidence=(), note="gloo rounds")
REFUSED = Expectation(id="no-int64", when=Selectors(), expect=Expect.REFUSED, evidence=())
FULL = [HELLO, PLACEMENT, *_rows(), BYE]
# What the agent wrote, and what of the plan is not as usual.
RUNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "all-verified": (FULL, {}),
    "import-only": ([HELLO, PLACEMENT, BYE], {"cases": (), "tier": Tier.IMPORT}),
    "measurements": (FULL, {"tier": Tier.BANDWIDTH}),
    "without-bye": ([HELLO, PLACEMENT, *_rows()], {}),
    "nothing-at-all": ([], {}),
    "nonsense": ([*FULL, 7, {"event": "row"}], {}),
    "loaded-other-torch": ([HELLO, PLACEMENT, {"event": "loaded", "torch": "2.8.0"}, *_rows(), BYE], {}),
    "loaded-other-build": (
        [HELLO, {"event": "loaded", "torch": "2.9.1+cpu"}, *_rows(), BYE],
        {"versions": {"torch": "2.9.1+cu128"}},
    ),
    "loaded-same": (
        [{"event": "loaded", "torch": "2.9.1+cpu", "nccl": "2.27"}, {"event": "host", "cpus": 4}, *FULL],
        {},
    ),
    "silent-rank": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_rows(cases=(1,), ranks=(0, 2)), BYE], {}),
    "silent-ranks": ([HELLO, PLACEMENT, *_rows(cases=(0,)), *_rows(cases=(1,), ranks=(0,)), *_rows(cases=(2,), ranks=(0, 1)), BYE], {}),
    "no-rank-in-a-case": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), BYE], {}),
    "error": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("ok", "error", "ok"), detail="RuntimeError: no"), BYE], {}),
    "wrong": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("ok", "wrong", "wrong"), detail="read 1 where 2 was due"), BYE], {}),
    "wrong-twice": ([HELLO, PLACEMENT, *_rows(cases=(0,)), *_one(1, ("wrong",) * 3, detail="a"), *_one(2, ("wrong",) * 3, detail="b"), BYE], {}),
    "wrong-as-known": (
        [HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("wrong",) * 3, detail="b"), BYE],
        {"expected": {NAMES[1]: {"gloo": WRONG}}},
    ),
    "right-though-known": (FULL, {"expected": {NAMES[1]: {"gloo": WRONG}, NAMES[2]: {"gloo": REFUSED}}}),
    "refused": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("refused",) * 3, detail="no"), BYE], {}),
    "refused-as-known": (
        [HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("refused",) * 3, detail="no"), BYE],
        {"expected": {NAMES[1]: {"gloo": REFUSED}}},
    ),
    "one-skipped": ([HELLO, PLACEMENT, *_rows(cases=(0, 2)), *_one(1, ("skipped",) * 3, detail="memory: 4 MiB", unmet="memory"), BYE], {}),
    "all-skipped": ([HELLO, PLACEMENT, *_rows(status="skipped", detail="memory: 4 MiB", unmet="memory"), BYE], {}),
    "all-skipped-otherwise": ([HELLO, PLACEMENT, *_rows(status="skipped"), BYE], {}),
    "notes": (
        [
            *FULL[:-1],
            {"event": "row", "run": "collectives", "row": "manifest", "rank": 0, "warnings": {"hostname": [1]}},
            {"event": "row", "run": "collectives", "row": "note", "rank": 2, "detail": "slow"},
            {"event": "row", "run": "collectives", "row": "group", "implementation": "ProcessGroupGloo"},
            {"event": "limits", "findings": [
                {"limit": "shm", "severity": "warning", "message": "small", "fix": "more"},
                {"limit": "nofile", "severity": "error", "message": "few", "fix": "ulimit"}, {"limit": 1}, 4]},
            {"event": "end", "run": "collectives", "exits": LEGS,
             "output": {"0": "x NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n2 nvls channels"}},
            {"event": "bye", "leftover": [1, 2], "seconds": {"import": 1.5}},
        ], {},
    ),
    "rank-ended-badly": ([*FULL, {"event": "end", "run": "collectives", "exits": _exits(r0=0, r1=3)}], {}),
    "halt-at-the-end": ([*FULL, {"event": "halt", "run": "elsewhere", "reason": "deadline"}], {}),
    "step": ([*FULL, _step(0), _step(1)], {"steps": (STEP,)}),
    "step-without-seconds": ([*FULL, *({k: v for k, v in _step(rank).items() if k != "seconds"} for rank in (0, 1))], {"steps": (STEP,)}),
    "step-facts": (
        [*FULL, _step(0, facts={"loss scale": 1}), _step(1, facts={"loss scale": 2})], {"steps": (STEP,)}),
    "step-of-two": (
        [*FULL, {"event": "step", "step": "other", "detail": "no GPU"}, _step(0), _step(1)],
        {"steps": (STEP, Step(name="other", kind="ddp", ranks=2))}),
    "step-reference-of-one-rank": ([*FULL, _step(0, reference=[]), _step(1, reference=[2.0, 1.5, 1.0000001])], {"steps": (STEP,)}),
    "step-reference-differs": ([*FULL, _step(0), _step(1, reference=[2.0, 1.6, 1.0])], {"steps": (STEP,)}),
    "step-not-finite": ([*FULL, _step(0, losses=[]), _step(1, losses=[2.0, 1e999])], {"steps": (STEP,)}),
    "step-does-not-fall": ([*FULL, _step(0), _step(1, losses=[2.0, 1.0, 2.0], reference=[])], {"steps": (STEP,)}),
    "step-parameters-differ": ([*FULL, _step(0, facts={"parameters": "a"}), _step(1, facts={"parameters": "b"})], {"steps": (STEP,)}),
    "step-never-issued": ([*FULL, _step(0, collectives={"broadcast": {"count": 2, "bytes": 1}}), _step(1, collectives={})], {"steps": (STEP,)}),
    "step-not-run": (FULL, {"steps": (STEP,)}),
    "step-left-out": ([*FULL, {"event": "step", "step": "zero", "detail": "no time is left"}], {"steps": (STEP,)}),
    "step-skipped": ([*FULL, _step(0, "skipped", detail="needs a GPU", facts={"gpu": 0}), _step(1, "skipped")], {"steps": (STEP,)}),
    "step-silent": ([*FULL, _step(1)], {"steps": (STEP,)}),
    "step-error": (
        [*FULL, _step(0, "error", stage="import x", in_import=True, detail="ImportError: x", trace="T" * 1000 + "\n" + "t" * 1500),
         _step(1, "error", detail="ValueError: y", trace="other")],
        {"steps": (STEP,)},
    ),
    "step-error-twice-the-same": ([*FULL, _step(0), _step(1, "error", stage="train", detail="ValueError: y")], {"steps": (STEP,)}),
    "step-signal": (
        [*FULL, _step(0, "error", detail="connection reset"),
         _halt("exit", *_at(0, "entered", (0, 1), signature="train"), run="zero", exits=_exits(r1=-11))],
        {"steps": (STEP,)},
    ),
    "step-signals": (
        [*FULL, _halt("exit", *_at(0, "entered", (0, 1), signature=""), run="zero", exits=_exits(r0=-6, r1=-9))],
        {"steps": (STEP,)},
    ),
    "step-late": (
        [*FULL, _halt("deadline", *_at(2, "entered", (0,), signature="train"), *_at(1, "entered", (1,), signature="build"),
                      run="zero", limit=60, stacks={"1": ["f (a.py:1)", "g"], "0": ["h"]})],
        {"steps": (STEP,)},
    ),
    "step-late-both": ([*FULL, _halt("total", *_at(2, "entered", (0, 1), signature=""), run="zero", limit=0.4)], {"steps": (STEP,)}),
    "step-late-nowhere": ([*FULL, _halt("deadline", run="zero", limit=60)], {"steps": (STEP,)}),
    "step-ended": ([*FULL, _halt("exit", run="zero", exits=_exits(r0=3))], {"steps": (STEP,)}),
    "step-ended-in-words": ([*FULL, _halt("exit", run="zero", detail="out of luck")], {"steps": (STEP,)}),
    "quick-core-skipped": (
        [HELLO, PLACEMENT, *(_row(rank, case, "skipped" if case < 5 else "ok", detail=f"memory: {case // 3}", unmet="memory")
                             for case in range(len(quick_cases(3))) for rank in range(3)), BYE],
        {"cases": tuple(quick_cases(3))},
    ),
    "collectives-stopped": ([HELLO, PLACEMENT, *_rows(cases=(0,)), _halt("deadline", *_at(1, "entered", (0, 2)), *_at(1, "prep", (1,)), limit=3), BYE], {}),
    "sick-gpu-without-gpu": ([*FULL[:2], *_rows(status="wrong"), {"event": "health", "before": {"gpus": []}, "after": {"gpus": [], "xids": [[0, 79]]}, "seconds": 1}, BYE], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_run_gives_the_answer_that_was_read(name: str, golden: Golden) -> None:
    events, changes = RUNS[name]

    result = judge(_plan(**changes), json.loads(json.dumps(events)))

    golden(f"verdict/run-{name}.txt", _words(result))


@pytest.mark.parametrize("status", [None, 0, 1, -9])
@pytest.mark.parametrize("words", ["", "one\n  two  \n\n", "x" * 400])
@pytest.mark.parametrize("events", [[], [HELLO], [HELLO, PLACEMENT, _halt("deadline", *_at(0, "prep"), limit=3)]])
def test_agent_that_ended_without_a_verdict_is_a_failure_with_its_last_line(
    status: int | None, words: str, events: list[Any]
) -> None:
    result = judge(_plan(), events, agent_exit=status, words=words)

    how = "had to be ended at the outer deadline" if status is None else f"ended without a verdict (status {status})"
    start = "" if events else " before its first word"
    last = {"": "", "o": ": two", "x": ": " + "x" * 300}[words[:1]]
    assert not result.passed
    assert f"the agent {how}{start}{last}" in result.blame
    assert "the agent ended without a verdict" in result.cause.sentence


DEAD = _halt("exit", *_at(1, "entered"))
HALTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "limits": (_halt("limits", detail="no memory"), []),
    "import": (_halt("import", run="import", detail="no module torch"), []),
    "import-late": (_halt("import", run="import", detail="`import torch` did not end: more than 120 s", code=5), []),
    "import-died": (_halt("import", run="import", detail="torch ended the interpreter", code=6, status=-11), []),
    "configuration": (_halt("configuration", detail="4 ranks, more than 2"), []),
    "interrupted": (_halt("interrupted", detail="SIGINT"), []),
    "store": (_halt("store", *_at(2, "entered", (1, 2)), silent=4.6, owner={"pid": 7, "state": "T"}), []),
    "store-running": (_halt("store", *_at(0, "entered", (2,)), silent=4.4, owner={"pid": 7, "state": "S"}), []),
    "store-ended": (_halt("store", *_at(0, "entered", (2,)), silent=4.4, owner={"pid": 7, "state": "Z"}), []),
    "store-nowhere": (_halt("store", limit=2.4), []),
    "deadline-nowhere": (_halt("deadline", limit=2.6), []),
    "deadline-all": (_halt("deadline", *_at(1, "issued"), limit=3), []),
    "deadline-never-entered": (
        _halt("deadline", *_at(1, "prep", (2,)), *_at(1, "entered", (0, 1)), limit=3, stacks={"2": ["f (a.py:3)"]}), []),
    "deadline-stuck": (_halt("deadline", *_at(1, "issued", (1, 2)), *_at(1, "verified", (0,)), limit=3, unkillable=[1]), []),
    "deadline-behind": (_halt("deadline", *_at(0, "done", (1,)), *_at(1, "entered", (0, 2)), limit=3), []),
    "deadline-after-the-end": (_halt("deadline", *_at(3, "prep"), limit=3), []),
    "deadline-starting": (_halt("deadline", *_at(-3, "prep", (0,)), *_at(-2, "prep", (1, 2)), limit=30), []),
    "deadline-nameless-stage": (_halt("deadline", *_at(-9, "prep"), limit=30), []),
    "deadline-stopped": (_halt("deadline", *_at(1, "entered", (0, 1)), *_at(1, "entered", (2,), state="T"), limit=3), []),
    "deadline-all-stopped": (_halt("deadline", *_at(1, "entered", state="T"), limit=3), []),
    "deadline-others-in-several-steps": (
        _halt("deadline", *_at(1, "prep", (0,)), *_at(1, "synced", (1,)), *_at(1, "done", (2,)), limit=3), []),
    "deadline-three-calls": (
        _halt("deadline", *_at(1, "entered", (0,), signature="min"), *_at(1, "entered", (1,), signature="max"),
              *_at(1, "entered", (2, 3), signature="sum"), limit=3), []),
    "configuration-late": (_halt("configuration", detail="it did not answer"), []),
    "exit-of-another-reason": (_halt("anything", *_at(1, "entered"), limit=3, exits=_exits(r1=-11)), []),
    "raised-before-two-peers": (
        DEAD, [_row(0, 1, "error", detail="timed out"), _row(1, 1, "error", detail="ValueError: x"), _row(2, 1, "error", detail="broken pipe")]),
    "deadline-other-call": (
        _halt("deadline", *_at(1, "entered", (0, 2), signature="sum"), *_at(1, "entered", (1,), signature="max"), limit=3), []),
    "deadline-other-call-not-entered": (
        _halt("deadline", *_at(1, "entered", (0, 2), signature="sum"), *_at(1, "prep", (1,), signature="max"), limit=3), []),
    "died": ({**DEAD, "exits": _exits(r2=-11)}, []),
    "died-of-abort": ({**DEAD, "exits": _exits(r1=-6), "output": {"1": "a\n" + "terminate" * 30}}, []),
    "died-of-abort-silently": ({**DEAD, "exits": _exits(r1=-6), "output": {"1": "  \n"}}, []),
    "died-of-shm": ({**DEAD, "exits": _exits(r0=-7), "shm_bytes": 64 << 20, "shm_free_bytes": (64 << 20) - 1}, []),
    "died-with-shm": ({**DEAD, "exits": _exits(r0=-7), "shm_bytes": 99 << 20, "shm_free_bytes": 64 << 20}, []),
    "died-of-oom": ({**DEAD, "exits": _exits(r0=-9), "oom_kills": 1}, []),
    "died-killed": ({**DEAD, "exits": _exits(r0=-9), "oom_kills": 0}, []),
    "died-before-anything": ({**DEAD, "where": [], "exits": _exits(r1=-11)}, []),
    "died-after-other-call": ({**DEAD, "exits": _exits(r2=-6)}, [_row(0, 1), _row(1, 1, sig="other"), _row(2, 1)]),
    "ended": ({**DEAD, "exits": _exits(r2=3, r1=0)}, []),
    "ended-alone": (_halt("nursery"), []),
    "raised": (DEAD, [_row(1, 1, "error", detail="ValueError: x")]),
    "raised-later-than-peer": (DEAD, [_row(0, 1, "error", detail="Connection reset by peer"), _row(2, 1, "error", detail="ValueError: x")]),
    "raised-all-innocent": (DEAD, [_row(2, 1, "error", detail="timed out"), _row(1, 1, "error", detail="Broken pipe")]),
    "raised-earlier-case": (_halt("exit", *_at(1, "entered", (0, 1)), *_at(0, "raised", (2,))), [_row(0, 1, "error", detail="ValueError: a"), _row(2, 0, "error", detail="ValueError: b")]),
    "raised-at-a-deadline": (_halt("deadline", *_at(1, "entered"), limit=3), [_row(2, 1, "error", detail="ValueError: x")]),
    "raised-other-call": (
        DEAD, [_row(0, 1, "error", detail="size " * 40), _row(1, 1, "error", detail="b", sig="other"), _row(2, 1)]),
    "raised-memory": (DEAD, [_row(1, 1, "error", detail="CUDA out of memory")]),
    "raised-by-nccl": (DEAD, [_row(1, 1, "error", detail="NCCL error: unhandled system error")]),
    "port": (DEAD, [{"event": "row", "run": "collectives", "row": "failed", "rank": 0, "stage": "connecting", "detail": "EADDRINUSE " + "p" * 200}]),
    "failed": (
        DEAD, [{"event": "row", "run": "collectives", "row": "failed", "rank": 0, "stage": "group", "detail": "Connection refused"},
               {"event": "row", "run": "collectives", "row": "failed", "rank": 2, "stage": "store", "detail": "ValueError: z"}]),
    "failed-for-memory": (DEAD, [{"event": "row", "run": "collectives", "row": "failed", "rank": 1, "detail": "No space left on device"}]),
    "manifest": (
        DEAD, [{"event": "row", "run": "collectives", "row": "manifest", "rank": 0, "mismatch": {"torch": [2], "nccl": [1, 2]},
                "values": {"torch": {"0": "2.9", "1": "2.9", "2": "2.8"}, "nccl": {"0": "2.27", "1": "2.26", "2": "2.25"}}}]),
    "manifest-without-values": (DEAD, [{"event": "row", "run": "collectives", "row": "manifest", "rank": 1, "mismatch": {"torch": [1]}}]),
}  # fmt: skip


@pytest.mark.parametrize("name", HALTS)
def test_halt_is_blamed_in_the_words_that_were_read(name: str, golden: Golden) -> None:
    halt, rows = HALTS[name]

    result = judge(_plan(), [HELLO, PLACEMENT, *_rows(cases=(0,)), *rows, halt, BYE])

    golden(f"verdict/halt-{name}.txt", _words(result))


def _told(rank: int, case: int) -> dict[str, Any]:
    where = {"case": case, "step": "entered", "age": 0.1, "signature": f"call {case}", "pid": 100 + rank}
    return {"event": "row", "run": "collectives", "row": "told", "rank": rank, "signal": "SIGTERM", **where}


def _end(*ranks: int) -> dict[str, Any]:
    return {"event": "end", "run": "collectives", "exits": [{"rank": rank, "code": 0} for rank in ranks]}


LAUNCHED: dict[str, list[dict[str, Any]]] = {
    "all-ended": [*_rows(), _end(0), _end(1, 2)],
    "one-silent": [*_rows(cases=(0,)), _row(0, 1), _end(0, 2)],
    "two-silent": [*_rows(cases=(0,)), _row(0, 1), _row(1, 1), _end(0)],
    "silent-and-raised": [*_rows(cases=(0,), ranks=(0, 1)), _row(0, 1, "error", detail="Connection reset " * 20), _end(1)],
    "raised-before-silence": [*_rows(cases=(0,)), _row(1, 1, "error", detail="ValueError: x"), _end(0)],
    "raised-right-after-silence": [_row(2, 0), _row(1, 2, "error", detail="ValueError: x"), _end(0)],
    "raised-long-after-silence": [_row(1, 2, "error", detail="ValueError: x"), _end(0)],
    "told-and-raised": [*_rows(cases=(0,)), _row(1, 1, "error", detail="ValueError: x"), _told(0, 1), _told(2, 1)],
    "told": [*_rows(cases=(0,)), _told(0, 2), _told(1, 1), _end(2)],
    "told-all": [_told(rank, 3) for rank in range(3)],
    "refreshed": [*_rows(cases=(0,)), _row(0, 1), _row(1, 1, "error", detail="timed out"),
                  _halt("deadline", *_at(0, "issued", (0, 1)), *_at(1, "prep", (2,)), limit=3)],
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHED)
def test_launched_ranks_are_blamed_in_the_words_that_were_read(name: str, golden: Golden) -> None:
    hello = {**HELLO, "launcher": "torchrun"}

    result = judge(_plan(), [hello, PLACEMENT, *LAUNCHED[name]])

    golden(f"verdict/launched-{name}.txt", _words(result))
