"""The Dockerfile of a Conda lock: golden text, digests, hashes, an unprivileged user."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from envsmith.builder.engines.bases import load_bases
from envsmith.builder.image.conda_dockerfile import render_conda
from envsmith.builder.image.dockerfile import step_files
from envsmith.errors import UsageError
from envsmith.lock.conda.lock_files import pip_lines, sums
from envsmith.lock.conda.model import CondaLock, CondaPackage, PipPackage, PlatformLock
from envsmith.model.cell import Platform
from envsmith.model.lock import Tool

GOLDEN = Path(__file__).parents[3] / "golden" / "dockerfile"
TOOL = Tool(name="micromamba", image="mambaorg/micromamba:2.3.3", digest="sha256:" + "ef" * 32, evidence="a test")


def package(name, version="1.0", subdir="linux-64"):
    url = f"https://channel.example/forge/{subdir}/{name}-{version}-h0_0.conda"
    return CondaPackage(
        name=name, version=version, build="h0_0", build_number=0, subdir=subdir, url=url, sha256="a1" * 32, md5="b2" * 16,
        channel="https://channel.example/forge",
    )  # fmt: skip


def conda(*, pip=True, compilers=True, sdist=False):
    names = ["python", "pytorch", *(["gcc_impl_linux-64", "gxx_impl_linux-64", "cuda-nvcc"] if compilers else [])]
    suffix = ".tar.gz" if sdist else "-py3-none-any.whl"
    wheel = PipPackage(
        name="megatron-core",
        version="0.16.1",
        url=f"https://files.example/megatron_core-0.16.1{suffix}",
        sha256="c3" * 32,
    )
    part = PlatformLock(
        platform=Platform.LINUX_64,
        specs=(),
        virtual_packages={},
        packages=tuple(map(package, names)),
        pip=(wheel,) if pip else (),
    )
    return CondaLock(cell_id="x", channels=("forge",), platforms=(part,), request="")


@pytest.mark.parametrize(
    ("name", "made"), [("conda-deepspeed", conda(sdist=True)), ("conda-only-conda", conda(pip=False, compilers=False))]
)
def test_text_is_the_golden_one(name, made, locks):
    text = render_conda(locks.deepspeed(), made, TOOL)
    path = GOLDEN / f"{name}.Dockerfile"
    if os.environ.get("ENVSMITH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def runs(text):
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith("RUN")]


def test_every_image_is_named_by_digest(locks):
    froms = [line for line in render_conda(locks.deepspeed(), conda(), TOOL).splitlines() if line.startswith("FROM")]
    assert all(re.search(r"@sha256:[0-9a-f]{64} AS (micromamba|base)$", line) for line in froms[:2])
    assert froms[2:] == ["FROM base AS uv", "FROM base"]


def test_every_package_is_held_against_its_sha256_in_the_step_that_installs_it(locks):
    script = step_files(locks.deepspeed())["steps/cell.sh"]
    step = next(line for line in runs(render_conda(locks.deepspeed(), conda(), TOOL)) if line.endswith("cell.sh conda"))
    assert "source=conda-linux-64.sha256,target=/dev/cell/packages.sha256" in step
    assert script.index("micromamba create") < script.index("sha256sum --check --strict")
    assert sums(conda().platforms[0]).splitlines()[0] == "a1" * 32 + "  cuda-nvcc-1.0-h0_0.conda"


def test_pip_section_is_installed_by_hash_and_nothing_is_resolved(locks):
    step = next(line for line in runs(render_conda(locks.deepspeed(), conda(), TOOL)) if "cell.sh conda_pip" in line)
    assert "--build-constraints" not in step
    assert pip_lines(conda().platforms[0].pip).endswith("--hash=sha256:" + "c3" * 32 + "\n")
    step = next(line for line in runs(render_conda(locks.deepspeed(), conda(sdist=True), TOOL)) if "conda_pip" in line)
    assert "--build-constraints /dev/cell/build.txt --require-build-hashes" in step
    assert not any("conda_pip" in line for line in runs(render_conda(locks.deepspeed(), conda(pip=False), TOOL)))


def test_compilers_of_the_prefix_are_found_without_activation(locks):
    text = render_conda(locks.deepspeed(), conda(), TOOL)
    assert "CXX=/opt/cell/bin/x86_64-conda-linux-gnu-g++" in text
    assert "CUDA_HOME=/opt/cell" in text
    assert "CXX" not in render_conda(locks.deepspeed(), conda(compilers=False), TOOL)


def test_image_runs_as_an_unprivileged_user_and_no_secret_stays(locks):
    text = render_conda(locks.deepspeed(), conda(), TOOL)
    assert "\nUSER 10001:10001\n" in text
    assert set(re.findall(r"target=(/[a-z]+/)", text)) == {"/dev/"}


@pytest.mark.parametrize("image", ["x y", "a\nRUN id", "$(id)", ""])
def test_hostile_tool_is_refused(image, locks):
    with pytest.raises(UsageError):
        render_conda(locks.deepspeed(), conda(), dataclasses.replace(TOOL, image=image))


def test_lock_of_another_platform_or_without_base_renders_nothing(locks):
    with pytest.raises(ValueError, match="base"):
        render_conda(dataclasses.replace(locks.deepspeed(), base=None), conda(), TOOL)
    arm = dataclasses.replace(locks.deepspeed().cell, platform=Platform.LINUX_AARCH64)
    with pytest.raises(KeyError):
        render_conda(dataclasses.replace(locks.deepspeed(), cell=arm), conda(), TOOL)


def test_known_micromamba_has_its_digest_and_evidence():
    tool = load_bases().tool("micromamba")
    assert tool is not None
    assert tool.digest.startswith("sha256:")
    assert tool.evidence
