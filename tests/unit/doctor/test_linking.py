"""An undefined symbol names the builds of torch that export it, measured in their libraries."""

from __future__ import annotations

import pytest

from envsmith.doctor.facts import Draft
from envsmith.doctor.judge import diagnose

OLD_ERROR = "_ZN3c105ErrorC2ENS_14SourceLocationESs"


def first_finding(text, **versions):
    draft = Draft()
    for name, version in versions.items():
        draft.component(name, version, "test")
    return diagnose(draft.done(), [("log", text)]).root.finding


def line(symbol):
    return f"ImportError: /x/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: {symbol}"


def test_the_releases_that_export_the_symbol_are_named_and_the_installed_one_is_judged():
    finding = first_finding(line(OLD_ERROR), torch="2.7.1")
    assert "torch <=2.6.0 exports it, and torch 2.7.1 does not." in finding.message
    assert "Or use torch <=2.6.0" in finding.fix
    assert finding.needs == {"torch": "<=2.6.0"}


def test_a_symbol_that_the_installed_torch_exports_is_another_torch_that_is_loaded():
    finding = first_finding(line(OLD_ERROR), torch="2.5.1")
    assert "torch 2.5.1 exports it: another torch is loaded" in finding.message
    assert "Or use torch" not in finding.fix


@pytest.mark.parametrize("symbol", ["_ZN3c1011nowhere_yetEv", "_ZN2at99nothing"])
def test_a_symbol_that_no_measured_build_exports_is_said_to_be_of_another_torch(symbol):
    assert "None of the" in first_finding(line(symbol), torch="2.7.1").message


def test_a_symbol_of_others_gets_no_releases_of_torch():
    finding = first_finding("ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1", torch="2.7.1")
    assert not finding.needs
