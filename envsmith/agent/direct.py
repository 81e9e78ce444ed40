"""One rank that torchrun, srun or mpirun started. It watches itself and, on rank 0, the others."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from envsmith.agent.health import HealthWatch
from envsmith.agent.launchers import LaunchPlace, interface_towards, node_name
from envsmith.agent.machine import host_facts, loaded_facts
from envsmith.agent.nccl_log import evidence_of, log_in_memory
from envsmith.agent.placement import evidence_env, place_direct
from envsmith.agent.processes import process_space, process_started, process_state
from envsmith.agent.protocol import (
    FINISHED,
    PROTOCOL,
    Board,
    Exit,
    JobJson,
    KeepingLog,
    Log,
    Phase,
    PlanJson,
    Row,
    Startup,
    TaggedLog,
    one_line,
    place_of,
)
from envsmith.agent.rank import rank_main
from envsmith.agent.watching import case_deadline
from envsmith.agent.world import seconds, stored


def direct_main(plan: PlanJson, place: LaunchPlace, out: Log) -> NoReturn:
    """Run one rank that a launcher started. Progress goes through the store, so that rank 0 can name who is behind.

    Ends the process by `os._exit`: what is left of torch may take its time over an orderly end, and the others wait for
    our connections.
    """
    # Before torch makes threads: `_announce_termination` takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    health = HealthWatch() if place.local == 0 else None
    import torch

    torch.set_num_threads(1)
    rank, world = place.rank, place.world
    facts = loaded_facts()
    gpus = torch.cuda.device_count() if facts.get("cuda") else 0
    backend = plan["backend"] if plan["backend"] != "auto" else ("nccl" if gpus and facts.get("has_nccl") else "gloo")
    placement = place_direct(place, os.environ, backend=backend, gpus=gpus, plan=plan)
    job: JobJson = {
        "kind": "collectives", "run": "collectives", "rank": rank, "world": world, "backend": backend, "direct": True,
        "devices": placement.devices,
        "env": {**placement.env, **evidence_env("", backend, str(facts["torch"]))}, "timeouts": plan["timeouts"],
        "digest": plan.get("digest", ""), "cases": plan["cases"], "master": place.master,
        "sharing": placement.sharing, "port": place.port, "fault": plan.get("fault"),
        "image": plan.get("image"), "local": place.local, "health": health, "share": placement.share,
        "node": node_name(plan, rank),
    }  # fmt: skip
    nodes = int(plan.get("nodes") or 1)
    job["env"].update(plan.get("env") or {})
    if backend == "nccl" and "NCCL_DEBUG_FILE" not in {**os.environ, **job["env"]}:
        job["env"]["NCCL_DEBUG_FILE"] = log_in_memory()
    if nodes > 1 and backend == "gloo" and "GLOO_SOCKET_IFNAME" not in {**os.environ, **job["env"]}:
        job["env"].update(interface_towards(place.master, place.port))
    os.environ.update(job["env"])
    report = health.begin() if health else None
    if rank == 0:
        # With this a reader of the logs alone can make the plan again.
        summary = {**{k: plan.get(k) for k in ("tier", "backend", "engine", "digest")}, "ranks": world, "nodes": nodes}
        out.emit(
            "hello", protocol=PROTOCOL, pid=os.getpid(), python=platform.python_version(), launcher=place.launcher,
            plan=summary
        )  # fmt: skip
        out.emit("host", **host_facts(report))
        out.emit("loaded", **facts)
        out.emit("placement", **placement.event())
    board = Board()
    board.clear()
    log = TaggedLog(out, "collectives")
    log.row("node", rank=rank, node=job["node"])
    talk = _Conversation()
    for guard, arguments in ((_announce_termination, (board, out, log)), (_watch, (board, out, talk))):
        threading.Thread(target=guard, args=(job, *arguments), daemon=True).start()
    code: int = Exit.ERROR
    try:
        code = rank_main(job, board, log)
    except BaseException:
        traceback.print_exc()
    talk.failed = code != Exit.OK
    out.emit("end", run="collectives", exits=[{"rank": rank, "code": code}], output=_evidence(job))
    until = time.monotonic() + 1.5
    while talk.failed and not talk.failure_published and time.monotonic() < until:
        time.sleep(0.02)  # the others end because of us; say so before our connections close
    _share_events(job, out, 15.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _evidence(job: JobJson) -> dict[str, str]:
    text = evidence_of(job["env"].get("NCCL_DEBUG_FILE", ""))
    return {str(job["rank"]): text} if text else {}


def _leave_evidence(job: JobJson, out: Log) -> None:
    """Write what NCCL said, before this rank ends without having finished."""
    output = _evidence(job)
    if output:
        out.emit("end", run=job["run"], exits=[], output=output)


def _share_events(job: JobJson, out: Log, limit: float) -> None:
    """Send events through the store: the first rank of every node writes those of all, for one verdict everywhere.

    What a rank that is stuck or dead did not share is waited for until `limit`. Rank 0 owns the store and stays until
    the others have read.
    """
    watch = job.pop("health", None)
    if facts := watch.finish(limit=3.0) if watch else {}:
        out.emit("health", node=job["node"], **facts)
    if not isinstance(out, KeepingLog):
        return
    import torch.distributed as dist

    rank, world, until = job["rank"], job["world"], time.monotonic() + limit
    events = list(out.events)
    try:
        store = dist.TCPStore(job["master"], job["port"], world, False, seconds(limit), wait_for_workers=False)
        store.set(f"events/{rank}", json.dumps(events, default=str))
        for peer in range(world) if job["local"] == 0 else ():
            if peer == rank:
                continue
            while not stored(store, f"events/{peer}") and time.monotonic() < until:
                time.sleep(0.05)
            for row in json.loads(store.get(f"events/{peer}")) if stored(store, f"events/{peer}") else ():
                Log.write(out, row)
        store.set(f"read/{rank}", "1")
        while rank == 0 and time.monotonic() < until and not all(stored(store, f"read/{r}") for r in range(world)):
            time.sleep(0.05)
    except Exception as error:
        detail = f"no exchange of results: {one_line(error)}"
        TaggedLog(out, "collectives").row("note", rank=rank, detail=detail)


class _Conversation:
    """What the guards of a rank share. Rank 0 keeps each rank's last place, its time and processor time."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.halt = ""
        self.failed = False  # this rank's own end is an error
        self.failure_published = False  # and rank 0 can know it
        self.places: dict[int, tuple[str, float]] = {}
        self.ticks: dict[int, int] = {}


def _announce_termination(job: JobJson, board: Board, out: Log, log: Log) -> None:
    """Write that the launcher ends this rank because another one failed: it would pass for one that died by itself."""
    signal.sigwait({signal.SIGTERM})
    log.row("told", rank=job["rank"], signal="SIGTERM", **place_of(board.row(job["rank"])))
    _leave_evidence(job, out)
    _share_events(job, out, 6.0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)  # its action is the default one: the launcher sees the end that it asked for


def _watch(job: JobJson, board: Board, out: Log, talk: _Conversation) -> None:
    """Judge what the publisher hears. It may itself be stuck in a store whose owner, rank 0, is stopped."""
    rank, limits = job["rank"], job["timeouts"]
    threading.Thread(target=_publish_place, args=(job, board, talk), daemon=True).start()
    while True:
        time.sleep(0.25)
        case, _, age, _ = board.row(rank)
        if case == FINISHED or talk.failed:
            return
        silent = time.monotonic() - talk.at
        if not talk.halt and (case < 0 or silent < limits["case"] + 2 or age < limits["case"]):
            continue
        if talk.halt:
            halt = json.loads(talk.halt)
        else:
            here = {"rank": rank, **place_of(board.row(rank)), "state": "", "pid": os.getpid()}
            halt = {"event": "halt", "run": "collectives", "reason": "store", "where": [here]}
            halt.update(silent=round(silent, 1), owner=_process_of(job, 0))
        if rank == 0 or not talk.halt:
            out.write(halt)
        _leave_evidence(job, out)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        _end_laggards(halt, rank, 7.0 if isinstance(out, KeepingLog) else 2.0)
        _share_events(job, out, 6.0)
        os._exit(Exit.HANG)


def _process_of(job: JobJson, rank: int) -> Row:
    """Return the process of a rank, as its manifest describes it, and its state."""
    own = job["peers"][rank] if job.get("peers") else {}
    row = {"pid": own.get("pid", 0), "started": own.get("started", 0), "space": own.get("space", "")}
    return {**row, "state": _state_of(row)}


def _state_of(row: Row) -> str:
    """Return the kernel's letter for a rank in our space of pids, nothing for one elsewhere or gone."""
    here = row.get("pid") and row.get("space") == process_space() and process_started(row["pid"]) == row.get("started")
    return process_state(row["pid"])[0] if here else ""


def _end_laggards(halt: Row, rank: int, patience: float) -> None:
    """Wait a moment for late ranks to end, then kill those we see: a launcher waits half a minute for a stopped one."""
    late = [row for row in halt["where"] if row["rank"] in halt.get("laggards", ()) and row["rank"] != rank]
    late += [halt["owner"]] if halt.get("owner") else []
    until = time.monotonic() + patience
    time.sleep(0.5)
    while time.monotonic() < until and any(_state_of(row) not in ("", "T", "Z") for row in late):
        time.sleep(0.05)
    for row in late:
        if _state_of(row) not in ("", "Z"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(row["pid"], signal.SIGKILL)


def _publish_place(job: JobJson, board: Board, talk: _Conversation) -> None:
    """Publish this rank's place four times a second. Rank 0 reads all, names the laggards and ends every rank."""
    import torch.distributed as dist

    rank, world, limits = job["rank"], job["world"], job["timeouts"]
    while board.row(rank)[0] < Startup.MANIFEST:
        time.sleep(0.1)
    try:
        store = dist.TCPStore(job["master"], job["port"], world, False, seconds(limits["init"]), wait_for_workers=False)
        while not talk.halt:
            failed, (case, step, age, signature) = talk.failed, board.row(rank)
            moved = round(time.monotonic() - age, 1)
            store.set(f"at/{rank}", json.dumps([case, step, signature, moved, failed]))
            talk.failure_published = talk.failure_published or failed
            if stored(store, "halt"):
                talk.halt = store.get("halt").decode()
            elif rank == 0:
                talk.halt = _judge_places(store, job, talk)
                if talk.halt:
                    store.set("halt", talk.halt)
            talk.at = time.monotonic()
            time.sleep(0.05 if talk.failed else 0.25)
    except Exception:
        return  # the watch notices the silence


def _judge_places(store: Any, job: JobJson, talk: _Conversation) -> str:
    """Return a halt event when a rank failed a second ago and others run, or when laggards are late."""
    now, rows, orders = time.monotonic(), [], []
    for rank in range(job["world"]):
        nothing = json.dumps([Startup.START, Phase.PREP, "", 0, False])
        text = store.get(f"at/{rank}").decode() if stored(store, f"at/{rank}") else nothing
        if talk.places.get(rank, ("", 0.0))[0] != text:
            talk.places[rank] = (text, now)
        case, step, signature, _, failed = json.loads(text)
        orders.append((case, step))
        where = {"rank": rank, "case": case, "step": Phase(step).word, "signature": signature, "failed": failed}
        rows.append({**where, "age": round(now - talk.places[rank][1], 3), **_process_of(job, rank)})
    ended = [row for row in rows if row["failed"]]
    # A rank in a case proves that every rank is past the stages before the first one, whatever it reported last.
    behind, ahead = min(orders), max(orders)
    laggards = [row for row, order in zip(rows, orders) if order == behind]
    limit = case_deadline(job, -1 if ahead[0] < 0 else max(0, behind[0]), job["backend"])
    age = min(row["age"] for row in laggards)
    if ended:
        # They lose their connections to it and say so themselves, or the launcher ends them; NCCL may do neither.
        laggards, late = [row for row in rows if not row["failed"]], max(row["age"] for row in ended) > 1.0
    else:
        late = behind[0] != FINISHED and age > limit and (age > 4 * limit or not _waits(laggards, talk))
    if not late:
        if age <= limit:
            talk.ticks.clear()
        return ""
    halt = {"event": "halt", "run": "collectives", "reason": "raised" if ended else "deadline", "where": rows}
    exits = [{"rank": row["rank"], "code": Exit.ERROR} for row in ended]
    late_ranks = [row["rank"] for row in laggards]
    return json.dumps({**halt, "stacks": {}, "exits": exits, "laggards": late_ranks, "limit": limit})


def _waits(laggards: Sequence[Row], talk: _Conversation) -> bool:
    """Return whether one of them only waits for a processor, as `Watch` does, for the ranks that we can see."""
    waits = False
    for row in laggards:
        ticks = process_state(row["pid"])[1] if row["state"] else 0
        waits = waits or (row["state"] == "R" and ticks - talk.ticks.setdefault(row["rank"], ticks) <= 50)
    return waits
