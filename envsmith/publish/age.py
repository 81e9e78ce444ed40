"""How long a record speaks for an image. What was proved a season ago was proved on other drivers and kernels than people have now."""

from __future__ import annotations

import datetime as dt

from envsmith.model.lock import Lock
from envsmith.publish.proof import RecordFacts

__all__ = ["DAYS", "expires"]

# A quarter of a year: a choice of ours, not a measurement.
DAYS = 90


def expires(record: RecordFacts, lock: Lock) -> dt.date:  # noqa: ARG001 - the cell will decide where the matrix says so
    """The last day (UTC) on which the record is not old."""
    return record.started.date() + dt.timedelta(days=DAYS)
