"""Names, versions and builds in the words of Conda, of the package index and of the cell."""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Iterable
from functools import cache
from typing import Any

from envsmith.base.about import command_for
from envsmith.base.text import clean as clean_text
from envsmith.base.text import without_logins, without_secrets
from envsmith.errors import UsageError
from envsmith.model.project_name import normal_name
from envsmith.model.version import public
from envsmith.net.address import parts_of

# Names on the package index whose Conda package is called otherwise, and that "-" and "_" do not explain. A name maps
# to every spelling in use; the channel decides which one exists. Read in conda-forge's and the pytorch channel's own
# records.
_CONDA_NAMES: dict[str, tuple[str, ...]] = {
    "torch": ("pytorch",),
    "triton": ("triton", "torchtriton"),
    "nvidia-nccl-cu11": ("nccl",),
    "nvidia-nccl-cu12": ("nccl",),
    "nvidia-nccl-cu13": ("nccl",),
    "nvidia-cudnn-cu11": ("cudnn",),
    "nvidia-cudnn-cu12": ("cudnn",),
    "nvidia-cudnn-cu13": ("cudnn",),
    "transformer-engine": ("transformer-engine-torch", "transformer-engine"),
    "msgpack": ("msgpack-python",),
    "ray": ("ray-core",),
}
_BUILD_CUDA = re.compile(r"(?:^|_)cuda(?:(\d{2})(\d)(?!\d|\.)|(\d{1,2})\.(\d+))")
_TOKEN = re.compile(r"/t/[^/\s]+(?=/)")
_VERSION = re.compile(r"\d+(?:\.\d+)*")


def fold(name: str) -> str:
    """Return one spelling per name: lower case, ``-`` for every run of ``-``, ``_`` and ``.`` (PEP 503)."""
    return normal_name(name.strip())


def candidates(distribution: str) -> tuple[str, ...]:
    """Return the Conda names that a distribution of the package index may have, likeliest first."""
    name = fold(distribution)
    return _CONDA_NAMES.get(name) or tuple(dict.fromkeys((name, name.replace("-", "_"), name.replace("-", "."))))


def cuda_of_build(build: str) -> str | None:
    """Return the CUDA of a pytorch build string: ``12.9`` of ``cuda129_mkl_…``, ``12.4`` of ``py3.12_cuda12.4_…``.

    ``cpu`` for a CPU build, ``None`` when the build string tells neither.
    """
    if match := _BUILD_CUDA.search(build):
        major, minor = (match[1], match[2]) if match[1] else (match[3], match[4])
        return f"{major}.{minor}"
    return "cpu" if re.search(r"(?:^|_)cpu(?:_|$)", build) else None


def component_version(component: str, conda_version: str) -> str:
    """Return the version in the words of the cell: without the packaging number of ``nccl 2.27.5.1``."""
    parts = conda_version.split(".")
    if component == "nccl" and len(parts) == 4:
        return ".".join(parts[:3])
    if component in {"cuda", "toolkit", "python"} and len(parts) > 2:
        return ".".join(parts[:2])
    return conda_version


def same_version(component: str, release: str, conda_version: str) -> bool:
    """Return whether a Conda version is the release that the cell (or the pip lock) names.

    A cell names Python, CUDA and the toolkit by major.minor, cuDNN and NCCL by as many numbers as the wheel has.
    """
    if component == "torch":
        release = public(release)
    want, have = release.split("."), conda_version.split(".")
    if component in {"python", "cuda", "toolkit"}:
        return want[:2] == have[:2] and (len(want) < 3 or component != "python" or want == have)
    if component in {"nccl", "cudnn"}:
        short = min(len(want), len(have))
        return short >= 3 and want[:short] == have[:short]
    return _canonical(release) == _canonical(conda_version)


def _canonical(version: str) -> str:
    """Drop epoch zero, build label and the trailing zeros of a purely numeric version."""
    text = public(version).lower()
    if _VERSION.fullmatch(text):
        return re.sub(r"(?:\.0)+$", "", text)
    return text.replace("_", ".").replace("-", ".")


def clean(text: str, limit: int = 300) -> str:
    """Return a string of a channel as it may be shown: no control characters, at most ``limit`` characters."""
    line = clean_text(text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def listing(names: Iterable[str], limit: int = 8) -> str:
    """Return ``a, b, c`` of at most ``limit`` names, with the number of those left out."""
    every = list(dict.fromkeys(names))
    first = ", ".join(clean(n, 60) for n in every[:limit])
    return first if len(every) <= limit else f"{first} and {len(every) - limit} more"


def public_url(url: str) -> str:
    """Return an address without user, password and token: what may stand in a lock or a message."""
    parts = parts_of(without_logins(url))
    path = parts.path if parts.scheme == "file" else _TOKEN.sub("", parts.path)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def scrub(text: str) -> str:
    """Return a message of another program without what may stand in its addresses: user, password and token."""
    return without_secrets(_TOKEN.sub("", without_logins(text)))


def require_rattler() -> Any:
    """Return the rattler module. ``UsageError`` says how to get it when it is not installed."""
    try:
        import rattler
    except ImportError as error:
        raise UsageError(
            "Cannot make a Conda lock: py-rattler is not installed.",
            hint=f"Install it: {command_for('conda')}.",
        ) from error
    _let_workers_end()
    return rattler


@cache
def _let_workers_end() -> None:
    """Wait at exit until rattler's workers let go of Python: py-rattler 0.28 crashes otherwise, now and then."""
    import atexit

    atexit.register(time.sleep, 0.1)
