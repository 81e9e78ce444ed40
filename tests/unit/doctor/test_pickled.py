"""Pickles of plain values are read without running what they name."""

from __future__ import annotations

import pickle

import pytest

from envsmith.doctor.read.dumps import is_pickle, read_plain

VALUES = {
    "list": [1, -2, 1 << 70, 2.5, None, True, "ä" * 300],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    7: {},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_what_pickle_itself_gives(protocol):
    content = pickle.dumps(VALUES, protocol)

    assert is_pickle(content)
    assert read_plain(content) == VALUES


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_calls_a_function_is_refused_and_calls_nothing(tmp_path, protocol):
    content = pickle.dumps({"entries": [Evil(str(tmp_path / "made"))]}, protocol)

    with pytest.raises(ValueError, match="more than plain values"):
        read_plain(content)

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content", [b"\x80\x04", b"\x80\x04u.", b"\x80\x04h\x07.", b"\x80\x04X\xff\xff\xff\x7fa.", b"\x80\x04."]
)
def test_a_pickle_that_is_cut_off_or_wrong_is_refused(content):
    with pytest.raises(ValueError, match="it is"):
        read_plain(content)


def test_numbers_of_the_memo_take_no_room_for_those_that_are_missing():
    assert read_plain(b"\x80\x04]r\xff\xff\xff\xff.") == []
