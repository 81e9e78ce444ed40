"""A preflight for training scripts: it says whether all ranks are in the environment that was meant, and can talk.

Example::

    from envsmith import preflight
    preflight.run()                    # raises PreflightError with one sentence that names the rank and the cause
    with preflight.watch() as watch:   # goes on watching: NCCL's error state, memory, step times
        for batch in data:
            ...
            watch.step()

Or without touching the script: ``torchrun --nproc-per-node 8 -m envsmith.preflight``. It needs torch and the standard library:
the distribution ``envsmith-probe``, which has no requirements, is enough.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsmith.agent.world import stored
from envsmith.base.schema import UNWRITTEN, AsJson
from envsmith.errors import EnvsmithError, UsageError
from envsmith.launch.ranks.errors import follows, read_error
from envsmith.preflight.checks import (
    ERROR,
    NOTE,
    WARNING,
    RankFacts,
    RankFinding,
    about,
    collect,
    drivers,
    expected,
    gpus,
    known,
    limits,
    memory,
    name_of,
    nccl,
    variables,
    versions,
)
from envsmith.preflight.group import Child, CollectiveTrial, JobPlace, TrialAnswer, agree, all_reduce_trial, find_place
from envsmith.preflight.watcher import Watch

__all__ = ["PreflightError", "RankFinding", "Report", "findings_of", "run", "watch"]


BACKENDS = ("auto", "gloo", "nccl")
_IMPORT_SECONDS = 60.0  # torch from a cold network disk


@dataclass(frozen=True)
class Report(AsJson):
    """The same on every rank. ``facts`` are every rank's; ``seconds`` is the time that this call took, without torch's import."""

    ok: bool
    sentence: str
    ranks: int
    backend: str
    seconds: float
    findings: tuple[RankFinding, ...] = ()
    facts: Mapping[int, RankFacts] = field(default_factory=dict, metadata=UNWRITTEN)


class PreflightError(EnvsmithError):
    """A rank is not in the environment that was meant, or the ranks cannot talk; ``report`` has every finding."""

    exit_code = 1

    def __init__(self, report: Report) -> None:
        first = next((f for f in report.findings if f.severity == "error"), None)
        super().__init__(report.sentence, hint=first.fix if first and first.fix else None)
        self.report = report


def run(
    *,
    timeout: float = 30.0,
    backend: str = "auto",
    collective: bool = True,
    strict: bool = False,
    expect: Mapping[str, str] | None = None,
    min_gpu_free: int = 0,
    raises: bool = True,
    quiet: bool = False,
    isolate: bool = True,
) -> Report:
    """Compare this rank with all others, look at its machine, and run one collective with a checked value.

    Call it before or after ``init_process_group``, on every rank. The collective runs on a group and a store of its
    own: the script's groups do not notice it. Before ``init_process_group`` it has a process of its own as well, unless
    ``isolate`` is false: torch keeps the first group of a process for the default group.

    ``timeout`` (seconds) bounds the wait for the others and for the collective, each. ``expect`` maps ``torch``,
    ``nccl`` or a package to the version that must be loaded. ``min_gpu_free`` is in bytes. ``strict`` takes warnings
    for errors. Raises :class:`PreflightError` unless ``raises`` is false, :class:`~envsmith.errors.SmokeError` when the
    job's store cannot be reached, and ``UsageError`` for an unknown ``backend`` or unreadable variables of the launcher.
    """
    if backend not in BACKENDS:
        raise UsageError(f"Cannot use backend {backend!r}: choose one of {', '.join(BACKENDS)}.")
    started = time.monotonic()
    place = find_place(timeout)
    collective = collective and place.world > 1
    with contextlib.ExitStack() as closing:  # the verdict is written before the group ends, which may hang
        child = closing.enter_context(Child()) if collective and isolate and not place.backend else None
        mine: RankFacts = {**collect(place.local), "rank": place.rank}
        if child:
            child.wait(_IMPORT_SECONDS)
        everyone, missing = ({place.rank: mine}, []) if place.world < 2 else agree(place, "facts", mine, timeout)
        rows = [everyone[rank] for rank in sorted(everyone)]
        findings = findings_of(rows, expect=expect, min_gpu_free=min_gpu_free)
        if missing:
            text = f"did not come to the preflight within {timeout:.0f} s"
            fix = "did that rank start? its own log has the reason"
            findings.insert(0, about(rows, missing, text, "missing", "error", fix))
        chosen = backend if backend != "auto" else _backend(place, rows)
        if collective and not any(f.severity == "error" for f in findings):
            device = mine["gpu"]["index"] if chosen == "nccl" and mine["gpu"] else None
            trial = all_reduce_trial(place, chosen, device, timeout, child.ask if child else None)
            closing.callback(trial.close)
            findings += _collective(place, chosen, trial, rows, timeout)
        report = _report(findings, rows, place=place, backend=chosen, strict=strict, seconds=time.monotonic() - started)
        if not quiet and place.rank == min(everyone):
            _say(report)
    if raises and not report.ok:
        raise PreflightError(report)
    return report


def _backend(place: JobPlace, rows: list[RankFacts]) -> str:
    """Return NCCL when every rank can use it and the script's group is not on gloo. Every rank has the same answer."""
    usable = all(row.get("cuda_usable") and row.get("has_nccl") for row in rows)
    return "nccl" if usable and place.backend != "gloo" else "gloo"


def _collective(
    place: JobPlace, backend: str, trial: CollectiveTrial, rows: list[RankFacts], timeout: float
) -> list[RankFinding]:
    """Run one all_reduce. Every rank tells how it ended, and every rank hears it."""
    answers, missing = agree(place, "collective", trial.run(timeout), timeout + 2.0)
    if all(a.get("ok") for a in answers.values()) and not missing:
        return []
    absent = [rank for rank in range(place.world) if not stored(place.store, f"entered/{rank}")]
    bad = first_failures({rank: a for rank, a in answers.items() if not a.get("ok")})
    failure = next(
        (a for a in bad.values() if not a.get("hang")), next(iter(bad.values()), TrialAnswer(detail="no answer"))
    )
    if absent and len(absent) < place.world:
        ranks, text = absent, f" never entered the all_reduce on {backend}: {failure['detail']}"
    elif missing:
        ranks, text = missing, f" never came out of the all_reduce on {backend}"
    else:
        ranks, text = sorted(bad), f": {failure.get('stage', 'all_reduce')} on {backend} failed: {failure['detail']}"
    fix = f"`envsmith smoke --backend {backend}` says more; NCCL_DEBUG=INFO or GLOO_SOCKET_IFNAME for the interface"
    message = name_of(rows, ranks) + text
    return [RankFinding(check="collective", severity="error", ranks=tuple(ranks), message=message, fix=fix)]


def first_failures(answers: Mapping[int, TrialAnswer]) -> Mapping[int, TrialAnswer]:
    """Return the answers of the ranks that failed by themselves, or all where none did: others only lost or awaited them."""
    own = {rank: a for rank, a in answers.items() if not a.get("hang") and not follows(read_error(a["detail"], ()))}
    return own or answers


def _report(
    findings: list[RankFinding], rows: list[RankFacts], *, place: JobPlace, backend: str, strict: bool, seconds: float
) -> Report:
    bad = [f for f in findings if f.severity == "error" or (strict and f.severity == "warning")]
    head = rows[0]
    loaded = {"torch": head.get("torch"), "NCCL": head.get("nccl")}
    what = ", ".join(f"{name} {version}" for name, version in loaded.items() if version)
    if bad:
        sentence = bad[0].message + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
    else:
        many = f"{place.world} ranks agree" if place.world > 1 else "one process"
        hosts = len({row["host"] for row in rows})
        nodes = f" on {hosts} nodes" if hosts > 1 else ""
        talk = f", all_reduce on {backend} is right" if place.world > 1 else ""
        warned = sum(f.severity == "warning" for f in findings)
        sentence = f"{many}{nodes}: {what}{talk}" + (f"; {warned} warning(s)" if warned else "")
    return Report(
        ok=not bad,
        sentence=sentence,
        ranks=place.world,
        backend=backend,
        seconds=round(seconds, 3),
        findings=tuple(findings),
        facts={int(row["rank"]): row for row in rows},
    )


def _say(report: Report) -> None:
    """Rank 0 talks, on stderr."""
    lines = [f"preflight: {f.severity}: {f.message}" + (f" -- {f.fix}" if f.fix else "") for f in report.findings]
    lines.append(f"preflight: {'passed' if report.ok else 'failed'} in {report.seconds:.1f} s: {report.sentence}")
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def watch(**options: Any) -> Watch:
    """Go on watching in the background: see :class:`~envsmith.preflight.watcher.Watch`."""
    return Watch(**options)


# From every rank's facts to findings: pure, the same on every rank, so that all of them stop with the same sentence.


def findings_of(
    facts: Sequence[RankFacts], *, expect: Mapping[str, str] | None = None, min_gpu_free: int = 0
) -> list[RankFinding]:
    """Return every finding, errors first. ``expect`` maps a component (torch, nccl, a package) to the version that must be loaded."""
    data = known()
    findings = [
        *versions(facts),
        *expected(facts, expect or {}),
        *nccl(facts),
        *drivers(facts, data),
        *gpus(facts, min_gpu_free),
        *memory(facts),
        *limits(facts),
        *variables(facts, data),
    ]
    return sorted(findings, key=lambda f: (ERROR, WARNING, NOTE).index(f.severity))
