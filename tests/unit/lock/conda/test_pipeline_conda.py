"""From a request to the Conda part of a cell's folder: real solver, real records of channels, a pip lock made here."""

from __future__ import annotations

import dataclasses
import json

import pytest

from envsmith.base.progress import EventKind
from envsmith.builder import arrow as build
from envsmith.builder import existing, locking
from envsmith.builder import options as envsmith_options
from envsmith.builder.engines.conda import read_lock
from envsmith.cli.app import run
from envsmith.errors import DataError, EnvsmithError, LockError, NetworkError
from envsmith.lock import store
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import Platform, Request
from envsmith.model.lock import Lock
from envsmith.solver import solve

DAY = "2026-11-01"
REQUEST = Request(
    frameworks={"deepspeed": "==0.18.2"}, constraints={"torch": "==2.8.0", "python": "==3.10.*"}, exclude_newer=DAY
)
ARGUMENTS = ["--framework", "deepspeed==0.18.2", "--torch", "2.8.0", "--python", "3.10", "--exclude-newer", DAY]
TEXT = "--framework deepspeed==0.18.2 --python 3.10 --torch 2.8.0 --platform linux-64"
TOLERATE = ("nccl", "cudnn", "triton")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "conda-pipeline-cache"))


@pytest.fixture
def uv_asked(local, monkeypatch) -> list[str]:
    """A pip lock without an index: what uv would give for the cell; every call is noted."""
    asked: list[str] = []

    def lock_cell(cell, options, *, progress=None):
        asked.append(str(cell.id))
        return Lock(
            cell=cell,
            request=options.request_text,
            exclude_newer=options.request.exclude_newer or DAY,
            python_version=cell.components["python"],
            pins=local.pins_for({n.replace("-", "_"): v for n, v in cell.components.items()}),
        )

    monkeypatch.setattr(locking, "lock_cell", lock_cell)
    return asked


@pytest.fixture
def options(tmp_path, forge) -> envsmith_options.Options:
    return envsmith_options.Options(
        request=REQUEST,
        request_text=TEXT,
        output=tmp_path / "out",
        conda=CondaRequest(channels=forge, tolerate=TOLERATE),
        conda_only=True,
    )


def test_cell_is_one_that_the_channel_has(options, uv_asked):
    made = build.lock_only(options)
    assert made.cell.components["torch"] == "2.8.0+cu129"  # the default build, for CUDA 12.8, is not on the channel
    assert uv_asked == [str(made.cell.id)]
    assert {
        "conda-lock.yml",
        "conda-linux-64.lock",
        "conda-linux-64.sha256",
        "pixi.lock",
        "lock.json",
        "pylock.toml",
    } <= set(made.files)
    assert not any(name.startswith("requirements") or name == "Dockerfile" for name in made.files)
    packages = {p.name: p.version for p in read_lock(made.directory).platforms[0].packages}
    assert packages["pytorch"] == "2.8.0"
    assert packages["deepspeed"] == "0.18.2"


def test_the_channels_are_read_once_in_a_step_before_the_search(options, uv_asked):
    events = []

    build.lock_only(options, progress=events.append)

    steps = [(event.step, event.kind) for event in events if event.step and event.kind is not EventKind.LINE]
    assert steps[:3] == [("channels", EventKind.START), ("channels", EventKind.DONE), ("solve", EventKind.START)]
    assert steps.count(("channels", EventKind.START)) == 1


def test_nothing_that_the_channel_lacks_is_chosen_quietly(options, uv_asked):
    request = dataclasses.replace(REQUEST, constraints={"torch": "==2.6.0"})
    with pytest.raises(LockError) as caught:
        build.lock_only(dataclasses.replace(options, request=request))
    assert "Cannot find a cell of this request" in caught.value.message
    request = dataclasses.replace(REQUEST, constraints={"torch": "==2.7.1"})
    with pytest.raises(LockError) as caught:  # a CPU build is there, and nobody asked for one
        build.lock_only(dataclasses.replace(options, request=request))
    assert any("CUDA 12.6" in line for line in caught.value.details)
    assert uv_asked == []


def test_second_run_keeps_what_is_there_and_needs_no_channel(options, uv_asked, monkeypatch):
    first = build.lock_only(options)
    before = {name: (first.directory / name).read_bytes() for name in first.files}
    from envsmith.lock.conda import part

    monkeypatch.setattr(part, "lock_conda", lambda *_a, **_k: pytest.fail("locked again"))
    again = build.lock_only(options)
    assert {name: (again.directory / name).read_bytes() for name in again.files} == before
    assert len(uv_asked) == 1


def test_check_finds_the_lock_current_then_edited_then_of_another_request(options, uv_asked):
    assert existing.lock_difference(options)[0].endswith("no lock of this request is there")
    made = build.lock_only(options)
    assert existing.lock_difference(options) == ()
    wider = dataclasses.replace(options, conda=dataclasses.replace(options.conda, platforms=(Platform.LINUX_AARCH64,)))
    assert existing.lock_difference(wider) == ("conda-lock.yml: it was made from another request, or edited since",)
    path = made.directory / "conda-lock.yml"
    honest = path.read_text()
    path.write_text(
        honest.replace("deepspeed-0.18.2", "deepspeed-0.18.3").replace("version: 0.18.2", "version: 0.18.3")
    )
    assert any("deepspeed" in line for line in existing.lock_difference(options))
    path.write_text(honest[: len(honest) // 2])
    assert len(existing.lock_difference(options)) == 1
    path.unlink()
    assert existing.lock_difference(options) == (f"{path}: no Conda lock is there",)


@pytest.mark.parametrize("name", ["conda-linux-64.lock", "pixi.lock", "environment.yml"])
def test_a_file_beside_the_conda_lock_that_was_edited_makes_it_old_and_is_written_again(options, uv_asked, name):
    directory = build.lock_only(options).directory
    honest = (directory / name).read_text()
    (directory / name).write_text(f"{honest}# edited\n")

    differences = existing.lock_difference(options)
    build.lock_only(options)

    assert differences == (f"{name}: it was edited since conda-lock.yml was written",)
    assert (directory / name).read_text() == honest


def test_lock_of_a_cell_of_the_channels_is_current_for_a_check_that_does_not_say_conda(options, uv_asked):
    """``build --engine conda`` takes what the channel has; ``lock --check`` has no engine, and told that as a change."""
    request = Request(frameworks={"deepspeed": "==0.18.2"}, constraints={"torch": "==2.8.0"}, exclude_newer=DAY)
    free = dataclasses.replace(options, request=request, request_text="--framework deepspeed==0.18.2 --torch 2.8.0")
    made = build.lock_only(free)
    assert made.cell.components["python"] == "3.10"
    plain = dataclasses.replace(free, conda_only=False)
    assert solve(request).cell.components["python"] != "3.10"
    assert existing.lock_difference(plain) == ()
    without = dataclasses.replace(plain, conda=None)
    assert "cuda: 12.9 -> 12.8" in existing.lock_difference(without)
    gone = dataclasses.replace(plain, conda=CondaRequest(channels=("http://127.0.0.1:9/none",)))
    assert "cuda: 12.9 -> 12.8" in existing.lock_difference(gone)


def test_locked_takes_the_lock_or_ends_with_1_and_frozen_takes_it_unasked(options, uv_asked):
    made = build.lock_only(options)
    assert build.lock_only(dataclasses.replace(options, locked=True)).lock.digest == made.lock.digest
    path = made.directory / "conda-lock.yml"
    path.write_text(path.read_text().replace("platform: linux-64", "platform: linux-aarch64"))
    with pytest.raises(EnvsmithError) as caught:
        build.lock_only(dataclasses.replace(options, locked=True))
    assert caught.value.exit_code == 1
    uv_asked.clear()
    assert build.lock_only(dataclasses.replace(options, frozen=True)).lock.digest == made.lock.digest
    assert uv_asked == []
    with pytest.raises(EnvsmithError) as caught:
        build.lock_only(dataclasses.replace(options, frozen=True, request_text="--framework megatron-core"))
    assert caught.value.exit_code == 1


def test_lock_of_an_earlier_day_is_current_while_nothing_is_said_about_the_day(options, uv_asked):
    build.lock_only(options)
    undated = dataclasses.replace(options, request=dataclasses.replace(REQUEST, exclude_newer=None))
    assert existing.lock_difference(undated) == ()


def test_unreachable_channel_is_an_error_for_conda_and_a_note_for_all(options, uv_asked):
    dead = dataclasses.replace(options, conda=dataclasses.replace(options.conda, channels=("http://127.0.0.1:9/ch",)))
    with pytest.raises(NetworkError):
        build.lock_only(dead)
    made = build.lock_only(dataclasses.replace(dead, conda_only=False))
    assert "requirements.txt" in made.files
    assert "conda-lock.yml" not in made.files
    assert any(note.startswith("no conda-lock.yml:") and "Cannot reach" in note for note in made.notes)


def test_conda_lock_that_was_there_stays_when_the_channel_goes_away(options, uv_asked):
    made = build.lock_only(options)
    before = (made.directory / "conda-lock.yml").read_bytes()
    gone = dataclasses.replace(
        options, conda=dataclasses.replace(options.conda, channels=("http://127.0.0.1:9/ch",)), conda_only=False
    )
    request = dataclasses.replace(REQUEST, constraints={**REQUEST.constraints, "cuda": "==12.9"})
    build.lock_only(dataclasses.replace(gone, request=request))
    assert (made.directory / "conda-lock.yml").read_bytes() == before


def test_wrong_nccl_is_refused_with_what_the_channel_has_and_the_way_out(options, uv_asked):
    with pytest.raises(LockError) as caught:
        build.lock_only(
            dataclasses.replace(options, conda=dataclasses.replace(options.conda, tolerate=("cudnn", "triton")))
        )
    assert any(line.startswith("nccl ") and "the channel" in line for line in caught.value.details)
    assert "--conda-tolerate nccl" in (caught.value.hint or "")


@pytest.mark.usefixtures("uv_asked")
def test_edited_lock_is_not_installed(options):
    made = build.lock_only(options)
    path = made.directory / "conda-lock.yml"
    path.write_text(
        path.read_text()
        .replace("sha256: ", "sha256: 0000", 1)
        .replace("0000", "", 1)
        .replace("/linux-64/nccl", "/x/nccl")
    )
    with pytest.raises(DataError, match="changed after it was locked"):
        read_lock(made.directory)


@pytest.mark.usefixtures("uv_asked")
def test_command_line_end_to_end(tmp_path, forge, capsys):
    command = [
        *ARGUMENTS,
        "--channel",
        *forge,
        *(w for t in TOLERATE for w in ("--conda-tolerate", t)),
        "-o",
        str(tmp_path / "out"),
    ]
    assert run(["lock", *command, "--format", "conda", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "conda-lock.yml" in told["files"]
    assert run(["lock", *command, "--format", "conda", "--check"]) == 0
    assert run(["lock", *command, "--format", "conda", "--locked"]) == 0
    assert run(["lock", *command, "--format", "conda", "--frozen"]) == 0
    assert run(["lock", *command, "--format", "conda", "--conda-platform", "linux-aarch64", "--locked"]) == 1
    assert run(["lock", *command, "--frozen", "--locked"]) == 2
    assert run(["lock", *command, "--format", "conda", "--no-conda"]) == 2
    assert run(["lock", *command, "--conda-platform", "vax"]) == 2
    assert run(["lock", *command, "--format", "conda", "--channel", "http://127.0.0.1:9/ch", "--offline"]) == 5
    capsys.readouterr()
    lock = tmp_path / "out" / told["cell"]["id"] / "conda-lock.yml"
    code = run(["check", "--from", str(lock), "--json"])
    judged = json.loads(capsys.readouterr().out)
    assert code == (1 if judged["status"] == "bad" else 0)
    assert store.read(lock.parent) is not None


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        (
            "environment.yml",
            "channels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pytorch==2.6.0\n  - pip:\n    - deepspeed==0.14.0\n",
            "deepspeed-elastic-socket",
        ),
        (
            "list.txt",
            "# packages in environment at /x:\n#\n# Name  Version  Build  Channel\npytorch  2.6.0  cuda126_py311_0  conda-forge\ndeepspeed  0.14.0  pypi_0  pypi\n",
            "deepspeed-elastic-socket",
        ),
    ],
)
def test_check_judges_a_conda_file(name, text, rule, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    assert run(["check", "--from", str(tmp_path / name), "--json"]) == 1
    assert rule in {f["rule"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert run(["check", "--from", str(tmp_path / name), "deepspeed==0.16.5", "--json"]) == 0


def test_check_without_anything_and_of_a_file_that_tells_nothing_is_usage(tmp_path, capsys):
    (tmp_path / "nothing.txt").write_text("hello\n")
    assert run(["check"]) == 2
    assert run(["check", "--from", str(tmp_path / "nothing.txt")]) == 2
    assert run(["check", "--from", str(tmp_path / "absent")]) == 2
    assert "Traceback" not in capsys.readouterr().err
