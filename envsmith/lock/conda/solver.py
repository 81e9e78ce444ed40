"""Asks rattler, in process and over the cached indexes; never a Conda that is installed."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from envsmith.errors import LockError
from envsmith.lock.conda.channels import Index, require_rattler
from envsmith.lock.conda.model import CondaPackage, CondaSpec, RepoLimits
from envsmith.lock.conda.names import clean, public_url
from envsmith.lock.conda.view import to_package, whole

__all__ = ["Ask", "Unsolvable", "run_async", "solve"]

_T = TypeVar("_T")
_MAX_LINES = 30


class Unsolvable(Exception):  # noqa: N818 - an answer, not a failure: the caller asks again with less
    """No solution; ``lines`` is rattler's explanation."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("no solution")
        self.lines = tuple(lines)


def run_async(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end, also when the caller's thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    box: list[Any] = []

    def inside() -> None:
        try:
            box.append((True, asyncio.run(main())))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            box.append((False, error))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    fine, value = box[0]
    if not fine:
        raise value
    result: _T = value
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """The circumstances of a solve: the indexes, the machine, the newest day, and how long it may take."""

    sparse: Sequence[tuple[Index, Any]]
    virtual: Mapping[str, str]
    exclude_newer: dt.datetime | None = None
    bounds: RepoLimits = field(default_factory=RepoLimits)


def solve(specs: Sequence[CondaSpec], limits: Sequence[CondaSpec], ask: Ask) -> tuple[CondaPackage, ...]:
    """The packages in an order in which each follows what it depends on. ``Unsolvable`` or ``LockError`` otherwise."""
    rattler = require_rattler()
    from rattler.exceptions import SolverError

    indexes = whole(ask.sparse, [s.name for s in (*specs, *limits)])

    async def answer() -> Any:
        return await rattler.solve_with_sparse_repodata(
            [_match(rattler, s) for s in specs],
            indexes,
            virtual_packages=[_virtual(rattler, name, text) for name, text in ask.virtual.items()],
            constraints=[_match(rattler, s) for s in limits],
            exclude_newer=ask.exclude_newer,
            timestamp_policy="allow-missing",
            timeout=dt.timedelta(seconds=ask.bounds.solve_seconds),
        )

    try:
        records = run_async(answer)
    except SolverError as error:
        raise Unsolvable(_explanation(str(error))) from error
    except Exception as error:
        raise LockError(f"the Conda solver failed: {clean(str(error))}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LockError(f"the Conda solver crashed on this channel: {clean(str(error))}") from error
    bases = [(index.base, index.channel) for index, _ in ask.sparse]
    return _ordered([_checked(record, bases) for record in records])


def _match(rattler: Any, spec: CondaSpec) -> Any:
    # Strict parsing refuses the dots in the pytorch channel's build strings (``py3.12_cuda12.4_cudnn9.1.0_0``).
    return rattler.MatchSpec(str(spec), strict=False)


def _virtual(rattler: Any, name: str, text: str) -> Any:
    version, _, build = text.partition(" ")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build or "0")
    )


def _explanation(text: str) -> list[str]:
    lines = [clean(line, 200) for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"… {len(lines) - _MAX_LINES} more lines"]


def _checked(record: Any, bases: Sequence[tuple[str, str]]) -> CondaPackage:
    """A record that may be locked: it has both hashes, a plain file name, and an address that its channel may give."""
    url = str(record.url)
    base, channel = next(((b, c) for b, c in bases if str(record.channel).rstrip("/") == b), ("", ""))
    if not base:
        base, channel = next(((b, c) for b, c in bases if url.startswith(b + "/")), bases[0])
    shown = public_url(base) + url[len(base) :] if url.startswith(base + "/") else public_url(url)
    package = dataclasses.replace(to_package(record, public_url(base)), url=shown)
    who = f"channel {clean(channel)}: the record of {clean(package.name)} {clean(package.version)}"
    if not package.sha256 or not package.md5:
        raise LockError(f"{who} has no {'sha256' if not package.sha256 else 'md5'}", hint="index the channel again")
    stem = f"{package.name}-{package.version}-{package.build}"
    if unquote(package.filename) not in {f"{stem}.conda", f"{stem}.tar.bz2"}:
        raise LockError(f"{who} names the file {clean(package.filename)!r}, which that package is not called")
    if not url.startswith(base + "/") and urlsplit(url).scheme not in {"http", "https"}:
        raise LockError(f"{who} points outside of the channel: {clean(public_url(url))}")
    return package


def _ordered(packages: Sequence[CondaPackage]) -> tuple[CondaPackage, ...]:
    """Dependencies first, names decide otherwise; a cycle (python and pip) is cut at the name that was met first."""
    by_name = {p.name: p for p in packages}
    done: dict[str, CondaPackage] = {}
    for start in sorted(by_name):
        stack = [(start, iter(_needs(by_name[start], by_name)))]
        entered = {start}
        while stack and start not in done:
            name, rest = stack[-1]
            child = next((c for c in rest if c not in done and c not in entered), None)
            if child is None:
                done.setdefault(name, by_name[name])
                stack.pop()
            else:
                entered.add(child)
                stack.append((child, iter(_needs(by_name[child], by_name))))
    return tuple(done.values())


def _needs(package: CondaPackage, by_name: Mapping[str, CondaPackage]) -> list[str]:
    return sorted({n for d in package.depends if (n := d.split(" ")[0]) in by_name and n != package.name})
