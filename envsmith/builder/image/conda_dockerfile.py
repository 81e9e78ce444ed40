"""A Conda lock as a Dockerfile, the alternative to the pip one: pure, and the same text for the same locks.

The base and the steps are those of the pip lock. micromamba comes out of its own image, by digest, and stays out of the result: it
is mounted while the packages are installed. ``@EXPLICIT`` files know only MD5, so every package is held against its
sha256 in the same step; a difference ends the build before there is a layer. The pip section is uv's, by sha256,
without resolving.
"""

from __future__ import annotations

from envsmith.base.files import digest_of
from envsmith.builder.image.dockerfile import (
    GENERATED,
    IN,
    SYSTEM_PATH,
    USER_VARIABLES,
    UV,
    ImageOptions,
    base_stages,
    bind,
    ending,
    environment_lines,
    labels,
    mount,
    secrets,
    step,
)
from envsmith.lock.conda.install import variables
from envsmith.lock.conda.model import CondaLock, PlatformLock
from envsmith.lock.pip_files import BUILD_FILE
from envsmith.model import plain
from envsmith.model.lock import Lock, Tool


def render_conda(lock: Lock, conda: CondaLock, micromamba: Tool) -> str:
    """Return the Dockerfile.

    Raises ``ValueError`` without a base, ``KeyError`` without the cell's platform, ``UsageError`` for a value that is
    not plain.
    """
    options = ImageOptions()
    if lock.base is None:
        raise ValueError("a lock without a base image renders no Dockerfile")
    part = conda.on(lock.cell.platform)
    prefix = plain.path(options.prefix)
    cell = plain.cell_id(str(lock.cell.id))
    name = f"conda-{part.platform.value}"
    sdist = any(not p.url.endswith(".whl") for p in part.pip)
    parts = [
        f"# Cell {cell} from its Conda lock. {GENERATED}",
        f"# Build it anywhere: docker build -f Dockerfile.conda -t envsmith/cell:{cell}-conda .",
        "# Behind a proxy that inspects TLS add --secret id=ca,src=BUNDLE.pem.",
        "",
        f"FROM {plain.image(micromamba.image)}@{plain.digest(micromamba.digest)} AS micromamba",
        *base_stages(lock),
        "FROM base",
        step("User.", [], "add_user"),
        _conda_layer(name),
        *([_pip_layer(name, sdist=sdist and bool(lock.build_pins))] if part.pip else []),
        _environment(part, prefix, cuda=lock.cell.components.get("cuda", "cpu") != "cpu"),
        *ending(options, _labels(lock, part)),
    ]
    return "\n".join(parts) + "\n"


def _cache(name: str, target: str, **fields: str) -> str:
    return mount(type="cache", id=name, target=f"{IN}/{target}", **fields)


def _conda_layer(name: str) -> str:
    mounts = [
        mount(type="bind", **{"from": "micromamba"}, source="/bin/micromamba", target=f"{IN}/micromamba"),
        bind(f"{name}.lock", "explicit.lock"),
        bind(f"{name}.sha256", "packages.sha256"),
        secrets()[0],
        _cache("envsmith-conda", "conda", sharing="locked"),
    ]
    return step(f"Conda packages: {name}.lock, held against {name}.sha256.", mounts, "conda")


def _pip_layer(name: str, *, sdist: bool) -> str:
    """Return the step of what no channel has: named by address and sha256, installed by uv without resolving."""
    mounts = [UV, bind(f"{name}.pip.txt", "requirements.txt")]
    mounts += [bind(BUILD_FILE, "build.txt")] if sdist else []
    mounts += [secrets()[0], _cache("envsmith-uv", "cache")]
    built = " --build-constraints {0}/build.txt --require-build-hashes --preview-features build-dependency-hashes"
    return step(f"pip section: {name}.pip.txt", mounts, "conda_pip" + (built.format(IN) if sdist else ""))


def _environment(part: PlatformLock, prefix: str, *, cuda: bool) -> str:
    pairs = {"PATH": f"{prefix}/bin:{SYSTEM_PATH}", "LANG": "C.UTF-8", **USER_VARIABLES}
    pairs |= {key: _plain(value) for key, value in variables(part, prefix).items()}
    pairs["PYTHONPYCACHEPREFIX"] = "/home/cell/.cache/python"
    if cuda:
        pairs |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return environment_lines(pairs)


def _plain(value: str) -> str:
    """Return a path, or an option with a path behind ``=``."""
    option, equals, path = value.rpartition("=")
    plain.path(path)
    return f"{option}{equals}{path}" if option in {"", "-ccbin"} else plain.path(value)


def _labels(lock: Lock, part: PlatformLock) -> dict[str, str]:
    """Return the labels of the pip image, and the digest over what is installed instead of the pip lock's packages."""
    files = [f"{p.url} {p.sha256}" for p in part.packages] + [f"{p.url} {p.sha256}" for p in part.pip]
    digest = digest_of("\n".join(files).encode())
    return {**labels(lock), "io.envsmith.conda": digest}
