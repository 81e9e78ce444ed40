"""A rank: the collective cases, or one step of a framework, whichever program started the process."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from envsmith.agent.cases import OPERATIONS
from envsmith.agent.cases.kit import Kit
from envsmith.agent.counter import flight_entries
from envsmith.agent.faults import altered_case, fault_of_case, inject_before
from envsmith.agent.machine import cuda_probe
from envsmith.agent.protocol import (
    FINISHED,
    NO_GPU,
    Board,
    CaseJson,
    Exit,
    Facts,
    JobJson,
    Log,
    Phase,
    Row,
    Skip,
    Startup,
    Wrong,
    one_line,
)
from envsmith.agent.steps import STEPS
from envsmith.agent.steps.stage import Stage
from envsmith.agent.world import World, agree, free_bytes, implementation_of, open_store

# Begins the file of a rank's stacks, before the name that faulthandler gives to the rank's thread.
STACK_OF = "rank in thread 0x"
# What is worth knowing of an entry of torch's flight recorder.
FLIGHT_KEYS = (
    "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name", "state", "input_sizes", "input_dtypes", "pg_name",
    "process_group",
)  # fmt: skip


def rank_process(job: JobJson, rank: int, board: Board) -> int:
    """Be a rank of a supervised job in this process: its output and its rows go to the job's files."""
    output = os.open(job["output"] % rank, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    log = Log(os.open(job["log"] % rank, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
    job["rank"] = rank
    try:
        return rank_main(job, board, log)
    except BaseException as error:
        log.row("failed", rank=rank, detail=one_line(error), trace=traceback.format_exc()[-3000:])
        return Exit.ERROR
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def rank_main(job: JobJson, board: Board, log: Log) -> int:
    """Run everything that a rank does, and return its exit code."""
    rank = job["rank"]
    board.mark(rank, Startup.START, Phase.PREP)
    # Open until the process ends. A launcher may run us in another thread than the main one: the stack says which.
    stack = open(job["stack"] % rank, "w", buffering=1) if job.get("stack") else sys.stderr  # noqa: SIM115
    if job.get("stack"):
        stack.write(f"{STACK_OF}{threading.get_ident():016x}\n")
    faulthandler.enable(file=stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    os.environ.update(job.get("env", {}))
    os.environ.update(job.get("rank_env", [{}] * (rank + 1))[rank])
    warnings.simplefilter("ignore")
    threading.Thread(target=_evidence, args=(rank, board, log), daemon=True).start()
    return _KINDS[job["kind"]](job, board, log)


def _evidence(rank: int, board: Board, log: Log) -> None:
    """Wait for the supervisor's flag, then write down the last entries of torch's flight recorder."""
    while not board.dump:
        time.sleep(0.05)
    try:
        entries = flight_entries()
        if entries is None:
            return
        recent = [{key: entry[key] for key in FLIGHT_KEYS if key in entry} for entry in entries[-3:]]
        log.row("flight", rank=rank, entries=recent, count=len(entries))
    except Exception as error:
        log.row("flight", rank=rank, detail=one_line(error))


def run_cases(job: JobJson, board: Board, log: Log) -> int:
    """Run the collective cases on one rank. Stop at the first raise that not all share: the group is broken."""
    rank = job["rank"]
    board.mark(rank, Startup.STORE, Phase.PREP)
    try:
        store = open_store(job, board)
        board.mark(rank, Startup.MANIFEST, Phase.PREP)
        same, everyone = agree(job, store, log)
        job["peers"] = [one["own"] for one in everyone]
        if not same:
            return Exit.MISMATCH
        board.mark(rank, Startup.GROUP, Phase.PREP)
        world = World(job, board, log)
        world.store = store
        world.init_group(store)
        board.mark(rank, Startup.SUBGROUPS, Phase.PREP)
        world.open_groups(case.get("group", "world") for case in job["cases"])
        board.mark(rank, Startup.BUDGET, Phase.PREP)
        store.set(f"free/{rank}", str(free_bytes(world)))
        frees = [int(store.get(f"free/{r}")) for r in range(world.size)]
    except Exception as error:
        stage, trace = Startup(board.row(rank)[0]).name.lower(), traceback.format_exc()[-3000:]
        log.row("failed", rank=rank, stage=stage, detail=one_line(error, 600), trace=trace)
        return Exit.ERROR
    if rank == 0:
        log.row("group", implementation=implementation_of(world.dist, world.device), free=frees)
    world.free = min(frees)
    for index, case in enumerate(job["cases"]):
        if index % 8 == 0 or case.get("deadline"):
            world.look_at_time(index)
        if not run_case(world, index, case, frees):
            return Exit.ERROR
    board.mark(rank, FINISHED, Phase.DONE)
    log.row("finished", rank=rank)
    _destroy_group(world.dist, rank, log)
    return Exit.OK


def _destroy_group(dist: Any, rank: int, log: Log) -> None:
    try:
        dist.destroy_process_group()
    except Exception as error:
        log.row("note", rank=rank, detail=f"destroy_process_group: {one_line(error)}")


def run_case(world: World, index: int, case: CaseJson, frees: Sequence[int]) -> bool:
    """Run one case on this rank and write one row. Return false when nothing may follow it."""
    board, rank = world.board, world.rank
    board.sign(rank, "")
    board.mark(rank, index, Phase.PREP)
    started = time.perf_counter()
    row: Row = {"row": "case", "rank": rank, "case": index}
    kit: Kit | None = None
    try:
        fault = fault_of_case(world, index, case)
        kit = Kit(world, index, altered_case(case, fault), fault)
        kit.fit(frees)
        if kit.member:
            if fault:
                inject_before(fault, world)
            OPERATIONS[case["op"]].run(kit)
            kit.guards()
        row["status"] = "ok"
    except Skip as reason:
        row.update(reason.row())
    except Wrong as error:
        row.update(status="wrong", detail=str(error))
    except Exception as error:
        row.update(status="error", detail=one_line(error, 500))
        if kit is not None and _everyone_raised(world, index, kit) and _canary(kit):
            row["status"] = "refused"
        else:
            row["trace"] = traceback.format_exc()[-1500:]
    board.mark(rank, index, Phase.DONE)
    row["ms"] = round((time.perf_counter() - started) * 1000, 3)
    if kit is not None and kit.signature:
        row["sig"] = kit.signature
    if kit is not None and kit.measured:
        row["measured"] = kit.measured
    world.log.write(row)
    return bool(row["status"] != "error")


def _everyone_raised(world: World, index: int, kit: Kit) -> bool:
    """Return whether it was a refusal, not an accident: every member of the group raised within a second."""
    world.board.mark(world.rank, index, Phase.RAISED)
    if world.job.get("direct"):
        return False
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        rows = [world.board.row(rank)[:2] for rank in kit.ranks]
        if all(case > index or (case == index and step in (Phase.RAISED, Phase.DONE)) for case, step in rows):
            return True
        time.sleep(0.002)
    return False


def _canary(k: Kit) -> bool:
    """Check that the group still works after a refusal, or what follows would be its cascade."""
    try:
        probe = k.torch.full((3,), float(k.world.rank + 1), device=k.world.device)
        k.dist.all_reduce(probe, group=k.group)
        k.world.sync()
        return bool((probe.cpu() == sum(rank + 1 for rank in k.ranks)).all())
    except Exception:
        return False


def run_step(job: JobJson, board: Board, log: Log) -> int:
    """Run one framework step on one rank. One row says what came of it."""
    started = time.monotonic()
    stage = Stage(job, board)
    row: Row = {"row": "step", "rank": job["rank"], "step": job["run"]}
    try:
        row.update(status="ok", **STEPS[stage.step["kind"]](stage).row())
    except Skip as reason:
        row.update(reason.row())
    except Exception as error:
        row.update(_stopped(stage, error, board.row(job["rank"])[3]))
    row["seconds"] = round(time.monotonic() - started, 3)
    row["collectives"] = stage.counter.counts()
    recorded = stage.counter.recorded() if row["status"] == "ok" else None
    if recorded:
        row["recorded"] = recorded
    log.write(row)
    dist = sys.modules["torch"].distributed
    if row["status"] == "ok" and stage.ends_group and dist.is_initialized():
        stage.enter("destroy_process_group")
        _destroy_group(dist, job["rank"], log)
    board.mark(job["rank"], FINISHED, Phase.DONE)
    return Exit.OK if row["status"] != "error" else Exit.ERROR


def _ask_cuda(_job: JobJson, _board: Board, log: Log) -> int:
    log.write({"cuda": cuda_probe()})
    return Exit.OK


_KINDS = {"collectives": run_cases, "step": run_step, "cuda-probe": _ask_cuda}


def _stopped(stage: Stage, error: Exception, doing: str) -> Facts:
    """Judge a raise: this machine has no GPU, where the step knows such words, or the step failed.

    Either way with the innermost line outside of the standard library (and of torch, where there is one): a record
    names the code.
    """
    gpu_words, trace = str(stage.step.get("stops_with") or ""), traceback.format_exc()[-4000:]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages/" in frame.filename]
    places = [f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}" for frame in frames]
    place = next((p for p in reversed(places) if not p.startswith("torch/")), places[-1] if places else "")
    if not gpu_words or stage.cuda or not re.search(gpu_words, f"{type(error).__name__}: {error}"):
        raised = {"status": "error", "detail": one_line(error, 600), "trace": trace, "stage": doing}
        return {**raised, "in_import": stage.in_import}
    facts = {"needs a GPU": {"error": one_line(error), "at": place, "while": doing}}
    return {**Skip(f"needs a GPU: {one_line(error, 160)} ({place})", NO_GPU).row(), "facts": facts}
