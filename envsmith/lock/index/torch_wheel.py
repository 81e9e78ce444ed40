"""A torch wheel, measured: what it was built with, what it carries and what it runs on, read out of the published file.

``torch/version.py`` tells CUDA, ``METADATA`` the pinned NCCL, cuDNN and Triton, ``libtorch_python.so`` the GPU
architectures (the string that ``torch.cuda.get_arch_list()`` prints), ``libc10.so`` the C++ ABI and the newest glibc
symbol. One CPython of a version and platform is read; the others of that build carry the same libraries.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envsmith.base.schema import strict
from envsmith.errors import NetworkError
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.metadata import metadata_of
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.model.cell import Platform
from envsmith.net.http import Fetcher

_ARCH = rb"(?:sm|compute)_\d{2,3}[af]?"
# Two or more flags may follow any byte: compilers lay short strings end to end (`…string ipc_hsm_70 sm_75 …` in
# 2.9.1). One alone must stand between two NUL bytes, for single names of architectures occur elsewhere.
_FLAGS = re.compile(rb"(?:\x00(" + _ARCH + rb")|(" + _ARCH + rb"(?: " + _ARCH + rb")+)) ?(?=\x00)")
_GLIBC = re.compile(rb"\x00GLIBC_2\.(\d{1,3})(?:\.\d+)?(?=\x00)")
# Exported functions of c10 that take a std::string: the new ABI spells it std::__cxx11::basic_string, the old one `Ss`.
_NEW_STRING = re.compile(rb"_ZN[K]?3c10[\w.$]*NSt7__cxx1112basic_string")
_OLD_STRING = re.compile(rb"_ZN[K]?3c10[\w.$]*?[EA-Za-z_]Ss(?=[\w.$]*\x00)")
# Libraries up to 1 MiB compressed are read whole: libc10 (the C++ ABI) and what the build machine lent, libgomp and
# libgfortran, which ask for a newer glibc than torch's own code does.
_SMALL = 1 << 20
_MANY = 12
_MAX_SMALL = 32 << 20
# libtorch_python.so has about 30 MiB unpacked on x86-64 in 2.15; ten times that is refused.
_MAX_LIBRARY = 400 << 20
_CONSTANT = re.compile(
    r"""^(\w+)[ \t]*(?::[^=\n]{0,80})?=[ \t]*(['"])([^'"\\\n]{0,200})\2[ \t]*(?:#.*)?$""", re.MULTILINE
)
_CPYTHON = re.compile(r"cp3(\d{1,2})")
_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFacts:
    """What one wheel says.

    ``tags`` are the tags of every wheel of that version and platform; ``arch_flags`` is empty without CUDA.

    ``glibc`` is the newest glibc symbol of the libraries that were read, as ``2.17``; ``cxx11_abi`` is ``None`` when
    it shows neither.
    """

    version: str
    platform: str
    filename: str
    sha256: str
    date: str | None
    local_version: str
    cuda: str | None
    git_version: str | None
    requires_python: str | None
    requires_dist: tuple[str, ...]
    tags: tuple[str, ...]
    arch_flags: tuple[str, ...]
    glibc: str | None
    cxx11_abi: bool | None


def _tags(file: IndexFile) -> tuple[str, str, str] | None:
    """Return (python, abi, platform) of a CPython wheel for Linux, else ``None``."""
    parts = file.filename.removesuffix(".whl").split("-")
    if len(parts) < 5 or not _CPYTHON.fullmatch(parts[-3]) or "linux" not in parts[-1]:
        return None
    return parts[-3], parts[-2], parts[-1]


def _platform(tag: str) -> Platform | None:
    return next((p for p in Platform if all(t.endswith("_" + p.machine) for t in tag.split("."))), None)


def linux_wheels(files: Iterable[IndexFile]) -> dict[Platform, tuple[IndexFile, ...]]:
    """Return a release's CPython wheels by platform: oldest Python first, free-threaded last, later builds first."""
    wheels: dict[Platform, list[IndexFile]] = {}
    for file in files:
        tags = _tags(file) if file.is_wheel else None
        platform = _platform(tags[2]) if tags else None
        if platform:
            wheels.setdefault(platform, []).append(file)

    def order(file: IndexFile) -> tuple[bool, int, int]:
        python, abi, _ = _tags(file) or ("cp30", "", "")
        build = parse_wheel_filename(file.filename)[2]
        return abi.endswith("t"), int(python[3:]), -(build[0] if build else 0)

    return {p: tuple(sorted(wheels[p], key=order)) for p in Platform if p in wheels}


def pythons_of(tags: Iterable[str]) -> list[str] | str:
    """Return ``3.10, 3.11 …`` from tags like ``cp310-cp310-manylinux…``. Free-threaded builds are left out.

    A stable-ABI wheel (``cp312-abi3``) runs on that Python and every later one: the answer is then a spec, ``>=3.11``,
    from the oldest minor without a gap before it.
    """
    parts = [(int(m[1]), tag.split("-")[1]) for tag in tags if (m := _CPYTHON.match(tag))]
    exact = {minor for minor, abi in parts if not abi.endswith("t") and abi != "abi3"}
    stable = min((minor for minor, abi in parts if abi == "abi3"), default=None)
    if stable is None:
        return [f"3.{minor}" for minor in sorted(exact)]
    while stable - 1 in exact:
        stable -= 1
    return f">=3.{stable}"


def glibc_floor(tags: Iterable[str]) -> tuple[int, int] | None:
    """Return the lowest glibc that the platform tags promise to run on."""
    floors = []
    for tag in tags:
        for part in tag.rpartition("-")[2].split("."):
            match = re.match(r"manylinux_(\d+)_(\d+)_", part)
            named = next((v for k, v in _MANYLINUX.items() if part.startswith(k + "_")), None)
            if match or named:
                floors.append((int(match[1]), int(match[2])) if match else named or (0, 0))
    return min(floors, default=None)


def _constants(source: bytes, where: str) -> dict[str, str]:
    """Return module-level names of ``version.py`` that are assigned a plain string.

    Nothing is executed, and nothing is parsed as Python.
    """
    constants = {m[1]: m[3] for m in _CONSTANT.finditer(source.decode("utf-8", "replace"))}
    if "__version__" not in constants:
        raise NetworkError(f"Cannot read {where}: torch/version.py names no version.")
    return constants


def search_flags(chunks: Iterable[bytes]) -> tuple[tuple[str, ...], str | None]:
    """Return the longest string of architecture flags between two NUL bytes, and the newest glibc symbol before it.

    Stops as soon as a string of two or more flags is seen: names of symbols stand before constants in a library, so
    those were passed. Bounded memory: one chunk and the 4 KiB before it.
    """
    best: tuple[str, ...] = ()
    glibc: str | None = None
    tail = b""
    size = 0
    for chunk in chunks:
        window = tail + chunk
        glibc = _newer(glibc, newest_glibc(window))
        for match in _FLAGS.finditer(window):
            flags = tuple((match[1] or match[2]).decode().split())
            best = max(best, flags, key=len)
        if len(best) > 1:
            break
        tail = window[-4096:]
        size += len(chunk)
        if size > _MAX_LIBRARY:
            raise NetworkError(f"Cannot read a library: it unpacks to more than {_MAX_LIBRARY} bytes.")
    return best, glibc


def cxx11_abi(library: bytes) -> bool | None:
    """Return which ``std::string`` the exported functions of ``libc10.so`` take. ``None`` when none takes any."""
    if _NEW_STRING.search(library):
        return True
    return False if _OLD_STRING.search(library) else None


def newest_glibc(library: bytes) -> str | None:
    """Return the newest ``GLIBC_2.N`` that a library asks for."""
    minors = [int(m) for m in _GLIBC.findall(library)]
    return f"2.{max(minors)}" if minors else None


def _newer(*versions: str | None) -> str | None:
    return max((v for v in versions if v), key=Version, default=None)


def _libraries(wheel: RemoteWheel, *, cuda: bool) -> tuple[tuple[str, ...], str | None, bool | None]:
    """Return (architecture flags, newest glibc symbol, C++ ABI) of the libraries that are small or tell something."""
    flags: tuple[str, ...] = ()
    glibc: str | None = None
    abi: bool | None = None
    for name in wheel.small_members(".so", below=_SMALL, limit=_MANY):
        data = wheel.read(name, max_bytes=_MAX_SMALL)
        glibc = _newer(glibc, newest_glibc(data))
        abi = cxx11_abi(data) if name.endswith("/libc10.so") else abi
    library = wheel.find("libtorch_python.so")
    if cuda and library:
        with contextlib.closing(wheel.stream(library)) as stream:
            flags, symbol = search_flags(stream)
        glibc = _newer(glibc, symbol)
    return flags, glibc, abi


def read_torch_wheel(
    fetcher: Fetcher, file: IndexFile, siblings: Iterable[IndexFile], platform: Platform
) -> TorchFacts:
    """Measure one wheel. ``siblings`` are all wheels of that version and platform. Raises ``NetworkError``."""
    if file.sha256 is None:
        raise NetworkError(f"Cannot use {file.filename} as evidence: the index names no sha256 of it.")
    with RemoteWheel(fetcher, file.url) as wheel:
        metadata = metadata_of(file, wheel.metadata())
        constants = _constants(wheel.read("torch/version.py", max_bytes=1 << 20), file.filename)
        flags, glibc, abi = _libraries(wheel, cuda=bool(constants.get("cuda")))
    return TorchFacts(
        version=file.version,
        platform=platform.value,
        filename=file.filename,
        sha256=file.sha256,
        date=min((f.day for f in siblings if f.day), default=None),
        local_version=constants.get("__version__", metadata.version),
        cuda=constants.get("cuda"),
        git_version=constants.get("git_version"),
        requires_python=metadata.requires_python,
        requires_dist=metadata.requires,
        tags=tuple(sorted("-".join(t) for f in siblings if (t := _tags(f)))),
        arch_flags=flags,
        glibc=glibc,
        cxx11_abi=abi,
    )
