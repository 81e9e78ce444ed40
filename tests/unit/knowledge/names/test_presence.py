"""The answer of the name index as a requirement."""

from __future__ import annotations

from envsmith.knowledge.names.presence import Presence

RELEASES = tuple(f"{n}.0" for n in range(1, 60))


def presence_in(*having: str) -> Presence:
    return Presence(
        distribution="pkg",
        path="pkg.f",
        argument=None,
        releases=RELEASES,
        present=frozenset(having),
        absent=frozenset(RELEASES) - {*having},
        unknown=frozenset(),
    )


def test_more_gaps_than_a_requirement_can_name_leave_the_longest_range():
    presence = presence_in(*RELEASES[0:50:2], *RELEASES[50:55])

    assert presence.short_spec() == ">=51.0,<56.0"


def test_a_sentence_lists_the_longest_ranges_where_a_requirement_cannot_name_the_gaps():
    presence = presence_in(*RELEASES[3:20], *RELEASES[52:])

    assert presence.ranges() == ">=4.0,<21.0 or >=53.0"
    assert presence.short_spec() == ">=4.0,<21.0"
