"""A requirement changed in a text: its specifier changes, everything else stays as it was written."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from envsmith.mend.requirement_text import spec_for, with_requirement


@pytest.mark.parametrize(
    ("old", "version", "new"),
    [
        ("==0.14.2", "0.14.5", "==0.14.5"),
        ("==2.*", "1.26.4", "==1.26.4"),
        ("", "1.0", "==1.0"),
        (">=0.12,<0.14.4", "0.19.8", ">=0.19.8"),
        (">=2.4", "2.3.1", "<=2.3.1"),
        (">=2,!=2.1", "1.26", "<=1.26,!=2.1"),
        ("<0.14.4,!=0.15.0", "0.16", ">=0.16,!=0.15.0"),
        ("~=1.4", "2.0", ">=2.0"),
    ],
)
def test_clauses_that_admit_the_release_stay_and_a_bound_takes_the_place_of_the_others(old, version, new):
    spec = spec_for(SpecifierSet(old), version)

    assert spec == new
    assert SpecifierSet(spec).contains(version)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch==2.4.1  # torch==2.4.1\n", "torch==2.5.1  # torch==2.4.1\n"),
        ("Torch[cuda] >=2.4, <2.5 ; python_version<'3.13'\n", "Torch[cuda]==2.5.1 ; python_version<'3.13'\n"),
        ("torch\n", "torch==2.5.1\n"),
        ("-e .\ntorchvision==0.19\ntorch==2.4.1\n", "-e .\ntorchvision==0.19\ntorch==2.5.1\n"),
        (
            'dependencies = ["torchvision", "torch>=2.4,<2.5", "peft"]',
            'dependencies = ["torchvision", "torch==2.5.1", "peft"]',
        ),
        ('torch = "^2.4"  # as measured', 'torch = "==2.5.1"  # as measured'),
        ('torch = {version = "^2.4", optional = true}', 'torch = {version = "==2.5.1", optional = true}'),
        ("    - torch==2.4.1", "    - torch==2.5.1"),
        ("torch==2.4.1 ; (sys_platform == 'linux')", "torch==2.5.1 ; (sys_platform == 'linux')"),
        ("torch (>=2.4)", "torch==2.5.1"),
    ],
)
def test_only_the_specifier_changes(old, new):
    assert with_requirement(old, 1, "torch", "==2.5.1") == new


def test_a_name_may_be_spelt_in_another_way():
    assert with_requirement("Flash_Attn==2.5.0\n", 1, "flash-attn", "==2.8.3") == "Flash_Attn==2.8.3\n"


@pytest.mark.parametrize(
    "text", ["", "# torch==2.4\n", "torch-geometric==2.5\n", "my-torch==1\n", "x\n" * 9 + "torch\n"]
)
def test_what_is_not_that_requirement_is_not_changed(text):
    assert with_requirement(text, 1, "torch", "==2.5.1") is None
