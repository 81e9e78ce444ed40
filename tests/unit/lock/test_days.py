"""Which days count for a lock."""

from __future__ import annotations

import pytest

from envsmith.errors import UsageError
from envsmith.lock.days import cutoff, days_from, last_day


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "2026-11-21T00:00:00Z"),
        ("2024-02-29", "2024-03-01T00:00:00Z"),
    ],
)
def test_a_day_counts_in_full_and_in_utc(text: str, expected: str) -> None:
    assert cutoff(text) == expected


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "3 days", "9999-12-31"])
def test_what_is_not_a_date_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a day"):
        cutoff(text)


def test_the_default_date_is_the_last_complete_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01T00:00:00Z
    assert last_day() == "2025-12-31"


@pytest.mark.parametrize(
    ("date", "days"),
    [
        (None, ["2026-11-20"]),
        ("2022-04-20", ["2022-04-20", "2022-07-20", "2023-04-20", "2026-11-20"]),
        ("2026-11-01", ["2026-11-01", "2026-11-20"]),
    ],
)
def test_later_days_follow_a_date_until_the_last_one(date, days):
    assert list(days_from(date, "2026-11-20")) == days
