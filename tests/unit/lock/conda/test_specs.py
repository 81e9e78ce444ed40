"""From a cell to what a Conda channel is asked: builds, names, compilers, pins; the comparison with pip, and the files that come of it."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.errors import LockError
from envsmith.lock.conda.lock_files import (
    content_hash,
    environment_yml,
    explicit,
    files,
    pixi_lock,
    virtual_packages_yml,
)
from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaRequest, CondaSpec, PipPackage, PlatformLock
from envsmith.lock.conda.names import candidates, clean, component_version, cuda_of_build, listing, same_version
from envsmith.lock.conda.pip_section import pip_section
from envsmith.lock.conda.solve import compare
from envsmith.lock.conda.specs import make_plan, virtual_packages
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact, Pin
from envsmith.model.rule import Severity

LINUX, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64


@pytest.mark.parametrize(
    ("build", "cuda"),
    [
        ("cuda129_mkl_py310_hc78ee88_301", "12.9"),
        ("cuda130_generic_py312_h1_200", "13.0"),
        ("cuda112py38haf54c6d_0", "11.2"),
        ("py3.12_cuda12.4_cudnn9.1.0_0", "12.4"),
        ("py3.11_cuda11.8_cudnn8.7.0_0", "11.8"),
        ("cpu_mkl_py313_h58dab0e_103", "cpu"),
        ("py3.11_cpu_0", "cpu"),
        ("h1234567_0", None),
        ("py310h5c62fa7_0", None),
    ],
)
def test_cuda_is_read_from_the_build_string(build, cuda):
    assert cuda_of_build(build) == cuda


@pytest.mark.parametrize(
    ("component", "wanted", "have", "same"),
    [
        ("nccl", "2.27.5", "2.27.5.1", True),
        ("nccl", "2.27.5", "2.27.7.1", False),
        ("nccl", "2.2.7", "2.27.5.1", False),
        ("cudnn", "9.10.2.21", "9.10.2.21", True),
        ("cudnn", "9.10.2.21", "9.10.1.4", False),
        ("cudnn", "9.1.0.70", "9.1.0", True),
        ("python", "3.10", "3.10.19", True),
        ("python", "3.1", "3.10.19", False),
        ("python", "3.10.18", "3.10.19", False),
        ("cuda", "12.9", "12.9", True),
        ("torch", "2.8.0+cu129", "2.8.0", True),
        ("torch", "2.8.0", "2.8.1", False),
        ("packaging", "25.0", "25", True),
        ("triton", "3.4.0", "3.4", True),
        ("deepspeed", "0.18.2", "0.18.20", False),
    ],
)
def test_versions_of_both_worlds_are_compared(component, wanted, have, same):
    assert same_version(component, wanted, have) is same


def test_names_of_the_package_index_find_their_conda_names():
    assert candidates("torch") == ("pytorch",)
    assert candidates("nvidia-nccl-cu13") == ("nccl",)
    assert candidates("Huggingface_Hub") == ("huggingface-hub", "huggingface_hub", "huggingface.hub")
    assert component_version("nccl", "2.27.5.1") == "2.27.5"
    assert clean("a\x1b[31mb\nc" + "x" * 500, 8) == "ab\ncxxx…"
    assert listing(["a", "a", "b", "c"], limit=2) == "a, b and 1 more"


def record(name: str, version: str, build: str = "0", *depends: str, noarch: str | None = None, **more) -> CondaPackage:
    base = {
        "build_number": 0,
        "subdir": "linux-64",
        "sha256": "a" * 64,
        "md5": "b" * 32,
        "channel": "https://h.example/c",
    }
    url = f"https://h.example/c/linux-64/{name}-{version}-{build}.conda"
    return CondaPackage(
        name=name, version=version, build=build, depends=depends, noarch=noarch, **(base | {"url": url} | more)
    )


def offer_of(*records: CondaPackage):
    return lambda name: tuple(r for r in records if r.name == name)


def test_package_of_the_same_name_that_is_no_python_package_stays_pips(local):
    cell = local.cell(colossalai="0.5.0", cuda="cpu", python="3.10")
    pins = (
        local.pin("colossalai", "0.5.0", "graphviz", "rich"),
        local.pin("graphviz", "0.20"),
        local.pin("rich", "14.0"),
    )
    channel = (
        record("python", "3.10.19"),
        record("graphviz", "0.20", "h1_0"),
        record("rich", "14.0", "pyh_0", "python >=3.8", noarch="python"),
        record("c-compiler", "1"),
        record("cxx-compiler", "1"),
    )
    plan = make_plan(cell, pins, offer_of(*channel), LINUX)
    assert [s.name for s in plan.extra] == ["rich"]
    assert plan.pip_closure == ("colossalai", "graphviz", "rich")
    assert CondaSpec("pip") in plan.specs


def test_gcc_and_toolkit_of_the_cell_choose_the_compilers(local):
    cell = local.cell(deepspeed="0.18.2", cuda="12.8", python="3.12", gcc="13.3.0", toolkit="12.6.3")
    channel = [record(n, "1") for n in ("python", "gcc", "gxx")] + [
        record("cuda-nvcc", "12.6.85"),
        record("cuda-version", "12.8"),
    ]
    plan = make_plan(cell, (local.pin("deepspeed", "0.18.2"),), offer_of(*channel), LINUX)
    assert {str(s) for s in plan.specs} >= {"gcc 13.*", "gxx 13.*", "cuda-nvcc 12.6.*", "cuda-version 12.8.*"}


def test_framework_that_compiles_is_refused_where_the_channel_has_no_compiler(local):
    cell = local.cell(deepspeed="0.18.2", cuda="cpu", python="3.12")
    with pytest.raises(LockError) as caught:
        make_plan(cell, (local.pin("deepspeed", "0.18.2"),), offer_of(record("python", "3.12.1")), LINUX)
    assert len(caught.value.details) == 2
    assert all("deepspeed compiles extensions" in line for line in caught.value.details)


def test_megatron_needs_no_compiler(local):
    cell = local.cell(megatron_core="0.16.1", cuda="cpu", python="3.12")
    plan = make_plan(cell, (local.pin("megatron-core", "0.16.1"),), offer_of(record("python", "3.12.1")), LINUX)
    assert [str(s) for s in plan.specs] == ["python 3.12.*", "pip"]


def test_machine_is_the_cells_and_not_this_one(local):
    cell = local.cell(torch="2.8.0+cu129", cuda="12.9", python="3.10", glibc="2.34", driver="580.1")
    assert virtual_packages(cell, ARM) == {
        "__archspec": "1 aarch64",
        "__cuda": "12.9",
        "__glibc": "2.34",
        "__linux": "5.10",
        "__unix": "0",
    }


def wheels(*tags: str, sdist: bool = False) -> Pin:
    names = [f"x-1.0-{tag}.whl" for tag in tags] + (["x-1.0.tar.gz"] if sdist else [])
    artifacts = tuple(
        Artifact(filename=n, sha256=f"{i:064x}", url=f"https://h.example/{n}#frag") for i, n in enumerate(names)
    )
    return Pin(name="x", version="1.0", layer="framework", artifacts=artifacts)


@pytest.mark.parametrize(
    ("pin", "platform", "glibc", "file"),
    [
        (wheels("py3-none-any", sdist=True), LINUX, "2.28", "x-1.0-py3-none-any.whl"),
        (
            wheels("py3-none-any", "cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64"),
            LINUX,
            "2.28",
            "x-1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        ),
        (
            wheels("cp310-cp310-manylinux_2_28_x86_64", "cp310-cp310-manylinux_2_28_aarch64"),
            ARM,
            "2.28",
            "x-1.0-cp310-cp310-manylinux_2_28_aarch64.whl",
        ),
        (wheels("cp310-cp310-manylinux_2_34_x86_64", sdist=True), LINUX, "2.28", "x-1.0.tar.gz"),
        (
            wheels("cp310-cp310-manylinux_2_34_x86_64", sdist=True),
            LINUX,
            "2.34",
            "x-1.0-cp310-cp310-manylinux_2_34_x86_64.whl",
        ),
        (wheels("cp38-abi3-manylinux1_x86_64"), LINUX, "2.28", "x-1.0-cp38-abi3-manylinux1_x86_64.whl"),
    ],
)
def test_file_of_a_pin_is_the_best_for_the_platform(pin, platform, glibc, file):
    (package,), _ = pip_section(("x",), ("x",), {"x": pin}, (), platform=platform, python="3.10", glibc=glibc)
    assert package.url == f"https://h.example/{file}"


def test_pin_without_a_file_for_the_platform_is_refused():
    with pytest.raises(LockError, match="no file that linux-aarch64 can install"):
        pip_section(
            ("x",),
            ("x",),
            {"x": wheels("cp310-cp310-manylinux_2_28_x86_64")},
            (),
            platform=ARM,
            python="3.10",
            glibc="2.28",
        )


def test_dependency_that_conda_brings_is_condas_and_another_version_is_noted(local):
    pins = {
        "m": local.pin("m", "1.0", "numpy", "rich"),
        "numpy": local.pin("numpy", "2.2.6"),
        "rich": local.pin("rich", "14.0"),
    }
    brought = (record("numpy", "2.2.5", "py_0", "python"), record("rich", "14.0.0", "py_0", "python"))
    packages, notes = pip_section(
        ("m", "numpy", "rich"), ("m",), pins, brought, platform=LINUX, python="3.10", glibc="2.28"
    )
    assert [p.name for p in packages] == ["m"]
    assert notes == ("numpy: the pip lock has 2.2.6, Conda brings 2.2.5 on linux-64",)


def small_lock(*packages: CondaPackage, pip: tuple[PipPackage, ...] = (), both: bool = False) -> CondaLock:
    specs = (CondaSpec("python", "3.10.*"), CondaSpec("pytorch", "==2.8.0", "cuda129*"), CondaSpec("c-compiler"))
    virtual = {"__archspec": "1 x86_64", "__cuda": "12.9", "__glibc": "2.28", "__linux": "5.10", "__unix": "0"}
    parts = [PlatformLock(platform=LINUX, specs=specs, virtual_packages=virtual, packages=packages, pip=pip)]
    if both:
        arm = virtual | {"__archspec": "1 aarch64"}
        parts.append(PlatformLock(platform=ARM, specs=specs[:2], virtual_packages=arm, packages=packages, pip=pip))
    return CondaLock(
        cell_id="mc0.16.1-torch2.8.0-cu129-py310", channels=("conda-forge",), platforms=tuple(parts), request="r"
    )


PIP = (PipPackage(name="megatron-core", version="0.16.1", url="https://h.example/m.whl", sha256="c" * 64),)


def test_difference_of_a_component_names_both_versions(local):
    cell = local.cell(**local.MEGATRON)
    pins = local.pins_for(local.MEGATRON)
    good = next(p for p in pins if p.name == "megatron-core").artifacts[0].sha256
    lock = small_lock(
        record("python", "3.10.19"),
        record("pytorch", "2.8.0", "cuda128_py310_0"),
        record("nccl", "2.27.7.1"),
        record("cudnn", "9.10.2.21"),
        pip=(dataclasses.replace(PIP[0], version="0.16.0", sha256=good),),
    )
    found = {(f.rule, f.severity, *f.components.items()) for f in compare(cell, pins, lock)}
    assert found == {
        ("conda-differs-from-pip", Severity.ERROR, ("cuda", "pip 12.9, conda 12.8")),
        ("conda-differs-from-pip", Severity.ERROR, ("nccl", "pip 2.28.9, conda 2.27.7")),
        ("conda-differs-from-pip", Severity.ERROR, ("megatron-core", "pip 0.16.1, conda 0.16.0")),
        ("conda-lacks-component", Severity.WARNING, ("triton", "pip 3.4.0, conda none")),
    }


def test_missing_framework_and_another_file_are_errors(local):
    cell = local.cell(**local.MEGATRON)
    findings = compare(cell, local.pins_for(local.MEGATRON), small_lock(record("python", "3.10.19"), pip=PIP))
    rules = {(f.rule, next(iter(f.components))) for f in findings if f.severity is Severity.ERROR}
    assert ("conda-lacks-component", "torch") in rules
    assert ("conda-pip-file-differs", "megatron-core") in rules


def test_content_hash_depends_on_what_is_asked_only():
    specs = (CondaSpec("python", "3.10.*"), CondaSpec("numpy", "==2.2.6"))
    first = content_hash(("conda-forge",), specs, (), {"__unix": "0"}, LINUX)
    assert first == content_hash(("conda-forge",), tuple(reversed(specs)), (), {"__unix": "0"}, LINUX)
    assert (
        len(
            {
                first,
                content_hash(("x",), specs, (), {"__unix": "0"}, LINUX),
                content_hash(("conda-forge",), specs, PIP, {"__unix": "0"}, LINUX),
            }
        )
        == 3
    )


def test_files_are_rendered(local):
    lock = small_lock(
        record("python", "3.10.19", "h_0", "__glibc >=2.17", "b >=1", "a", license="PSF"), pip=PIP, both=True
    )
    assert environment_yml(lock) == (
        "# What the cell mc0.16.1-torch2.8.0-cu129-py310 asks of Conda, written by envsmith.\n"
        "channels:\n  - conda-forge\nplatforms:\n  - linux-64\n  - linux-aarch64\ndependencies:\n"
        "  - python 3.10.*\n  - pytorch ==2.8.0 cuda129*\n  - c-compiler  # [linux64]\n"
        "  - pip:\n      - megatron-core==0.16.1\n"
    )
    assert explicit(lock.platforms[0]) == (
        "# platform: linux-64\n@EXPLICIT\n"
        f"https://h.example/c/linux-64/python-3.10.19-h_0.conda#{'b' * 32}\n"
        f"# pip megatron-core @ https://h.example/m.whl --hash=sha256:{'c' * 64}\n"
    )
    assert "__archspec: 1 aarch64" in virtual_packages_yml(lock)
    assert "dependencies:\n    __glibc: '>=2.17'\n    a: ''\n    b: '>=1'\n" in files(lock)["conda-lock.yml"]
    assert (
        f"- pypi: https://h.example/m.whl\n  name: megatron-core\n  version: 0.16.1\n  sha256: {'c' * 64}\n"
        in pixi_lock(lock)
    )


def test_lock_files_are_those_that_were_reviewed(request, local, channels, tmp_path):
    """Golden: the lock of the Megatron cell over the real records. ``ENVSMITH_UPDATE_GOLDEN=1`` writes it anew."""
    import os

    from envsmith.lock.conda.lock import lock_conda

    lock = lock_conda(
        local.cell(**local.MEGATRON),
        local.pins_for(local.MEGATRON),
        CondaRequest(channels=((channels / "conda-forge").as_uri(),), cache_dir=tmp_path),
    )
    golden = request.config.rootpath / "tests" / "cases" / "conda" / "golden"
    place = (channels / "conda-forge").as_uri()
    for name, text in files(lock).items():
        if name in {"conda-lock.yml", "pixi.lock"}:
            continue  # 100 kB that say the same as the explicit file
        told = text.replace(place, "file:///channel")
        if os.environ.get("ENVSMITH_UPDATE_GOLDEN"):
            golden.mkdir(exist_ok=True)
            (golden / name).write_text(told)
        assert (golden / name).read_text() == told
