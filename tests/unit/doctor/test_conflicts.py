"""Requirements that exclude each other are named, whichever program says so."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts


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
    assert "torch==2.1.0 is asked for; xformers 0.0.26.post1 requires torch==2.3.0" in finding.message
    assert (finding.fix or "").startswith("xformers 0.0.22.post7 takes torch==2.1.0")


def test_a_package_of_which_nothing_is_known_is_named_too():
    finding = first_of(PIP.replace("xformers", "somebody-else"))
    assert (finding.fix or "").startswith("Ask for torch==2.3.0, or take a release of somebody-else that goes with")


def test_ranges_that_agree_are_no_conflict():
    text = "No solution found when resolving dependencies:\n Because a==1 depends on numpy>=1.2 and b==2 depends on numpy==1.3"
    assert "exclude each other:" not in first_of(text).message


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
