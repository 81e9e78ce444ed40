"""A Conda lock as a Dockerfile, the alternative to the pip one: pure, and the same text for the same locks.

The base is the one of the pip lock. micromamba comes out of its own image, by digest, and stays out of the result: it
is mounted while the packages are installed. ``@EXPLICIT`` files know only MD5, so every package is held against its
sha256 in the same step; a difference ends the build before there is a layer. The pip section is uv's, by sha256,
without resolving.
"""

from __future__ import annotations

from envsmith import plain
from envsmith.conda.install import variables
from envsmith.conda.model import CondaLock, PlatformLock
from envsmith.files import digest_of
from envsmith.image.dockerfile import (
    GENERATED,
    IN,
    UV_FILE,
    ImageOptions,
    bind,
    from_reference,
    label_lines,
    labels,
    mount,
    run,
    secrets,
    user_commands,
)
from envsmith.model.lock import Lock, Tool

CONDA_BUILD_FILE = "requirements-build.txt"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def render_conda(lock: Lock, conda: CondaLock, micromamba: Tool, options: ImageOptions | None = None) -> str:
    """Return the Dockerfile.

    Raises ``ValueError`` without a base, ``KeyError`` without the cell's platform, ``UsageError`` for a value that is
    not plain.
    """
    options = options or ImageOptions()
    if lock.base is None:
        raise ValueError("a lock without a base image renders no Dockerfile")
    part = conda.on(lock.cell.platform)
    prefix = plain.path(options.prefix)
    cell = plain.cell_id(str(lock.cell.id))
    name = f"conda-{part.platform.value}"
    sdist = any(not p.url.endswith(".whl") for p in part.pip)
    parts = [
        f"# Cell {cell} from its Conda lock. {GENERATED}",
        (
            f"# By hand: {'put the uv executable beside this file, then ' if part.pip else ''}"
            f"DOCKER_BUILDKIT=1 docker build -f Dockerfile.conda -t envsmith/cell:{cell}-conda ."
        ),
        "# Behind a proxy that inspects TLS add --secret id=ca,src=BUNDLE.pem.",
        f"FROM {plain.image(micromamba.image)}@{plain.digest(micromamba.digest)} AS micromamba",
        "",
        f"FROM {from_reference(lock.base)}",
        "",
        "# User.\n" + run([], user_commands(options)),
        _conda_layer(name, prefix, options),
        *([_pip_layer(name, prefix, options, sdist=sdist and bool(lock.build_pins))] if part.pip else []),
        _environment(part, prefix, cuda=lock.cell.components.get("cuda", "cpu") != "cpu"),
        f"USER {plain.user(options.user)}:{plain.user(options.user)}",
        "WORKDIR /home/cell",
        'CMD ["python"]',
        "",
        "# Last, because they differ for every cell.",
        _labels(lock, part, options),
    ]
    return "\n".join(parts) + "\n"


_CA = secrets()[0]
_TRUST = f"if [ -s {IN}/ca ]; then export SSL_CERT_FILE={IN}/ca REQUESTS_CA_BUNDLE={IN}/ca; fi"


def _cache(name: str, target: str, **fields: str) -> str:
    return mount(type="cache", id=name, target=f"{IN}/{target}", **fields)


def _conda_layer(name: str, prefix: str, options: ImageOptions) -> str:
    """Return the step of the Conda packages.

    They are copied, not linked: the cache is another file system, and it does not stay.
    """
    mounts = [
        mount(type="bind", **{"from": "micromamba"}, source="/bin/micromamba", target=f"{IN}/micromamba"),
        bind(f"{name}.lock", "explicit.lock"),
        bind(f"{name}.sha256", "packages.sha256"),
        _CA,
        _cache("envsmith-conda", "conda", sharing="locked"),
    ]
    commands = [
        (
            f"export HOME=/tmp MAMBA_ROOT_PREFIX={IN}/conda PYTHONDONTWRITEBYTECODE=1 "
            f"SOURCE_DATE_EPOCH={plain.epoch(options.epoch)}"
        ),
        _TRUST,
        f"{IN}/micromamba create --yes --quiet --no-rc --always-copy --prefix {prefix} --file {IN}/explicit.lock",
        f"cd {IN}/conda/pkgs",
        f"sha256sum --check --strict --quiet {IN}/packages.sha256",
        "rm -rf /tmp/* /tmp/.[!.]*",
    ]
    # sha256sum looks for its files in the current folder; the shell ends with the step, so WORKDIR would say nothing
    # more.
    head = f"# Conda packages: {name}.lock, held against {name}.sha256.\n# hadolint ignore=DL3003\n"
    return head + run(mounts, commands)


def _pip_layer(name: str, prefix: str, options: ImageOptions, *, sdist: bool) -> str:
    """Return the step of what no channel has: named by address and sha256, installed by uv without resolving."""
    mounts = [
        bind(UV_FILE, "uv"),
        bind(f"{name}.pip.txt", "pip.txt"),
        *([bind(CONDA_BUILD_FILE, "build.txt")] if sdist else []),
        _CA,
        _cache("envsmith-uv", "cache"),
    ]
    install = f"{IN}/uv pip install --no-deps --require-hashes --python {prefix}/bin/python --requirements {IN}/pip.txt"
    if sdist:
        install += (
            f" --build-constraints {IN}/build.txt --require-build-hashes --preview-features build-dependency-hashes"
        )
    commands = [
        (
            f"export HOME=/tmp UV_CACHE_DIR={IN}/cache UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 "
            "UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1"
        ),
        (
            f"export SOURCE_DATE_EPOCH={plain.epoch(options.epoch)} PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 "
            "UV_NO_PROGRESS=1 DS_BUILD_OPS=0 BUILD_EXT=0"
        ),
        _TRUST,
        install,
        f"rm -rf /tmp/* /tmp/.[!.]* {prefix}/.lock",
    ]
    return f"# pip section: {name}.pip.txt\n" + run(mounts, commands)


def _environment(part: PlatformLock, prefix: str, *, cuda: bool) -> str:
    pairs = {"PATH": f"{prefix}/bin:{_PATH}", "LANG": "C.UTF-8", "HOME": "/home/cell"}
    pairs |= {key: _plain(value) for key, value in variables(part, prefix).items()}
    pairs["PYTHONPYCACHEPREFIX"] = "/home/cell/.cache/python"
    if cuda:
        pairs |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return "ENV " + " \\\n    ".join(f"{key}={value}" for key, value in pairs.items()) + "\n"


def _plain(value: str) -> str:
    """Return a path, or an option with a path behind ``=``."""
    option, equals, path = value.rpartition("=")
    plain.path(path)
    return f"{option}{equals}{path}" if option in {"", "-ccbin"} else plain.path(value)


def _labels(lock: Lock, part: PlatformLock, options: ImageOptions) -> str:
    """Return the labels of the pip image, and the digest over what is installed instead of the pip lock's packages."""
    files = [f"{p.url} {p.sha256}" for p in part.packages] + [f"{p.url} {p.sha256}" for p in part.pip]
    digest = digest_of("\n".join(files).encode())
    pairs = {**labels(lock), "io.envsmith.conda": digest, **dict(options.extra_labels)}
    return label_lines(pairs)
