"""Reading ten thousand records, beside json.loads of the same files alone: what the checks of a record cost. CPU seconds.

``python bench/records.py [COUNT]``. The records are copies of one of the matrix with other times, below a temporary folder.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
import time
from pathlib import Path

from envsmith.knowledge.graph.expiry import load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.cells import cell_states
from envsmith.model.record import read_records, record_name

ROUNDS = 3


def fill(folder: Path, count: int) -> int:
    """Write ``count`` records; their bytes."""
    patterns = [json.loads(path.read_text()) for path in sorted((find_matrix() / "records").glob("*.json"))]
    start, size = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), 0
    for number in range(count):
        value = {**patterns[number % len(patterns)], "started": (start + dt.timedelta(minutes=number)).isoformat()}
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        (folder / record_name(value["cell"], value["engine"], text)).write_text(text)
        size += len(text.encode())
    return size


def best(function) -> float:
    """CPU seconds of the fastest round: wall time would measure who else is at work here."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        function()
        seconds.append(time.process_time() - begun)
    return min(seconds)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(prefix="envsmith-records-") as name:
        folder = Path(name)
        size = fill(folder, count)
        plain = best(lambda: [json.loads(path.read_bytes()) for path in folder.iterdir()])
        ours = best(lambda: read_records(folder))
        expiry, records = load_expiry(find_matrix()), read_records(folder)
        states = best(lambda: cell_states(records, expiry, dt.date(2026, 11, 21)))
    print(f"{count} records, {size / count:.0f} bytes each")
    print(f"json.loads of each file  {plain:.2f} s")
    print(f"read_records             {ours:.2f} s  ({ours / plain:.2f} times)")
    print(f"state of every cell      {states:.2f} s")


if __name__ == "__main__":
    main()
