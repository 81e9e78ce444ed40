"""Make the Conda lock of a cell: ask the channels' solver, and prove the answer equal to the pip lock."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from urllib.parse import urldefrag

from envsmith.base.files import read_bounded
from envsmith.base.progress import Progress, lines_of, silent
from envsmith.errors import DataError, LockError, UsageError
from envsmith.lock.conda.channels import Channels, base_url, open_channels, with_channels
from envsmith.lock.conda.foreign import MAX_BYTES
from envsmith.lock.conda.lock_files import files, load_lock
from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaRequest, PipPackage, PlatformLock, Tell
from envsmith.lock.conda.names import candidates, clean, cuda_of_build, fold, listing, public_url, same_version
from envsmith.lock.conda.solve import MOVABLE, Ask, Unsolvable, compare, nearest_to_pip, solve
from envsmith.lock.conda.specs import (
    CondaPlan,
    core_problems,
    cuda_of,
    is_python,
    make_plan,
    python_of,
    virtual_packages,
)
from envsmith.lock.days import last_day
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.wheel_tags import best_artifact, wheel_tags
from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, public
from envsmith.net.http import HttpClient

LOCK_FILE = "conda-lock.yml"
_FORMAT = 1  # raised when equal requests must be locked again because the meaning of a lock changed
# Cells that are tried: the best ones of a request differ in one companion first, and a look costs a tenth of a
# millisecond.
_TRIED = 5000
_SHA256 = re.compile(r"[0-9a-f]{64}")

Cells = Callable[[Request], Iterable[Cell]]
# The files of a pinned release on the index, whatever their platform.
FilesOf = Callable[[Pin], Sequence[Artifact]]


def lock_conda(
    cell: Cell,
    pip_pins: Sequence[Pin],
    conda: CondaRequest,
    *,
    progress: Progress = silent,
    files_of: FilesOf | None = None,
) -> CondaLock:
    """Pin ``cell`` in Conda's terms, for its own platform and those asked for.

    What no channel has comes from ``pip_pins``. Each difference that is tolerated is in the lock's ``notes``, and
    :func:`compare` finds it. ``files_of`` finds the files of a pin for platforms that the pip lock has none for.

    Raises ``NetworkError`` when a channel cannot be reached or answers nonsense, ``LockError`` when it has no build of
    the cell (saying what it has), ``UsageError`` for a channel that is none or when py-rattler is missing. Nothing is
    written but the cache below ``cache_dir``.
    """
    conda = with_channels(conda)
    _without(cell, conda.tolerate)  # refuse a name that cannot be tolerated before any channel is asked
    tell = lines_of(progress, "conda")
    parts: list[PlatformLock] = []
    notes: list[str] = []
    for platform in conda.platforms_of(cell):
        channels = open_channels(conda, platform.value, tell)
        tell(f"solving for {platform.value}")
        parts.append(_lock_platform(cell, conda.tolerate, pip_pins, channels, platform, files_of, notes))
    lock = CondaLock(
        cell_id=str(cell.id),
        channels=tuple(_public_name(c) for c in conda.channels),
        platforms=tuple(parts),
        request=request_hash(cell, pip_pins, conda),
    )
    errors, wrong = _differences(lock, cell, pip_pins, conda.tolerate)
    if wrong:
        raise LockError(
            f"Cannot lock {cell.id} for Conda: the solution is not the cell.",
            details=wrong,
            hint="Give another --channel.",
        )
    return replace(lock, notes=tuple(dict.fromkeys([*notes, *errors])))


def _differences(
    lock: CondaLock, cell: Cell, pins: Sequence[Pin], tolerate: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return every error of the comparison with the pip lock, and those that are not tolerated."""
    errors = [f for f in compare(cell, pins, lock) if f.severity is Severity.ERROR]
    return [f.message for f in errors], [f.message for f in errors if not set(f.components) <= set(tolerate)]


def _without(cell: Cell, tolerate: Sequence[str]) -> Cell:
    """Return the cell without the components whose release may differ. ``UsageError`` for one that may not."""
    if wrong := sorted(set(tolerate) - set(MOVABLE)):
        raise UsageError(
            f"Cannot let {', '.join(wrong)} differ from the pip lock: only {', '.join(MOVABLE)} may.",
            hint=f"Use --conda-tolerate with {' or '.join(MOVABLE)}.",
        )
    components = {name: version for name, version in cell.components.items() if name not in tolerate}
    return replace(cell, components=components, chosen=tuple(n for n in cell.chosen if n in components))


def _public_name(channel: str) -> str:
    """Return a channel as a lock may name it: a name stays a name, an address loses its credentials."""
    return channel.strip() if "://" not in channel and "/" not in channel[:2] else public_url(base_url(channel))


def _lock_platform(  # noqa: PLR0917 - the circumstances of one solve
    cell: Cell,
    tolerate: Sequence[str],
    pip_pins: Sequence[Pin],
    channels: Channels,
    platform: Platform,
    files_of: FilesOf | None,
    notes: list[str],
) -> PlatformLock:
    virtual = virtual_packages(cell, platform)
    ask = Ask(channels=channels, virtual=virtual)
    channels.fetch(name for part in (*cell.components, *(p.name for p in pip_pins)) for name in candidates(part))
    plan = _plan(cell, tolerate, pip_pins, platform, ask)
    specs, packages, relaxed = nearest_to_pip(plan, ask, f"the cell {cell.id} on {platform.value}")
    pip, brought = pip_section(
        plan.pip_closure,
        plan.pip_roots,
        {fold(p.name): p for p in pip_pins},
        packages,
        platform=platform,
        python=cell.components["python"],
        glibc=virtual["__glibc"],
        files_of=files_of,
    )
    notes += [*plan.notes, *relaxed, *brought]
    return PlatformLock(platform=platform, specs=specs, virtual_packages=virtual, packages=packages, pip=pip)


def _plan(cell: Cell, tolerate: Sequence[str], pins: Sequence[Pin], platform: Platform, ask: Ask) -> CondaPlan:
    """Plan as near to the cell as the channel allows: give up nothing, else one of what is tolerated, else all."""
    alone = [(name,) for name in tolerate] if len(tolerate) > 1 else []
    for dropped in [(), *alone] if tolerate else []:
        try:
            plan = make_plan(_without(cell, dropped), pins, ask.channels, platform)
            solve(plan.specs, plan.limits, ask)
        except (LockError, Unsolvable):
            continue
        return plan
    return make_plan(_without(cell, tolerate), pins, ask.channels, platform)


def request_hash(cell: Cell, pip_pins: Sequence[Pin], conda: CondaRequest) -> str:
    """Hash everything that is asked. The state of the channel is not asked, so it does not count."""
    pins = [[fold(p.name), p.version, sorted(a.sha256 for a in p.artifacts)] for p in pip_pins]
    question = {
        "format": _FORMAT,
        "cell": cell.to_json(),
        "pins": sorted(pins, key=lambda p: str(p[0])),
        "channels": [_public_name(c) for c in conda.channels],
        "platforms": [p.value for p in conda.platforms_of(cell)],
        "exclude_newer": conda.exclude_newer,
        "tolerate": sorted(conda.tolerate),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def up_to_date(text: str, cell: Cell, pip_pins: Sequence[Pin], conda: CondaRequest) -> bool:
    """Return whether ``text`` is a Conda lock for this very request, whole and equal to the pip lock."""
    lock = load_lock(text)
    if lock.facts.get("packages") != lock.facts.get("entries") or lock.request != request_hash(cell, pip_pins, conda):
        return False
    return not _differences(lock, cell, pip_pins, conda.tolerate)[1]


# Which cells can be had from Conda channels at all: the solver knows before it chooses, instead of failing afterwards.
#
# Channels have far fewer builds of PyTorch than the package index. The best cell for which a channel has every part
# becomes the request.


def narrow_to_channels(
    request: Request, cells: Cells, conda: CondaRequest, *, progress: Tell = lambda _line: None
) -> Request:
    """Bind ``request`` to the torch, CUDA and Python of the best cell that the channels can give.

    ``cells`` lists every valid cell of a request, best first. ``LockError`` says what the channels have instead.
    ``NetworkError`` as :func:`envsmith.lock.conda.lock.lock_conda`.
    """
    conda = with_channels(conda).until(request.exclude_newer or last_day())
    names = ", ".join(conda.channels)
    offer = open_channels(conda, request.platform.value, progress)
    builds = offer("pytorch")
    first: list[str] = []
    for cell in islice(cells(_narrowed_to_builds(request, builds, names)), _TRIED):
        if cuda_of(cell) is None and "cuda" not in request.constraints:
            continue  # a CPU build must be asked for
        problems = core_problems(_without(cell, conda.tolerate), offer, request.platform)
        if not problems:
            return _bound(request, cell, names)
        first = first or problems
    have = listing(sorted({f"{p.version} for {cuda_of_build(p.build)}" for p in builds}, reverse=True))
    raise LockError(
        f"Cannot find a cell of this request: {names} has none.",
        details=first or [f"the channel has pytorch {have}" if have else "the channel has no pytorch"],
        hint="Ask for less, give another --channel, or let NCCL differ with --conda-tolerate nccl.",
    )


def _narrowed_to_builds(request: Request, builds: Sequence[CondaPackage], channels: str) -> Request:
    """Leave out what no build of PyTorch has: each of torch, CUDA and Python for itself."""
    versions_of = {
        "torch": {p.version for p in builds},
        "cuda": {c for p in builds if (c := cuda_of_build(p.build))},
        "python": {v for p in builds if (v := python_of(p))},
    }
    narrowed = dict(request.narrowed)
    for name, versions in versions_of.items():
        if not versions:
            continue
        marks = ".*" if name == "python" else ""
        spec = Spec.parse(" || ".join(f"=={v}{marks}" for v in sorted(versions)))
        narrowed.setdefault(name, (spec, f"channel {channels} has pytorch with {name} {listing(sorted(versions))}"))
    return replace(request, narrowed=narrowed)


def _bound(request: Request, cell: Cell, channels: str) -> Request:
    """Return the request that only this combination of torch, CUDA, Python and frameworks answers."""
    torch = f"pytorch {public(cell.components['torch'])} for CUDA {cuda_of(cell) or 'none'}"
    reason = f"channel {channels} has {torch} and Python {cell.components['python']}"
    names = [n for n in ("torch", "cuda", "python", *cell.frameworks) if n in cell.components]
    exact = {n: (Spec.parse(f"=={cell.components[n]}"), reason) for n in names}
    return replace(request, narrowed={**request.narrowed, **exact})


# The part of a cell that no channel has: which file of each pin a platform installs, with its hash and address.


def pip_section(
    closure: Sequence[str],
    roots: Sequence[str],
    pins: Mapping[str, Pin],
    packages: Sequence[CondaPackage],
    *,
    platform: Platform,
    python: str,
    glibc: str,
    files_of: FilesOf | None = None,
) -> tuple[tuple[PipPackage, ...], tuple[str, ...]]:
    """Return the pip packages by name, and a note for each that Conda brings in another version.

    Roots are always pip's. Of the rest, what the Conda solution contains as a Python package stays Conda's.
    ``files_of`` is asked for the files of a pin that has none for this platform: a pip lock holds those of one platform
    only.
    """
    conda = {p.name: p for p in packages if is_python(p)}
    chosen: list[Pin] = []
    notes: list[str] = []
    for name in closure:
        pin = pins[name]
        brought = next((conda[c] for c in candidates(name) if c in conda), None)
        if name in roots or brought is None:
            chosen.append(pin)
        elif not same_version(name, pin.version, brought.version):
            notes.append(
                f"{name}: the pip lock has {pin.version}, Conda brings {clean(brought.version)} on {platform.value}"
            )
    tags = list(wheel_tags(platform, python, glibc))
    names = {fold(p.name) for p in chosen}
    chosen.sort(key=lambda p: fold(p.name))
    return tuple(_package(pin, tags, names, platform, files_of) for pin in chosen), tuple(notes)


def _package(
    pin: Pin, tags: Sequence[str], names: set[str], platform: Platform, files_of: FilesOf | None
) -> PipPackage:
    artifact = best_artifact(pin, tags)
    if artifact is None and files_of is not None:
        artifact = best_artifact(replace(pin, artifacts=tuple(files_of(pin))), tags)
    if artifact is None:
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: the pip lock has no file that {platform.value} "
            "can install.",
            details=[clean(a.filename) for a in pin.artifacts[:8]],
            hint=f"Lock the cell for {platform.value} too.",
        )
    if not artifact.url:
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: the pip lock has no address of "
            f"{clean(artifact.filename)}.",
            hint="Make the pip lock again while the package index can be reached.",
        )
    if not _SHA256.fullmatch(artifact.sha256):
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: {clean(artifact.filename)} has no sha256."
        )
    return PipPackage(
        name=fold(pin.name),
        version=pin.version,
        url=public_url(urldefrag(artifact.url).url),
        sha256=artifact.sha256,
        requires=tuple(sorted({fold(r) for r in pin.requires} & names)),
    )


# The Conda part of a cell's folder: kept while it answers the same request, made again otherwise, never half.


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaPart:
    """The files of a Conda lock with their text, what to tell, and whether they were there already."""

    lock: CondaLock
    texts: dict[str, str]
    notes: tuple[str, ...] = ()
    reused: bool = False


def conda_part(lock: Lock, directory: Path, conda: CondaRequest, *, progress: Progress = silent) -> CondaPart:
    """Return the Conda lock in ``directory`` where it answers the same request, else a new one."""
    if (part := stored(lock, directory, conda)) is not None:
        return part
    new = lock_conda(
        lock.cell,
        lock.pins,
        with_channels(conda).until(lock.exclude_newer),
        progress=progress,
        files_of=None if conda.offline else _files_on_index,
    )
    return CondaPart(lock=new, texts=files(new), notes=new.notes)


def _files_on_index(pin: Pin) -> tuple[Artifact, ...]:
    """Return every hashed file of a pinned release on the user's own index. Yanked files are left out."""
    from packaging.version import Version

    release = Version(pin.version)
    usable = [
        f
        for f in PackageIndex(HttpClient(), find_index()).project(pin.name).files
        if f.sha256 and f.yanked is None and Version(f.version) == release
    ]
    return tuple(
        Artifact(filename=f.filename, sha256=f.sha256 or "", size=f.size, url=f.url)
        for f in sorted(usable, key=lambda f: f.filename)
    )


def stored(lock: Lock, directory: Path, conda: CondaRequest) -> CondaPart | None:
    """Return the existing Conda lock when it was made for this request and every file of it stands, else ``None``."""
    try:
        text = _text(directory / LOCK_FILE)
        if not _answers(text, lock, conda):
            return None
        existing = load_lock(text)
        texts = {name: _text(directory / name) for name in sorted(files(existing))}
        if _edited(existing, directory):
            return None
    except DataError:
        return None
    findings = [f.message for f in compare(lock.cell, lock.pins, existing) if f.severity is not Severity.NOTE]
    return CondaPart(lock=existing, texts=texts, notes=tuple(dict.fromkeys(findings)), reused=True)


def difference(lock: Lock, directory: Path, conda: CondaRequest, *, required: bool) -> tuple[str, ...]:
    """Say why the Conda lock in ``directory`` is not what ``lock`` and ``conda`` give, or nothing."""
    path = directory / LOCK_FILE
    if not path.exists():
        return (f"{path}: no Conda lock is there",) if required else ()
    try:
        text = _text(path)
        if _answers(text, lock, conda):
            edited = _edited(load_lock(text), directory)
            return tuple(f"{name}: it was edited since {LOCK_FILE} was written" for name in edited)
        wrong = _differences(load_lock(text), lock.cell, lock.pins, conda.tolerate)[1]
    except DataError as error:
        return (error.message,)
    return tuple(f"{LOCK_FILE}: {message}" for message in wrong) or (
        f"{LOCK_FILE}: it was made from another request, or edited since",
    )


def _edited(lock: CondaLock, directory: Path) -> list[str]:
    """Return which files beside a Conda lock are not those that were written with it. An older lock does not know."""
    digests = dict(line.split("  ", 1)[::-1] for line in lock.facts.get("files", "").splitlines() if "  " in line)
    names = (name for name in files(lock).keys() & digests.keys() if os.path.lexists(directory / name))
    return sorted(name for name in names if _sha256(directory / name) != digests[name])


def _answers(text: str, lock: Lock, conda: CondaRequest) -> bool:
    conda = with_channels(conda)
    requests = (conda.until(lock.exclude_newer), replace(conda, exclude_newer=lock.exclude_newer))
    return any(up_to_date(text, lock.cell, lock.pins, request) for request in requests)


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_bounded(path, MAX_BYTES)).hexdigest()


def _text(path: Path) -> str:
    return read_bounded(path, MAX_BYTES).decode(errors="replace")
