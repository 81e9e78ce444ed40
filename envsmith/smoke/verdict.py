"""From the agent's events to the result of a smoke test. Pure: tested with recorded events, without torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envsmith.agent.processes import fell
from envsmith.agent.protocol import TIME_IS_OVER, Exit
from envsmith.frameworks.framework import Step
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import CaseOutcome, Failure, Fault, Rung, StepOutcome, Verdict
from envsmith.smoke.bandwidth import PREFIX, Measurement, measurements
from envsmith.smoke.bandwidth_floors import below
from envsmith.smoke.blame_sentence import (
    Blame,
    blame_halt,
    blame_unsupervised,
    blame_wrong,
    first_fallen,
    refreshed,
    transport_sentence,
    transports,
)
from envsmith.smoke.cases import RARE, can_run, quick_cases
from envsmith.smoke.events import Events
from envsmith.smoke.expect import Expect
from envsmith.smoke.fault import Cause, cause_of, lacking
from envsmith.smoke.machine_faults import fault_of, machine_problems
from envsmith.smoke.plan import Plan, Tier
from envsmith.smoke.step_verdict import compare_families, judge_step, words_of_framework

_BAD = {
    Verdict.WRONG: Exit.WRONG,
    Verdict.REGRESSED: Exit.REGRESSED,
    Verdict.HANG: Exit.HANG,
    Verdict.CRASH: Exit.CRASH,
    Verdict.ERROR: Exit.ERROR,
    Verdict.BELOW_FLOOR: Exit.SLOW,
}


_CELL = Cause(fault=Fault.CELL)
# How Python names an exception at the end of a traceback.
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception): ")


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeResult:
    """What became of a smoke test.

    ``exit_code`` is a :class:`~envsmith.agent.protocol.Exit`; ``summary`` one sentence; ``placement`` where the
    ranks were; ``loaded`` versions as loaded in the cell; ``host`` the machine; ``seconds`` durations by phase;
    ``blame`` every problem; ``output`` the last words of ranks; ``limits`` what of the machine is too small: ``{limit,
    severity, message, fix}``, looked at before a rank was started; ``enough`` is false when so much was skipped that
    the run says nothing about the cell (:func:`~envsmith.smoke.verdict.too_little`): it has not passed then. ``cuda``
    is what CUDA said when it was started: ``{available, count, free, arch, error}``, empty where it was not asked.
    ``cause`` says whose fault it is where the run did not pass.
    """

    passed: bool
    exit_code: int
    summary: str
    backend: str = ""
    ranks: int = 0
    placement: str = ""
    cases: tuple[CaseOutcome, ...] = ()
    steps: tuple[StepOutcome, ...] = ()
    loaded: Mapping[str, object] = field(default_factory=dict)
    host: Mapping[str, object] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()
    output: Mapping[str, str] = field(default_factory=dict)
    tier: str = ""
    digest: str = ""
    bandwidth: tuple[Measurement, ...] = ()
    limits: tuple[Mapping[str, str], ...] = ()
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    narrowed: Mapping[str, object] = field(default_factory=dict)
    enough: bool = True
    cuda: Mapping[str, object] = field(default_factory=dict)
    cause: Cause = _CELL

    @property
    def host_fault(self) -> str:
        """Return what of the machine is to blame that the run did not pass, or an empty text."""
        return self.cause.sentence if self.cause.fault is Fault.HOST else ""

    @property
    def known_defects(self) -> tuple[str, ...]:
        """Return the cases that are wrong as ``matrix/collectives.yaml`` says: they do not speak against the cell."""
        return tuple(
            case.case for case in self.cases if case.verdict is Verdict.WRONG and " -- known: " in (case.blame or "")
        )

    @property
    def collectives_good(self) -> bool:
        """Return whether enough cases ran and none but the known defects is bad."""
        defects = set(self.known_defects)
        return (
            bool(self.cases) and self.enough and all(case.verdict.good or case.case in defects for case in self.cases)
        )

    @property
    def late(self) -> tuple[str, ...]:
        """Return the cases for which the run had no time."""
        return tuple(case.case for case in self.cases if case.blame == TIME_IS_OVER)

    def counts(self) -> dict[str, int]:
        """Count the cases of each verdict."""
        return dict(Counter(case.verdict.value for case in self.cases))

    def to_json(self) -> dict[str, object]:
        """Return everything, for ``envsmith smoke --json``."""
        return {
            "passed": self.passed,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "tier": self.tier,
            "digest": self.digest,
            "backend": self.backend,
            "ranks": self.ranks,
            "placement": self.placement,
            "counts": self.counts(),
            "cases": [
                {"case": c.case, "verdict": c.verdict.value, "seconds": c.seconds, "blame": c.blame} for c in self.cases
            ],
            "steps": [
                {"name": s.name, "verdict": s.verdict.value, "seconds": s.seconds, "detail": s.detail}
                | {"facts": dict(s.facts)}
                for s in self.steps
            ],
            "loaded": dict(self.loaded),
            "host": dict(self.host),
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
            "limits": [dict(finding) for finding in self.limits],
            "host_fault": self.host_fault,
            "fault": None if self.passed else self.cause.fault.value,
            "blame": list(self.blame),
            "output": dict(self.output),
            **({"bandwidth": [m.to_json() for m in self.bandwidth]} if self.bandwidth else {}),
            **({"nodes": {node: list(ranks) for node, ranks in self.nodes.items()}} if self.nodes else {}),
            **({"narrowed": dict(self.narrowed)} if self.narrowed else {}),
        }


def judge(plan: Plan, events: Iterable[object], *, agent_exit: int | None = 0, words: str = "") -> SmokeResult:
    """Judge a run.

    ``agent_exit`` is the agent's own exit status: negative for a signal, ``None`` where we ended it. ``words`` are its
    standard error.
    """
    log = Events.parse(events)
    names = [case.id for case in plan.cases]
    backend = str(log.single.get("placement", {}).get("backend", plan.backend))
    halt = next((h for h in log.halts if h.get("run") in {"collectives", "import", "placement", "start", ""}), None)
    blame = _blame(plan, log, halt, names)
    cases, wrong = _cases(plan, log, backend, blame)
    measured = measurements(log.of_run("collectives"), plan.cases, _world(plan, log))
    cases, slow, unasked = _held_against_floors(plan, cases, measured)
    wrong += slow
    steps = compare_families(plan.steps, tuple(_step(step, log) for step in plan.steps))
    ranks = _world(plan, log)
    short = too_little(plan, cases, backend, ranks)
    problems = [*([blame.sentence] if blame else []), *wrong, *([short.sentence] if short else [])]
    problems += [f"{step.name}: {step.detail}" for step in steps if not step.verdict.good]
    code = _code(plan, log, blame=blame, cases=cases, steps=steps, backend=backend)
    if short and code is Exit.OK:
        code = Exit.MEMORY if short.memory else Exit.ERROR
    if code is not Exit.OK and not problems:
        problems = ["some cases or steps were not run, or a rank ended with an error after its last case"]
    differing = _not_the_cell(plan, log)
    if differing:
        problems, code = [differing, *problems], Exit.CONFIGURATION
    if "bye" not in log.single and "end" not in {h.get("reason") for h in log.halts} and not log.unsupervised:
        problems.insert(0, _agent_died(agent_exit, words, log))
        code = blame.code if blame else Exit.HANG if agent_exit is None else Exit.CRASH
    health = machine_problems(log, transports("\n".join(_outputs(log).values())), nodes=plan.nodes, ranks=ranks)
    # A sick GPU is not an excuse for a run that used none.
    sick = fault_of(health, code) if backend.startswith("nccl") else ""
    if sick:
        cause = Cause(fault=Fault.HOST, sentence=sick)
    elif differing:
        cause = Cause(fault=Fault.UNKNOWN, sentence="what ran is not the cell")
    elif code is Exit.OK:
        cause = _CELL
    else:
        trace = next((str(step.facts.get("trace", "")) for step in steps if not step.verdict.good), "")
        text = "\n".join([*problems[:1], trace, "" if "bye" in log.single else words])
        cause = cause_of(log, code, text, backend=backend, ranks=ranks)
    # The other codes, and their sentences, name what of the machine it is already.
    if cause.fault is Fault.HOST and not cause.lasting and (sick or code in {Exit.ERROR, Exit.CRASH, Exit.HANG}):
        problems, code = [f"this machine is at fault, not the cell: {cause.sentence}", *problems], Exit.HOST
    limits = (*limits_of(log), *(problem.row() for problem in health))
    placement = log.single.get("placement", {})
    return SmokeResult(
        passed=code is Exit.OK,
        exit_code=int(code),
        summary=_summary(plan, cases, steps, problems=problems, placement=placement),
        backend=backend,
        ranks=ranks,
        placement=str(placement.get("sentence", "")),
        cases=cases,
        steps=steps,
        loaded=_loaded(log),
        host=_host(log),
        seconds={str(k): float(v) for k, v in log.single.get("bye", {}).get("seconds", {}).items()},
        notes=(*_notes(plan, log, cases, backend, limits), *unasked),
        blame=tuple(problems),
        output=_outputs(log),
        tier=plan.tier.value,
        digest=plan.digest,
        bandwidth=measured,
        limits=limits,
        enough=short is None,
        cause=cause,
        cuda=placement["cuda"] if isinstance(placement.get("cuda"), dict) else {},
    )


def limits_of(log: Events) -> tuple[Mapping[str, str], ...]:
    """Return the agent's findings about the machine. What does not look like one is left out."""
    keys = ("limit", "severity", "message", "fix")
    rows = log.single.get("limits", {}).get("findings")
    return tuple(
        {key: row[key] for key in keys}
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and all(isinstance(row.get(key), str) for key in keys)
    )


def _world(plan: Plan, log: Events) -> int:
    return int(log.single.get("placement", {}).get("ranks", plan.ranks))


def _held_against_floors(
    plan: Plan, cases: tuple[CaseOutcome, ...], measured: Sequence[Measurement]
) -> tuple[tuple[CaseOutcome, ...], list[str], list[str]]:
    """Mark the cases below a floor. Return them, and a sentence for each floor missed, and for each not asked."""
    short = below(plan.floors, measured, nodes=plan.nodes)
    outcomes = list(cases)
    for item in (s for s in short if s.missed):
        for index, case in enumerate(plan.cases):
            inside = 0.99 * item.floor.min_bytes <= case.n * 4 <= item.floor.max_bytes
            if case.op == PREFIX + item.floor.op and inside and outcomes[index].verdict is Verdict.PASS:
                outcomes[index] = replace(outcomes[index], verdict=Verdict.BELOW_FLOOR, blame=item.sentence)
    return tuple(outcomes), [s.sentence for s in short if s.missed], [s.sentence for s in short if not s.missed]


def _blame(plan: Plan, log: Events, halt: Mapping[str, Any] | None, names: Sequence[str]) -> Blame | None:
    """Blame somebody for what stopped the cases, if anything did."""
    rows = log.of_run("collectives")
    if not log.unsupervised:
        return blame_halt(halt, rows, names) if halt else None
    if halt:
        return blame_halt(refreshed(halt, rows), rows, names)
    ended = [int(e["rank"]) for end in log.ends for e in end.get("exits", ())]
    return blame_unsupervised(rows, ended, _world(plan, log), names)


# -- cases ------------------------------------------------------------------------------------------------------------


def _cases(plan: Plan, log: Events, backend: str, blame: Blame | None) -> tuple[tuple[CaseOutcome, ...], list[str]]:
    by_case: dict[int, list[Mapping[str, Any]]] = {}
    for row in log.of_run("collectives"):
        if row.get("row") == "case" and isinstance(row.get("case"), int):
            by_case.setdefault(row["case"], []).append(row)
    ranks = _world(plan, log)
    outcomes, sentences = [], []
    lacking: Counter[int] = Counter()
    for index, case in enumerate(plan.cases):
        rows = by_case.get(index, [])
        seconds = max((float(r.get("ms", 0)) / 1000 for r in rows), default=None)
        if blame and blame.case == index:
            outcomes.append(CaseOutcome(case=case.id, verdict=blame.verdict, seconds=seconds, blame=blame.sentence))
            continue
        silent = sorted(set(range(ranks)) - {row["rank"] for row in rows})
        if silent and (blame or not rows):
            outcomes.append(CaseOutcome(case=case.id, verdict=Verdict.NOT_RUN))
            continue
        if silent:
            lacking.update(silent)
            reason = f"{ranks_text(silent, 'r')} reported nothing"
            outcomes.append(CaseOutcome(case=case.id, verdict=Verdict.ERROR, seconds=seconds, blame=reason))
            continue
        line = plan.expect(case.id, backend)
        expected = str(line["expect"])
        verdict, text = _combine(case.id, index, rows, expected, line)
        if verdict in _BAD and text and not (verdict is Verdict.WRONG and expected == Expect.WRONG):
            sentences.append(text)
        outcomes.append(CaseOutcome(case=case.id, verdict=verdict, seconds=seconds, blame=text))
    if lacking:
        (rank, count), total = lacking.most_common(1)[0], len(plan.cases)
        addition = f" (and some of {len(lacking) - 1} more ranks)" if len(lacking) > 1 else ""
        sentences.insert(0, f"{count} of the {total} results of rank {rank}{addition} are missing")
    return tuple(outcomes), sentences


def _combine(
    name: str, index: int, rows: Sequence[Mapping[str, Any]], expected: str, line: Mapping[str, object]
) -> tuple[Verdict, str | None]:
    """Judge a case by every rank's status and the expectation."""
    statuses = {str(row.get("status")) for row in rows}
    detail = next((str(row["detail"]) for row in rows if row.get("detail")), "")
    if "error" in statuses:
        return Verdict.ERROR, f"case {index} {name}: {detail}"
    if "wrong" in statuses:
        sentence = blame_wrong(name, index, rows)
        note = f" -- known: {line.get('note', '')} ({line.get('line')})" if expected == Expect.WRONG else ""
        return Verdict.WRONG, sentence + note
    if "refused" in statuses:
        if expected == Expect.OK:
            return Verdict.REGRESSED, f"case {index} {name} is refused, but should work: {detail}"
        return Verdict.UNSUPPORTED, None
    if "skipped" in statuses:
        return Verdict.SKIPPED, detail
    if expected in {Expect.REFUSED, Expect.WRONG}:
        return Verdict.UNEXPECTED, f"works, although {line.get('line')} says {expected}"
    return Verdict.PASS, None


# -- steps ------------------------------------------------------------------------------------------------------------


def _step(step: Step, log: Events) -> StepOutcome:
    name, ranks = step.name, step.ranks
    note = next((s for s in log.steps if s.get("step") == name), None)
    if note is not None:
        return StepOutcome(name=name, verdict=Verdict.SKIPPED, detail=str(note.get("detail", "")))
    rows = sorted((r for r in log.of_run(name) if r.get("row") == "step"), key=lambda r: int(r["rank"]))
    seconds = max((float(r.get("seconds", 0)) for r in rows), default=None)
    halt = next((h for h in log.halts if h.get("run") == name), None)
    errors = [r for r in rows if r.get("status") == "error"]
    if halt and any(fell(e.get("code")) for e in halt.get("exits", ())):
        errors = []  # a signal comes before what the others say about it
    if errors:
        first, *further = dict.fromkeys(
            f"rank {r['rank']} in {r.get('stage') or 'the step'}: {r.get('detail')}" for r in errors
        )
        text = "; ".join([first + words_of_framework(first), *further])
        trace = {"trace": str(errors[0].get("trace", ""))[-2000:]}
        return StepOutcome(name=name, verdict=Verdict.ERROR, seconds=seconds, detail=text, facts=trace)
    if halt:
        issued = {
            int(r["rank"]): int(r["count"]) for r in log.of_run(name) if r.get("row") == "flight" and "count" in r
        }
        blame = _blame_step(halt, issued)
        return StepOutcome(name=name, verdict=blame.verdict, seconds=seconds, detail=blame.sentence)
    if not rows:
        return StepOutcome(name=name, verdict=Verdict.NOT_RUN, detail="the run ended before this step")
    skipped = [r for r in rows if r.get("status") == "skipped"]
    if skipped:
        text, facts = str(skipped[0].get("detail", "")), dict(skipped[0].get("facts", {}))
        return StepOutcome(name=name, verdict=Verdict.SKIPPED, seconds=seconds, detail=text, facts=facts)
    if silent := sorted(set(range(ranks)) - {row["rank"] for row in rows}):
        text = f"{ranks_text(silent, 'r')} of {ranks} reported nothing"
        return StepOutcome(name=name, verdict=Verdict.CRASH, seconds=seconds, detail=text)
    return judge_step(step, rows, seconds)


def _blame_step(halt: Mapping[str, Any], issued: Mapping[int, int]) -> Blame:
    """Blame a rank in a step. There the signature is the stage in words, and ranks may stand in different ones.

    ``issued`` are the collectives that torch's flight recorder counted on each rank: of ranks that are late in the same
    stage, those with the fewest keep the others waiting.
    """
    where = [w for w in halt.get("where", ()) if isinstance(w, Mapping)]
    dead = {
        int(e["rank"]): int(e["code"] or 0)
        for e in halt.get("exits", ())
        if isinstance(e, Mapping) and fell(e.get("code"))
    }
    stage = {int(w["rank"]): str(w.get("signature") or "start") for w in where}
    if dead:
        rank = first_fallen(halt, dead)
        plain = blame_halt({**halt, "where": [{**w, "signature": ""} for w in where]}, (), ())
        sentence = f"{plain.sentence.split(' in ')[0]} in {stage.get(rank, 'the step')}"
        return Blame(sentence=sentence, verdict=Verdict.CRASH, code=plain.code)
    if halt.get("reason") in {"deadline", "total"}:
        behind = min(int(w["case"]) for w in where) if where else 0
        together = [int(w["rank"]) for w in where if int(w["case"]) == behind]
        late, counted = _fewest(together, issued)
        at = stage.get(late[0], "start") if late else "start"
        names = ", ".join(map(str, late))
        stacks = halt.get("stacks", {})
        frames = "; ".join(f"rank {rank} in {stacks[str(rank)][0]}" for rank in late if str(rank) in stacks)
        sentence = f"no end after {float(halt.get('limit') or 0):.0f} s: rank {names} still in {at!r}"
        sentence += (f" ({frames})" if frames else "") + counted
        sentence += _last_words(halt) if at == "start" else ""
        return Blame(sentence=sentence, verdict=Verdict.HANG, code=Exit.HANG)
    sentence = str(halt.get("detail") or f"ended: {halt.get('exits')}") + _last_words(halt)
    return Blame(sentence=sentence, verdict=Verdict.ERROR, code=Exit.ERROR)


def _fewest(ranks: Sequence[int], issued: Mapping[int, int]) -> tuple[list[int], str]:
    """Return the ranks that issued fewer collectives than others among them, and the words. All where none did."""
    counts = {rank: issued[rank] for rank in ranks if rank in issued}
    if len(counts) < len(ranks) or len(set(counts.values())) < 2:
        return list(ranks), ""
    least, most = min(counts.values()), max(counts.values())
    return [rank for rank in ranks if counts[rank] == least], f"; {least} collectives issued, others have {most}"


def _last_words(halt: Mapping[str, Any]) -> str:
    """Return the first exception that the launcher of the ranks wrote, which may know why, or else its last line."""
    lines = str((halt.get("launcher") or {}).get("words", "")).strip().splitlines()
    line = next((line for line in lines if _EXCEPTION.match(line)), lines[-1] if lines else "").strip()
    return f"; the launcher wrote: {line[:300]}" if line else ""


# -- the whole --------------------------------------------------------------------------------------------------------


def _code(
    plan: Plan,
    log: Events,
    *,
    blame: Blame | None,
    cases: Sequence[CaseOutcome],
    steps: Sequence[StepOutcome],
    backend: str,
) -> Exit:
    """Return the first of: what stopped the run, a bad case, a bad step, what was not run, a rank's own exit."""
    if blame:
        return blame.code
    for outcome in cases:
        expected = plan.expect(outcome.case, backend)["expect"] == Expect.WRONG
        if outcome.verdict in _BAD and not (outcome.verdict is Verdict.WRONG and expected):
            return _BAD[outcome.verdict]
    for step in steps:
        if step.verdict in _BAD:
            return _BAD[step.verdict]
    missing = any(c.verdict is Verdict.NOT_RUN for c in cases) or any(s.verdict is Verdict.NOT_RUN for s in steps)
    failed = any(e.get("code") for end in log.ends for e in end.get("exits", ()))
    return Exit.ERROR if missing or failed or log.halts else Exit.OK


def _not_the_cell(plan: Plan, log: Events) -> str:
    """Say where the torch that is loaded is not the cell's."""
    loaded, expected = str(log.single.get("loaded", {}).get("torch", "")), plan.versions.get("torch", "")
    if not loaded or not expected:
        return ""
    (base, _, local), (wanted_base, _, wanted_local) = loaded.partition("+"), expected.partition("+")
    if base == wanted_base and (not local or not wanted_local or local == wanted_local):
        return ""
    return f"the cell says torch {expected}, but {loaded} is loaded"


def _agent_died(agent_exit: int | None, words: str, log: Events) -> str:
    last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    ending = (
        "had to be ended at the outer deadline"
        if agent_exit is None
        else f"ended without a verdict (status {agent_exit})"
    )
    started = "" if log.single else " before its first word"
    return f"the agent {ending}{started}" + (f": {last[:300]}" if last else "")


def _summary(
    plan: Plan,
    cases: Sequence[CaseOutcome],
    steps: Sequence[StepOutcome],
    *,
    problems: Sequence[str],
    placement: Mapping[str, Any],
) -> str:
    if problems:
        return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    verified = sum(c.verdict is Verdict.PASS for c in cases)
    ran = [s.name for s in steps if s.verdict is Verdict.PASS]
    skipped = [s.name for s in steps if s.verdict is Verdict.SKIPPED]
    parts = []
    if cases:
        units = "measurements made" if plan.tier is Tier.BANDWIDTH else "collective cases verified"
        place = f"{placement.get('backend')}, {placement.get('sentence', '')}"
        parts.append(f"{verified} of {len(cases)} {units} on {place}")
    defects = sum(c.verdict is Verdict.WRONG for c in cases)
    if defects:
        parts.append(f"{defects} cases show known defects of the backend")
    if reasons := Counter(_unverified(c, str(placement.get("backend"))) for c in cases if c.verdict in _UNVERIFIED):
        parts.append("not verified: " + ", ".join(f"{count} ({reason})" for reason, count in reasons.most_common()))
    if ran:
        parts.append(f"steps passed: {', '.join(ran)}")
    if skipped:
        parts.append(f"not run here: {', '.join(skipped)}")
    return "; ".join(parts) or f"imported torch {plan.versions.get('torch', '')}"


_UNVERIFIED = (Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNEXPECTED)


def _unverified(case: CaseOutcome, backend: str) -> str:
    """Return why a case that is not bad was not verified, in words that many cases share."""
    if case.verdict is Verdict.UNSUPPORTED:
        return f"{backend} does not support them, as expected"
    if case.verdict is Verdict.UNEXPECTED:
        return "they work, although the expectations say otherwise"
    return (case.blame or "no reason given").partition(":")[0]


def _without_event(event: Mapping[str, Any]) -> dict[str, object]:
    return {key: value for key, value in event.items() if key != "event"}


def _host(log: Events) -> dict[str, object]:
    health = [_without_event(event) for event in log.healths]
    return _without_event(log.single.get("host", {})) | ({"health": health} if health else {})


def _loaded(log: Events) -> dict[str, object]:
    loaded = _without_event(log.single.get("loaded", {}))
    group = next((r for r in log.rows if r.get("row") == "group"), None)
    if group:
        loaded["backend_implementation"] = group.get("implementation")
    facts = transport_sentence(_outputs(log).values())[1]
    return {**loaded, "nccl_transport": dict(facts)} if facts else loaded


def _outputs(log: Events) -> dict[str, str]:
    texts: dict[str, str] = {}
    for event in (*log.halts, *log.ends):
        for rank, text in (event.get("output") or {}).items():
            texts[f"{event.get('run')} rank {rank}"] = str(text)
    return texts


def _notes(
    plan: Plan, log: Events, cases: Sequence[CaseOutcome], backend: str, limits: Sequence[Mapping[str, str]]
) -> list[str]:
    """Return what a reader of the record must know although nothing failed."""
    notes = []
    manifest = next((r for r in log.rows if r.get("row") == "manifest" and r.get("rank") == 0), None)
    for key, ranks in (manifest or {}).get("warnings", {}).items():
        notes.append(f"ranks {ranks} differ from the others in {key}")
    notes += [f"{r.get('row')}: rank {r.get('rank')}: {r.get('detail')}" for r in log.rows if r.get("row") == "note"]
    defects = sorted(
        {
            str(plan.expect(c.case, backend).get("note"))
            for c in cases
            if c.verdict is Verdict.WRONG and plan.expect(c.case, backend)["expect"] == Expect.WRONG
        }
    )
    notes += [f"known defect seen: {note}" for note in defects]
    if backend == "gloo":
        notes.append("NCCL was not run: this run says nothing about GPUs")
    notes += [f"{f['limit']}: {f['message']} ({f['fix']})" for f in limits if f["severity"] != "error"]
    transport = transport_sentence(_outputs(log).values())[0]
    notes += [transport] if transport else []
    if log.dropped:
        notes.append(f"{log.dropped} lines of the agent's output are no events and were left out")
    leftover = log.single.get("bye", {}).get("leftover")
    if leftover:
        notes.append(f"{len(leftover)} helper process(es) outlived their rank and were ended")
    return notes


# -- enough to speak for a cell: nothing that was skipped may make it pass ---------------------------------------------


# What torch 2.0, the oldest that the agent runs on, need not have: a newer one that lacks them is recognised by its
# expectations, not here.
_YOUNG = ("functional_", "coalesced", "bytes_all_gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class Short:
    """``sentence`` says how much of what had to be verified was; ``memory`` when most of the rest had no room."""

    sentence: str
    memory: bool


def core(plan: Plan, backend: str, ranks: int) -> frozenset[str]:
    """Return the cases of the plan that every cell must verify, on whatever machine.

    They are those of the quick tier for this many ranks (some kilobytes each, so that no machine is too small) that the
    expectations say work on this backend, that so many ranks can run at all, and that need neither a certain GPU nor a
    torch younger than 2.0. What lies beyond (gigabytes, fp8, CUDA graphs) may be skipped.
    """
    return frozenset(
        case.id
        for case in set(quick_cases(ranks)) & set(plan.cases)
        if can_run(case, ranks)
        and case.dtype not in RARE
        and not case.op.startswith(_YOUNG)
        and _works(plan.expect(case.id, backend))
    )


def _works(line: Mapping[str, object]) -> bool:
    return line["expect"] == Expect.OK and not line.get("min_sm")


def too_little(plan: Plan, cases: Sequence[CaseOutcome], backend: str, ranks: int) -> Short | None:
    """Say what a run lacks that skipped some of its core, or everything. ``None`` means that it verified enough.

    Cases that failed or were not run are not judged here.
    """
    must = core(plan, backend, ranks)
    skipped = [case for case in cases if case.verdict is Verdict.SKIPPED]
    lacking = [case for case in skipped if case.case in must]
    if not lacking and not (cases and len(skipped) == len(cases)):
        return None
    reason, _ = Counter(case.blame or "no reason given" for case in lacking or skipped).most_common(1)[0]
    extent = (
        f"{len(lacking)} of the {len(must)} collective cases that every machine can run were skipped"
        if lacking
        else f"all {len(cases)} cases were skipped"
    )
    return Short(
        sentence=f"too little was verified: {extent}, most of them with: {reason}", memory=reason.startswith("memory:")
    )


# -- why it failed, in the words that a user would search for, and at which rung of the ladder -------------------------


def failure_of(result: SmokeResult, reached: Sequence[Rung]) -> Failure | None:
    """Return the rung at which a smoke test ended, or nothing where it passed.

    A framework that cannot be imported is found in its step, but fails the rung `imported`.
    """
    if result.passed:
        return None
    bad = next((s for s in result.steps if not s.verdict.good and s.verdict is not Verdict.NOT_RUN), None)
    gpu = result.backend.startswith("nccl")
    rung = Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU
    if Rung.IMPORTED not in reached or (bad and " in import " in bad.detail):
        rung = Rung.IMPORTED
    elif not result.collectives_good:
        rung = Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU
    trace = str(bad.facts.get("trace", "")).splitlines() if bad else []
    output = [line for text in result.output.values() for line in text.splitlines()]
    symptom = (
        first_rank(bad.detail) if bad and rung not in {Rung.COLLECTIVES_CPU, Rung.COLLECTIVES_GPU} else result.summary
    )
    fault = None if result.cause.fault is Fault.CELL else result.cause.fault
    if lacking("\n".join([symptom, *trace]), result.backend):
        fault = Fault.HOST
    return Failure(rung=rung, symptom=symptom, log=tuple(trace or output), of_host=bool(fault), fault=fault)


def first_rank(detail: str) -> str:
    """Return what the first rank said, without its number: ``ImportError: …``."""
    match = re.match(r"rank \d+ in [^:]*: (.*?)(?:; rank \d+ in .*)?$", detail, re.DOTALL)
    return match[1] if match else detail
