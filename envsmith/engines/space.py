"""Free disk: what a cell needs is compared with what a disk has, before gigabytes are fetched or written."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from envsmith.errors import EnvsmithError, StorageError
from envsmith.http import HttpClient
from envsmith.model.lock import Pin

# An installed torch layer takes 1.86 times the bytes of its wheels (torch 2.15.0: 2.8 GiB of wheels, 5.2 GiB on disk).
_UNPACKED = 2.0
# With this much free space the largest cell fits, and no server is asked for sizes.
_PLENTY = 24 << 30
_SIZING_SECONDS = 30.0


def refuse_without_room(
    cell: object, places: Mapping[Path, Sequence[Pin]], *, hint: str, spared: Callable[[], bool] = bool
) -> None:
    """Raise ``StorageError`` where a disk lacks the room for what is to be unpacked to each place, a pin as often as named.

    ``spared`` is asked at the end: whether all of it takes no room there.
    """
    disks: dict[int, tuple[Path, list[Pin]]] = {}
    for place, pins in places.items():
        folder = next(path for path in (place, *place.absolute().parents) if path.exists())
        disks.setdefault(folder.stat().st_dev, (folder, []))[1].extend(pins)
    for folder, pins in disks.values():
        free = shutil.disk_usage(folder).free
        names = [pin.name for pin in pins]
        if free >= _PLENTY * max(map(names.count, names), default=0):
            continue
        needed = int(_wheel_bytes(pins) * _UNPACKED)
        if needed > free and not spared():
            raise StorageError(
                f"Cannot build cell {cell}: {_gib(needed)} are needed on the disk of {folder}, {_gib(free)} are free.",
                hint=hint,
            )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _wheel_bytes(pins: Sequence[Pin]) -> int:
    """Return the bytes of the files to come: from the lock, else from the servers that answer in time."""
    sized = sum(max((a.size or 0) for a in pin.artifacts) for pin in pins)
    urls = Counter(pin.artifacts[0].url for pin in pins if not any(a.size for a in pin.artifacts))
    client = HttpClient(jobs=8, timeout=10.0)

    def size(url: str) -> int:
        with suppress(EnvsmithError), client.open_range(url, 0, 1) as reply:
            return reply.total * urls[url]
        return 0

    pool = ThreadPoolExecutor(max_workers=8)
    try:
        answers, _late = wait([pool.submit(size, url) for url in urls if url], timeout=_SIZING_SECONDS)
        return sized + sum(answer.result() for answer in answers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
