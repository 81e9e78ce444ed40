"""What is said of one line of a text: each thing once, and no advice that a nearer one contradicts."""

from __future__ import annotations

import pytest

from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean


def diagnosis_of(text: str) -> Diagnosis:
    return diagnose(read_texts([("log", text)]), [("log", clean(text))])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ModuleNotFoundError: No module named 'pkg_resources'", "pkg-resources-missing"),
        ("ModuleNotFoundError: No module named 'distutils'", "distutils-missing"),
        (
            "RuntimeError: CUDA driver initialization failed. Error 802: system not yet initialized",
            "gpu-fabric-not-ready",
        ),
        ("because of the following error:\nNo module named 'flash_attn_2_cuda'", "flash-attn-missing"),
        ("Loading a dataset cached in a LocalFileSystem is not supported.", "datasets-local-filesystem"),
        ("vllm 0.6.3 requires torch==2.4.0, but you have torch 2.5.1 which is incompatible.", "pip-incompatible"),
        (
            "error: subprocess-exited-with-error\nModuleNotFoundError: No module named 'packaging'",
            "build-isolation-torch",
        ),
    ],
)
def test_a_line_that_names_its_cause_is_not_read_once_more_as_a_general_one(text, rule):
    diagnosed = diagnosis_of(text).diagnosed
    causes = [d.finding.rule for d in diagnosed if d.role in {"root", "also"} and d.finding.symptom]

    assert causes == [rule]


def test_a_command_that_installs_another_release_than_the_nearer_fix_is_left_out():
    root = diagnosis_of("error: #error You need C++17 to compile PyTorch").root

    assert root is not None
    assert "deepspeed>=0.11.0" in root.finding.fix
    assert not root.lines


def test_a_pin_that_the_index_does_not_offer_is_told_with_the_pythons_of_its_wheels_and_the_index_of_its_build():
    text = (
        "ERROR: Could not find a version that satisfies the requirement torch==1.13.1+cu117 "
        "(from versions: 2.2.0, 2.2.1)\nERROR: No matching distribution found for torch==1.13.1+cu117"
    )
    root = diagnosis_of(text).root

    assert root is not None
    assert root.finding.fix.startswith(
        "With python >=3.7,<3.12 or torch >=2.2.0 this does not happen. Builds with +cu117"
    )
