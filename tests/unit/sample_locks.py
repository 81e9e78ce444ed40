"""Locks for tests, made by hand: the shape is real, the digests are recognisable."""

from __future__ import annotations

from dataclasses import replace

from envsmith.builder.image.dockerfile import package_digest
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, BaseImage, BuiltWheel, CompiledSource, Lock, OsPackage, Pin

REGISTRY = BaseImage(
    name="python:3.12-slim-bookworm",
    digest="sha256:" + "ab" * 32,
    origin="registry",
    python="/usr/local/bin/python3",
    distribution="bookworm",
)
LOCAL = BaseImage(
    name="envsmith/base:bookworm-cdcdcdcdcdcd",
    digest="sha256:" + "cd" * 32,
    origin="local",
    python="/usr/bin/python3",
    distribution="bookworm",
)
_LIST = (OsPackage(name="apt", version="2.6.2"), OsPackage(name="python3", version="3.11.2-1+b1"))
PACKAGES = BaseImage(
    name="packages",
    digest=package_digest(_LIST),
    origin="packages",
    python="/usr/bin/python3",
    distribution="bookworm",
    packages=_LIST,
)


def pin(name, version, layer, *, sdist=False, url=None):
    suffix = ".tar.gz" if sdist else "-py3-none-any.whl"
    file = f"{name.replace('-', '_')}-{version}{suffix}"
    return Pin(
        name=name,
        version=version,
        layer=layer,
        sdist=sdist,
        artifacts=(Artifact(filename=file, sha256="0" * 64, url=url),),
    )


def deepspeed(base=REGISTRY, **components):
    values = {
        "deepspeed": "0.19.8",
        "torch": "2.13.0+cu130",
        "cuda": "13.0",
        "python": "3.12",
        "nccl": "2.29.7",
        "driver": "580.1",
    }
    cell = Cell(components={**values, **components}, chosen=("deepspeed", "torch", "cuda", "python"))
    return Lock(
        cell=cell,
        request="--framework deepspeed",
        exclude_newer="2026-11-20",
        python_version="3.12.14",
        pins=(pin("torch", "2.13.0", "torch"), pin("deepspeed", "0.19.8", "framework", sdist=True)),
        build_pins=(pin("setuptools", "80.9.0", "framework"),),
        base=base,
        os_packages=(
            OsPackage(name="g++", version="4:12.2.0-3"),
            OsPackage(name="gcc-12", version="12.2.0-14+deb12u1"),
        ),
    )


def with_wheels(lock):
    wheel = BuiltWheel(name="deepspeed", filename="deepspeed-0.19.8-py3-none-any.whl", sha256="e" * 64)
    return replace(lock, wheels=(wheel,))


def megatron(base=PACKAGES):
    cell = Cell(
        components={"megatron-core": "0.16.1", "torch": "2.13.0+cpu", "cuda": "cpu", "python": "3.11"},
        chosen=("megatron-core", "torch", "cuda", "python"),
        index="pytorch",
    )
    return Lock(
        cell=cell,
        request="--framework megatron-core",
        exclude_newer="2026-11-20",
        python_version="3.11.2",
        pins=(pin("torch", "2.13.0+cpu", "torch"), pin("megatron-core", "0.16.1", "framework")),
        base=base,
    )


def compiled(base=REGISTRY):
    """A cell with a distribution that is compiled with nvcc against its torch, one that uv builds by itself, and one that comes as a wheel."""
    lock = with_wheels(deepspeed(base))
    sources = (
        CompiledSource(
            name="flash-attn",
            variables={"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "90;100"},
        ),
    )
    wheel = BuiltWheel(name="flash-attn", filename="flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", sha256="f" * 64)
    return replace(
        lock,
        pins=(*lock.pins, pin("flash-attn", "2.8.3", "framework", sdist=True), pin("einops", "0.8.1", "framework")),
        build_pins=(*lock.build_pins, pin("nvidia-cuda-nvcc", "13.0.88", "build")),
        compiled=sources,
        wheels=(*lock.wheels, wheel),
    )
