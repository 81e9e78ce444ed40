"""When the watch judges a stall, and when it looks on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from envsmith.run.watch import Settings, Watch


class Ranks:
    """Ranks of which some do not answer. Nothing else of them is looked at."""

    def __init__(self, silent: list[bool]) -> None:
        self.living = [SimpleNamespace(talk=True, silent_for=lambda now, s=s: 60.0 if s else 0.0) for s in silent]


@pytest.mark.parametrize(
    ("silent", "expected"),
    [([True, True], True), ([True, False], False), ([False, False], False), ([True], False)],
    ids=["all", "one of two", "none", "the only one"],
)
def test_only_the_silence_of_several_ranks_and_of_all_is_the_machine_s(silent, expected):
    watch = Watch(SimpleNamespace(pid=0), Ranks(silent), Settings(), lambda blame, evidence: None)

    assert watch._all_are_silent() == expected
