"""From the agent's events to the result of a smoke test. Pure: tested with recorded events, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from envsmith.agent.protocol import TIME_IS_OVER, Exit
from envsmith.base.json_types import JsonDict
from envsmith.model.record import CaseOutcome, Fault, StepOutcome, Unmet, Verdict
from envsmith.smoke.bandwidth import measurements
from envsmith.smoke.blame import blame_halt, blame_unsupervised
from envsmith.smoke.case_verdict import CODES, held_against_floors, judge_cases
from envsmith.smoke.charge import Charge
from envsmith.smoke.coverage import too_little
from envsmith.smoke.events import Events, ManifestRow
from envsmith.smoke.fault import CELL, Attribution, cause_of
from envsmith.smoke.machine_faults import fault_of, machine_problems
from envsmith.smoke.nccl_text import Transports, transports
from envsmith.smoke.parse_events import parse_events
from envsmith.smoke.places import refreshed
from envsmith.smoke.plan import Plan, Tier
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.step_blame import outcome_of_step
from envsmith.smoke.step_verdict import compare_families

if TYPE_CHECKING:
    from envsmith.smoke.health import LimitFinding

_INCOMPLETE = "some cases or steps were not run, or a rank ended with an error after its last case"
# The parts of a run in which the cases can be stopped.
_OF_CASES = frozenset({"collectives", "import", "placement", "start", ""})


def judge(plan: Plan, events: Iterable[object], *, agent_exit: int | None = 0, words: str = "") -> SmokeResult:
    """Judge a run by what the agent wrote.

    ``agent_exit`` is the agent's own exit status: negative for a signal, ``None`` where we ended it. ``words`` are its
    standard error.
    """
    return judge_events(plan, parse_events(events), agent_exit=agent_exit, words=words)


def judge_events(plan: Plan, log: Events, *, agent_exit: int | None = 0, words: str = "") -> SmokeResult:
    """Judge a run as :func:`judge`, by its events as values."""
    backend = plan.backend if log.placement.backend is None else log.placement.backend
    ranks = plan.ranks if log.placement.ranks is None else log.placement.ranks
    rows = log.rows.of_run("collectives")
    stopped = _stopped(plan, log, ranks)
    cases, charges = judge_cases(plan, rows.cases, backend=backend, ranks=ranks, stopped=stopped)
    measured = measurements(rows.cases, plan.cases, ranks)
    cases, slow, unasked = held_against_floors(plan, cases, measured)
    steps = compare_families(plan.steps, tuple(outcome_of_step(step, log) for step in plan.steps))
    short = too_little(plan, cases, backend, ranks)
    charges = [*([stopped] if stopped else []), *charges, *slow, *([short] if short else [])]
    charges += [_of_step(step) for step in steps if not step.verdict.good]
    code = _code(log, stopped, cases, steps)
    if short and code is Exit.OK:
        code = short.code
    if code is not Exit.OK and not charges:
        charges = [_not_run(code, _INCOMPLETE)]
    differing = _not_the_cell(plan, log)
    if differing:
        code = Exit.CONFIGURATION
        charges.insert(0, _not_run(code, differing))
    if log.bye is None and not log.unsupervised:
        code = stopped.code if stopped else Exit.HANG if agent_exit is None else Exit.CRASH
        charges.insert(0, Charge(sentence=_agent_died(agent_exit, words, log), verdict=Verdict.CRASH, code=code))
    ways = transports(log.output.values())
    health = machine_problems(log, ways, nodes=plan.nodes, ranks=ranks)
    # A sick GPU is not an excuse for a run that used none.
    sick = fault_of(health, code) if backend.startswith("nccl") else ""
    trace = next((str(step.facts.get("trace", "")) for step in steps if not step.verdict.good), "")
    text = trace if log.bye else f"{trace}\n{words}"
    cause = _plain_cause(sick, differing, code)
    cause = cause or cause_of(log, code, charges[0], words=text, backend=backend, ranks=ranks)
    # The other codes, and their sentences, name what of the machine it is already.
    if cause.fault is Fault.HOST and not cause.lasting and (sick or code in {Exit.ERROR, Exit.CRASH, Exit.HANG}):
        code = Exit.HOST
        charges.insert(0, _not_run(code, f"this machine is at fault, not the cell: {cause.sentence}"))
    limits = (*log.limits, *(problem.finding for problem in health))
    placement = log.placement
    return SmokeResult(
        passed=code is Exit.OK,
        exit_code=int(code),
        summary=_summary(plan, cases, steps, charges=charges, backend=backend, placement=placement.sentence),
        backend=backend,
        ranks=ranks,
        placement=placement.sentence,
        place=(placement.place or placement.sentence) + (" (no NVLink)" if placement.is_shared else ""),
        cases=cases,
        steps=steps,
        loaded=_loaded(log, ways),
        host=_host(log),
        seconds=log.bye.seconds if log.bye else {},
        notes=(*_notes(plan, log, cases, backend=backend, limits=limits, ways=ways), *unasked),
        blame=tuple(charge.sentence for charge in charges),
        blamed=charges[0].ranks if charges else (),
        output=log.output,
        tier=plan.tier.value,
        digest=plan.digest,
        bandwidth=measured,
        limits=limits,
        enough=short is None,
        cause=cause,
        cuda=placement.cuda,
    )


def _plain_cause(sick: str, differing: str, code: Exit) -> Attribution | None:
    """Return the cause that needs no look at the events: a sick GPU, another torch than the cell's, or success."""
    if sick:
        return Attribution(fault=Fault.HOST, sentence=sick)
    if differing:
        return Attribution(fault=Fault.UNKNOWN, sentence="what ran is not the cell")
    return CELL if code is Exit.OK else None


def _not_run(code: Exit, sentence: str) -> Charge:
    return Charge(sentence=sentence, verdict=Verdict.NOT_RUN, code=code)


def _stopped(plan: Plan, log: Events, ranks: int) -> Charge | None:
    """Blame somebody for what stopped the cases, if anything did."""
    rows, names = log.rows.of_run("collectives"), [case.id for case in plan.cases]
    halt = next((halt for halt in log.halts if halt.run in _OF_CASES), None)
    if halt:
        return blame_halt(refreshed(halt, rows.cases) if log.unsupervised else halt, rows, names)
    if not log.unsupervised:
        return None
    ended = [end.rank for event in log.ends for end in event.exits]
    return blame_unsupervised(rows, ended, ranks, names)


def _of_step(step: StepOutcome) -> Charge:
    """Charge a step that is not good."""
    quote, exits = (step.failure.quote, step.failure.exits) if step.failure else ("", ())
    return Charge(
        sentence=f"{step.name}: {step.detail}", verdict=step.verdict, code=CODES.get(step.verdict, Exit.ERROR),
        quote=quote, exits=exits,
    )  # fmt: skip


def _code(log: Events, stopped: Charge | None, cases: Sequence[CaseOutcome], steps: Sequence[StepOutcome]) -> Exit:
    """Return the first of: what stopped the run, a bad case, a bad step, what was not run, a rank's own exit."""
    if stopped:
        return stopped.code
    bad = [outcome.verdict for outcome in cases if not outcome.is_known] + [step.verdict for step in steps]
    if code := next((CODES[verdict] for verdict in bad if verdict in CODES), None):
        return code
    missing = any(c.verdict is Verdict.NOT_RUN for c in cases) or any(s.verdict is Verdict.NOT_RUN for s in steps)
    failed = any(exit_.code for end in log.ends for exit_ in end.exits)
    return Exit.ERROR if missing or failed or log.halts else Exit.OK


def _not_the_cell(plan: Plan, log: Events) -> str:
    """Say where the torch that is loaded is not the cell's."""
    loaded, expected = log.loaded.torch, plan.versions.get("torch", "")
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
    started = " before its first word" if log.hello is None else ""
    return f"the agent {ending}{started}" + (f": {last[:300]}" if last else "")


def _summary(
    plan: Plan,
    cases: Sequence[CaseOutcome],
    steps: Sequence[StepOutcome],
    *,
    charges: Sequence[Charge],
    backend: str,
    placement: str,
) -> str:
    if charges:
        return charges[0].sentence + (f" (and {len(charges) - 1} more)" if len(charges) > 1 else "")
    verified = sum(c.verdict is Verdict.PASS for c in cases)
    ran = [s.name for s in steps if s.verdict is Verdict.PASS]
    skipped = [s.name for s in steps if s.verdict is Verdict.SKIPPED]
    parts = []
    if cases:
        units = "measurements made" if plan.tier is Tier.BANDWIDTH else "collective cases verified"
        parts.append(f"{verified} of {len(cases)} {units} on {backend}, {placement}")
    defects = sum(c.verdict is Verdict.WRONG for c in cases)
    if defects:
        parts.append(f"{defects} cases show known defects of the backend")
    if reasons := Counter(_unverified(c, backend) for c in cases if c.verdict in _UNVERIFIED):
        parts.append("not verified: " + ", ".join(f"{count} ({reason})" for reason, count in reasons.most_common()))
    if ran:
        parts.append(f"steps passed: {', '.join(ran)}")
    if skipped:
        parts.append(f"not run here: {', '.join(skipped)}")
    return "; ".join(parts) or f"imported torch {plan.versions.get('torch', '')}"


_UNVERIFIED = (Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNEXPECTED)
_UNMET = {Unmet.TIME: TIME_IS_OVER, Unmet.MEMORY: "memory", Unmet.GPU: "needs a GPU"}


def _unverified(case: CaseOutcome, backend: str) -> str:
    """Return why a case that is not bad was not verified, in words that many cases share."""
    if case.verdict is Verdict.UNSUPPORTED:
        return f"{backend} does not support them, as expected"
    if case.verdict is Verdict.UNEXPECTED:
        return "they work, although the expectations say otherwise"
    return _UNMET[case.unmet] if case.unmet else case.blame or "no reason given"


def _host(log: Events) -> JsonDict:
    health = [event.facts for event in log.healths]
    return {**log.host.facts, **({"health": health} if health else {})}


def _loaded(log: Events, ways: Transports) -> JsonDict:
    loaded = dict(log.loaded.facts)
    if log.rows.groups:
        loaded["backend_implementation"] = log.rows.groups[0].implementation
    return {**loaded, "nccl_transport": ways.to_json()} if ways.to_json() else loaded


def _notes(
    plan: Plan,
    log: Events,
    cases: Sequence[CaseOutcome],
    *,
    backend: str,
    limits: Sequence[LimitFinding],
    ways: Transports,
) -> list[str]:
    """Return what a reader of the record must know although nothing failed."""
    manifest = next((row for row in log.rows.manifests if row.rank == 0), ManifestRow(run="", rank=0))
    notes = [f"ranks {list(ranks)} differ from the others in {key}" for key, ranks in manifest.warnings.items()]
    notes += [f"note: rank {row.rank}: {row.detail}" for row in log.rows.notes]
    defects = sorted({plan.expect(case.case, backend).note or "" for case in cases if case.is_known})
    notes += [f"known defect seen: {note}" for note in defects]
    if backend == "gloo":
        notes.append("NCCL was not run: this run says nothing about GPUs")
    notes += [f"{f.limit}: {f.message} ({f.fix})" for f in limits if f.severity != "error"]
    notes += [ways.sentence] if ways.sentence else []
    if log.dropped:
        notes.append(f"{log.dropped} lines of the agent's output are no events and were left out")
    if log.bye and log.bye.orphans:
        notes.append(f"{log.bye.orphans} helper process(es) outlived their rank and were ended")
    return notes
