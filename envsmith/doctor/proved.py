"""The run that proved the environment at hand, where envsmith built it and nothing has changed since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.base.json_types import objects_in
from envsmith.doctor.facts import Facts
from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.load import components
from envsmith.model.record import RECORD_FILE, Record, Rung, read_record
from envsmith.model.rule import PassedRun

# The stages of rules that a run goes through until it has proved a rung.
_STAGES = {
    Rung.INSTALLED: ("lock", "install"),
    Rung.IMPORTED: ("import",),
    Rung.FRAMEWORK_CPU: ("build", "init"),
    Rung.FRAMEWORK_GPU: ("build", "init"),
}
_MOST_BYTES = 1 << 16


def own_run(python: Path, facts: Facts) -> PassedRun | None:
    """Return the run of ``CELL/record.json`` for ``CELL/venv/bin/python``, when the record is of what is installed."""
    folder = python.absolute().parent.parent.parent
    path = folder / RECORD_FILE
    if not path.is_file():
        return None
    from envsmith.builder.engines.base import verify_content  # an environment that was not built here needs none of it
    from envsmith.knowledge.graph.read import passed_run
    from envsmith.lock import store

    try:
        record = read_record(str(path), read_bounded(path, _MOST_BYTES))
        lock = store.read(folder)
        if lock is None or not record.passed or record.lock != lock.digest:
            return None
        verify_content(lock, {**facts.distributions, "python": facts.version("python") or ""})
    except EnvsmithError:
        return None
    run = passed_run(RECORD_FILE, record, components())
    beside = {component.name: pin.version for pin in lock.pins if (component := components().find(pin.name))}
    stages = frozenset(stage for rung in record.rungs for stage in _STAGES.get(rung, ()))
    return replace(run, components={**beside, **run.components}, stages=stages, unused=_unused(record, facts))


def _unused(record: Record, facts: Facts) -> frozenset[str]:
    """Return the components of the machine that the run did without: GPUs that it did not use, or that it never saw."""
    gpus = [str(row.get("name", "")) for row in objects_in(record.host, "gpus")]
    is_same = sorted(gpus) == sorted(facts.gpus) and (record.host.get("driver") or None) == facts.version("driver")
    uses_gpus = record.backend.startswith("nccl")
    unused = set() if uses_gpus else {"nccl"}
    if not is_same or (gpus and not uses_gpus):
        unused |= {"nccl", "gpu", "driver", "toolkit"}
    return frozenset(unused)
