"""What is read of the machine in front of somebody, with a stand-in for NVIDIA's program, and what requests make of it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from envsmith.cli.doctor import doctor
from envsmith.cli.solve import solve
from envsmith.cli.values import parse_gpu
from envsmith.doctor import host as doctor_host
from envsmith.doctor import machine
from envsmith.doctor.facts import Facts
from envsmith.errors import UsageError
from envsmith.model.cell import Machine, Platform, Request

_BANNER = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI {driver}             Driver Version: {driver}   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host whose nvidia-smi says what a test wants."""
    monkeypatch.delenv("ENVSMITH_MACHINE", raising=False)

    def make(driver, gpu, count=4):
        rows = "".join(
            f"GPU {n}: NVIDIA {gpu} (UUID: GPU-0000000{n}-0000-0000-0000-000000000000)\n" for n in range(count)
        )
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!/bin/sh\nif [ \"$1\" = -L ]; then cat <<'T'\n{rows}T\nelse cat <<'T'\n{_BANNER.format(driver=driver)}T\nfi\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        machine.this_machine.cache_clear()

    yield make
    machine.this_machine.cache_clear()


def _answer(*arguments):
    return CliRunner().invoke(solve, [*arguments, "--json"], standalone_mode=False)


@pytest.mark.parametrize(
    ("driver", "gpu", "torch", "architecture"),
    [
        ("535.183.01", "A100-SXM4-80GB", "2.10.0+cu128", "sm_80"),
        ("550.127.05", "H100 80GB HBM3", "2.10.0+cu128", "sm_90"),
        ("580.65.06", "B200", "2.15.0+cu132", "sm_100"),
        ("470.256.02", "Tesla T4", "2.5.1+cu118", "sm_75"),
    ],
)
def test_an_answer_runs_on_the_driver_and_the_gpus_that_are_there(host, driver, gpu, torch, architecture):
    host(driver, gpu)

    result = _answer("--framework", "deepspeed")

    components = json.loads(result.stdout)["cell"]["components"]
    assert (components["torch"], components["driver"], components["gpu"]) == (torch, driver, architecture)
    assert result.stderr.startswith(f"this machine: driver {driver}, 4 x NVIDIA {gpu}")


def test_a_flag_overrules_one_fact_and_the_machine_gives_the_others(host):
    host("535.183.01", "A100-SXM4-80GB")

    components = json.loads(_answer("--framework", "deepspeed", "--gpu", "h100").stdout)["cell"]["components"]

    assert (components["driver"], components["gpu"]) == ("535.183.01", "sm_90")


def test_none_leaves_the_machine_out(host):
    host("535.183.01", "A100-SXM4-80GB")

    result = _answer("--framework", "deepspeed", "--machine", "none")

    assert "driver" not in json.loads(result.stdout)["cell"]["components"]
    assert result.stderr == ""


def test_what_cannot_run_here_is_solved_with_a_warning(host):
    host("535.183.01", "A100-SXM4-80GB")

    answer = json.loads(_answer("--framework", "deepspeed", "--torch", "2.15").stdout)

    assert answer["cell"]["components"]["torch"] == "2.15.0+cu132"
    assert answer["warnings"][0]["rule"] == "machine"
    assert "CUDA 13.* needs driver >=580" in answer["warnings"][0]["message"]


def test_a_build_for_the_cpu_needs_nothing_of_the_machine(host):
    host("535.183.01", "A100-SXM4-80GB")

    answer = json.loads(_answer("--framework", "deepspeed", "--cuda", "cpu").stdout)

    assert answer["cell"]["components"]["cuda"] == "cpu"
    assert not answer["warnings"]


def test_the_snapshot_of_a_node_stands_for_it_elsewhere(host, tmp_path, monkeypatch):
    host("535.183.01", "A100-SXM4-80GB")
    CliRunner().invoke(doctor, ["--save", str(tmp_path / "node.json")], standalone_mode=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    machine.this_machine.cache_clear()

    components = json.loads(_answer("--framework", "deepspeed", "--machine", str(tmp_path / "node.json")).stdout)[
        "cell"
    ]["components"]

    assert (components["torch"], components["driver"]) == ("2.10.0+cu128", "535.183.01")


def test_the_pythons_of_a_node_are_in_its_snapshot_and_what_is_solved_for_it_has_one_of_them(
    host, tmp_path, monkeypatch
):
    monkeypatch.setattr(doctor_host, "minors_here", lambda: ("3.11", "3.10"))
    host("535.183.01", "A100-SXM4-80GB")
    CliRunner().invoke(doctor, ["--save", str(tmp_path / "node.json")], standalone_mode=False)
    monkeypatch.setattr(doctor_host, "minors_here", lambda: ("3.13",))

    answer = json.loads(_answer("--framework", "deepspeed", "--machine", str(tmp_path / "node.json")).stdout)

    assert machine.snapshot_machine(tmp_path / "node.json").pythons == ("3.11", "3.10")
    assert answer["cell"]["components"]["python"] in {"3.11", "3.10"}


@pytest.mark.parametrize(
    ("text", "pythons"), [("", ()), ("3.12 3.9", ("3.12", "3.9")), ("3.x ../../3.11.7 13.12 <b>", ())]
)
def test_pythons_of_a_snapshot_are_minor_releases_or_none(text, pythons):
    assert machine.machine_of(Facts(host={"pythons": text})).pythons == pythons


def test_auto_means_the_gpus_that_are_there(host):
    host("535.183.01", "A100-SXM4-80GB", count=2)

    result = _answer("--framework", "torch", "--gpu", "auto", "--driver", "auto")

    components = json.loads(result.stdout)["cell"]["components"]
    assert (components["driver"], components["gpu"]) == ("535.183.01", "sm_80")


def test_what_cannot_be_read_of_the_machine_stops_no_request(host, monkeypatch):
    host("535.183.01", "A100-SXM4-80GB")

    def refuse(_draft):
        raise PermissionError(13, "Permission denied", "/proc/driver/nvidia/version")

    monkeypatch.setattr(doctor_host, "driver", refuse)

    assert machine.this_machine().driver == "535.183.01"
    assert _answer("--framework", "torch").exception is None


@pytest.mark.parametrize("flag", ["--gpu", "--driver"])
def test_auto_is_refused_where_there_is_nothing_to_read(flag):
    result = _answer("--framework", "torch", flag, "auto", "--machine", "none")

    assert isinstance(result.exception, UsageError)
    assert "auto" in result.exception.message


def test_a_file_that_is_not_there_is_said():
    with pytest.raises(UsageError, match=r"there is no such file"):
        machine.named_machine("nowhere.json")


def test_a_request_for_another_kind_of_machine_takes_nothing_from_this_one():
    request = Request(
        frameworks=["deepspeed"],
        platform=Platform.LINUX_AARCH64,
        machine=Machine(driver="535.183.01", architectures=("sm_80",)),
    )

    assert (request.here.driver, request.here.gpus) == (None, ())


@pytest.mark.parametrize(
    ("name", "maker"), [("mi300x", "AMD"), ("Radeon RX 7900", "AMD"), ("gaudi3", "Intel"), ("m2max", "Apple")]
)
def test_a_gpu_of_another_maker_is_refused_in_one_sentence(name, maker):
    with pytest.raises(UsageError, match=f"NVIDIA's GPUs only, and this one is of {maker}"):
        parse_gpu(name, {})


@pytest.mark.parametrize(("name", "near"), [("sm_999", "sm_120 or sm_121"), ("sm91", "sm_89 or sm_90")])
def test_an_architecture_that_no_gpu_has_is_refused_with_the_nearest(name, near):
    with pytest.raises(UsageError, match=r"envsmith knows no GPU of this architecture") as refusal:
        parse_gpu(name, {}, ("sm_37", "sm_89", "sm_90", "sm_120", "sm_121"))

    assert refusal.value.hint == f"Try {near}, or leave --gpu out."


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("4xA100", "sm_80"),
        ("8 x H100", "sm_90"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA GeForce RTX 4090", "sm_89"),
    ],
)
def test_a_gpu_is_named_as_people_and_the_driver_name_it(name, architecture):
    components = json.loads(_answer("--framework", "deepspeed", "--gpu", name).stdout)["cell"]["components"]

    assert components["gpu"] == architecture
