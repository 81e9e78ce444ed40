"""The Dockerfile of a lock: golden text, order of layers, labels, secrets, an unprivileged user."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from lock_helpers import pinned_in

from envsmith.builder.image.dockerfile import (
    ImageOptions,
    from_reference,
    image_files,
    render,
    render_builder,
    step_files,
)
from envsmith.errors import UsageError
from envsmith.lock.pip_files import requirement_files
from envsmith.model.lock import OsPackage

GOLDEN = Path(__file__).parents[3] / "golden" / "dockerfile"


def cases(locks):
    return {
        "deepspeed-registry": (locks.deepspeed(), None),
        "deepspeed-local-wheels": (
            locks.deepspeed(locks.LOCAL),
            ImageOptions(wheels=frozenset({"torch"}), user=4321, prefix="/srv/env", epoch=1700000000),
        ),
        "megatron-packages": (locks.megatron(), None),
        "deepspeed-built-wheels": (locks.with_wheels(locks.deepspeed()), None),
        "deepspeed-compiled": (locks.compiled(), None),
    }


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed-registry",
        "deepspeed-local-wheels",
        "megatron-packages",
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
    first = instructions(render(locks.deepspeed()))[0]
    assert first == f"FROM python:3.12-slim-bookworm@{locks.REGISTRY.digest} AS base"


def test_base_of_this_machine_is_named_after_its_image_id(locks):
    assert from_reference(locks.LOCAL) == "envsmith/base:bookworm-cdcdcdcdcdcd"


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
        < text.index("os_packages")
        < text.index("requirements-framework.txt,")
        < text.index("LABEL")
    )


def test_the_flavour_train_is_compiled_after_all_layers_that_others_share(locks):
    lock = locks.deepspeed()
    minimal, train = render(lock), render(dataclasses.replace(lock, flavour="train"))
    assert "bytecode" not in minimal
    assert train.index("requirements-framework.txt") < train.index("cell.sh bytecode") < train.index("\nENV ")
    assert "PDSH_RCMD_TYPE=ssh" in train
    # Python looks nowhere else for byte-code while this is set.
    assert ("PYTHONPYCACHEPREFIX" in minimal, "PYTHONPYCACHEPREFIX" in train) == (True, False)
    head = minimal.index("FROM base AS ground")
    stop = minimal.index("# Packages of the distribution.")
    assert minimal[head:stop] in train


def test_labels_are_the_last_instruction(locks):
    assert instructions(render(locks.deepspeed()))[-1].startswith("LABEL ")


def test_image_runs_as_an_unprivileged_numeric_user(locks):
    lines = instructions(render(locks.deepspeed()))
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]


def test_secrets_are_optional_and_only_mounted(locks):
    text = render(locks.deepspeed())
    secrets = re.findall(r"--mount=type=secret,(\S+)", text)
    assert secrets
    assert all("target=/dev/cell/" in s and "required" not in s for s in secrets)
    assert "ARG" not in text
    assert not re.search(r"^(ENV|LABEL).*(UV_|SSL_CERT|PIP_)", text, re.MULTILINE)


def test_every_mount_lies_below_dev_so_that_no_mount_point_stays(locks):
    assert set(re.findall(r"target=(/[a-z]+/)", render(locks.deepspeed()))) == {"/dev/"}


def function(files, name):
    """The body of a function of steps/cell.sh."""
    return re.search(rf"^{name}\(\) \{{\n(.*?)^\}}", files["steps/cell.sh"], re.MULTILINE | re.DOTALL)[1]


def test_only_hashed_files_are_installed(locks):
    files = image_files(locks.deepspeed())
    installing = [line for line in files["steps/cell.sh"].splitlines() if " pip install" in line]
    assert len(installing) == 1
    assert "--require-hashes --no-deps" in installing[0]
    assert "--only-binary :all:" in function(files, "install")
    assert "--require-hashes --no-deps" in function(files, "get_uv")


def test_no_frontend_image_is_asked_for(locks):
    assert "syntax=" not in render(locks.deepspeed())


def test_source_distributions_are_built_with_pinned_requirements_only(locks):
    steps = [line for line in instructions(render(locks.deepspeed())) if "requirements-" in line]
    assert [line.rpartition("cell.sh ")[2].split()[0] for line in steps] == ["get_uv", "install", "install_and_build"]
    assert "source=requirements-build.txt,target=/dev/cell/build.txt" in steps[-1]
    built = function(step_files(locks.deepspeed()), "hashed_and_built")
    assert "--build-constraints $in/build.txt --require-build-hashes" in built


def test_a_cell_without_os_packages_installs_none(locks):
    assert "os_packages" not in render(locks.megatron())
    assert "packages.txt" not in image_files(locks.megatron())


def test_every_os_package_is_named_with_its_version(locks):
    assert image_files(locks.deepspeed())["packages.txt"] == "g++=4:12.2.0-3\ngcc-12=12.2.0-14+deb12u1\n"


def test_a_torch_that_is_on_its_own_index_names_its_build(locks):
    torch, framework = (line for line in instructions(render(locks.megatron())) if "cell.sh install" in line)
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
        image_files(lock, options)


@pytest.mark.parametrize("character", [*"$`\"'\\\n\r\t\0{}!#%&|?", "\u2028", "é"])
def test_no_character_that_a_shell_or_a_dockerfile_reads_stands_in_the_value_of_a_label(character, locks):
    with pytest.raises(UsageError, match="a label value"):
        render(locks.deepspeed(), ImageOptions(extra_labels=(("org.example.note", f"a{character}b"),)))


@pytest.mark.parametrize("user", [0, 999, -1, 70000, True, "10001"])
def test_root_and_system_users_are_refused(user, locks):
    with pytest.raises(UsageError):
        image_files(locks.deepspeed(), ImageOptions(user=user))


def test_a_hostile_component_of_the_cell_is_refused(locks):
    with pytest.raises(UsageError):
        render(locks.deepspeed(nccl='2.29"; RUN id'))


@pytest.mark.parametrize(
    ("source", "day"), [("snapshot 20260805T000000Z", "20260805T000000Z"), ("mirror 2026-11-21", "2026-11-21")]
)
def test_the_step_of_os_packages_names_the_day_of_their_archive(source, day, locks):
    assert f"cell.sh os_packages {day}\n" in render(dataclasses.replace(locks.deepspeed(), os_source=source))


def test_a_base_from_packages_is_made_on_nothing_and_nothing_of_its_tool_stays(locks):
    text = render(dataclasses.replace(locks.megatron(), os_source="mirror 2026-11-21"))
    lines = instructions(text)
    assert lines[:2] == ["ARG TOOL=debian:bookworm-slim", "FROM ${TOOL} AS tool"]
    assert lines[2].endswith("base.sh bookworm amd64 2026-11-21")
    assert lines[3:5] == ["FROM scratch AS base", "COPY --from=tool /base /"]
    assert [line for line in lines if "tool" in line] == [lines[1], lines[4]]
    assert image_files(locks.megatron())["base.txt"] == "apt=2.6.2\npython3=3.11.2-1+b1\n"


def test_a_list_of_packages_that_is_not_the_one_of_the_lock_s_digest_is_refused(locks):
    base = dataclasses.replace(locks.PACKAGES, packages=locks.PACKAGES.packages[:1])
    with pytest.raises(UsageError, match="digest"):
        render(locks.megatron(base))


def test_uv_comes_by_version_and_hash_in_a_stage_of_its_own(locks):
    files = image_files(locks.deepspeed())
    assert re.search(
        r"^uv==[\d.]+ \\\n    --hash=sha256:[0-9a-f]{64} \\\n    --hash", files["requirements-uv.txt"], re.MULTILINE
    )
    stages = files["Dockerfile"].split("\nFROM ")
    (stage,) = [stage for stage in stages if stage.startswith("base AS uv")]
    assert "source=requirements-uv.txt,target=/dev/cell/requirements.txt" in stage
    assert "COPY --from=uv" not in files["Dockerfile"]


def test_the_scripts_are_the_same_for_every_cell_and_hold_what_is_chosen_about_an_image(locks):
    assert step_files(locks.deepspeed())["steps/cell.sh"] == step_files(locks.megatron())["steps/cell.sh"]
    chosen = step_files(locks.deepspeed(), ImageOptions(user=4321, prefix="/srv/env", epoch=1700000000))[
        "steps/cell.sh"
    ]
    assert "prefix=/srv/env user=4321\n" in chosen
    assert "SOURCE_DATE_EPOCH=1700000000 " in chosen


def test_no_file_of_a_layer_holds_the_cell_s_name(locks):
    files = image_files(locks.with_wheels(locks.deepspeed()))
    named = {name for name, text in files.items() if "ds0.19.8" in text}
    assert named == {"Dockerfile", "requirements.txt"}
    assert "source=requirements.txt" not in files["Dockerfile"]


def test_a_dockerfile_is_short_enough_to_be_read(locks):
    assert len(render(locks.megatron()).splitlines()) <= 50


def test_a_devel_image_has_its_toolkit_at_cuda_home(locks):
    lock = locks.deepspeed()
    lock = dataclasses.replace(lock, pins=(*lock.pins, locks.pin("nvidia-cuda-nvcc", "13.0.88", "framework")))
    text = render(lock)
    assert "CUDA_HOME=/opt/cell/cuda" in text
    assert text.index("requirements-framework") < text.index("cell.sh toolkit") < text.index("CUDA_HOME=")
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
    assert stages[3:] == ["ground AS dependencies", "ground AS wheels", "dependencies"]
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
    assert "cell.sh install --no-index" in framework
    assert "from=wheels" in framework
    files = requirement_files(lock)
    assert "e" * 64 in files["requirements-framework.txt"]
    assert "e" * 64 not in files["requirements-sdists.txt"]
    assert "deepspeed==0.19.8" in files["requirements-sdists.txt"]


def test_what_is_compiled_sees_its_archive_the_compiler_and_its_variables_in_a_fixed_folder(locks):
    lock = locks.compiled()
    builder = render_builder(lock)
    (step,) = [line for line in instructions(builder) if "cell.sh compile flash-attn" in line]
    assert "source=sources/flash_attn-2.8.3.tar.gz,target=/dev/cell/source.tar.gz" in step
    assert step.endswith(f"cell.sh compile flash-attn {'0' * 64} cuda")
    assert "FLASH_ATTENTION_FORCE_BUILD='TRUE' FLASH_ATTN_CUDA_ARCHS='90;100' sh /dev/cell/steps/cell.sh" in step
    script = function(step_files(lock), "compile")
    assert 'test "$(sha256sum < $in/source.tar.gz)" = "$sha256  -"' in script
    assert "--no-build-isolation --offline" in script
    assert "CUDA_HOME=$prefix/cuda" in script
    assert "rm -rf /build $prefix/.uv-cache" in script
    # Code of others sees nothing that the host lends to a build.
    assert "id=ca" not in step
    assert "id=uv" not in step
    (before,) = [line for line in instructions(builder) if "cell.sh build_environment" in line]
    assert "source=requirements-build.txt" in before
    assert "id=uv" in before
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
    with pytest.raises(UsageError, match="Cannot compile apex"):
        render(dataclasses.replace(lock, compiled=(other,)))
