"""The glibc that follows from a distribution's name, and what ``check`` makes of it."""

import pytest

from envsmith.doctor.facts import Draft
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.lines import glibc_of
from envsmith.doctor.stated_environment import check_environment, read_fact


@pytest.mark.parametrize(
    ("system", "glibc"),
    [
        ("Ubuntu 20.04.6 LTS (x86_64)", "2.31"),
        ("ubuntu:22.04", "2.35"),
        ("Debian GNU/Linux 11 (bullseye)", "2.31"),
        ("CentOS Linux release 7.9.2009", "2.17"),
        ("Red Hat Enterprise Linux 8.4", "2.28"),
        ("Rocky Linux 9.2", "2.34"),
        ("Amazon Linux 2", "2.26"),
        ("Ubuntu", None),
        ("Windows 11", None),
        ("Ubuntu 3.04", None),
    ],
)
def test_a_release_brings_its_glibc(system, glibc):
    assert glibc_of(system) == glibc


def _rules(system, **given):
    draft = Draft()
    read_fact(draft, "os", system)
    return {f.rule for f in check_environment(given, draft).findings}


def test_the_glibc_of_the_system_is_judged():
    assert "flash-attn-glibc" in _rules("Ubuntu 20.04", **{"flash-attn": "2.8.2"})
    assert "flash-attn-glibc" not in _rules("Ubuntu 22.04", **{"flash-attn": "2.8.2"})


def test_a_glibc_that_was_given_counts_more_than_the_system():
    assert "flash-attn-glibc" not in _rules("Ubuntu 20.04", **{"flash-attn": "2.8.2", "glibc": "2.35"})


def test_a_framework_that_is_said_not_to_be_installed_is_not_in_use() -> None:
    facts = read_texts([("report", "DeepSpeed version: not installed\nmegatron-core: N/A\nPyTorch version: 2.5.1")])

    assert "present" not in facts.host


def test_a_version_may_repeat_the_name_of_its_package() -> None:
    assert read_texts([("report", "Numpy Version: numpy-1.22.4")]).version("numpy") == "1.22.4"


def test_releases_in_a_sentence_are_read_where_two_packages_are_named() -> None:
    facts = read_texts([("report", "I use numpy 1.24.3 with torch 2.0.1 on windows 10")])

    assert (facts.version("numpy"), facts.version("torch")) == ("1.24.3", "2.0.1")
