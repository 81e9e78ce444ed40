"""How long a record speaks for an image: as long as ``matrix/expiry.yaml`` says, which knows how new its torch is."""

from __future__ import annotations

import datetime as dt

from envsmith.model.lock import Lock
from envsmith.model.record import Rung
from envsmith.publish.proof import RecordFacts

__all__ = ["expires"]


def expires(record: RecordFacts, lock: Lock) -> dt.date:
    """The last day (UTC) on which the record is not old."""
    from envsmith.graph.data import find_matrix
    from envsmith.matrix.expiry import load_expiry
    from envsmith.matrix.records import Stored

    stored = Stored(
        name="record.json",
        cell=record.cell,
        engine="",
        components=lock.cell.components,
        passed=record.passed,
        rung=Rung(record.rungs[-1]) if record.rungs else Rung.SOLVED,
        day=record.started.date().isoformat(),
        started=record.started.isoformat(),
        data={},
    )
    return load_expiry(find_matrix()).until(stored)
