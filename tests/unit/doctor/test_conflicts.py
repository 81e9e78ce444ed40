"""Requirements that exclude each other are named, whichever program says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts

CASES = Path(__file__).parents[2] / "cases" / "doctor" / "resolvers.jsonl"
THREADS = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def first_of(text: str):
    return diagnose(read_texts([("log", text)]), [("log", text)]).diagnosed[0].finding


PIP = """\
ERROR: Cannot install torch==2.1.0 and xformers because these package versions have conflicting dependencies.
The conflict is caused by:
    The user requested torch==2.1.0
    torchvision 0.16.0 depends on torch==2.1.0
    xformers 0.0.26.post1 depends on torch==2.3.0
"""


def test_the_pair_and_the_release_that_ends_it_are_named():
    finding = first_of(PIP)
    assert "torch==2.1.0 is asked for, and xformers 0.0.26.post1 requires torch==2.3.0" in finding.message
    assert (finding.fix or "").startswith("xformers 0.0.22.post7 takes torch==2.1.0")


def test_a_package_of_which_nothing_is_known_is_named_too():
    finding = first_of(PIP.replace("xformers", "somebody-else"))
    assert (finding.fix or "").startswith("Ask for torch==2.3.0, or take a release of somebody-else that goes with")


def test_ranges_that_agree_are_no_conflict():
    text = "No solution found when resolving dependencies:\n Because a==1 depends on numpy>=1.2 and b==2 depends on numpy==1.3"
    assert "No set of versions fits" not in first_of(text).message


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ("  - pip==23.3.1=py310h06a4308_0\n", "pins builds that win-64 does not have: pip==23.3.1=py310h06a4308_0"),
        ("  - pytorch=2.6*\n", "The channel pytorch does not have pytorch=2.6*"),
        ("  - torchlib=1.0\n  - other\n", "do not have torchlib=1.0, other"),
    ],
)
def test_what_the_channels_of_conda_lack_is_named(items, words):
    text = f"Platform: win-64\nPackagesNotFoundError: The following packages are not available:\n\n{items}\nCurrent channels:"
    assert words in first_of(text).message


@pytest.mark.parametrize(
    ("text", "told", "fix", "needs"),
    [
        (  # of one release all requirements hold
            (
                "The conflict is caused by:\n    The user requested numpy==1.19.5\n    opencv-python 4.5.5.64 depends on numpy>=1.14.5\n"
                "    opencv-python 4.5.5.64 depends on numpy>=1.21.2"
            ),
            "numpy==1.19.5 is asked for, and opencv-python 4.5.5.64 requires numpy>=1.21.2",
            "Ask for numpy>=1.21.2",
            {"numpy": ">=1.21.2"},
        ),
        (  # one of several releases is enough
            (
                "The conflict is caused by:\n    The user requested numpy~=1.21.6\n    finplot 1.8.4 depends on numpy>=1.22.3\n"
                "    finplot 1.8.3 depends on numpy>=1.21"
            ),
            None,
            None,
            {},
        ),
        (
            (
                "UnsatisfiableError: The following specifications were found to be in conflict:\n  - cudatoolkit==8.0=3\n"
                "  - pytorch==0.4.0=py35_cuda9.0 -> cudatoolkit=9\n"
            ),
            "cudatoolkit==8.0 is asked for, and pytorch 0.4.0 requires cudatoolkit=9",
            "Ask for cudatoolkit=9",
            {"cudatoolkit": "==9.*"},
        ),
        (
            "UnsatisfiableError: The following specifications were found to be in conflict:\n  - pytorch-cpu\nUse",
            "pytorch-cpu does not go with what is installed",
            "conda create -n NAME",
            {},
        ),
        (
            "No solution found when resolving dependencies: Because only ruff<=0.6.3 is available and test-uv:dev depends on ruff>=2.9.0",
            "only ruff<=0.6.3 is there, and test-uv requires ruff>=2.9.0",
            "Loosen ruff>=2.9.0",
            {},
        ),
        (
            "The conflict is caused by:\n    torchvision 0.8.2 depends on torch==1.7.1\n    openpifpaf 0.13.0 depends on torch>=1.9.0",
            "openpifpaf 0.13.0 requires torch>=1.9.0, and torchvision 0.8.2 requires torch==1.7.1",
            "torchvision 0.10.0 takes torch>=1.9.0",
            {"torchvision": "==0.10.0"},
        ),
        (
            (
                "No solution found when resolving dependencies: Because the requested Python version (>=3.8) does not satisfy Python>=3.10 and your project"
                " depends on mcp[cli], we can conclude …"
            ),
            "the project is for Python >=3.8, and mcp requires Python>=3.10",
            'requires-python = ">=3.10"',
            {},
        ),
        (
            (
                "torchvision 0.19.1 requires torch==2.4.1, but you have torch 2.3.1+cu121 which is incompatible.\n"
                "xformers 0.0.27.post2 requires torch==2.4.0, but you have torch 2.3.1+cu121 which is incompatible."
            ),
            "torchvision 0.19.1 requires torch==2.4.1 and xformers 0.0.27.post2 requires torch==2.4.0, and torch 2.3.1+cu121 is installed",
            "No torch is right for all of them: take torchvision 0.18.1",
            {},
        ),
        (
            "te 0.4.0 requires ml-dtypes, which is not installed.\nvllm 0.18.0 requires torch==2.10.0, but you have torch 2.9.0 which is incompatible.",
            "vllm 0.18.0 requires torch==2.10.0, and torch 2.9.0 is installed",
            "pip install 'torch==2.10.0'",
            {"torch": "==2.10.0"},
        ),
    ],
)
def test_what_excludes_what_is_said_with_what_mends_it(text, told, fix, needs):
    finding = first_of(text)

    assert (told or "The resolver found no set of versions") in finding.message
    assert (fix or "") in (finding.fix or "")
    assert {name: str(spec) for name, spec in finding.needs.items()} == needs


def test_requirements_that_somebody_tells_are_no_finding_where_they_go_together():
    text = "The user requested torch>=2.0 and x 1.0 depends on torch==2.1"

    assert not diagnose(read_texts([("log", text)]), [("log", text)]).diagnosed


def test_a_release_that_pip_left_out_for_its_python_is_one_for_another_python():
    text = (
        "ERROR: Ignored the following versions that require a different python version: 1.9.0 Requires-Python >=3.8,<3.12\n"
        "ERROR: No matching distribution found for scipy=={}"
    )

    assert "scipy 1.9.0 requires Python >=3.8,<3.12" in first_of(text.format("1.9.0")).message
    assert "requires Python" not in first_of(text.format("1.99.0")).message


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread["id"])
def test_of_what_a_resolver_told_somebody_the_conflict_and_what_mends_it_are_named(thread):
    diagnosed = diagnose(read_texts([("log", thread["text"])]), [("log", thread["text"])]).diagnosed[0]
    finding = diagnosed.finding
    needs = "; ".join(f"{name} {spec}" for name, spec in finding.needs.items())

    assert [each for each in thread["says"] if each.lower() not in finding.message.lower()] == []
    assert re.search(thread["mends"], "\n".join([finding.fix or "", needs, *diagnosed.lines]))


def test_what_ends_a_conflict_alone_leaves_the_other_requirements_whole():
    text = PIP.replace("xformers 0.0.26.post1", "xformers 0.0.26.post1 depends on torch==2.3.0\n    other 1.0")

    assert dict(first_of(PIP).needs) == {"xformers": "==0.0.22.post7"}  # torchvision asks for the wish
    assert dict(first_of(text).needs) == {}
