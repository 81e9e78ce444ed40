"""The supervisor: it starts ranks, watches them, ends them and reports. It never imports torch."""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from envsmith.smoke.agent.board import Board, Phase
from envsmith.smoke.agent.limits import limit_findings
from envsmith.smoke.agent.machine import host_facts, oom_kills, shm_bytes
from envsmith.smoke.agent.nursery import nursery_main
from envsmith.smoke.agent.placement import count_ranks, evidence_env, place_nccl
from envsmith.smoke.agent.processes import (
    PATIENCE,
    PR_SET_CHILD_SUBREAPER,
    busy,
    describe_exit,
    kill_group,
    of_session,
    prctl,
    process_state,
    read_text,
    starved,
    tail_text,
)
from envsmith.smoke.agent.protocol import PROTOCOL, Exit, Lines, Log
from envsmith.smoke.agent.steps import PRELOAD


class Interrupted(Exception):
    """The outer parent went away, or somebody asked us to end."""


class Rank:
    """A rank as its supervisor sees it."""

    def __init__(self, rank: int, log: str) -> None:
        self.rank, self.pid, self.log, self.lines = rank, 0, log, Lines()
        self.code: Optional[int] = None
        self.ended_at = 0.0
        self.offset = 0
        self.ticks = -1
        self.laggard_since = 0.0

    @property
    def alive(self) -> bool:
        return self.code is None


class Supervisor:
    """Starts the nursery, runs one job after the other, watches, and leaves nothing behind."""

    def __init__(self, plan: dict[str, Any], out: Log, *, watch_stdin: bool) -> None:
        self.plan, self.out, self.watch_stdin = plan, out, watch_stdin
        self.board = Board()
        self.directory = tempfile.mkdtemp(prefix="envsmith-smoke-")
        self.sock: Optional[socket.socket] = None
        self.nursery = 0
        self.lines = Lines()
        self.by_pid: dict[int, Rank] = {}
        self.ranks: list[Rank] = []
        self.run = ""
        self.facts: dict[str, Any] = {}
        self.stop: Optional[str] = None
        self.started = time.monotonic()
        self.marks: dict[str, float] = {}
        self.codes: list[int] = []
        self.oom = oom_kills()
        self.cuda: dict[str, Any] = {}
        self.preloaded = ""
        self.not_preloaded: set[str] = set()
        self.looked, self.wanting = 0.0, False

    def emit(self, event: str, **fields: object) -> None:
        self.out.write({"event": event, **fields})

    # -- the whole ---------------------------------------------------------------------------------------------------

    def main(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.emit(
            "hello",
            protocol=PROTOCOL,
            pid=os.getpid(),
            python=platform.python_version(),
            executable=os.path.basename(sys.executable),
        )
        try:
            self._prepare_environment()
            self._start_nursery()
            host = host_facts()
            self.emit("host", **host)
            if not self._await_nursery():
                return self._bye()
            placement = self._place(host)
            if placement is None or not self._within_limits(host, placement):
                return self._bye()
            if self.plan.get("cases"):
                self._collectives(placement)
            for step in self.plan.get("steps", []):
                if self.stop:
                    break
                self._step(step, placement)
        except Interrupted as reason:
            self._end_ranks("interrupted", str(reason))
            self.codes.append(Exit.ERROR)
        return self._bye()

    def _signalled(self, number: int, _frame: object) -> None:
        self.stop = f"signal {signal.Signals(number).name}"

    def _prepare_environment(self) -> None:
        """Only what must stand before torch is loaded. Threads would fight: the ranks share the processors.

        torch 2.4 to 2.6 start a pool of compilers with a thread when inductor is imported (not with one "thread"): such a process cannot be forked.
        """
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "/usr/bin:/bin")])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.update(self.plan.get("env", {}))

    def _start_nursery(self, framework: str = "") -> None:
        ours, theirs = socket.socketpair()
        self.board.clear()
        self.nursery = os.fork()
        if self.nursery == 0:
            ours.close()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            nursery_main(theirs, self.board, framework)
        theirs.close()
        ours.setblocking(False)
        self.sock = ours
        self.lines = Lines()

    def _await_nursery(self) -> bool:
        began, limit = time.monotonic(), self.plan["timeouts"]["import"]
        while not self.facts:
            alive = self._listen(0.05)
            if self.facts:
                break
            waited = time.monotonic() - began
            late = waited > limit and not self._may_wait([self.nursery], waited, limit)
            if not alive or late:
                self._import_failed(waited if alive else 0.0)
                return False
        if self.facts.get("failed"):
            self.emit(
                "halt", run="import", reason="import", detail=self.facts["failed"], trace=self.facts.get("trace", "")
            )
            self.codes.append(Exit.CONFIGURATION)
            return False
        self.marks["import"] = self.facts["seconds"]
        self.emit("loaded", **self.facts["ready"])
        return True

    def _may_wait(self, pids: Sequence[int], waited: float, limit: float) -> bool:
        """Past its limit, but only for want of a processor: up to `PATIENCE` limits."""
        return bool(self.plan.get("patience", True)) and waited < PATIENCE * limit and starved(pids, waited)

    def _import_failed(self, late: float) -> None:
        """`late` are the seconds that it was waited for; none: it ended by itself."""
        code = 0
        if late:
            kill_group(self.nursery, signal.SIGKILL)
        try:
            status = os.waitpid(self.nursery, 0)[1]
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        except ChildProcessError:
            pass
        self.nursery = 0
        self.emit(
            "halt",
            run="import",
            reason="import",
            detail=f"`import torch` did not end within {late:.0f} s ({busy()})"
            if late
            else f"`import torch` ended the interpreter ({describe_exit(code)})",
        )
        self.codes.append(Exit.HANG if late else Exit.CRASH)

    # -- where the ranks go ------------------------------------------------------------------------------------------

    def _place(self, host: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        """Backend, number of ranks, devices, variables, and the sentence that says so."""
        ready = self.facts["ready"]
        wanted = self.plan["backend"]
        cuda: dict[str, Any] = {"available": False, "count": 0}
        # A driver may be there without the library that lists its GPUs (WSL, some containers).
        present = host["gpus"] or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")))
        if ready.get("cuda") and (present or wanted == "nccl"):
            cuda = self._ask_cuda()
        usable = bool(cuda["available"]) and bool(ready.get("has_nccl"))
        backend = wanted if wanted != "auto" else ("nccl" if usable else "gloo")
        if not ready.get("distributed") or not ready.get(f"has_{backend}"):
            self._refuse(f"this torch is built without {backend}")
            return None
        if backend == "nccl" and not cuda["available"]:
            self._refuse(
                f"the plan asks for NCCL, but CUDA is not usable here: {cuda.get('error', 'no GPU is visible')}"
            )
            return None
        ranks = int(self.plan["ranks"])
        placement: dict[str, Any] = {
            "backend": backend,
            "ranks": ranks,
            "devices": None,
            "env": {},
            "rank_env": [{} for _ in range(ranks)],
        }
        if backend == "nccl":
            placement = place_nccl(
                ranks,
                int(cuda["count"]),
                str(ready.get("nccl_runtime") or ready.get("nccl") or "0"),
                self.plan,
                self.directory,
            )
        else:
            placement["sentence"] = f"{count_ranks(ranks)} on the CPU (gloo over the loopback interface)"
            if "GLOO_SOCKET_IFNAME" not in os.environ:
                placement["env"]["GLOO_SOCKET_IFNAME"] = "lo"
        placement["env"].update(evidence_env(self.directory, backend, str(ready["torch"])))
        if wanted == "auto" and host["gpus"] and backend == "gloo":
            placement["sentence"] += (
                f"; GPUs are present but not usable: {cuda.get('error') or 'this torch has no CUDA or no NCCL'}"
            )
        self.cuda = cuda
        self.emit(
            "placement", cuda=cuda, **{k: placement[k] for k in ("backend", "ranks", "devices", "sentence", "env")}
        )
        return placement

    def _within_limits(self, host: Mapping[str, Any], placement: Mapping[str, Any]) -> bool:
        """Told first; what cannot work is not started. A fault that fills a limit on purpose is past this."""
        findings = limit_findings(host, self.plan, placement, self.cuda)
        self.emit("limits", findings=findings)
        errors = [f for f in findings if f["severity"] == "error"]
        if errors:
            self.emit("halt", run="placement", reason="limits", detail=f"{errors[0]['message']} ({errors[0]['fix']})")
            self.codes.append(Exit.MEMORY)
        return not errors

    def _ask_cuda(self) -> dict[str, Any]:
        ranks = self._spawn("cuda-probe", 1, {})
        deadline = time.monotonic() + self.plan["timeouts"]["init"] + self.plan["timeouts"]["first"]
        answer: dict[str, Any] = {"available": False, "count": 0, "error": "CUDA did not answer"}
        while ranks[0].alive and time.monotonic() < deadline:
            self._listen(0.02)
        for row in self._rows(ranks[0]):
            answer = row.get("cuda", answer)
        if ranks[0].alive:
            kill_group(ranks[0].pid, signal.SIGKILL)
        elif ranks[0].code:
            answer["error"] = f"the process that asked CUDA ended: {describe_exit(ranks[0].code)}"
        return answer

    def _refuse(self, why: str) -> None:
        self.emit("halt", run="placement", reason="configuration", detail=why)
        self.codes.append(Exit.CONFIGURATION)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _job(self, name: str, kind: str, placement: Mapping[str, Any], **more: object) -> dict[str, Any]:
        return {
            "kind": kind, "run": name, "world": placement["ranks"], "backend": placement["backend"], "devices": placement["devices"],
            "env": placement["env"], "rank_env": placement["rank_env"], "sharing": placement.get("sharing", ""), "timeouts": self.plan["timeouts"], "digest": self.plan.get("digest", ""),
            "stack": os.path.join(self.directory, f"{slug(name)}.%d.stack"), "fault": self.plan.get("fault"), "image": self.plan.get("image"), **more,
        }  # fmt: skip

    def _collectives(self, placement: Mapping[str, Any]) -> None:
        began = time.monotonic()
        job = self._job(
            "collectives",
            "collectives",
            placement,
            cases=self.plan["cases"],
            port=self.plan.get("port"),
            master=self.plan.get("master"),
        )
        self._spawn("collectives", placement["ranks"], job)
        limits = self.plan["timeouts"]
        total = limits["tier"] + (2 * limits["first"] if placement["backend"] == "nccl" else 0.0)
        halted = self._watch(lambda case: self._case_deadline(case, placement), total)
        self.marks["collectives"] = time.monotonic() - began
        if not halted:
            self._exits_event()

    def _case_deadline(self, case: int, placement: Mapping[str, Any]) -> float:
        limits = self.plan["timeouts"]
        if case < 0:
            # NCCL makes its communicator, and CUDA its context, when the group is made: `device_id` is always passed.
            return float(limits["init"] + (limits["first"] if placement["backend"] == "nccl" else 0.0))
        if case < len(self.plan["cases"]):
            own = self.plan["cases"][case].get("deadline")
            if own:
                return float(own)
        first = placement["backend"] == "nccl" and self._is_first(case)
        return float(limits["first"] if first else limits["case"])

    def _is_first(self, case: int) -> bool:
        """The first NCCL operation of a group makes its communicator, and loads kernels."""
        cases = self.plan["cases"]
        if case >= len(cases):
            return False
        key = (cases[case].get("group", "world"), cases[case]["op"], cases[case].get("dtype"))
        return all((c.get("group", "world"), c["op"], c.get("dtype")) != key for c in cases[:case])

    def _step(self, step: Mapping[str, Any], placement: Mapping[str, Any]) -> None:
        name = step["name"]
        if step.get("skip"):
            self.emit("step", step=name, status="skipped", detail=step["skip"])
            return
        if step.get("needs") == "gpu" and placement["backend"] != "nccl" and not step.get("told"):
            self.emit("step", step=name, status="skipped", detail=step.get("why", "needs a GPU"))
            return
        ranks = int(step.get("ranks", 2))
        if placement["devices"] is not None and ranks > placement["ranks"]:
            self.emit(
                "step", step=name, status="skipped", detail=f"needs {ranks} ranks, {placement['ranks']} are placed"
            )
            return
        with socket.socket() as reserved:
            # Bound but not listening: nobody is given this port, and the store may still listen on it.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("", 0))
            mine = {
                **placement,
                "ranks": ranks,
                "devices": placement["devices"][:ranks] if placement["devices"] else None,
            }
            mine["env"] = {**placement["env"], **self._step_env(placement, reserved.getsockname()[1], ranks)}
            mine["rank_env"] = [
                {
                    **placement["rank_env"][r],
                    "RANK": str(r),
                    "LOCAL_RANK": str(mine["devices"][r] if mine["devices"] else r),
                }
                for r in range(ranks)
            ]
            began = time.monotonic()
            if placement["backend"] != "nccl":
                self._preload(str(step["kind"]))
            if not self._nursery_alive():
                return
            fault = self.plan.get("fault")
            self._spawn(
                name,
                ranks,
                self._job(
                    name, "step", mine, step=dict(step), fault=fault if fault and fault.get("step") == name else None
                ),
            )
            limit = float(step.get("deadline", 120))
            halted = self._watch(lambda case: limit, limit)
            self.marks[name] = time.monotonic() - began
            if halted:
                self._drop_locks()
            else:
                self._exits_event()

    def _drop_locks(self) -> None:
        """A rank that was ended while it compiled leaves torch's lock file, and the next step's ranks would wait for it until their own deadline."""
        for folder, _, files in os.walk(os.path.join(self.directory, "torch_extensions_dir")):
            if "lock" in files:
                os.unlink(os.path.join(folder, "lock"))

    def _step_env(self, placement: Mapping[str, Any], port: int, ranks: int) -> dict[str, str]:
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        if placement["backend"] != "nccl":
            env.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
        # A home directory may not exist or not be writable, and what a run compiles must not outlive it unless the caller says where.
        for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            if name not in os.environ:
                env[name] = os.path.join(self.directory, name.lower())
        return env

    def _preload(self, kind: str) -> None:
        """A nursery that has the step's framework imported already: every rank is a process of its own still, without its seconds of import.

        Where that does not go (the import fails, is late, or leaves threads behind) the ranks import it themselves, and say how it ends.
        """
        framework = next((name for name in PRELOAD if kind.startswith(name)), "")
        alike = sum(
            str(step["kind"]).startswith(framework)
            for step in self.plan["steps"]
            if step.get("needs") != "gpu" or step.get("told")
        )
        if framework == self.preloaded or framework in self.not_preloaded or (framework and alike < 3):
            return
        self._end_nursery()
        self.facts, self.preloaded = {}, framework
        self._start_nursery(framework)
        began, limit = time.monotonic(), 2 * self.plan["timeouts"]["import"]  # torch, and then the framework
        while not self.facts and self._listen(0.05):
            waited = time.monotonic() - began
            if waited > limit and not self._may_wait([self.nursery], waited, limit):
                break
        why_not = "" if self.facts.get("ready") else str(self.facts.get("failed") or "the import did not end")
        self.emit("preload", framework=framework, detail=why_not, took=self.facts.get("seconds", 0.0))
        if why_not:
            self.not_preloaded.add(framework)
            self.preloaded = ""
            if self.nursery:
                kill_group(self.nursery, signal.SIGKILL)
            self._end_nursery()

    def _end_nursery(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self.nursery:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                if os.waitpid(self.nursery, os.WNOHANG)[0]:
                    self.nursery = 0
                    return
                time.sleep(0.01)
            os.kill(self.nursery, signal.SIGKILL)
            os.waitpid(self.nursery, 0)
            self.nursery = 0

    def _nursery_alive(self) -> bool:
        self._listen(0)
        if self.sock is not None:
            return True
        self.facts = {}
        self._start_nursery()
        return self._await_nursery()

    def _spawn(self, name: str, ranks: int, job: Mapping[str, Any]) -> list[Rank]:
        self.board.clear()
        self.run, self.ranks, self.by_pid = name, [], {}
        base = os.path.join(self.directory, slug(name))
        with open(base + ".json", "w") as file:
            json.dump(job, file)
        assert self.sock is not None
        for rank in range(ranks):
            self.ranks.append(Rank(rank, f"{base}.{rank}.jsonl"))
            request = {
                "name": name,
                "rank": rank,
                "job": base + ".json",
                "log": f"{base}.{rank}.jsonl",
                "output": f"{base}.{rank}.out",
            }
            self.sock.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + self.plan["timeouts"]["init"]
        while any(not r.pid for r in self.ranks) and self._listen(0.05) and time.monotonic() < deadline:
            pass
        return self.ranks

    # -- watching ----------------------------------------------------------------------------------------------------

    def _listen(self, wait: float) -> bool:
        """Take what the nursery says; false when it is gone. Raises `Interrupted` when we are to end."""
        if self.stop:
            raise Interrupted(self.stop)
        sources: list[Any] = [self.sock] if self.sock else []
        if self.watch_stdin:
            sources.append(0)
        try:
            ready, _, _ = select.select(sources, [], [], wait)
        except InterruptedError:
            return True
        if 0 in ready and not os.read(0, 1 << 12):
            raise Interrupted("the outer parent closed our input")
        if self.sock in ready and self.sock is not None:
            try:
                data = self.sock.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                data = b""
            if not data:
                self.sock.close()
                self.sock = None
                return False
            for message in self.lines.feed(data):
                self._heard(message)
        return self.sock is not None

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "ready" in message or "failed" in message:
            self.facts = dict(message)
        elif "pid" in message:
            self.ranks[message["rank"]].pid = message["pid"]
            self.by_pid[message["pid"]] = self.ranks[message["rank"]]
        elif message.get("exit") in self.by_pid:
            rank = self.by_pid[message["exit"]]
            rank.code, rank.ended_at = message["status"], time.monotonic()

    def _rows(self, rank: Rank) -> list[dict[str, Any]]:
        try:
            with open(rank.log, "rb") as file:
                file.seek(rank.offset)
                data = file.read()
        except OSError:
            return []
        rank.offset += len(data)
        return list(rank.lines.feed(data))

    def _forward(self) -> None:
        for rank in self.ranks:
            for row in self._rows(rank):
                self.emit("row", run=self.run, **row)

    def _watch(self, deadline_of: Callable[[int], float], total: float) -> bool:
        """Until every rank has ended; true when something had to be ended."""
        began, first = time.monotonic(), None
        while True:
            alive = self._listen(0.02)
            self._forward()
            positions = {r.rank: self.board.row(r.rank) for r in self.ranks}
            if first is None and self.run == "collectives" and all(p[0] >= 0 for p in positions.values()):
                first = time.monotonic() - began
                self.marks["rendezvous"] = first
            bad = [r for r in self.ranks if r.code not in (None, Exit.OK)]
            if bad:
                self._linger()
                self._halt("exit", positions)
                return True
            if not any(r.alive for r in self.ranks):
                self._forward()
                return False
            if not alive:
                self._halt("nursery", positions)
                return True
            late = self._late(positions, deadline_of)
            if late:
                self._halt("deadline", positions, **late)
                return True
            waited = time.monotonic() - began
            if waited > total and not self._wanting(self.ranks, waited, total):
                self._halt("total", positions, limit=total)
                return True

    def _wanting(self, ranks: Sequence[Rank], waited: float, total: float) -> bool:
        """Past its limit: whether one of the ranks, or what it started, still only waits for its turn. Looked at once a second."""
        if time.monotonic() >= self.looked + 1.0:
            pids = [pid for rank in ranks if rank.alive and rank.pid for pid in of_session(rank.pid)]
            self.wanting = self._may_wait(pids, waited, total)
            self.looked = time.monotonic()
        return self.wanting

    def _linger(self) -> None:
        """Ranks fall within 0.3 s of each other; wait that long so that the cause is among the dead."""
        until = time.monotonic() + 0.35
        while time.monotonic() < until and any(r.alive for r in self.ranks):
            self._listen(0.02)

    def _late(
        self, positions: Mapping[int, tuple[int, int, float, str]], deadline_of: Callable[[int], float]
    ) -> Optional[dict[str, Any]]:
        """The ranks that are behind all others, when they have been so for longer than their deadline."""
        behind = min(positions[r.rank][:2] for r in self.ranks if r.alive)
        laggards = [r for r in self.ranks if r.alive and positions[r.rank][:2] == behind]
        age = min(positions[r.rank][2] for r in laggards)
        limit = deadline_of(behind[0])
        if age <= limit:
            for rank in laggards:
                rank.ticks = -1
            return None
        return (
            {"limit": limit, "laggards": [r.rank for r in laggards]}
            if age > PATIENCE * limit or not (self._starved(laggards) or self._wanting(laggards, age, limit))
            else None
        )

    def _starved(self, laggards: Sequence[Rank]) -> bool:
        """A rank that waits for a processor is slow, not stuck: give it up to four deadlines. A stuck gloo rank sleeps."""
        working = False
        for rank in laggards:
            state, ticks = process_state(rank.pid)
            if state == "R" and (rank.ticks < 0 or ticks - rank.ticks <= 50):
                working = True
            if rank.ticks < 0:
                rank.ticks = ticks
        return working and self.plan.get("patience", True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _halt(self, reason: str, positions: Mapping[int, tuple[int, int, float, str]], **more: object) -> None:
        """Write down who is where, take every rank's stack, end what is left, tell."""
        where = []
        for rank in self.ranks:
            case, step, age, signature = positions[rank.rank]
            state = process_state(rank.pid)[0] if rank.alive and rank.pid else ""
            where.append(
                {
                    "rank": rank.rank,
                    "case": case,
                    "step": Phase(step).word,
                    "age": round(age, 3),
                    "signature": signature,
                    "state": state,
                    "pid": rank.pid,
                }
            )
        exits = [
            {"rank": r.rank, "code": r.code, "at": round(r.ended_at - self.started, 3)}
            for r in self.ranks
            if not r.alive
        ]
        leftover = self._end_ranks_only()
        self._forward()
        shm_size, shm_free = shm_bytes()
        self.emit(
            "halt", run=self.run, reason=reason, where=where, exits=exits, stacks=self._stacks(), output=self._outputs(), unkillable=leftover,
            oom_kills=oom_kills() - self.oom, shm_bytes=shm_size, shm_free_bytes=shm_free, **more,
        )  # fmt: skip
        self.codes.append(
            Exit.HANG
            if reason in ("deadline", "total")
            else Exit.CRASH
            if any((e["code"] or 0) < 0 for e in exits)
            else Exit.ERROR
        )

    def _stack_path(self, rank: int) -> str:
        return os.path.join(self.directory, f"{slug(self.run)}.{rank}.stack")

    def _stacks(self) -> dict[str, list[str]]:
        """The innermost frames of each rank's main thread, as faulthandler wrote them."""
        found = {}
        for rank in self.ranks:
            text = read_text(self._stack_path(rank.rank))
            block = text.rpartition("Current thread")[2] or text.rpartition("Thread 0x")[2]
            frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', block)
            if frames:
                found[str(rank.rank)] = [
                    f"{function} ({os.path.basename(file)}:{line})" for file, line, function in frames[:8]
                ]
        return found

    def _outputs(self) -> dict[str, str]:
        found = {}
        for rank in self.ranks:
            text = tail_text(os.path.join(self.directory, f"{slug(self.run)}.{rank.rank}.out"))
            text += tail_text(os.path.join(self.directory, f"nccl.{rank.rank}.log"))
            if text.strip():
                found[str(rank.rank)] = text
        return found

    def _end_ranks_only(self) -> list[int]:
        """Stacks, a moment, SIGTERM, SIGKILL: each to the pid that we started. Returns the ranks that survive even that."""
        living = [r for r in self.ranks if r.alive and r.pid]
        self.board.dump = True
        for rank in living:
            try:
                os.kill(rank.pid, signal.SIGUSR1)
            except ProcessLookupError:
                pass
        self._wait_ranks(0.25, lambda: False)
        for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, 2.0)):
            for rank in self.ranks:
                if rank.alive and rank.pid:
                    kill_group(rank.pid, number)
            self._wait_ranks(patience, lambda: not any(r.alive and r.pid for r in self.ranks))
        for rank in self.ranks:
            if rank.pid and not rank.alive:
                kill_group(rank.pid, signal.SIGKILL)  # helpers that outlived their rank
        return [r.rank for r in self.ranks if r.alive and r.pid and process_state(r.pid)[0] not in ("", "Z")]

    def _wait_ranks(self, limit: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + limit
        while time.monotonic() < until and not enough():
            stop, self.stop, watch, self.watch_stdin = self.stop, None, self.watch_stdin, False
            try:
                if not self._listen(0.02):
                    time.sleep(0.02)
            finally:
                self.stop, self.watch_stdin = stop, watch

    def _end_ranks(self, reason: str, detail: str) -> None:
        leftover = self._end_ranks_only()
        try:
            self.emit("halt", run=self.run or "start", reason=reason, detail=detail, unkillable=leftover)
        except OSError:
            pass  # nobody listens any more

    def _exits_event(self) -> None:
        self._forward()
        self.emit(
            "end", run=self.run, exits=[{"rank": r.rank, "code": r.code} for r in self.ranks], output=self._warnings()
        )

    def _warnings(self) -> dict[str, str]:
        """What NCCL warned about although all went well: transport lines are evidence, one for each pair of ranks and way."""
        found = {}
        for rank in self.ranks[:8]:
            text = read_text(os.path.join(self.directory, f"nccl.{rank.rank}.log"), 1 << 20)
            lines = [
                re.sub(r"Channel \d+(?:/\d+)? : ", "Channel : ", line)
                for line in text.splitlines()
                if re.search(r"WARN|via |Using network|NET/|NVLS|Init COMPLETE", line)
            ]
            if lines:
                found[str(rank.rank)] = "\n".join(dict.fromkeys(lines))[:4000]
        return found

    def _bye(self) -> int:
        left: list[int] = []
        self._end_nursery()
        left = self._adopted()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.marks["total"] = time.monotonic() - self.started
        code = next((c for c in self.codes if c), Exit.OK)
        try:
            self.emit("bye", seconds={k: round(v, 3) for k, v in self.marks.items()}, leftover=left, code=code)
        except OSError:
            pass
        return code

    def _adopted(self) -> list[int]:
        """Orphans of our ranks became our children (we are their subreaper): end and count them."""
        found = []
        for _ in range(20):
            try:
                children = read_text(f"/proc/self/task/{os.getpid()}/children").split()
                for child in map(int, children):
                    found.append(child)
                    os.kill(child, signal.SIGKILL)
                if not os.waitpid(-1, 0 if children else os.WNOHANG)[0]:
                    break
            except (ChildProcessError, ProcessLookupError):
                break
        return sorted(set(found))


def slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)
