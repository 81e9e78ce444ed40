"""The compiled files of a wheel, on the index or on this machine: what they need, and whether they link with a torch."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urldefrag

from envsmith.base.files import sha256_of
from envsmith.base.json_types import JsonDict
from envsmith.errors import ContentError, NetworkError, os_errors
from envsmith.knowledge.symbols.elf import MAGIC, Binary, read_binary
from envsmith.knowledge.symbols.fit import FAILS, LINKS, UNKNOWN, WheelNeeds, fits, needs_of
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.model.wheel import ReadyWheel, WheelTarget
from envsmith.net.http import Fetcher, RangeReply, Reply

# libtorch_cuda.so of 2.9.1 unpacks to 975 MiB, the whole wheel of vllm to 1 GiB.
MAX_UNPACKED = 3 << 30
# The whole of a wheel with CUDA libraries may have to be read.
WHEEL_BUDGET = 4 << 30
_LIBRARY = re.compile(r"\.so(\.\d+)*$")


class FileFetcher:
    """A :class:`envsmith.net.http.Fetcher` of one local file, so that a wheel on this machine is read like a remote one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, url: str, **_: object) -> Reply:
        """Refuse: only ranges of the file are read."""
        raise NetworkError(f"Cannot read {url}: it is not on this machine.", hint="Name a file.")

    @contextlib.contextmanager
    def open_range(self, url: str, start: int, stop: int | None = None) -> Iterator[RangeReply]:  # noqa: ARG002
        """Open the file at ``start``. The reader stops by itself."""
        with os_errors(f"read {url}", ContentError), self._path.open("rb") as file:
            total = self._path.stat().st_size
            first = max(0, total + start) if start < 0 else min(start, total)
            file.seek(first)
            yield RangeReply(stream=file, start=first, total=total)


def read_needs(source: str, fetcher: Fetcher) -> WheelNeeds:
    """Read what a wheel asks of where it is loaded: a file, or an http(s) address of which only parts are read.

    ``NetworkError`` or ``ContentError`` when it cannot be read. The sha256 of a file is known, that of an address is
    what its fragment says.
    """
    if re.match(r"https?://", source):
        address, fragment = urldefrag(source)
        name, sha256 = unquote(address.rpartition("/")[2]), dict([fragment.partition("=")[::2]]).get("sha256")
    else:
        path = Path(source)
        fetcher, address, name = FileFetcher(path), source, path.name
        with os_errors(f"read {source}", ContentError, hint="Name a wheel."), path.open("rb") as file:
            sha256 = sha256_of(file).hex()
    with RemoteWheel(fetcher, address, budget=WHEEL_BUDGET) as wheel:
        return needs_of(name, sha256, read_compiled(wheel))


def library_names(wheel: RemoteWheel) -> list[str]:
    """Return the members that are named like a shared library, in the order of the archive."""
    return [name for name in wheel.names() if _LIBRARY.search(name)]


def read_compiled(
    wheel: RemoteWheel, *, select: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Binary]]:
    """Yield each selected shared library of a wheel. What is named like one and is a text file is passed over.

    A member of a wheel is one compressed stream, so it is unpacked into a temporary file. ``NetworkError`` or
    ``ContentError`` when it cannot be read.
    """
    for name in library_names(wheel):
        if not select(name):
            continue
        with tempfile.TemporaryFile() as file:
            size = 0
            for chunk in wheel.stream(name):
                size += len(chunk)
                if size > MAX_UNPACKED:
                    raise ContentError(
                        f"Cannot read {name}: it unpacks to more than {MAX_UNPACKED} bytes.", hint="Check the wheel."
                    )
                file.write(chunk)
            file.seek(0)
            if file.read(len(MAGIC)) == MAGIC:
                yield name, read_binary(file, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What was read in the files of a wheel.

    ``verdict`` is ``links``, ``fails`` or ``unknown``, against ``build``: a build of torch by version. ``missing`` is
    the first symbol or library that it lacks. ``gpu`` is what there is machine code for.
    """

    verdict: str
    build: str
    missing: str | None = None
    glibc: str | None = None
    gpu: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.verdict == LINKS:
            return f"links with torch {self.build}: measured"
        if self.verdict == FAILS:
            return f"does not link with torch {self.build}, which lacks {self.missing}: measured"
        return f"torch {self.build} was not measured" if not self.missing else f"unknown: {self.missing} is not torch's"

    def to_json(self) -> JsonDict:
        """Return it for other programs."""
        return {
            "verdict": self.verdict,
            "torch": self.build,
            "missing": self.missing,
            "glibc": self.glibc,
            "gpu": list(self.gpu),
        }


def measure(wheel: ReadyWheel, target: WheelTarget, fetcher: Fetcher, table: SymbolTable) -> Link:
    """Read the compiled files of a wheel by ranges and hold them against the target's build of torch.

    Raises ``NetworkError`` or ``ContentError`` when they cannot be read.
    """
    with RemoteWheel(fetcher, wheel.address, budget=WHEEL_BUDGET) as file:
        needs = needs_of(wheel.filename, wheel.sha256, read_compiled(file))
    return judged(needs, target, table)


def judged(needs: WheelNeeds, target: WheelTarget, table: SymbolTable) -> Link:
    """Hold what a wheel needs against the target's build of torch."""
    glibc, gpu = needs.versions.get("GLIBC"), tuple(f"sm_{number}" for number in needs.sass)
    build = table.nearest(target.torch, target.platform.value)
    if build is None:
        return Link(verdict=UNKNOWN, build=target.torch, glibc=glibc, gpu=gpu)
    fit = fits(needs, table, [build])[0]
    missing = fit.first or next(iter(fit.unclear), None)
    return Link(verdict=fit.verdict, build=build.version, missing=missing, glibc=glibc, gpu=gpu)
