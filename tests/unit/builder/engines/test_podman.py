"""podman and buildah: when they are taken, how they are called, how their failures are told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.base.progress import EventKind
from envsmith.builder.engines.podman import BuildahEngine, PodmanEngine, StepTranscript, with_keys
from envsmith.builder.image.context import write_context
from envsmith.errors import BuildError, ContentError, NetworkError, StorageError
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock
from envsmith.net.oci.canonical import Form, to_layout
from envsmith.net.oci.saved import Saved

from .image_store import tar


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return folder


def test_what_is_missing_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert PodmanEngine().available() == "podman is not installed"
    program(tmp_path, "podman", "exit 0")
    assert BuildahEngine().available() == "buildah is not installed"


def test_a_podman_that_does_not_work_says_why(tools):
    program(tools, "podman", "echo no cgroups >&2; exit 125")
    assert "no cgroups" in PodmanEngine().available()


def test_a_podman_that_nobody_has_used_is_not_taken_unasked(tools):
    program(tools, "podman", "exit 0")
    assert "--engine podman" in PodmanEngine().unused()
    program(tools, "podman", "echo 968d33eb8797")
    assert PodmanEngine().unused() is None


@pytest.mark.parametrize("tool", ["podman", "buildah"])
def test_the_builder_gets_a_fixed_time_secrets_as_files_and_no_cache_on_demand(
    tool, tools, tmp_path, locks, events, monkeypatch
):
    log = tmp_path / "log"
    body = f'for a in "$@"; do echo "$a" >> {log}; case "$a" in --iidfile=*) echo sha256:{"1" * 64} > "${{a#--iidfile=}}";; esac; done; echo "STEP 1/2: FROM x"'
    program(tools, tool, body)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2@proxy")
    (tmp_path / "scratch").mkdir()
    engine = BuildahEngine() if tool == "buildah" else PodmanEngine()
    image = engine.run_build(locks.megatron(), tmp_path / "scratch", events, cache=False, output=None)
    assert image == "sha256:" + "1" * 64
    given = log.read_text().splitlines()
    assert {"build", "--no-cache", "--format=oci", "--timestamp=1735689600", "--build-arg=HTTPS_PROXY"} <= set(given)
    assert "hunter2" not in log.read_text()
    context = Path(given[-1])
    assert all(not Path(a.split("src=")[1]).is_relative_to(context) for a in given if a.startswith("--secret="))


@pytest.fixture
def layout(tmp_path):
    folder, layer = tmp_path / "Cell" / "oci", tmp_path / "layer.tar"
    layer.write_bytes(tar(torch="t"))
    saved = Saved(config={"architecture": "amd64"}, layers=(layer,))
    return folder, to_layout(saved, folder, Form(base_layers=0, epoch=0))


def test_podman_reads_the_folder_of_a_layout_and_its_name_for_it_goes(tools, tmp_path, layout):
    folder, image = layout
    log = tmp_path / "log"
    program(tools, "podman", f'echo "$PWD $*" >> {log}; [ "$1" != load ] || echo "Loaded image: localhost/oci"')

    PodmanEngine()._send(image, folder, 0)

    assert log.read_text().splitlines() == [
        f"{folder.parent} load --quiet --input=oci",
        f"{Path.cwd()} untag {image.identity} localhost/oci",
    ]


def test_a_podman_that_cannot_read_a_layout_says_why(tools, layout):
    folder, image = layout
    program(tools, "podman", "echo 'Error: no space left on device' >&2; exit 125")

    with pytest.raises(StorageError, match=r"^Cannot load the image into the engine: .*no space left on device"):
        PodmanEngine()._send(image, folder, 0)


LINES = """[2/3] STEP 1/4: FROM envsmith/base:x AS ground
STEP 2/4: RUN --mount=x sh /dev/cell/steps/cell.sh environment /usr/bin/python3
--> Using cache 1234
STEP 3/4: RUN --mount=source=requirements-torch.txt install
Installed 3 packages
STEP 4/4: RUN --mount=source=requirements-framework.txt install"""


def test_steps_are_told_by_their_instruction(events):
    transcript = StepTranscript(events)
    for line in LINES.splitlines():
        transcript.feed(line)
    transcript.finish()
    assert events.kinds("user and environment") == ["start", "cached"]
    assert events.kinds("torch layer") == ["start", "line", "done"]
    assert events.kinds("framework layer") == ["start", "done"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("error: Hash mismatch for deepspeed", ContentError),
        ("dns error: failed to lookup", NetworkError),
        ("something else", BuildError),
    ],
)
def test_a_failure_is_told_by_the_lines_of_its_step(events, line, kind):
    transcript = StepTranscript(events)
    for text in [*LINES.splitlines(), line]:
        transcript.feed(text)
    error = transcript.error()
    assert type(error) is kind
    assert error.message.startswith("Cannot finish framework layer: ")
    assert error.details == (line,)
    assert events.kinds("framework layer")[-1] == EventKind.FAILED.value


TEXT = """# a cell
FROM tool AS uv
RUN --mount=type=bind,source=uv.txt,target=/dev/uv.txt get

# torch
FROM tool AS ground
RUN --mount=type=bind,from=uv,source=/uv,target=/dev/uv \\
    --mount=type=bind,source=steps,target=/dev/steps --mount=type=bind,source=torch.txt,target=/dev/torch.txt install
RUN --mount=type=bind,source=framework.txt,target=/dev/framework.txt install
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "steps").mkdir()
    for name in ("uv.txt", "torch.txt", "framework.txt", "steps/cell.sh"):
        (tmp_path / name).write_text(name)
    return tmp_path


def steps(context: Path, text: str = TEXT) -> list[str]:
    joined = with_keys(text, context).replace("\\\n", "")
    return [line for line in joined.splitlines() if line.startswith("RUN")]


@pytest.mark.parametrize(
    ("name", "same"), [("uv.txt", 0), ("torch.txt", 1), ("steps/cell.sh", 1), ("framework.txt", 2)]
)
def test_a_step_and_what_follows_is_another_when_a_file_that_it_mounts_is(context: Path, name: str, same: int) -> None:
    before = steps(context)

    (context / name).write_text("changed")

    assert [one == two for one, two in zip(before, steps(context), strict=True)] == [n < same for n in range(3)]


def test_the_name_of_a_cell_in_a_comment_makes_no_step_another(context: Path) -> None:
    assert steps(context, TEXT.replace("# a cell", "# another cell")) == steps(context)


def test_a_stage_is_mounted_through_one_without_steps(context: Path) -> None:
    lines = with_keys(TEXT, context).splitlines()

    assert lines[2] == "FROM uv AS uv-kept"
    assert lines[4].startswith("RUN --mount=type=bind,from=uv-kept,source=/uv,")


def test_two_frameworks_on_one_torch_share_their_first_steps(locks: ModuleType, tmp_path: Path) -> None:
    first = locks.deepspeed(locks.PACKAGES)
    cell = Cell(components={"megatron-core": "0.16.1", "torch": "2.13.0+cu130", "python": "3.12"}, chosen=("torch",))
    second = replace(first, cell=cell, pins=(first.pins[0], locks.pin("megatron-core", "0.16.1", "framework")))

    deepspeed, megatron = (written_steps(lock, tmp_path / str(n)) for n, lock in enumerate((first, second)))

    to_torch = 4
    assert deepspeed[:to_torch] == megatron[:to_torch]
    assert "requirements-torch.txt" in megatron[to_torch - 1]
    assert deepspeed[-1] != megatron[-1]


def written_steps(lock: Lock, folder: Path) -> list[str]:
    folder.mkdir()
    write_context(lock, folder)
    return steps(folder, (folder / "Dockerfile").read_text())
