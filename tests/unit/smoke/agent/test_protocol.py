"""Lines of JSON."""

from __future__ import annotations

from envsmith.smoke.agent.protocol import Lines


def test_lines_come_whole_out_of_pieces() -> None:
    lines = Lines()
    assert list(lines.feed(b'{"a":1}\n{"b"')) == [{"a": 1}]
    assert list(lines.feed(b":2}\n\n")) == [{"b": 2}]
