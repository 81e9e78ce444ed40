"""Each resolver's sentences become the same values, and two of them are known to exclude each other or not."""

from __future__ import annotations

import pytest

from envsmith.doctor.read.resolutions import Statement, met, read_statements


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("    The user requested numpy<1.17 and >=1.16.4", ["numpy<1.17,>=1.16.4 is asked for"]),
        (
            '    numba 0.56.4 depends on numpy<1.24 and >=1.18; python_version < "3.9"',
            ["numba 0.56.4 requires numpy<1.24,>=1.18"],
        ),
        (
            "Cannot install torch==2.0.0 and torchvision==0.16.0 because these package versions have conflicting dependencies",
            ["torch==2.0.0 is asked for", "torchvision==0.16.0 is asked for"],
        ),
        (
            "  ╰─▶ Because a==3.1.0 depends on b>=1.41.0,<1.42.20, we can conclude\n      that. And because your project depends on a>=3.1.0 and b==1.42.22, …",
            ["a 3.1.0 requires b>=1.41.0,<1.42.20", "a>=3.1.0 is asked for", "b==1.42.22 is asked for"],
        ),
        ("Because only ruff<=0.6.3 is available and", ["only ruff<=0.6.3 is there"]),
        (
            "Because example depends on opencv-python (4.5.5.62) which depends on numpy (^1.21), numpy is required.",
            ["example requires opencv-python==4.5.5.62", "opencv-python 4.5.5.62 requires numpy>=1.21,<2"],
        ),
        (
            "  click<8.0,>=5.1 (from flask==1.1.4->-r requirements.in (line 1))\n  click==8.1 (from -r requirements.in (line 2))",
            ["flask 1.1.4 requires click<8.0,>=5.1", "click==8.1 is asked for"],
        ),
        (
            "found to be in conflict:\n  - cudatoolkit 10.1*\n  - pytorch==1.0.1=py3_0 -> cudatoolkit >=10.0,<10.1.0a0\nUse",
            [
                "cudatoolkit==10.1.* is asked for",
                "pytorch==1.0.1 is asked for",
                "pytorch 1.0.1 requires cudatoolkit>=10.0,<10.1.0a0",
            ],
        ),
        (
            "Specifications:\n  - dlib -> python[version='2.7.*|3.5.*']\n\nYour python: python=3.6",
            ["dlib is asked for", "dlib requires python==2.7.* || ==3.5.*", "python 3.6.* is installed"],
        ),
        (
            "package multiqc-0.4-py27_0 requires python 2.7*, but none of the providers can be installed",
            ["multiqc 0.4 requires python==2.7.*"],
        ),
        (
            "a 1.0 has requirement b[x]<2,>=1; extra == 'y', but you'll have b 2.1 which is incompatible.",
            ["a 1.0 requires b<2,>=1", "b 2.1 is installed"],
        ),
        ("`a 1.0 has requirement b<2, but you have b 2.1.3.`", ["a 1.0 requires b<2", "b 2.1.3 is installed"]),
    ],
)
def test_what_a_resolver_says_is_read(text, statements):
    assert [str(statement) for statement in read_statements(text)] == statements


def test_of_the_builds_of_a_tree_only_what_all_require_is_required():
    tree = """\
├─ cudatoolkit 11.3**  is requested and can be installed;
├─ pytorch 1.10**  is installable with the potential options
│  ├─ pytorch [1.10.0|1.10.1] would require
│  │  └─ cudatoolkit >=10.2,<10.3 , which conflicts with any installable versions previously reported;
│  └─ pytorch [1.10.0|1.10.1], which can be installed;
└─ torchvision 0.10.0**  is not installable because there are no viable options
   └─ torchvision 0.10.0 would require
      └─ pytorch 1.9.0 , which conflicts with any installable versions previously reported.
"""
    statements = [str(statement) for statement in read_statements(tree)]
    assert "torchvision 0.10.0 requires pytorch==1.9.0" in statements
    assert not any("requires cudatoolkit" in statement for statement in statements)


@pytest.mark.parametrize(
    ("one", "other", "excludes"),
    [
        ("==10.1.*", ">=10.0.130,<10.1.0a0", True),
        ("<1.24", ">=1.24", True),
        ("<=1.24", ">=1.24", False),
        ("~=1.10.0", "==1.10.2", False),
        ("==2.0.0", ">=2.0.0+cu118,<3", True),
        ("==2.0.0+cu118", ">=2.0.0+cu118,<3", False),
        ("==1.11.0+cu113", "==1.10.0+cu113", True),
        ("", "==1.0", False),
        ("not a spec", "==1.0", False),
    ],
)
def test_two_requirements_exclude_each_other_where_no_version_fulfils_both(one, other, excludes):
    assert Statement("", "", "x", one).excludes(Statement("a", "1", "x", other)) is excludes


@pytest.mark.parametrize(
    ("specs", "left"),
    [
        ([">=1.17", "<1.24,>=1.18", ">=1.20.3"], "<1.24,>=1.20.3"),
        (["==2.4.1", "==2.4.0"], ""),
        ([">=3.9,<4.0", ">=3.7,<3.11"], ">=3.9,<3.11"),
    ],
)
def test_what_several_requirements_leave_is_said_without_what_others_imply(specs, left):
    assert met(specs) == left
