"""No test of the doctor changes the knowledge, so its files are looked at once for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envsmith.knowledge.graph.tables import one_state


@pytest.fixture(autouse=True)
def _one_state() -> Iterator[None]:
    with one_state():
        yield
