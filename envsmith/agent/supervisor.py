"""The supervisor: it starts the nursery, runs one job after the other, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable

from envsmith.agent.health import HealthWatch
from envsmith.agent.machine import host_facts, oom_kills, shm_bytes
from envsmith.agent.nursery import Interrupted, Nursery
from envsmith.agent.placement import Placement, count_ranks, evidence_env, limit_findings, place_nccl
from envsmith.agent.processes import (
    PR_SET_CHILD_SUBREAPER,
    Patience,
    busy,
    describe_exit,
    fell,
    kill_group,
    loopback,
    prctl,
)
from envsmith.agent.protocol import NO_GPU, NO_TIME, PROTOCOL, Board, Exit, Log, PlanJson, Row, Skip, StepJson
from envsmith.agent.steps import PRELOAD
from envsmith.agent.watching import (
    Halt,
    JobWatch,
    case_deadline,
    end_orphans,
    end_ranks,
    outputs,
    places,
    stacks,
    transports,
    words_of_launcher,
)

# The variables of a step's rank that a launcher sets itself.
PLACE = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# Seconds that a run keeps to end in order, and that a framework's step takes at least.
TO_END, SHORTEST_STEP = 5.0, 10.0


class Supervisor:
    """One run of a plan."""

    def __init__(self, plan: PlanJson, out: Log, *, watch_stdin: bool) -> None:
        self.plan, self.emit, self.timeouts = plan, out.emit, plan["timeouts"]
        self.directory = tempfile.mkdtemp(prefix="envsmith-smoke-")
        board = Board(os.path.join(self.directory, "board"))
        self.nursery = Nursery(board, self.directory, watch_stdin=watch_stdin)
        self.patience = Patience(allowed=bool(plan.get("patience", True)))
        self.health = HealthWatch()
        self.devices: list[int] | None = None  # the GPUs of the ranks, as CUDA counts them
        self.started, self.oom_before = time.monotonic(), oom_kills()
        self.marks: dict[str, float] = {}  # seconds that each part took
        self.codes: list[int] = []
        self.not_preloaded: set[str] = set()

    def main(self) -> int:
        """Run the plan. Return the agent's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop_on_signal)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        executable = os.path.basename(sys.executable)
        self.emit("hello", protocol=PROTOCOL, pid=os.getpid(), python=platform.python_version(), executable=executable)
        try:
            self._run_plan()
        except Interrupted as reason:
            survivors = end_ranks(self.nursery)
            with contextlib.suppress(OSError):  # the reader may be gone
                job = self.nursery.job or "start"
                self.emit("halt", run=job, reason="interrupted", detail=str(reason), unkillable=survivors)
            self.codes.append(Exit.ERROR)
        return self._finish()

    def _stop_on_signal(self, number: int, _frame: object) -> None:
        self.nursery.stop = f"signal {signal.Signals(number).name}"

    def _run_plan(self) -> None:
        self._prepare_environment()
        self.nursery.start()
        host = host_facts(self.health.begin())
        self.emit("host", **host)
        if not self._import_torch():
            return
        placement = self._place(host)
        if placement is None or not self._within_limits(host, placement):
            return
        if self.plan.get("cases"):
            self._run_collectives(placement)
        for step in self.plan.get("steps", []):
            if self.nursery.stop:
                break
            reason = _reason_to_skip(step, placement) or self._lack_of_time()
            if reason:
                self.emit("step", step=step["name"], **reason.row())
            else:
                self._run_step(step, placement)

    def _finish(self) -> int:
        self.nursery.end()
        health = self.health.finish(self.devices)
        orphans = end_orphans()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.marks["total"] = time.monotonic() - self.started
        code = next((code for code in self.codes if code), Exit.OK)
        with contextlib.suppress(OSError):
            if health:
                self.emit("health", **health)
            self.emit("bye", seconds={k: round(v, 3) for k, v in self.marks.items()}, leftover=orphans, code=code)
        return code

    def _prepare_environment(self) -> None:
        """Set only what must stand before torch is loaded. Threads would fight: the ranks share the processors.

        torch 2.4 to 2.6 start a pool of compilers with a thread when inductor is imported (not with one "thread"): such
        a process cannot be forked.
        """
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "/usr/bin:/bin")])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.update(self.plan.get("env", {}))

    def _import_torch(self) -> bool:
        late = self.nursery.wait(self.timeouts["import"], self.patience)
        answer = self.nursery.answer
        if not answer:
            code = self.nursery.end(now=bool(late))
            problem = (
                f"did not end within {late:.0f} s ({busy()})"
                if late
                else f"ended the interpreter ({describe_exit(code)})"
            )
            agent_code = Exit.HANG if late else Exit.CRASH
            self._refuse("import", "import", f"`import torch` {problem}", agent_code, status=None if late else code)
        elif answer.get("failed"):
            self._refuse("import", "import", answer["failed"], Exit.CONFIGURATION, trace=answer.get("trace", ""))
        else:
            self.marks["import"] = answer["seconds"]
            self.emit("loaded", **answer["ready"])
            return True
        return False

    def _refuse(self, run: str, reason: str, detail: str, code: Exit, **details: object) -> None:
        self.emit("halt", run=run, reason=reason, detail=detail, code=code, **details)
        self.codes.append(code)

    # -- where the ranks go ------------------------------------------------------------------------------------------

    def _place(self, host: Row) -> Placement | None:
        """Choose backend, number of ranks, devices, variables, and the sentence that says so."""
        ready, requested = self.nursery.answer["ready"], self.plan["backend"]
        cuda: Row = {"available": False, "count": 0}
        # A driver may be there without the library that lists its GPUs (WSL, some containers).
        present = host["gpus"] or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")))
        if ready.get("cuda") and (present or requested == "nccl"):
            cuda = self._ask_cuda()
        usable = bool(cuda["available"]) and bool(ready.get("has_nccl"))
        backend = requested if requested != "auto" else ("nccl" if usable else "gloo")
        problem, details = "", {}
        if not ready.get("distributed") or not ready.get(f"has_{backend}"):
            problem = f"this torch is built without {backend}"
        elif backend == "nccl" and not cuda["available"]:
            error = str(cuda.get("error", ""))
            problem = f"the plan asks for NCCL, but CUDA is not usable here: {error or 'no GPU is visible'}"
            details = {"lacks_gpu": True, "quote": error}
        if problem:
            self._refuse("placement", "configuration", problem, Exit.CONFIGURATION, **details)
            return None
        ranks = int(self.plan["ranks"])
        if backend == "nccl":
            placement = place_nccl(ranks, int(cuda["count"]), self.plan, self.directory)
        else:
            sentence = f"{count_ranks(ranks)} on the CPU (gloo over the loopback interface)"
            if requested == "auto" and host["gpus"]:
                error = cuda.get("error") or "this torch has no CUDA or no NCCL"
                sentence += f"; GPUs are present but not usable: {error}"
            env = {} if "GLOO_SOCKET_IFNAME" in os.environ else {"GLOO_SOCKET_IFNAME": "lo"}
            rank_env: list[dict[str, str]] = [{} for _ in range(ranks)]
            placement = Placement(backend, ranks, sentence, sentence, None, env, rank_env, share=ranks)
        placement.env.update(evidence_env(self.directory, backend, str(ready["torch"])))
        placement = placement._replace(cuda=cuda)
        self.devices = placement.devices
        self.emit("placement", **placement.event())
        return placement

    def _ask_cuda(self) -> Row:
        self.nursery.spawn("cuda-probe", 1, {"kind": "cuda-probe"}, self.timeouts["init"])
        probe, until = self.nursery.ranks[0], time.monotonic() + self.timeouts["init"] + self.timeouts["first"]
        while probe.alive and time.monotonic() < until:
            self.nursery.listen(0.02)
        answer: Row = {"available": False, "count": 0, "error": "CUDA did not answer"}
        for row in probe.rows():
            answer = row.get("cuda", answer)
        if probe.alive:
            kill_group(probe.pid, signal.SIGKILL)
        elif probe.code:
            answer["error"] = f"the process that asked CUDA ended: {describe_exit(probe.code)}"
        return answer

    def _within_limits(self, host: Row, placement: Placement) -> bool:
        """Report the limits, and return whether the run can work. Injected faults are past this."""
        findings = limit_findings(host, self.plan, placement, placement.cuda or {})
        self.emit("limits", findings=findings)
        errors = [finding for finding in findings if finding["severity"] == "error"]
        if errors:
            detail = f"{errors[0]['message']} ({errors[0]['fix']})"
            self._refuse("placement", "limits", detail, Exit.MEMORY)
        return not errors

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, kind: str, placement: Placement, **fields: object) -> None:
        job = {key: getattr(placement, key) for key in ("backend", "devices", "env", "rank_env", "share", "sharing")}
        job.update(kind=kind, run=name, world=placement.ranks)
        job.update(timeouts=self.timeouts, digest=self.plan.get("digest", ""), image=self.plan.get("image"))
        job.update(fields)
        self.nursery.spawn(name, placement.ranks, job, self.timeouts["init"])

    def _run_collectives(self, placement: Placement) -> None:
        began, plan, backend = time.monotonic(), self.plan, placement.backend
        fields = {key: plan.get(key) for key in ("cases", "port", "master", "fault")}
        until = self.started + plan["limit"] - TO_END if plan.get("limit") else None
        self._spawn("collectives", "collectives", placement, until=until, **fields)
        total = self.timeouts["tier"] + (2 * self.timeouts["first"] if backend == "nccl" else 0.0)
        watch = self._watch(lambda case: case_deadline(plan, case, backend), total, began)
        if watch.rendezvous is not None:
            self.marks["rendezvous"] = watch.rendezvous

    def _lack_of_time(self) -> Skip | None:
        """Return so when the plan's limit leaves too little for one more step."""
        limit = float(self.plan.get("limit") or float("inf"))
        remaining = limit - (time.monotonic() - self.started)
        if remaining >= TO_END + SHORTEST_STEP:
            return None
        return Skip(f"{remaining:.0f} s of {limit:.0f} s were left", NO_TIME)

    def _run_step(self, step: StepJson, placement: Placement) -> None:
        name, ranks = step["name"], int(step.get("ranks", 2))
        self.emit("begin", run=name)
        with socket.socket() as reserved:
            # Bound but not listening: no other process is given this port, and the store may still listen on it.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("", 0))
            devices = placement.devices[:ranks] if placement.devices else None
            local = devices or range(ranks)
            env = {**placement.env, **self._step_env(placement, reserved.getsockname()[1], ranks)}
            # On the CPU a step may take more ranks than the cases do.
            placed = dict(enumerate(placement.rank_env))
            rank_env = [
                {**placed.get(rank, {}), "RANK": str(rank), "LOCAL_RANK": str(local[rank])} for rank in range(ranks)
            ]
            began = time.monotonic()
            launcher = str(step.get("launcher") or "")
            if launcher:  # ranks, their place and their meeting point are the launcher's to name
                env = {name: value for name, value in env.items() if name not in PLACE}
                rank_env = placement.rank_env[:ranks]
            elif placement.backend != "nccl":
                self._preload(str(step["kind"]))
            if not self._revive_nursery():
                return
            fault = self.plan.get("fault")
            own = placement._replace(ranks=ranks, devices=devices, env=env, rank_env=rank_env)
            fault = fault if fault and fault.get("step") == name else None
            self._spawn(name, "step", own, step=dict(step), fault=fault, launcher=launcher)
            limit = float(step.get("deadline", 120))
            self._watch(lambda case: limit, limit, began)
            if launcher:
                end_orphans(spare=self.nursery.pid)

    def _watch(self, deadline_of: Callable[[int], float], total: float, began: float) -> JobWatch:
        """Watch the job to its end, and end it where it does not do so itself."""
        watch = JobWatch(self.nursery, self.patience, forward=self._forward, deadline_of=deadline_of, total=total)
        halt = watch.run()
        if halt:
            self._halt(halt)
            self._drop_locks()
        self.marks[self.nursery.job] = time.monotonic() - began
        if not halt:
            self._forward()
            exits = [{"rank": rank.rank, "code": rank.code} for rank in self.nursery.ranks]
            self.emit("end", run=self.nursery.job, exits=exits, output=transports(self.nursery))
        return watch

    def _forward(self) -> None:
        for rank in self.nursery.ranks:
            for row in rank.rows():
                self.emit("row", run=self.nursery.job, **row)

    def _halt(self, halt: Halt) -> None:
        """Write down who is where, take every rank's stack, end what is still running, report."""
        nursery = self.nursery
        where = places(nursery, halt.positions)
        ended = [rank for rank in nursery.ranks if not rank.alive]
        exits = [{"rank": r.rank, "code": r.code, "at": round(r.ended_at - self.started, 3)} for r in ended]
        launcher = words_of_launcher(nursery)
        survivors = end_ranks(nursery)
        self._forward()
        shm_size, shm_free = shm_bytes()
        self.emit(
            "halt", run=nursery.job, reason=halt.reason, where=where, exits=exits, stacks=stacks(nursery),
            output=outputs(nursery), unkillable=survivors, oom_kills=oom_kills() - self.oom_before,
            shm_bytes=shm_size, shm_free_bytes=shm_free, launcher=launcher, **halt.details,
        )  # fmt: skip
        crashed = any(fell(rank.code) for rank in ended)
        hung = halt.reason in ("deadline", "total")
        self.codes.append(Exit.HANG if hung else Exit.CRASH if crashed else Exit.ERROR)

    def _step_env(self, placement: Placement, port: int, ranks: int) -> dict[str, str]:
        env = {"MASTER_ADDR": loopback(), "MASTER_PORT": str(port)}
        env.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
        if placement.backend != "nccl":
            env.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
        # A home directory may not exist or not be writable, and what a run compiles must not outlive it unless the
        # caller says where.
        for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            if name not in os.environ:
                env[name] = os.path.join(self.directory, name.lower())
        return env

    def _drop_locks(self) -> None:
        """Remove the lock of a rank that was ended while it compiled: the next step's ranks would wait for it."""
        for folder, _, files in os.walk(os.path.join(self.directory, "torch_extensions_dir")):
            if "lock" in files:
                os.unlink(os.path.join(folder, "lock"))

    # -- another nursery ---------------------------------------------------------------------------------------------

    def _preload(self, kind: str) -> None:
        """Start a nursery that has imported the step's framework, so that no rank spends seconds on it.

        Where that does not work (the import fails, is late, or leaves threads behind) the ranks import it themselves.
        """
        framework = next((name for name in PRELOAD if kind.startswith(name)), "")
        alike = sum(
            str(step["kind"]).startswith(framework)
            for step in self.plan["steps"]
            if step.get("needs") != "gpu" or step.get("stops_with")
        )
        nursery = self.nursery
        if framework == nursery.framework or framework in self.not_preloaded or (framework and alike < 3):
            return
        nursery.end()
        nursery.start(framework)
        nursery.wait(2 * self.timeouts["import"], self.patience)  # torch, and then the framework
        answer = nursery.answer
        problem = "" if answer.get("ready") else str(answer.get("failed") or "the import did not end")
        self.emit("preload", framework=framework, detail=problem, took=answer.get("seconds", 0.0))
        if problem:
            self.not_preloaded.add(framework)
            nursery.end(now=True)

    def _revive_nursery(self) -> bool:
        if self.nursery.listen(0):
            return True
        self.nursery.start()
        return self._import_torch()


def _reason_to_skip(step: StepJson, placement: Placement) -> Skip | None:
    if step.get("skip"):
        return Skip(str(step["skip"]))
    if step.get("needs") == "gpu" and placement.backend != "nccl" and not step.get("stops_with"):
        return Skip(str(step.get("why", "needs a GPU")), NO_GPU)
    ranks = int(step.get("ranks", 2))
    if placement.devices is not None and ranks > placement.ranks:
        return Skip(f"needs {ranks} ranks, {placement.ranks} are placed")
    return None
