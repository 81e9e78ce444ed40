"""An environment that exists already: which cell it is, and the record of what was run in it.

Where it was built here, the lock beside it says so, and what is installed is compared with it. Otherwise the cell is
read from what was loaded: it was neither solved nor locked, and the record claims neither.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.base.files import digest_of
from envsmith.builder.engines.base import verify_content
from envsmith.builder.engines.venv import inspect_python
from envsmith.builder.proof import RecordSubject, make_record
from envsmith.errors import EnvsmithError
from envsmith.frameworks import added_frameworks, frameworks_of
from envsmith.lock import store
from envsmith.model.cell import CellId, Platform
from envsmith.model.record import Facts, Failure, Record, Rung, Verdict
from envsmith.model.version import minor_of
from envsmith.smoke.events import LoadedEvent
from envsmith.smoke.failure import failure_of
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.parse_events import parse_loaded

if TYPE_CHECKING:
    from envsmith.model.lock import Lock
    from envsmith.smoke.everything import Done
    from envsmith.smoke.result import SmokeResult

# The parts that speak for the cell. How ranks shared a GPU, or what the older engine did, stands in the notes.
_MAIN, _STEPS, _BANDWIDTH = "full", "framework", "bandwidth"


def find_cell(python: Path, loaded: Facts) -> RecordSubject:
    """Return the cell of the interpreter ``python``, with what a run ``loaded`` there.

    Raises ``ContentError`` when the interpreter does not start any more.
    """
    installed = inspect_python(python)
    text = json.dumps(installed, sort_keys=True, separators=(",", ":"))
    environment = digest_of(text.encode())
    if lock := _lock_beside(python, installed):
        cell, components = str(lock.cell.id), lock.cell.components
        return RecordSubject(cell=cell, components=components, engine="venv", environment=environment, lock=lock.digest)
    components = _components(parse_loaded(loaded))
    chosen = tuple((n, components[n]) for n in (*added_frameworks(), "torch", "cuda", "python") if n in components)
    cell = str(CellId(chosen, _platform(loaded)))
    return RecordSubject(cell=cell, components=components, engine="found", environment=environment)


def _lock_beside(python: Path, installed: Mapping[str, str]) -> Lock | None:
    """Return the lock of ``CELL/venv/bin/python`` while what is installed is what it says."""
    try:
        lock = store.read(python.absolute().parent.parent.parent)
        if lock is not None:
            verify_content(lock, installed)
    except EnvsmithError:
        return None
    return lock


def _components(loaded: LoadedEvent) -> dict[str, str]:
    """Return component → version, as records name them: frameworks, torch with its build, and what torch brings."""
    installed, torch, cuda = loaded.installed, loaded.torch, loaded.cuda or "cpu"
    if "+" not in torch:
        torch += "+cpu" if cuda == "cpu" else "+cu" + cuda.replace(".", "")
    components = {name: installed[name] for name in added_frameworks() if name in installed}
    components |= {"torch": torch, "cuda": cuda, "python": minor_of(loaded.python)}
    cudnn = next((v for k, v in installed.items() if k.startswith("nvidia-cudnn-")), "")
    components |= {"nccl": loaded.nccl_runtime or loaded.nccl, "cudnn": cudnn, "triton": installed.get("triton", "")}
    return {name: version for name, version in components.items() if version}


def _platform(loaded: Facts) -> Platform:
    machine = str(loaded.get("machine") or platform.machine())
    return Platform.LINUX_AARCH64 if machine in {"aarch64", "arm64"} else Platform.LINUX_64


def record_of_parts(subject: RecordSubject, parts: Sequence[Done], *, started: str) -> Record:
    """Return one record of all parts: cases of the full tier, steps of the framework tier, peaks of the bandwidth tier.

    Every part stands in the notes. The record has passed when those of them that were run passed, and every case of the
    full tier had its time. Raises ``EnvsmithError`` when no part gave a result.
    """
    by_name = {d.part.name: d for d in parts}
    main, steps, band = (by_name[n].result if n in by_name else None for n in (_MAIN, _STEPS, _BANDWIDTH))
    first = main or steps or band or next((d.result for d in parts if d.result), None)
    if first is None:
        raise EnvsmithError("Cannot write a record: no part of the test ran.", details=[d.sentence for d in parts[:3]])
    loaded = next((d.result for d in parts if d.result and d.result.loaded), first)
    failed = next((r for r in (main, steps, band) if r and not r.passed), None)
    joined = replace(
        first,
        cause=(failed or first).cause,
        passed=main is not None and not main.late and failed is None,
        summary=_summary(main, steps, first),
        cases=main.cases if main else (),
        digest=main.digest if main else "",
        steps=steps.steps if steps else (),
        bandwidth=band.bandwidth if band else (),
    )
    rungs = (
        *subject.rungs,
        *proved_rungs(loaded, frameworks_of(subject.components), cases=main, steps=steps.steps if steps else ()),
    )
    return make_record(
        subject,
        joined,
        rungs=rungs,
        started=started,
        seconds={d.part.name: d.seconds for d in parts if d.result},
        notes=_notes(parts, main),
        failure=None if joined.passed else failure_of(joined, rungs) if main and failed else _lack(joined, by_name),
    )


def _summary(main: SmokeResult | None, steps: SmokeResult | None, first: SmokeResult) -> str:
    failed = next((r.summary for r in (main, steps) if r and not r.passed), None)
    if failed:
        return failed
    passed = [s.name for s in (steps.steps if steps else ()) if s.verdict is Verdict.PASS]
    return first.summary + (f"; steps passed: {', '.join(passed)}" if passed else "")


def _notes(parts: Sequence[Done], main: SmokeResult | None) -> tuple[str, ...]:
    """Return where the ranks were, what passed, what was not run, each part that failed, what the full tier noted."""
    places = dict.fromkeys(d.result.place for d in parts if d.result and d.result.place)
    passed = ", ".join(d.part.name for d in parts if d.word == "passed")
    missing = "; ".join(f"{d.part.name} ({d.sentence})" for d in parts if d.word == "not run")
    return (
        "; ".join(places),
        f"parts that passed: {passed}" if passed else "",
        f"not run: {missing}" if missing else "",
        *(f"{d.part.name}: {d.unreached}" for d in parts if d.unreached),
        *(f"{d.part.name} failed: {d.sentence}" for d in parts if d.word == "failed"),
        *(main.notes if main else ()),
    )


def _lack(joined: SmokeResult, by_name: Mapping[str, Done]) -> Failure:
    """Return why the full tier was not run, or not to its end. That says nothing against the cell."""
    main = by_name.get(_MAIN)
    why = main.unreached or main.sentence if main else "it was not among the parts"
    rung = Rung.COLLECTIVES_GPU if joined.backend.startswith("nccl") else Rung.COLLECTIVES_CPU
    return Failure(rung=rung, symptom=why if joined.cases else f"the full tier was not run: {why}", of_host=True)
