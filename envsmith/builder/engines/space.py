"""Free disk: what a cell needs is compared with what a disk has, before gigabytes are fetched or written."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from envsmith.errors import EnvsmithError, StorageError
from envsmith.model.lock import Pin
from envsmith.net.http import HttpClient

# An installed torch layer takes 1.86 times the bytes of its wheels (torch 2.15.0: 2.8 GiB of wheels, 5.2 GiB on disk).
_UNPACKED = 2.0
# With this much free space the largest cell fits, and no server is asked for sizes.
_PLENTY = 24 << 30
_SIZING_SECONDS = 30.0


# What is unpacked in each place at one time, a pin as often as it is there.
Moment = Mapping[Path, Sequence[Pin]]


def refuse_without_room(
    cell: object,
    moments: Sequence[Moment],
    *,
    hint: str,
    spared: Callable[[], bool] = bool,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> None:
    """Raise ``StorageError`` where a disk lacks the room for the fullest of ``moments``.

    ``spared`` is asked at the end: whether all of it takes no room there.
    """
    loads = [load for moment in moments for load in _loads(moment)]
    crowded = [(folder, pins) for folder, pins in loads if free_bytes(folder) < _PLENTY * _copies(pins)]
    if not crowded:
        return
    sizes = _wheel_bytes({pin.name: pin for _folder, pins in crowded for pin in pins})
    needed, folder = max((int(sum(sizes[pin.name] for pin in pins) * _UNPACKED), folder) for folder, pins in crowded)
    free = free_bytes(folder)
    if needed > free and not spared():
        raise StorageError(
            f"Cannot build cell {cell}: {_gib(needed)} are needed on the disk of {folder}, {_gib(free)} are free.",
            hint=hint,
        )


def _loads(moment: Moment) -> Iterable[tuple[Path, list[Pin]]]:
    """Return a folder on each disk, with all that is unpacked on that disk."""
    disks: dict[int, tuple[Path, list[Pin]]] = {}
    for place, pins in moment.items():
        folder = next(path for path in (place, *place.absolute().parents) if path.exists())
        disks.setdefault(folder.stat().st_dev, (folder, []))[1].extend(pins)
    return disks.values()


def _copies(pins: Sequence[Pin]) -> int:
    return max(Counter(pin.name for pin in pins).values(), default=0)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _wheel_bytes(pins: Mapping[str, Pin]) -> dict[str, int]:
    """Return the bytes of each pin's file: from the lock, else from the servers that answer in time."""
    sizes = {name: max((a.size or 0 for a in pin.artifacts), default=0) for name, pin in pins.items()}
    urls = {name: pins[name].artifacts[0].url for name, size in sizes.items() if not size and pins[name].artifacts}
    client = HttpClient(jobs=8, timeout=10.0)

    def size(url: str) -> int:
        with suppress(EnvsmithError), client.open_range(url, 0, 1) as reply:
            return reply.total
        return 0

    pool = ThreadPoolExecutor(max_workers=8)
    try:
        answers = {name: pool.submit(size, url) for name, url in urls.items() if url}
        wait(answers.values(), timeout=_SIZING_SECONDS)
        return sizes | {name: answer.result() for name, answer in answers.items() if answer.done()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
