"""The same lock for other tools: a bake file for ``docker buildx bake``, a dev container, an Apptainer definition.

Pure.

The first two lead to the image of the lock. The definition installs the lock on its base where that needs no compiler. Every value passes :mod:`envsmith.model.plain` first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from envsmith.base.json_types import JsonDict
from envsmith.builder.image.dockerfile import (
    GENERATED,
    PACKAGES_FILE,
    SECRETS,
    STEPS,
    UV_FILE,
    ImageOptions,
    archive_day,
    labels,
    torch_backend,
)
from envsmith.lock.pip_files import ALL_FILE, BUILD_FILE, requirement_files
from envsmith.model import plain
from envsmith.model.lock import Lock

BAKE_FILE = "docker-bake.json"
# The place that the specification allows beside .devcontainer/devcontainer.json.
DEVCONTAINER_FILE = ".devcontainer.json"
APPTAINER_FILE = "apptainer.def"
# As the smoke test runs: docker's own 64 MB make NCCL fail at once.
_SHARED_MEMORY = "2g"


def companions(lock: Lock) -> Mapping[str, str]:
    """Return file name → text, for the cell's own folder, or nothing for a lock without a base."""
    if lock.base is None:
        return {}
    return {BAKE_FILE: bake({".": lock}), DEVCONTAINER_FILE: devcontainer(lock), APPTAINER_FILE: apptainer(lock)}


def image_tag(lock: Lock) -> str:
    """Return ``envsmith/cell:<name>``, each part checked."""
    return plain.image(f"envsmith/cell:{plain.tag(lock.name.replace('+', '_'))}")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=True) + "\n"


def _target(lock: Lock) -> str:
    """Return the name of the cell's target: bake allows letters, digits, ``_`` and ``-``."""
    return plain.tag(lock.name).replace(".", "_").replace("+", "_")


def bake(cells: Mapping[str, Lock]) -> str:
    """Return a bake file of several cells. ``cells`` maps the folder of each, as seen from the file, to its lock.

    The folders are contexts as ``envsmith lock`` writes them. What the cells have in common is built once, because their
    steps are the same word for word. ``ENVSMITH_SECRET_CA``, ``…_UV`` and ``…_NETRC`` name the files of secrets.
    """
    targets = {
        _target(lock): {
            "context": folder if folder == "." else plain.tag(folder),
            "dockerfile": "Dockerfile",
            "platforms": [lock.cell.platform.docker],
            "tags": [image_tag(lock)],
            "args": {"SOURCE_DATE_EPOCH": str(plain.epoch(ImageOptions().epoch))},
            "secret": f"${{concat({', '.join(map(_secret, SECRETS))})}}",
            "output": ["type=docker,rewrite-timestamp=true"],
        }
        for folder, lock in sorted(cells.items())
    }
    variables = {_variable(name): {"default": ""} for name in SECRETS}
    return _json({"variable": variables, "group": {"default": {"targets": sorted(targets)}}, "target": targets})


def _variable(secret: str) -> str:
    return f"ENVSMITH_SECRET_{secret.upper()}"


def _secret(name: str) -> str:
    """Return the expression of a secret: the file that its variable names, for no environment holds a bundle of CAs."""
    return f'{_variable(name)} != "" ? ["id={name},src=${{{_variable(name)}}}"] : []'


def devcontainer(lock: Lock) -> str:
    """Return a dev container on the cell's image, with its GPUs where the host has some."""
    cuda = lock.cell.components.get("cuda", "cpu") != "cpu"
    value: JsonDict = {
        "name": f"envsmith cell {plain.tag(lock.name)}",
        "image": image_tag(lock),
        "containerUser": "cell",
        "remoteUser": "cell",
        "updateRemoteUserUID": False,
        "runArgs": [f"--shm-size={_SHARED_MEMORY}", "--security-opt=no-new-privileges"],
        "customizations": {
            "vscode": {"settings": {"python.defaultInterpreterPath": f"{ImageOptions().prefix}/bin/python"}}
        },
    }
    if cuda:
        value["hostRequirements"] = {"gpu": "optional"}
    return _json(value)


def apptainer(lock: Lock) -> str:
    """Return an Apptainer definition of the cell, for a host without a container engine.

    On a registry's base it installs the lock by itself. A base of packages, and what is compiled, take the cell's OCI
    layout (``envsmith build --oci``). Inside, the home folder is the host's: packages below it must not be seen,
    byte-code and compiled operators go to a temporary folder.
    """
    prefix = plain.path(ImageOptions().prefix)
    label_text = "\n".join(
        f"    {plain.label_key(key)} {plain.label_value(value)}" for key, value in sorted(labels(lock).items()) if value
    )
    command = f"apptainer build {plain.tag(lock.name)}.sif {APPTAINER_FILE}; run with apptainer run --nv."
    before, source = (
        _installed_here(lock, prefix) if _installs_itself(lock) else ("after envsmith build --oci", _LAYOUT)
    )
    return f"""# Cell {plain.cell_id(str(lock.cell.id))}, lock {plain.digest(lock.digest)}. {GENERATED}
# In this folder, {before}: {command}
{source}
%labels
{label_text}

%environment
    export PATH={prefix}/bin:$PATH
    export VIRTUAL_ENV={prefix}
    export PYTHONNOUSERSITE=1
    export PYTHONPYCACHEPREFIX="${{TMPDIR:-/tmp}}/cell-$(id -u)/python"
    export TORCH_EXTENSIONS_DIR="${{TMPDIR:-/tmp}}/cell-$(id -u)/torch_extensions"

%runscript
    exec {prefix}/bin/python "$@"

%test
    {prefix}/bin/python -c 'import torch; print(torch.__version__)'
"""


_LAYOUT = """Bootstrap: oci
From: ./oci
"""


def _installs_itself(lock: Lock) -> bool:
    """Return whether the base comes from a registry and no compiler is needed: then Apptainer alone is enough."""
    return lock.base is not None and lock.base.origin == "registry" and not lock.compiled


def _installed_here(lock: Lock, prefix: str) -> tuple[str, str]:
    """Return when it can be built, and the sections that install the lock on its base, everything by hash."""
    base = lock.base
    if base is None:
        raise ValueError("a lock without a base image renders no definition")
    is_built = BUILD_FILE in requirement_files(lock)
    names = [
        STEPS,
        ALL_FILE,
        UV_FILE,
        *([BUILD_FILE] if is_built else []),
        *([PACKAGES_FILE] if lock.os_packages else []),
    ]
    files = "\n".join(f"    {name} /cell/{name}" for name in names)
    python = plain.path(base.python)
    options = f" --torch-backend {torch_backend(lock)}" if torch_backend(lock) else ""
    if is_built:
        options += f" --build-constraints /cell/{BUILD_FILE} --require-build-hashes"
        options += " --preview-features build-dependency-hashes"
    packages = f"    sh /cell/{STEPS}/cell.sh os_packages {archive_day(lock)}\n" if lock.os_packages else ""
    image = plain.image(f"{base.name.split('@')[0].partition(':')[0]}@{plain.digest(base.digest)}")
    return (
        "with a network and without a container engine",
        f"""Bootstrap: docker
From: {image}

%files
{files}

%post
    set -eu
    # /dev is the host's while this runs.
    sed -i 's|/dev/cell|/cell|g' /cell/{STEPS}/cell.sh
{packages}    {python} -m venv /cell/uv
    /cell/uv/bin/python -m pip --quiet --no-cache-dir install --require-hashes --no-deps --only-binary :all: \\
        --requirement /cell/{UV_FILE}
    export UV_NO_CONFIG=1 UV_CACHE_DIR={prefix}.cache UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
    export PYTHONHASHSEED=0 DS_BUILD_OPS=0 BUILD_EXT=0 CUDA_EXT=0
    /cell/uv/bin/uv venv --quiet --python {python} {prefix}
    /cell/uv/bin/uv pip install --quiet --python {prefix}/bin/python --no-deps --require-hashes \\
        --requirements /cell/{ALL_FILE}{options}
    rm -rf /cell {prefix}.cache
""",
    )
