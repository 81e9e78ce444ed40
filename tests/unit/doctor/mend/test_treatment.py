"""A diagnosis as what is to be installed and removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from mended import diagnosis

from envsmith.doctor.mend.environment import Environment, Installed
from envsmith.doctor.mend.treatment import Treatment, treatment_of


def treated(
    *changes: tuple[str, str, str],
    lines: tuple[str, ...] = (),
    installed: str = "numpy==2.0.2",
    cell: dict[str, str] | None = None,
) -> Treatment:
    pairs = [text.split("==") for text in installed.split()]
    distributions = {name: Installed(name=name, version=version) for name, version in pairs}
    environment = Environment(root=Path("env"), python="3.11.7", distributions=distributions)
    return treatment_of(diagnosis(*changes, lines=lines, cell=cell), environment)


def test_a_component_is_the_distribution_that_is_installed() -> None:
    assert treated(("numpy", "2.0.2", "1.26.4")).install == {"numpy": "numpy==1.26.4"}


def test_what_an_error_speaks_of_is_concerned_though_it_stays_as_it_is() -> None:
    answer = treated(("peft", "0.17.1", "0.18.0"), installed="numpy==2.0.2 peft==0.17.1 wandb==0.1")

    assert (answer.concerned, set(answer.names)) == ({"numpy"}, {"peft"})


def test_what_torch_brings_is_torch_s_business_where_torch_changes() -> None:
    answer = treated(("torch", "2.2.2+cu121", "2.13.0+cu130"), ("nccl", "2.19.3", "2.29.7"))

    assert answer.install == {"torch": "torch==2.13.0"}


@pytest.mark.parametrize("component", ["driver", "python", "toolkit"])
def test_what_no_package_installer_changes_is_for_the_user(component: str) -> None:
    answer = treated((component, "1.0", "2.0"))

    assert not answer.names
    assert answer.by_hand == (f"{component}: 1.0 -> 2.0  [numpy-2-abi]",)


@pytest.mark.parametrize(
    ("line", "install", "remove", "again"),
    [
        ("pip uninstall -y apex", {}, {"apex"}, set()),
        ("pip install ninja", {"ninja": "ninja"}, set(), set()),
        ("pip install numpy", {}, set(), set()),
        ("pip install 'accelerate>=0.13'", {"accelerate": "accelerate>=0.13"}, set(), set()),
        ("pip install --force-reinstall --no-deps numpy==2.0.2", {"numpy": "numpy==2.0.2"}, set(), {"numpy"}),
    ],
)
def test_a_line_of_pip_is_done(line: str, install: dict[str, str], remove: set[str], again: set[str]) -> None:
    answer = treated(lines=(line,), installed="numpy==2.0.2 apex==0.9")

    assert (answer.install, answer.remove, answer.again, answer.by_hand) == (install, remove, again, ())


@pytest.mark.parametrize(
    "line",
    [
        "unset NCCL_DEBUG",
        "pip install --force-reinstall --no-deps NAME==VERSION",
        "pip install --no-build-isolation deepspeed",
        "pip install ./folder",
        "pip install 'unclosed",
        "pip uninstall -y x && rm -rf y",
    ],
)
def test_every_line_that_is_not_surely_pip_s_is_for_the_user(line: str) -> None:
    answer = treated(lines=(line,))

    assert not answer.names
    assert answer.by_hand == (f"{line}  [numpy-2-abi]",)


def test_of_two_wheels_of_one_library_the_one_of_torch_s_cuda_stays() -> None:
    answer = treated(
        ("nccl", "2.14.3", "2.19.3"),
        lines=("pip uninstall -y nvidia-nccl-cu11",),
        installed="nvidia-nccl-cu11==2.14.3 nvidia-nccl-cu12==2.19.3",
        cell={"cuda": "12.1"},
    )

    assert answer.install == {"nvidia-nccl-cu12": "nvidia-nccl-cu12==2.19.3"}
    assert answer.remove == {"nvidia-nccl-cu11"}


def test_a_package_that_is_removed_and_installed_is_installed_anew() -> None:
    lines = ("pip uninstall -y numpy", "pip install --no-cache-dir numpy")

    assert treated(lines=lines).again == {"numpy"}
