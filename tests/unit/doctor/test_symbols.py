"""Which builds of torch have a symbol that the loader does not find, over the committed table."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts

NEW_ABI = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
FLASH = "ImportError: /v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: "
AUDIO = "OSError: /v/torchaudio/lib/libtorchaudio.so: undefined symbol: "


def root(text: str):
    """The root of a diagnosis."""
    return diagnose(read_texts([("log", text)]), [("log", text)]).root


def test_a_torch_that_lacks_the_symbol_is_named_with_those_that_have_it():
    diagnosed = root(f"torch: 2.1.2\n{FLASH}{NEW_ABI}")

    assert "torch 2.1.2+cu121 does not export it, torch >=2.7.0 does." in diagnosed.finding.message
    assert (dict(diagnosed.finding.needs), diagnosed.confidence) == ({"torch": ">=2.7.0"}, "high")
    assert diagnosed.lines[-1].endswith("--no-deps flash-attn")


def test_without_a_torch_the_builds_that_export_it_are_named():
    finding = root(f"{FLASH}{NEW_ABI}").finding

    assert finding.message.endswith("torch >=2.7.0 exports it.")


def test_a_torch_that_has_the_symbol_is_not_the_one_that_is_loaded():
    finding = root(f"torch: 2.8.0\n{FLASH}{NEW_ABI}").finding

    assert "so another torch is loaded" in finding.message
    assert not finding.needs


def test_a_symbol_of_no_build_was_made_for_another_torch():
    finding = root(f"torch: 2.1.2\n{FLASH}_ZN3c104frobEv").finding

    assert "No measured build of torch, 1.13.0 to" in finding.message
    assert not finding.needs


@pytest.mark.parametrize(("torch", "line"), [("torch: 1.13.1\n", "torch==1.13.1 torchaudio"), ("", "torch torchaudio")])
def test_a_package_that_goes_with_one_torch_is_installed_together_with_it(torch, line):
    diagnosed = root(f"{torch}{AUDIO}_ZNK3c107SymBool10guard_boolEPKcl")

    assert diagnosed.lines == (f"pip install --force-reinstall {line}",)
    assert "torchaudio" in diagnosed.finding.components
