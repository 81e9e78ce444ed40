"""The answer of the name index as a requirement."""

from __future__ import annotations

from envsmith.knowledge.names.presence import Presence


def test_more_gaps_than_a_requirement_can_name_leave_the_longest_range():
    releases = tuple(f"{n}.0" for n in range(1, 60))
    having = frozenset(releases[0:50:2]) | frozenset(releases[50:55])
    presence = Presence(
        distribution="pkg",
        path="pkg.f",
        argument=None,
        releases=releases,
        present=having,
        absent=frozenset(releases) - having,
        unknown=frozenset(),
    )

    assert presence.short_spec() == ">=51.0,<56.0"


def test_a_sentence_lists_the_longest_ranges_where_a_requirement_cannot_name_the_gaps():
    releases = tuple(f"{n}.0" for n in range(1, 60))
    having = frozenset(releases[3:20]) | frozenset(releases[52:])
    presence = Presence(
        distribution="pkg",
        path="pkg.f",
        argument=None,
        releases=releases,
        present=having,
        absent=frozenset(releases) - having,
        unknown=frozenset(),
    )

    assert presence.ranges() == ">=4.0,<21.0 or >=53.0"
    assert presence.short_spec() == ">=4.0,<21.0"
