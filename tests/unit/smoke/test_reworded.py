"""Words are for people: whatever the messages say, verdict, code, ranks, case and fault stay."""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envsmith import smoke
from envsmith.frameworks.framework import Step
from envsmith.smoke.cases import Case, quick_cases
from envsmith.smoke.expect import Expect, Expectation, Selectors
from envsmith.smoke.failure import failure_of
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.nodes import with_nodes
from envsmith.smoke.parse_events import parse_events
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge_events

SMOKE = Path(__file__).parents[2] / "smoke"
RECORDED = sorted([*(SMOKE / "faults").glob("*.json"), *(SMOKE / "launched").glob("*.json")])
WORDS = [
    "apple",
    "bread",
    "chair",
    "dream",
    "eagle",
    "flute",
    "grape",
    "house",
    "inlet",
    "jelly",
    "kiosk",
    "lemon",
    "maple",
    "nurse",
    "olive",
    "piano",
]
# What the agent writes for people. An error's `detail` quotes torch: it is no message of ours.
MESSAGES = frozenset({"sentence", "place", "stage", "signal", "message", "fix", "limit", "signature", "sig"})
QUOTES = frozenset({"error", "refused"})
# Our sentences in the values that the judge makes: class -> the fields with words.
SENTENCES = {
    "Charge": ("sentence",),
    "Cause": ("sentence",),
    "CaseOutcome": ("blame",),
    "StepOutcome": ("detail",),
    "Problem": ("message", "fix"),
    "replace": ("blame", "detail"),
}
STEP = Step(name="zero", kind="deepspeed-zero", ranks=2, issues=("all_reduce",), native=False)
CASES = tuple(quick_cases(2))
HELLO, HOST, BYE = {"event": "hello"}, {"event": "host", "cpus": 8}, {"event": "bye", "seconds": {}}
PLACEMENT = {"event": "placement", "backend": "gloo", "ranks": 2, "sentence": "2 ranks on the CPU"}
NODES = [{"event": "row", "run": "collectives", "row": "node", "rank": rank, "node": f"n{rank}"} for rank in range(2)]


def _cases(**odd: Any) -> list[dict[str, Any]]:
    """Return all rows of a run in which rank 1 reports something else of case 3."""
    row = {"event": "row", "run": "collectives", "row": "case", "ms": 1.0, "status": "ok"}
    rows = [{**row, "rank": rank, "case": case} for case in range(len(CASES)) for rank in range(2)]
    return [{**one, **odd} if (one["case"], one["rank"]) == (3, 1) else one for one in rows]


def _halt(reason: str, *, run: str = "collectives", where: str = "", **more: Any) -> dict[str, Any]:
    places = [{"rank": rank, "case": 3, "step": "entered", "pid": 7 + rank, "signature": where} for rank in range(2)]
    halt = {"event": "halt", "run": run, "reason": reason, "limit": 3.0, "where": places, "exits": []}
    return {**halt, "detail": "what happened", **more}


def _skipped(detail: str, **more: Any) -> list[dict[str, Any]]:
    return [{**row, "status": "skipped", "detail": detail, **more} for row in _cases()]


def _step(rank: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    row = {"event": "row", "run": "zero", "row": "step", "rank": rank, "status": status, "losses": [2.0, 1.0]}
    return {**row, "collectives": {"all_reduce": {"count": 3, "bytes": 9}}, **more}


def _ended(code: int) -> list[dict[str, int]]:
    return [{"rank": 1, "code": code}]


ROUNDS = Expectation(id="gloo-rounds", when=Selectors(), expect=Expect.WRONG, evidence=(), note="gloo rounds")
KNOWN = {CASES[3].id: {"gloo": ROUNDS}}
ERROR = {"status": "error", "detail": "RuntimeError: Connection reset by peer"}
FULL_DISK = {"status": "error", "detail": "OSError: [Errno 28] No space left on device"}
NO_CUDA = {"detail": "AssertionError: Torch not compiled with CUDA enabled", "stage": "train step 0"}
# What the agent wrote, and what of the plan is not as usual.
RUNS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "passed": (_cases(), {}),
    "wrong": (_cases(status="wrong", detail="read 1 where 2 was due"), {}),
    "wrong-as-known": (_cases(status="wrong", detail="read 1 where 2 was due"), {"expected": KNOWN}),
    "refused": (_cases(status="refused", detail="RuntimeError: no"), {}),
    "raised": ([*_cases(**ERROR), _halt("exit")], {}),
    "disk": ([*_cases(**FULL_DISK), _halt("exit")], {}),
    "silent": ([row for row in _cases() if (row["rank"], row["case"]) != (1, 3)], {}),
    "no-memory": (_skipped("memory: needs 1.0 GiB", unmet="memory"), {}),
    "no-time": (_skipped("the time of this run was over", unmet="time"), {}),
    "no-peer": (_skipped("needs two ranks in the group"), {}),
    "killed": ([_halt("exit", exits=_ended(-signal.SIGKILL))], {}),
    "crashed": ([_halt("exit", exits=_ended(-signal.SIGSEGV))], {}),
    "without-a-word": ([_halt("exit", exits=_ended(6))], {}),
    "stopped": ([_halt("interrupted")], {}),
    "limits": ([_halt("limits", run="placement")], {}),
    "import-failed": ([_halt("import", run="import", detail="ImportError: x", code=2)], {}),
    "import-late": ([_halt("import", run="import", code=5)], {}),
    "import-killed": ([_halt("import", run="import", code=6, status=-signal.SIGKILL)], {}),
    "import-crashed": ([_halt("import", run="import", code=6, status=-signal.SIGSEGV)], {}),
    "no-gpu": ([_halt("configuration", run="placement", lacks_gpu=True, quote="RuntimeError: no driver")], {}),
    "no-nccl": ([_halt("configuration", run="placement")], {}),
    "step-passed": ([*_cases(), _step(0), _step(1)], {"steps": (STEP,)}),
    "step-import": (
        [*_cases(), _step(0, "error", detail="ImportError: x", stage="import deepspeed", in_import=True)],
        {"steps": (STEP,)},
    ),
    "step-raised": (
        [*_cases(), _step(0, "error", detail="ValueError: x", stage="train step 0")], {"steps": (STEP,)},
    ),
    "step-no-cuda": ([*_cases(), _step(0, "error", **NO_CUDA)], {"steps": (STEP,)}),
    "step-late": ([*_cases(), _halt("deadline", run="zero", where="train step 1")], {"steps": (STEP,)}),
    "step-killed": ([*_cases(), _halt("exit", run="zero", exits=_ended(-signal.SIGKILL))], {"steps": (STEP,)}),
    "step-crashed": ([*_cases(), _halt("exit", run="zero", exits=_ended(-signal.SIGSEGV))], {"steps": (STEP,)}),
    "step-launcher": ([*_cases(), _halt("launcher", run="zero", status=1)], {"steps": (STEP,)}),
    "step-no-time": (
        [*_cases(), {"event": "step", "step": "zero", "detail": "7 s of 60 s were left", "unmet": "time"}],
        {"steps": (STEP,)},
    ),
}  # fmt: skip


def _randomly(seed: int) -> Callable[[str], str]:
    """Return what turns a text into random words: the same text always into the same ones, another into others."""

    def reword(text: str) -> str:
        number = random.Random(f"{seed} {text}")
        return " ".join([*number.choices(WORDS, k=6), str(number.randrange(1 << 40))]) if text else text

    return reword


def _reworded(event: Any, reword: Callable[[str], str]) -> Any:
    """Return an event with other words in each message that our own agent wrote."""
    if isinstance(event, list):
        return [_reworded(item, reword) for item in event]
    if not isinstance(event, dict):
        return event
    is_import = event.get("reason") == "import" and event.get("code") not in {5, 6}
    is_quote = event.get("status") in QUOTES or event.get("row") == "failed" or is_import
    said = MESSAGES if is_quote else MESSAGES | {"detail"}
    return {
        key: reword(value) if key in said and isinstance(value, str) else _reworded(value, reword)
        for key, value in event.items()
    }


def _facts(result: SmokeResult) -> dict[str, Any]:
    """Return all that is no sentence."""
    failures = [failure_of(result, reached) for reached in ([], proved_rungs(result))]
    return {
        "passed": (result.passed, result.exit_code, result.enough, result.collectives_good),
        "cases": [(case.case, case.verdict, case.unmet, case.is_known) for case in result.cases],
        "steps": [(step.name, step.verdict, step.unmet) for step in result.steps],
        "ranks": result.blamed,
        "known": (result.known_defects, result.late),
        "cause": (result.cause.fault, result.cause.lasting),
        "rungs": proved_rungs(result),
        "failures": [failure and (failure.rung, failure.of_host, failure.fault) for failure in failures],
        "nodes": (result.nodes, len(result.blame)),
    }


@pytest.fixture
def other_sentences(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Give every value of the judge random sentences from now on."""
    modules = [importlib.import_module(f"envsmith.smoke.{info.name}") for info in pkgutil.iter_modules(smoke.__path__)]

    def begin(seed: int) -> None:
        reword = _randomly(seed)
        for module in modules:
            for name, fields in SENTENCES.items():
                kind = vars(module).get(name)
                if is_dataclass(kind) or kind is replace:
                    monkeypatch.setattr(module, name, _speaking(kind, fields, reword))

    return begin


def _speaking(kind: Any, fields: tuple[str, ...], reword: Callable[[str], str]) -> Callable[..., Any]:
    def make(*values: Any, **members: Any) -> Any:
        return kind(*values, **{k: reword(v) if k in fields and isinstance(v, str) else v for k, v in members.items()})

    return make


def _judged(plan: Plan, events: list[Any], agent_exit: int | None = 0) -> SmokeResult:
    log = parse_events(events)
    return with_nodes(judge_events(plan, log, agent_exit=agent_exit), log)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_fault_is_judged_alike_in_other_words(path: Path, other_sentences: Callable[[int], None]) -> None:
    document = json.loads(path.read_text())
    cases = tuple(Case(**case) for case in document["cases"])
    plan = Plan.build({}, ranks=document["ranks"], backend="gloo", steps=False).with_(cases=cases, expected={})
    before = _facts(_judged(plan, document["events"], document["agent_exit"]))

    other_sentences(1)
    for seed in range(3):
        events = _reworded(document["events"], _randomly(seed))
        assert _facts(_judged(plan, events, document["agent_exit"])) == before


@pytest.mark.parametrize("name", RUNS)
def test_run_is_judged_alike_in_other_words(name: str, other_sentences: Callable[[int], None]) -> None:
    events, changes = RUNS[name]
    events = [HELLO, HOST, PLACEMENT, *NODES, *events, BYE]
    plan = Plan.build({}, ranks=2, backend="gloo", steps=False).with_(cases=CASES, expected={}).with_(**changes)
    before = _judged(plan, events)

    other_sentences(2)
    for seed in range(3):
        after = _judged(plan, _reworded(events, _randomly(seed)))
        assert _facts(after) == _facts(before)
        assert before.passed or after.summary != before.summary


def test_words_of_another_program_count() -> None:
    """The test can fail: what torch says of a full disk is read."""
    plan = Plan.build({}, ranks=2, backend="gloo", steps=False).with_(cases=CASES, expected={})
    events, _ = RUNS["disk"]
    words = [{**event, "detail": "bread"} if event.get("status") == "error" else event for event in events]

    full, other = (_judged(plan, [HELLO, HOST, PLACEMENT, *rows, BYE]) for rows in (events, words))

    assert (full.cause.fault, other.cause.fault) == ("host", "cell")
