"""What is really installed: a script that runs inside the cell, and the parser of its answer.

The script imports nothing of what it reports: a torch that cannot be loaded is still reported by its own
``version.py``. Keys with a dot are facts beside the distributions: what torch says of itself, the NCCL that was loaded,
architectures in the binary, C library, toolkit, packages of the distribution.

With the argument ``files`` every installed file is read as well, except those of the distributions that are named
behind it. A file that is gone, or that two bring and programs import, is listed in ``files.broken``. One that differs
from its distribution's ``RECORD`` is listed in ``files.unlike``, with its digest: the wheel may have it so. Each
distribution gets one digest over its files (``content.NAME``), the same that :func:`wheel_content` takes of its wheel.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envsmith.base.files import sha256_of
from envsmith.base.schema import parse_object
from envsmith.builder.engines.published import is_published
from envsmith.errors import ContentError
from envsmith.model.cell import DEVEL
from envsmith.model.lock import Lock, Pin
from envsmith.model.version import minor_of, public

_MARK = "ENVSMITH-CONTENT "

# What is packed by oversight beside a package, as build_backend.py in flashinfer-python 0.7.2 and torch-c-dlpack-ext
# 0.1.5: no program imports it, and whichever distribution came last has its own there.
_HELPER = re.compile(r"(?:tests?|docs?|examples?|benchmarks?|scripts)/|(?:build_\w+|setup|conftest|noxfile)\.py$")

# What an installer writes anew: scripts and data lie outside, byte-code is compiled, the rest describes the
# installation.
_OUTSIDE = re.compile(
    r"\.\./|/|(.*/)?__pycache__/|[^/]+\.data/(?!purelib/|platlib/)|"
    r"[^/]+\.dist-info/(RECORD(\..*)?|INSTALLER|REQUESTED|direct_url\.json|uv_\w+\.json)$"
)

# Python 3.8 and later. Prints one line of JSON behind a mark, because an interpreter may print warnings of its own.
INSPECT_SCRIPT = r"""
import glob, importlib.metadata, importlib.util, json, os, platform, re, subprocess, sys
found = {}
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), dist.version)
found["python"] = platform.python_version()
spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    names = {}
    try:
        with open(os.path.join(list(spec.submodule_search_locations)[0], "version.py")) as file:
            exec(compile(file.read(), "version.py", "exec"), names)
        found["torch.version"] = str(names.get("__version__"))
        found["cuda.version"] = str(names.get("cuda") or "cpu")
    except Exception as error:
        found["torch.version"] = "unreadable: %r" % (error,)
def ask(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
site = [os.path.dirname(list(spec.submodule_search_locations)[0])] if spec and spec.submodule_search_locations else []
for root in site:
    for library in glob.glob(os.path.join(root, "nvidia", "nccl", "lib", "libnccl.so*"))[:1]:
        # In a process of its own: a library that cannot be loaded here must not end this one.
        code = "import ctypes; v = ctypes.c_int(); ctypes.CDLL(%r).ncclGetVersion(ctypes.byref(v)); print(v.value)" % library
        number = ask([sys.executable, "-I", "-c", code]).strip()
        if number.isdigit():
            n = int(number)
            parts = (n // 10000, n // 100 % 100, n % 100) if n >= 10000 else (n // 1000, n // 100 % 10, n % 100)
            found["nccl.loaded"] = "%d.%d.%d" % parts
    try:
        with open(os.path.join(root, "torch", "lib", "libtorch_python.so"), "rb") as file:
            lists = re.findall(rb"sm_\d+[a-z]?(?: (?:sm|compute)_\d+[a-z]?)*", file.read())
        if lists:
            found["torch.archs"] = max(lists, key=len).decode()
    except OSError:
        pass
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
if libc:
    found["glibc.version"] = libc.split()[-1]
home = os.environ.get("CUDA_HOME")
if home:
    match = re.search(r"release (\d+\.\d+)", ask([os.path.join(home, "bin", "nvcc"), "--version"]))
    found["toolkit.version"] = match[1] if match else "none"
packages = ask(["dpkg-query", "--show", "--showformat", "${Package}=${Version} "])
if packages:
    found["os.packages"] = packages
def read(path):
    import hashlib
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while True:
                block = file.read(1 << 20)
                if not block:
                    return digest
                digest.update(block)
    except OSError:
        return None
def stale(root):
    # Byte-code that Python believes unchecked is to be of the source beside it.
    for path in glob.glob(os.path.join(root, "**", "__pycache__", "*.pyc"), recursive=True):
        try:
            with open(path, "rb") as code:
                head = code.read(16)
            if head[4:8] == b"\1\0\0\0":
                with open(importlib.util.source_from_cache(path), "rb") as source:
                    if importlib.util.source_hash(source.read()) != head[8:]:
                        yield "%s is not the byte-code of its source" % os.path.relpath(path, root)
        except (OSError, ValueError):
            pass
def files(skip):
    import base64, concurrent.futures, csv, hashlib
    recorded, owner, broken, unlike, count = [], {}, [], [], 0
    for dist in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower()
        record = dist.read_text("RECORD")
        if not name or record is None:
            continue
        root = str(dist.locate_file(""))
        # A file may be listed without a hash: it is part of the content, and held against nothing.
        rows = [row for row in csv.reader(record.splitlines()) if len(row) == 3 and (row[1] or not OUTSIDE.match(row[0]))]
        recorded.append((name, root, rows))
        for path, listed, size in rows:
            if not listed.startswith("sha256="):
                continue
            other, first = owner.setdefault(os.path.join(root, path), (name, listed))
            if first != listed and not HELPER.match(path):
                broken.append("%s and %s both bring %s, and it is not the same" % (other, name, path))
            if first != listed:
                owner[os.path.join(root, path)] = (other, None)
    for name, root, rows in recorded:
        if name in skip:
            continue
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            digests = list(pool.map(read, [os.path.join(root, row[0]) for row in rows]))
        lines = []
        for (path, listed, size), digest in zip(rows, digests):
            if digest is None:
                broken.append("%s: %s is missing" % (name, path))
                continue
            here = "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
            if listed.startswith("sha256=") and here != listed and owner[os.path.join(root, path)][1] is not None:
                unlike.append("%s %s %s" % (name, digest.hexdigest(), path))
            if not OUTSIDE.match(path):
                lines.append("%s %s" % (path, digest.hexdigest()))
        count += len(rows)
        found["content." + name] = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()
    for root in {root for _, root, _ in recorded}:
        broken += stale(root)
    found["files.checked"] = str(count)
    if len(unlike) > 2000:
        broken.append("%d files are not what their RECORD says" % len(unlike))
    elif unlike:
        found["files.unlike"] = "\n".join(unlike)
    if broken:
        found["files.broken"] = "\n".join(broken[:50] + ["%d differences in all" % len(broken)] * (len(broken) > 50))
OUTSIDE, HELPER = re.compile(%OUTSIDE%), re.compile(%HELPER%)
if sys.argv[1:2] == ["files"]:
    files(set(sys.argv[2:]))
print("ENVSMITH-CONTENT " + json.dumps(found, sort_keys=True))
""".replace("%OUTSIDE%", repr(_OUTSIDE.pattern)).replace("%HELPER%", repr(_HELPER.pattern))

_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,120}[a-z0-9])?")
_MAX = 4_000_000
# A distribution with every package of a desktop has a list of about 100 kB.
_LONG = 1_000_000


def parse_inspection(output: str) -> dict[str, str]:
    """Return the answer of ``Engine.inspect`` from the script's output, or raise ``ContentError``."""
    line = next((line for line in reversed(output[-_MAX:].splitlines()) if line.startswith(_MARK)), None)
    answer = parse_object(line.removeprefix(_MARK)) if line else {}
    data = {name: version for name, version in answer.items() if isinstance(version, str)}
    if len(data) < len(answer) or "python" not in data:
        raise ContentError(
            "Cannot look into the built environment: its interpreter does not start.",
            details=output.splitlines()[-10:],
            hint="Rebuild it, and look at the lines above.",
        )
    return {
        name: version[: _LONG if name in {"os.packages", "files.broken", "files.unlike"} else 128]
        for name, version in data.items()
        if _NAME.fullmatch(name)
    }


def wheel_content(path: Path) -> str:
    """Return one sha256 over the files that a wheel installs among Python's packages, each by path and content.

    Raises ``ContentError`` for what is not a wheel.
    """
    lines = []
    try:
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.infolist():
                if member.is_dir() or _OUTSIDE.match(member.filename):
                    continue
                with wheel.open(member) as file:
                    lines.append(f"{_DATA.sub('', member.filename, count=1)} {sha256_of(file).hex()}")
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError) as error:
        raise ContentError(f"Cannot read {path.name}: it is not a wheel ({str(error)[:100]}).") from None
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


# -- what an environment is beside its distributions, compared with its lock; pure ------------------------------------


_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def content_facts(lock: Lock, installed: Mapping[str, str]) -> list[str]:
    """Return one line for every fact that is not what the lock's cell says.

    A fact that could not be read is not a difference.
    """
    cell = lock.cell.components
    problems = []
    nccl, loaded = cell.get("nccl"), installed.get("nccl.loaded")
    if nccl and nccl not in {"none", "cpu"} and loaded and _public(nccl) != _public(loaded):
        problems.append(f"nccl: the cell says {nccl}, the library says {loaded}")
    glibc, here = cell.get("glibc"), installed.get("glibc.version")
    if glibc and here and _public(here) < _public(glibc):
        problems.append(f"glibc: the cell needs {glibc}, here is {here}")
    archs = installed.get("torch.archs", "")
    if archs and (gpu := cell.get("gpu", "")).startswith("sm_") and not _runs_on(gpu, archs):
        problems.append(f"gpu: the cell says {gpu}, torch holds code for {archs}")
    toolkit = installed.get("toolkit.version")
    if lock.flavour == DEVEL and toolkit and toolkit != minor_of(cell.get("cuda", "")):
        problems.append(f"toolkit: the cell says CUDA {cell.get('cuda')}, nvcc says {toolkit}")
    return problems


def _public(text: str) -> Version:
    try:
        return Version(public(text))
    except InvalidVersion:
        return Version("0")


def _runs_on(gpu: str, archs: str) -> bool:
    """Return whether torch's code runs on a GPU.

    Binary code runs on the same major from its own minor on. The driver compiles code for ``compute_NN`` for anything
    newer.
    """
    number = _ARCH.fullmatch(gpu)
    if number is None:
        return True
    own = (int(number[2]), int(number[3]))
    compiled = [(match[1], (int(match[2]), int(match[3]))) for match in _ARCH.finditer(archs)]
    return any(arch <= own and (kind == "compute" or arch[0] == own[0]) for kind, arch in compiled)


def file_differences(
    lock: Lock,
    installed: Mapping[str, str],
    is_published: Callable[[Pin, Mapping[str, str]], bool] = is_published,
) -> list[str]:
    """Return installed files that are not their wheels', and built wheels that are not the lock's."""
    if "files.checked" not in installed:
        return []
    problems = installed.get("files.broken", "").splitlines()
    unlike: dict[str, dict[str, str]] = {}
    for row in installed.get("files.unlike", "").splitlines():
        name, digest, path = row.split(" ", 2)
        unlike.setdefault(name, {})[path] = digest
    pins = {pin.name: pin for pin in lock.pins}
    for name, digests in unlike.items():
        if name not in pins or not is_published(pins[name], digests):
            problems += [f"{name}: {path} is not what its RECORD says" for path in list(digests)[:20]]
    for wheel in lock.wheels:
        content = installed.get(f"content.{wheel.name}", "")
        if wheel.content and content != wheel.content:
            problems.append(
                f"{wheel.name}: the files of {wheel.filename} have the digest {wheel.content[:16]}…, "
                f"installed are {content[:16] or 'none'}…"
            )
    return problems


def os_difference(lock: Lock, installed: Mapping[str, str]) -> list[str]:
    """Return packages of the distribution that differ from the lock, or nothing where the image has no dpkg."""
    if "os.packages" not in installed:
        return []
    packages = dict(word.split("=", 1) for word in installed["os.packages"].split() if "=" in word)
    return [
        f"{p.name}: locked {p.version}, installed {packages.get(p.name.partition(':')[0], 'not at all')}"
        for p in lock.os_packages
        if packages.get(p.name.partition(":")[0]) != p.version
    ]
