"""A folder with the catalogue of one extension."""

from __future__ import annotations

import pytest
from wheel_catalogue import HEAD, PUBLISHERS


@pytest.fixture
def catalogue(tmp_path):
    """Write a catalogue of these lines and return its root."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/publishers.yaml").write_text(PUBLISHERS)

    def write(*lines: str):
        (tmp_path / "wheels/ext.yaml").write_text(HEAD + "".join(lines))
        return tmp_path

    return write
