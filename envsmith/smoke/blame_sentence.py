"""Who is to blame, in one sentence: pure functions over the facts that the agent wrote down when something stopped.

The causes are ranked: a rank that called something else than the others, then a signal, then an exception of its own,
then "connection closed by peer", which is what the innocent say. Ranks fall within 0.3 s of each other, so the order of
death proves little.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsmith.agent.processes import describe_exit, fell
from envsmith.agent.protocol import Exit, Phase, Startup
from envsmith.agent.world import most_common
from envsmith.launch.ranks.causes import Cause, ranks_text
from envsmith.launch.ranks.deaths import SMALL_SHM, cause_of, says_lost
from envsmith.model.record import Verdict

_STAGES: Mapping[int, str] = {
    Startup.START: "starting",
    Startup.STORE: "connecting to the store",
    Startup.MANIFEST: "comparing manifests",
    Startup.GROUP: "making the process group",
    Startup.SUBGROUPS: "making the subgroups",
    Startup.BUDGET: "agreeing on the memory budget",
}
_WAITING = {
    "prep": "had not entered it",
    "entered": "waited inside it",
    "issued": "waited for the device in it",
    "synced": "had its result",
    "verified": "had verified it",
    "done": "were done with it",
    "raised": "had raised in it",
}
_LATE = re.compile(r"timed? ?out|remote process", re.IGNORECASE)
# Errors of a machine that has no room for the run.
_NO_ROOM = frozenset({Cause.OUT_OF_MEMORY, Cause.DISK_FULL, Cause.SHM_FULL})


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """``case`` is the index of the case that stopped the run (``None``: before the first), ``ranks`` the culprits."""

    sentence: str
    verdict: Verdict
    code: Exit
    case: int | None = None
    ranks: tuple[int, ...] = ()


def odd_ones(values: Mapping[int, str]) -> tuple[list[int], str, str]:
    """Return the ranks whose value is not the most common one, an odd value, and the common value."""
    if len(set(values.values())) < 2:
        return [], "", ""
    common = most_common([values[rank] for rank in sorted(values)])
    odd = [rank for rank in sorted(values) if values[rank] != common]
    return odd, values[odd[0]], common


def _place(case: int, names: Sequence[str]) -> str:
    if case < 0:
        return _STAGES.get(case, "before the first case")
    if case < len(names):
        return f"case {case} {names[case]}"
    return "the end, after the last case"


def blame_halt(halt: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Blame:
    """Blame somebody for a run that was stopped.

    ``rows`` are all ranks' rows of it, ``names`` the cases' names in order.
    """
    reason = str(halt.get("reason", ""))
    detail = str(halt.get("detail", ""))
    if reason == "limits":
        return Blame(sentence=f"this machine cannot run it: {detail}", verdict=Verdict.NOT_RUN, code=Exit.MEMORY)
    if reason in {"import", "configuration"}:
        code = Exit.CONFIGURATION if reason == "configuration" or "more than" not in detail else Exit.HANG
        if "ended the interpreter" in detail:
            return Blame(sentence=detail, verdict=Verdict.CRASH, code=Exit.CRASH)
        problem = "torch cannot be imported: " if reason == "import" and "did not end" not in detail else ""
        return Blame(sentence=problem + detail, verdict=Verdict.ERROR, code=code)
    if reason == "interrupted":
        return Blame(sentence=f"the run was interrupted: {detail}", verdict=Verdict.NOT_RUN, code=Exit.ERROR)
    where = [row for row in halt.get("where", ()) if isinstance(row, Mapping)]
    exits = {int(e["rank"]): int(e["code"] or 0) for e in halt.get("exits", ()) if isinstance(e, Mapping)}
    if reason in {"exit", "nursery", "raised"} or any(not _innocent(row) for row in _raised(rows).values()):
        # A rank that raised by itself is the cause, also where the others' wait for it was noticed first.
        return _blame_exit(halt, where, exits, rows, names)
    if reason == "store" and where:
        case = int(where[0]["case"])
        silent = float(halt.get("silent") or 0)
        sentence = f"rank 0 does not answer for {silent:.0f} s: its store is silent while "
        sentence += f"{ranks_text([int(where[0]['rank'])], 'r')} waits in {_place(case, names)}"
        owner = halt.get("owner") or {}
        if owner.get("state") == "T":
            sentence += f"; rank 0 (pid {owner.get('pid')}) is stopped (SIGSTOP or a debugger)"
        return Blame(sentence=sentence, verdict=Verdict.HANG, code=Exit.HANG, case=case, ranks=(0,))
    return _blame_deadline(halt, where, names)


# -- a rank ended -----------------------------------------------------------------------------------------------------


def _blame_exit(
    halt: Mapping[str, Any],
    where: Sequence[Mapping[str, Any]],
    exits: Mapping[int, int],
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> Blame:
    early = _before_cases(rows)
    if early:
        return early
    dead = {rank: code for rank, code in exits.items() if fell(code)}
    raised = _raised(rows)
    at = {int(row["rank"]): int(row["case"]) for row in (*raised.values(), *where)}
    case = min([at.get(rank, -1) for rank in (*dead, *raised)], default=-1)
    odd = _different_call(where, rows, case)
    if odd:
        ranks, theirs, common = odd
        symptom = _symptom(dead, raised)
        verdict, code = (Verdict.CRASH, Exit.CRASH) if dead else (Verdict.ERROR, Exit.ERROR)
        call = f"{_who(ranks, where)} called {theirs} where the others called {common}"
        sentence = f"{call}, in {_place(case, names)}; {symptom}"
        return Blame(sentence=sentence, verdict=verdict, code=code, case=case, ranks=tuple(ranks))
    if dead:
        return _blame_signal(halt, where, dead, at, names)
    if raised:
        return _blame_raise(where, raised, at, names)
    ended = sorted(exits)
    codes = ", ".join(f"rank {r} with code {exits[r]}" for r in ended)
    sentence = f"ranks ended early: {codes}" if codes else "the process that starts ranks ended"
    return Blame(sentence=sentence, verdict=Verdict.CRASH, code=Exit.CRASH, case=case)


def _raised(rows: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {int(r["rank"]): r for r in rows if r.get("row") == "case" and r.get("status") == "error"}


def _innocent(row: Mapping[str, Any]) -> bool:
    """Return whether a rank only says that it lost another one."""
    detail = str(row.get("detail", ""))
    return says_lost(detail) or bool(_LATE.search(detail))


def _before_cases(rows: Sequence[Mapping[str, Any]]) -> Blame | None:
    mismatches = [r for r in rows if r.get("row") == "manifest" and r.get("mismatch")]
    if mismatches:
        return _blame_manifest(mismatches[0])
    first = min((r for r in rows if r.get("row") == "failed"), key=_innocent, default=None)
    if first is None:
        return None
    detail, rank, stage = str(first.get("detail", "")), int(first["rank"]), str(first.get("stage", "start"))
    if cause_of(detail) is Cause.PORT:
        sentence = f"rank {rank} cannot open the store: its port is taken by another process ({detail[:160]})"
        return Blame(sentence=sentence, verdict=Verdict.ERROR, code=Exit.CONFIGURATION, ranks=(rank,))
    code = Exit.MEMORY if cause_of(detail) in _NO_ROOM else Exit.ERROR
    sentence = f"rank {rank} failed at stage {stage}, before the first case: {explained(detail)}"
    return Blame(sentence=sentence, verdict=Verdict.ERROR, code=code, ranks=(rank,))


def _blame_manifest(row: Mapping[str, Any]) -> Blame:
    mismatch: Mapping[str, Sequence[int]] = row["mismatch"]
    values = row.get("values", {})
    ranks = sorted({rank for odd in mismatch.values() for rank in odd})
    parts = []
    for key in mismatch:
        rows = values.get(key, {})
        mine = {rank: str(value) for rank, value in rows.items()}
        odd = {mine.get(str(rank), "?") for rank in mismatch[key]}
        majority = {value for rank, value in mine.items() if int(rank) not in mismatch[key]}
        parts.append(
            f"{key} {'/'.join(sorted(odd))} instead of {'/'.join(sorted(majority))}" if rows else f"{key} differs"
        )
    sentence = f"{ranks_text(ranks, 'r')} of the group does not match the others: {'; '.join(parts)}; no case was run"
    return Blame(sentence=sentence, verdict=Verdict.ERROR, code=Exit.MISMATCH, ranks=tuple(ranks))


def _different_call(
    where: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], case: int
) -> tuple[list[int], str, str] | None:
    calls = {
        int(r["rank"]): str(r["sig"]) for r in rows if r.get("row") == "case" and r.get("case") == case and r.get("sig")
    }
    for row in where:
        if row.get("case") == case and row.get("signature") and row.get("step") != "prep":
            calls.setdefault(int(row["rank"]), str(row["signature"]))
    odd, theirs, common = odd_ones(calls)
    return (odd, theirs, common) if odd else None


def _symptom(dead: Mapping[int, int], raised: Mapping[int, Mapping[str, Any]]) -> str:
    sentences = [f"rank {rank} was {describe_exit(code)}" for rank, code in sorted(dead.items())]
    sentences += [f"rank {rank} raised {str(row.get('detail', ''))[:120]}" for rank, row in sorted(raised.items())][:1]
    return ", ".join(sentences)


def first_fallen(halt: Mapping[str, Any], dead: Mapping[int, int]) -> int:
    """Return the rank that died first.

    C++ aborts on an exception that a dying peer caused: any other signal comes first. Of ranks that ended without a
    word it is the earliest, because their launcher ends the others.
    """
    ended = {int(e["rank"]): float(e.get("at") or 0.0) for e in halt.get("exits", ()) if isinstance(e, Mapping)}
    silent = {rank: ended.get(rank, 0.0) for rank, code in dead.items() if code == Exit.CRASH}
    return min(dead, key=lambda r: (dead[r] == -signal.SIGABRT, silent.get(r, 0.0), r))


def _blame_signal(
    halt: Mapping[str, Any],
    where: Sequence[Mapping[str, Any]],
    dead: Mapping[int, int],
    at: Mapping[int, int],
    names: Sequence[str],
) -> Blame:
    rank = first_fallen(halt, dead)
    case, step = at.get(rank, -1), next((str(row["step"]) for row in where if row["rank"] == rank), "")
    sentence = f"{_who([rank], where)} was {describe_exit(dead[rank])} in {_place(case, names)} (step {step})"
    output = str(halt.get("output", {}).get(str(rank), "")).strip().splitlines()
    code = Exit.CRASH
    if dead[rank] == -signal.SIGBUS and int(halt.get("shm_free_bytes") or 0) < SMALL_SHM:
        code, size = Exit.MEMORY, int(halt.get("shm_bytes") or 0)
        sentence += f": /dev/shm is full ({size >> 20} MiB in all)"
        sentence += "; give the container more (--shm-size=1g or --ipc=host)"
    elif dead[rank] in (-signal.SIGKILL, Exit.CRASH) and int(halt.get("oom_kills") or 0) > 0:
        code = Exit.MEMORY
        sentence += ": the kernel ended it for lack of memory"
    elif dead[rank] == -signal.SIGABRT and output:
        sentence += f": {output[-1][:200]}"
    return Blame(sentence=sentence, verdict=Verdict.CRASH, code=code, case=case, ranks=(rank,))


def _blame_raise(
    where: Sequence[Mapping[str, Any]],
    raised: Mapping[int, Mapping[str, Any]],
    at: Mapping[int, int],
    names: Sequence[str],
) -> Blame:
    rank = min(raised, key=lambda r: (_innocent(raised[r]), at[r], r))
    detail, case = str(raised[rank].get("detail", "")), int(raised[rank]["case"])
    code = Exit.MEMORY if cause_of(detail) in _NO_ROOM else Exit.ERROR
    peers = [r for r in raised if r != rank and _innocent(raised[r])]
    after = (
        f"; {ranks_text(peers, 'r')} lost the connection after that" if peers and not _innocent(raised[rank]) else ""
    )
    sentence = f"{_who([rank], where)} raised in {_place(case, names)}: {explained(detail)}{after}"
    return Blame(sentence=sentence, verdict=Verdict.ERROR, code=code, case=case, ranks=(rank,))


def blame_unsupervised(
    rows: Sequence[Mapping[str, Any]], ended: Iterable[int], ranks: int, names: Sequence[str]
) -> Blame | None:
    """Judge ranks that torchrun or Slurm started: no exit status was seen.

    A dead rank is one that neither ended nor raised nor was asked to end. A launcher ends what is left when one rank has
    failed, often before the others have noticed: those are no cause. Where a rank has no time left to say so, a rank
    that raised by itself, in the same case or before, still comes first.
    """
    early = _before_cases(rows)
    if early:
        return early
    raised, reports = _raised(rows), {int(r["rank"]): r for r in rows if r.get("row") == "told"}
    missing = sorted(set(range(ranks)) - set(ended) - set(reports) - set(raised))
    last = last_cases(rows, range(ranks))
    own = min((int(row["case"]) for row in raised.values() if not _innocent(row)), default=None)
    missing = [rank for rank in missing if own is None or last[rank] + 1 < own]
    if missing:
        return _blame_silent(missing, last, raised, names)
    if raised:
        return _blame_exit({}, list(reports.values()), {}, rows, names)
    if not reports:
        return None
    first = min(reports.values(), key=lambda row: int(row["case"]))
    place = _place(int(first["case"]), names)
    sentence = f"the launcher ended {ranks_text(reports, 'r')} ({first.get('signal')}) in {place}; no rank raised or died before"
    return Blame(sentence=sentence, verdict=Verdict.NOT_RUN, code=Exit.ERROR)


def _blame_silent(
    missing: Sequence[int], last: Mapping[int, int], raised: Mapping[int, Mapping[str, Any]], names: Sequence[str]
) -> Blame:
    """Name, of the ranks of which nothing more was heard, the one that had come least far."""
    rank = min(missing, key=lambda r: last[r])
    sentence = f"{ranks_text([rank], 'r')} ended without a word in {_place(last[rank] + 1, names)}"
    if raised:
        detail = str(next(iter(raised.values())).get("detail", ""))
        sentence += f"; {ranks_text(raised, 'r')} raised after that: {detail[:160]}"
    sentence += "; the launcher's log has its exit status"
    return Blame(sentence=sentence, verdict=Verdict.CRASH, code=Exit.CRASH, case=last[rank] + 1, ranks=(rank,))


def last_cases(rows: Sequence[Mapping[str, Any]], ranks: Iterable[int]) -> dict[int, int]:
    """Return the last case that each rank finished, or -1 for none."""
    return {
        rank: max((int(r["case"]) for r in rows if r.get("rank") == rank and r.get("row") == "case"), default=-1)
        for rank in ranks
    }


def refreshed(halt: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a halt whose places, reported four times a second, agree with the rows: who finished a case is in the next."""
    where = [dict(row) for row in halt.get("where", ()) if isinstance(row, Mapping)]
    last = last_cases([row for row in rows if row.get("status") != "error"], [int(row["rank"]) for row in where])
    for row in where:
        if last[int(row["rank"])] >= int(row["case"]):
            row.update(case=last[int(row["rank"])] + 1, step="prep", signature="")
    return {**halt, "where": where}


# -- no rank moved -----------------------------------------------------------------------------------------------------


def _blame_deadline(halt: Mapping[str, Any], where: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Blame:
    limit = float(halt.get("limit") or 0)
    if not where:
        return Blame(sentence=f"nothing moved for {limit:.0f} s", verdict=Verdict.HANG, code=Exit.HANG)
    order = [phase.word for phase in Phase]
    behind = min((int(r["case"]), order.index(str(r["step"]))) for r in where)
    laggards = [r for r in where if (int(r["case"]), order.index(str(r["step"]))) == behind]
    ranks = [int(r["rank"]) for r in laggards]
    case, step = behind[0], order[behind[1]]
    place = _place(case, names)
    odd = _different_call(where, (), case)
    stopped = [int(r["rank"]) for r in laggards if r.get("state") == "T"]
    if odd:
        ranks, theirs, common = odd
        sentence = f"{_who(ranks, where)} called {theirs} where the others called {common}, in {place}"
        sentence += f"; no rank moved for {limit:.1f} s"
    elif stopped and len(stopped) < len(where):
        ranks, at = stopped, f"{place}{_rest(where, case, stopped)}"
        sentence = f"{_who(stopped, where)} is stopped (SIGSTOP or a debugger) in {at}"
    elif len(laggards) == len(where):
        sentence = f"all ranks are stuck in {place}, step {step}, for {limit:.1f} s"
    else:
        does = "never entered" if step == "prep" else f"is stuck (step {step}) in"
        sentence = f"{_who(ranks, where)} {does} {place}{_rest(where, case, ranks)}"
    stack = halt.get("stacks", {}).get(str(ranks[0])) if ranks else None
    if stack:
        sentence += f"; {ranks_text(ranks[:1], 'r')} was in {stack[0]}"
    unkillable = halt.get("unkillable")
    if unkillable:
        sentence += f"; unkillable: {ranks_text(unkillable, 'r')}"
    index = case if case >= 0 else None
    return Blame(sentence=sentence, verdict=Verdict.HANG, code=Exit.HANG, case=index, ranks=tuple(ranks))


def _rest(where: Sequence[Mapping[str, Any]], case: int, ranks: Sequence[int]) -> str:
    """Say what the others did meanwhile: ``; ranks 0, 1, 3 waited inside it for 3.0 s``."""
    waiting = [r for r in where if int(r["rank"]) not in ranks and int(r["case"]) == case]
    if not waiting:
        return ""
    step = str(waiting[0]["step"])
    waited = min(float(r.get("age", 0)) for r in waiting)
    return f"; {ranks_text([int(r['rank']) for r in waiting], 'r')} {_WAITING.get(step, step)} for {waited:.1f} s"


def _who(ranks: Sequence[int], where: Sequence[Mapping[str, Any]]) -> str:
    pids = [str(row["pid"]) for row in where if int(row["rank"]) in ranks and row.get("pid")]
    return ranks_text(ranks, "r") + (f" (pid {', '.join(pids)})" if pids else "")


# -- a value is wrong -------------------------------------------------------------------------------------------------


def blame_wrong(name: str, case: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence for a case whose values were wrong on some ranks.

    ``rows`` are all ranks' rows of the case.
    """
    calls = {int(r["rank"]): str(r["sig"]) for r in rows if r.get("sig")}
    odd, theirs, common = odd_ones(calls)
    wrong = [r for r in rows if r.get("status") == "wrong"]
    detail = f"{ranks_text([int(r['rank']) for r in wrong], 'r')}: {wrong[0].get('detail', '')}"
    if odd:
        return (
            f"{ranks_text(odd, 'r')} called {theirs} where the others called {common}, in case {case} {name}; {detail}"
        )
    return f"case {case} {name} is wrong on {detail}"


# -- what NCCL says, in words for people: its results with cause and next step, the transports that its log names ------


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclResult:
    """One of ``ncclResult_t`` (nccl.h). NCCL and torch print ``phrases``.

    ``cause`` is the usual one when all is new.
    """

    name: str
    phrases: tuple[str, ...]
    cause: str
    next: str


# In the order of their codes, from 1 on.
RESULTS = (
    NcclResult(
        name="ncclUnhandledCudaError", phrases=("unhandled cuda error", "Cuda failure"),
        cause="a CUDA call failed inside NCCL, most often a driver older than this CUDA, or no kernel for this GPU",
        next="compare the driver with the CUDA of this torch (envsmith doctor), "
        "and torch.cuda.get_arch_list() with the GPU",
    ),
    NcclResult(
        name="ncclSystemError", phrases=("unhandled system error",),
        cause="the system refused NCCL a socket, memory, a file or a device",
        next="look at NCCL's WARN line (NCCL_DEBUG=WARN), /dev/shm, `ulimit -n` and `ulimit -l`, NCCL_SOCKET_IFNAME",
    ),
    NcclResult(
        name="ncclInternalError",
        phrases=("internal error - please report this issue to the NCCL developers", "internal error, NCCL version"),
        cause="NCCL met a topology or an answer of NVML that it did not expect",
        next="try NCCL_NVLS_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0, and look at the WARN line above it",
    ),
    NcclResult(
        name="ncclInvalidArgument", phrases=("invalid argument",),
        cause="NCCL refuses the call: a dtype, a count or a pointer",
        next="ask whether this NCCL has the dtype (fp8 from 2.24 on)",
    ),
    NcclResult(
        name="ncclInvalidUsage", phrases=("invalid usage", "Duplicate GPU detected"),
        cause="two ranks on one GPU, or different NCCL versions in one group",
        next="give every rank its own device (torch.cuda.set_device(LOCAL_RANK), device_id=), "
        "and compare the versions of all nodes",
    ),
    NcclResult(
        name="ncclRemoteError", phrases=("remote process exited or there was a network error",),
        cause="another rank died, or the network broke",
        next="see who died first: that rank's log has the cause",
    ),
    NcclResult(
        name="ncclInProgress", phrases=("NCCL operation in progress",),
        cause="a communicator that does not block is still being made; this is not an error by itself",
        next="wait for it, or look for the rank that has not joined",
    ),
    NcclResult(
        name="ncclTimeout", phrases=(),
        cause="a barrier on the device did not end (NCCL 2.30 and newer)",
        next="treat it as a hang: find the rank that never entered",
    ),
)  # fmt: skip
# `ncclSystemError`, or the code after a word that makes it one: "NCCL error 2", "ncclResult_t 2", "returned 2".
_CODE = re.compile(r"\bnccl(?:Result(?:_t)?| error| failure)\W{0,3}(?:code\W{0,3})?([1-8])\b", re.IGNORECASE)


def explained(text: str) -> str:
    """Return the message with what a result of NCCL in it usually means, or the message alone when there is none."""
    result = _named(text)
    return f"{text} -- {result.cause}; next: {result.next}" if result else text


def _named(text: str) -> NcclResult | None:
    by_name = [(text.find(r.name), r) for r in RESULTS if r.name in text]
    if by_name:
        return min(by_name, key=lambda pair: pair[0])[1]
    if "nccl" not in text.lower():
        return None
    lowered = text.lower()
    for result in RESULTS:
        if any(phrase.lower() in lowered for phrase in result.phrases):
            return result
    match = _CODE.search(text)
    return RESULTS[int(match[1]) - 1] if match else None


# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Ring 00 : 6 -> 2 [receive] via NET/IB/0/GDRDMA", brackets may hold a bus
# id.
_VIA = re.compile(
    r"(?:Channel|Ring)\b[^:]*: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])?"
    r" via ([A-Za-z0-9][^\n\r]*)"
)
_NETWORK = re.compile(r"NCCL INFO Using network ([\w.+-]+)")
_NVLS = re.compile(r"(\d+) nvls channels")


def transports(text: str) -> dict[str, object]:
    """Return what a log with ``NCCL_DEBUG=INFO`` proves, or nothing where it says nothing.

    It is ``{"pairs": {way: pairs of ranks}, "network": …, "nvls_channels": …}``. A way is the transport without the
    number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/Socket``, ``NET/IB/GDRDMA``.
    """
    ways: dict[str, set[tuple[int, int]]] = {}
    for match in _VIA.finditer(text):
        ways.setdefault(_way(match[3]), set()).add((int(match[1]), int(match[2])))
    answer: dict[str, object] = {}
    if ways:
        answer["pairs"] = {way: len(pairs) for way, pairs in sorted(ways.items())}
    networks = sorted(set(_NETWORK.findall(text)))
    if networks:
        answer["network"] = ", ".join(networks)
    nvls = [int(number) for number in _NVLS.findall(text)]
    if nvls:
        answer["nvls_channels"] = max(nvls)
    return answer


def _way(text: str) -> str:
    """Leave out which adapter it was: ``NET/IB/3(2)/GDRDMA/Shared`` is ``NET/IB/GDRDMA/Shared``."""
    phrase = re.split(r"\s+comm\b|\s{2,}", text.strip())[0]
    return "/".join(part for part in phrase.split("/") if not re.fullmatch(r"\d+(?:\(\d+\))?", part))


def transport_sentence(texts: Iterable[str]) -> tuple[str, Mapping[str, object]]:
    """Return a sentence for the notes of a record, empty when NCCL's log names no transport, and the facts."""
    facts = transports("\n".join(texts))
    pairs = facts.get("pairs")
    if not isinstance(pairs, dict):
        return "", facts
    ways = ", ".join(f"{way} ({count} pair{'' if count == 1 else 's'} of ranks)" for way, count in pairs.items())
    nvls = facts.get("nvls_channels")
    channels = f"; {nvls} NVLS channels" if nvls else ""
    return f"NCCL's transport: {ways}{channels}", facts
