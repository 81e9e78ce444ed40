"""The Dockerfile of a lock: golden text, order of layers, labels, secrets, an unprivileged user."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from lock_helpers import pinned_in

from envsmith.errors import UsageError
from envsmith.image.dockerfile import ImageOptions, from_reference, render, render_builder
from envsmith.lock.pip_files import requirement_files
from envsmith.model.lock import OsPackage

GOLDEN = Path(__file__).parents[2] / "golden" / "dockerfile"


def cases(locks):
    return {
        "deepspeed-registry": (locks.deepspeed(), None),
        "deepspeed-local-wheels": (
            locks.deepspeed(locks.BOOTSTRAPPED),
            ImageOptions(wheels=frozenset({"torch"}), user=4321, prefix="/srv/env", epoch=1700000000),
        ),
        "megatron-bootstrapped": (locks.megatron(), None),
        "deepspeed-built-wheels": (locks.with_wheels(locks.deepspeed()), None),
        "deepspeed-compiled": (locks.compiled(), None),
    }


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed-registry",
        "deepspeed-local-wheels",
        "megatron-bootstrapped",
        "deepspeed-built-wheels",
        "deepspeed-compiled",
    ],
)
def test_text_is_the_golden_one(name, locks):
    text = render(*cases(locks)[name])
    path = GOLDEN / f"{name}.Dockerfile"
    if os.environ.get("ENVSMITH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def instructions(text):
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def test_same_lock_gives_the_same_text(locks):
    assert render(locks.deepspeed()) == render(locks.deepspeed())


def test_base_of_a_registry_is_pinned_by_digest(locks):
    assert instructions(render(locks.deepspeed()))[0] == f"FROM python:3.12-slim-bookworm@{locks.REGISTRY.digest}"


def test_base_of_this_machine_is_named_after_its_image_id(locks):
    assert from_reference(locks.BOOTSTRAPPED) == "envsmith/base:bookworm-cdcdcdcdcdcd"


def test_nothing_of_the_cell_stands_before_the_framework_layer(locks):
    """Two cells on one torch share every layer up to it only when the text up to it is the same."""
    one = instructions(render(locks.deepspeed()))
    other = instructions(render(locks.deepspeed(deepspeed="0.19.7", nccl="2.29.3")))
    shared = next(i for i, line in enumerate(one) if "requirements-framework" in line)
    assert one[: shared + 1] == other[: shared + 1]
    assert one != other


def test_torch_layer_comes_before_the_packages_of_the_distribution(locks):
    text = render(locks.deepspeed())
    assert (
        text.index("requirements-torch.txt,")
        < text.index("apt-get")
        < text.index("requirements-framework.txt,")
        < text.index("LABEL")
    )


def test_labels_are_the_last_instruction(locks):
    assert instructions(render(locks.deepspeed()))[-1].startswith("LABEL ")


def test_image_runs_as_an_unprivileged_numeric_user(locks):
    lines = instructions(render(locks.deepspeed()))
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]


def test_secrets_are_optional_and_only_mounted(locks):
    text = render(locks.deepspeed())
    secrets = re.findall(r"--mount=type=secret,(\S+)", text)
    assert secrets
    assert all("required=false" in s and "target=/dev/cell/" in s for s in secrets)
    assert "ARG" not in text
    assert not re.search(r"^(ENV|LABEL).*(UV_|SSL_CERT|PIP_)", text, re.MULTILINE)


def test_every_mount_lies_below_dev_so_that_no_mount_point_stays(locks):
    assert set(re.findall(r"target=(/[a-z]+/)", render(locks.deepspeed()))) == {"/dev/"}


def test_only_hashed_files_are_installed(locks):
    lines = [line for line in instructions(render(locks.deepspeed())) if "uv pip install" in line]
    assert len(lines) == 2
    assert all("--require-hashes --no-deps" in line for line in lines)


def test_no_frontend_image_is_asked_for(locks):
    assert "syntax=" not in render(locks.deepspeed())


def test_source_distributions_are_built_with_pinned_requirements_only(locks):
    torch, framework = (line for line in instructions(render(locks.deepspeed())) if "uv pip install" in line)
    assert "--build-constraints" in framework
    assert "--only-binary :all:" in torch
    assert "--only-binary :all:" in next(
        line for line in instructions(render(locks.megatron())) if "requirements-framework" in line
    )


def test_a_cell_without_os_packages_installs_none(locks):
    assert "apt-get" not in render(locks.megatron())


def test_every_os_package_is_named_with_its_version(locks):
    assert "g++=4:12.2.0-3 gcc-12=12.2.0-14+deb12u1" in render(locks.deepspeed())


def test_a_torch_that_is_on_its_own_index_names_its_build(locks):
    torch, framework = (line for line in instructions(render(locks.megatron())) if "uv pip install" in line)
    assert "--torch-backend cpu" in torch
    assert "--torch-backend" not in framework


def test_gpu_variables_are_set_for_a_cuda_cell_only(locks):
    assert "NVIDIA_VISIBLE_DEVICES" in render(locks.deepspeed())
    assert "NVIDIA" not in render(locks.megatron())


def test_host_facts_are_no_labels(locks):
    assert "io.envsmith.driver" not in render(locks.deepspeed())


def test_a_lock_without_base_renders_nothing(locks):
    with pytest.raises(ValueError, match="base"):
        render(dataclasses.replace(locks.deepspeed(), base=None))


HOSTILE = [
    '1.0"; rm -rf /',
    "1.0\nRUN id",
    "$(id)",
    "`id`",
    "1.0\\",
    "1.0 --index-url x",
    "'x'",
    "a\x00b",
    "../../etc",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "field", ["version", "package", "base name", "base digest", "distribution", "interpreter", "prefix", "label"]
)
def test_a_hostile_value_is_refused_and_never_quoted(text, field, locks):
    lock, options = locks.deepspeed(), ImageOptions()
    base = lock.base
    if field == "version":
        lock = dataclasses.replace(lock, os_packages=(OsPackage(name="g++", version=text),))
    elif field == "package":
        lock = dataclasses.replace(lock, os_packages=(OsPackage(name=text, version="1"),))
    elif field == "base name":
        lock = dataclasses.replace(lock, base=dataclasses.replace(base, name=text))
    elif field == "base digest":
        lock = dataclasses.replace(lock, base=dataclasses.replace(base, digest=text))
    elif field == "distribution":
        lock = dataclasses.replace(lock, base=dataclasses.replace(base, origin="local", distribution=text))
    elif field == "interpreter":
        lock = dataclasses.replace(lock, base=dataclasses.replace(base, python=text))
    elif field == "prefix":
        options = ImageOptions(prefix=text)
    elif text:
        options = ImageOptions(extra_labels=(("org.example.note", f"{text}\n"),))
    else:
        options = ImageOptions(extra_labels=(("", "x"),))
    with pytest.raises(UsageError):
        render(lock, options)


@pytest.mark.parametrize("character", [*"$`\"'\\\n\r\t\0{}!#%&|?", "\u2028", "é"])
def test_no_character_that_a_shell_or_a_dockerfile_reads_stands_in_the_value_of_a_label(character, locks):
    with pytest.raises(UsageError, match="a label value"):
        render(locks.deepspeed(), ImageOptions(extra_labels=(("org.example.note", f"a{character}b"),)))


@pytest.mark.parametrize("user", [0, 999, -1, 70000, True, "10001"])
def test_root_and_system_users_are_refused(user, locks):
    with pytest.raises(UsageError):
        render(locks.deepspeed(), ImageOptions(user=user))


def test_a_hostile_component_of_the_cell_is_refused(locks):
    with pytest.raises(UsageError):
        render(locks.deepspeed(nccl='2.29"; RUN id'))


def test_packages_of_a_dated_archive_come_from_the_address_that_the_base_names(locks):
    text = render(dataclasses.replace(locks.deepspeed(), os_source="snapshot 20260805T000000Z"))
    assert "Dir::Etc::sourcelist=/dev/cell/dated.sources" in text
    assert "dated.sources" not in render(dataclasses.replace(locks.deepspeed(), os_source="mirror 2026-11-21"))


def test_the_base_s_own_comment_becomes_the_address(tmp_path):
    """The words of the Dockerfile, run on the file that Debian's own images have."""
    import subprocess

    from envsmith.image.dockerfile import DATED_SOURCES

    live = tmp_path / "debian.sources"
    live.write_text(
        "Types: deb\n# http://archive.example/archive/debian/20260805T000000Z\nURIs: http://live.example/debian\n"
        "Suites: bookworm\nSigned-By: /x.gpg\n\nTypes: deb\n"
        "# http://archive.example/archive/debian-security/20260805T000000Z\nURIs: http://live.example/debian-security\nSuites: s\n"
    )
    script = DATED_SOURCES.replace("/etc/apt/sources.list.d/debian.sources", str(live))
    script = script.replace("/dev/cell/dated.sources", str(tmp_path / "dated"))
    subprocess.run(["sh", "-c", script], check=True)
    lines = (tmp_path / "dated").read_text().splitlines()
    assert [line for line in lines if line.startswith("URIs")] == [
        "URIs: http://archive.example/archive/debian/20260805T000000Z",
        "URIs: http://archive.example/archive/debian-security/20260805T000000Z",
    ]
    assert "Suites: bookworm" in lines


def test_a_devel_image_has_its_toolkit_at_cuda_home(locks):
    lock = locks.deepspeed()
    lock = dataclasses.replace(lock, pins=(*lock.pins, locks.pin("nvidia-cuda-nvcc", "13.0.88", "framework")))
    text = render(lock)
    assert "CUDA_HOME=/opt/cell/cuda" in text
    assert text.index("requirements-framework") < text.index("CUDA_HOME")
    assert "CUDA_HOME=" not in render(locks.deepspeed())


@pytest.mark.parametrize("dependencies", [False, True])
def test_the_builder_has_the_steps_of_the_image_word_for_word(locks, dependencies):
    """BuildKit takes a step from its cache only when the text is the same."""
    lock = locks.compiled() if dependencies else locks.with_wheels(locks.deepspeed())
    builder, image = instructions(render_builder(dataclasses.replace(lock, wheels=()))), instructions(render(lock))
    end = image.index("FROM dependencies" if dependencies else "FROM ground")
    asked = ["COPY --from=dependencies /opt/cell/pyvenv.cfg /"] if dependencies else []
    last = ["FROM scratch AS built", "COPY --from=wheels /wheels /", *asked]
    assert builder == [*image[:end], *last]


def test_other_dependencies_are_installed_beside_the_build_of_sources(locks):
    """Neither stage stands on the other; every pin is in one file, and what the builder makes is not in the dependencies'."""
    lock = locks.compiled()
    stages = re.findall(r"^FROM (.*)$", render(lock), re.MULTILINE)
    assert stages[1:] == ["ground AS dependencies", "ground AS wheels", "dependencies"]
    pins = {name: set(pinned_in(text)) for name, text in requirement_files(lock).items()}
    assert pins["requirements-dependencies.txt"] == {"einops"}
    assert pins["requirements-framework.txt"] == {"deepspeed", "flash-attn"}
    assert pins["requirements-torch.txt"] == {"torch"}
    # Nothing is built while nobody knows what comes out: one layer, as before.
    assert "dependencies" not in render(dataclasses.replace(lock, wheels=(), compiled=()))
    assert "requirements-dependencies.txt" not in requirement_files(dataclasses.replace(lock, wheels=()))


def test_the_layer_of_built_wheels_asks_no_index_and_sees_no_secret(locks):
    framework = next(line for line in instructions(render(locks.compiled())) if "requirements-framework" in line)
    assert "--no-index --find-links /dev/cell/built" in framework
    assert "type=secret" not in framework


def test_a_built_wheel_is_held_against_its_hash_and_no_source_is_built_in_the_image(locks):
    lock = locks.with_wheels(locks.deepspeed())
    framework = next(line for line in instructions(render(lock)) if "requirements-framework" in line)
    assert "--require-hashes" in framework
    assert "--only-binary :all:" in framework
    assert "from=wheels" in framework
    files = requirement_files(lock)
    assert "e" * 64 in files["requirements-framework.txt"]
    assert "e" * 64 not in files["requirements-sdists.txt"]
    assert "deepspeed==0.19.8" in files["requirements-sdists.txt"]


def test_what_is_compiled_sees_its_archive_the_compiler_and_its_variables_in_a_fixed_folder(locks):
    lock = locks.compiled()
    builder = render_builder(lock)
    (step,) = [line for line in instructions(builder) if "/build/flash-attn" in line]
    assert "source=sources/flash_attn-2.8.3.tar.gz" in step
    assert f"test \"$(sha256sum < /dev/cell/sources/flash_attn-2.8.3.tar.gz)\" = '{'0' * 64}  -'" in step
    assert "FLASH_ATTENTION_FORCE_BUILD='TRUE' FLASH_ATTN_CUDA_ARCHS='90;100' /dev/cell/uv build" in step
    assert "--no-build-isolation --offline" in step
    assert "CUDA_HOME=/opt/cell/cuda" in step
    # Code of others sees nothing that the host lends to a build.
    assert "id=ca" not in step
    assert "id=uv" not in step
    (before,) = [
        line for line in instructions(builder) if "source=requirements-build.txt" in line and "sdists" not in line
    ]
    assert "id=uv" in before
    assert "nvidia/*/bin/nvcc" in before
    assert "rm -rf /build /opt/cell/.uv-cache" in step
    # Word for word the step of the image, or it would run twice.
    assert step in instructions(render(lock))
    # The toolkit is the builder's: the image itself has none.
    assert "CUDA_HOME=" not in render(lock).partition("FROM dependencies\n")[2]


@pytest.mark.parametrize("value", ["9'0", "90$(id)", "90\n", "90`id`", '9"0'])
def test_a_variable_that_is_not_plain_is_refused(locks, value):
    lock = locks.compiled()
    source = dataclasses.replace(lock.compiled[0], variables={"FLASH_ATTN_CUDA_ARCHS": value})
    with pytest.raises(UsageError):
        render(dataclasses.replace(lock, compiled=(source,)))


def test_a_source_without_an_archive_is_refused(locks):
    lock = locks.compiled()
    other = dataclasses.replace(lock.compiled[0], name="apex")
    with pytest.raises(UsageError, match="apex is to be compiled"):
        render(dataclasses.replace(lock, compiled=(other,)))
