"""What is written into a file of names comes out again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.errors import DataError
from envsmith.knowledge.names.names_file import (
    Head,
    MeasuredRelease,
    NamesFile,
    Table,
    add_part,
    bits_of,
    encode,
    runs_of,
    with_new,
)

_NAMES = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
_LINES = st.builds(
    lambda name, body: f"{name} {body}", _NAMES, st.sampled_from(["=", "(a,b=,*,**", ":Base", ">m:n", "^x.y"])
)
_BITS = st.integers(min_value=1, max_value=(1 << 40) - 1)
_MODULES = st.dictionaries(_LINES, _BITS, max_size=6).flatmap(lambda lines: _BITS.map(lambda bits: {"": bits, **lines}))


_SMALL = st.integers(min_value=1, max_value=7)
_TABLES = st.dictionaries(
    st.sampled_from(["pkg", "pkg.a", "pkg.b"]),
    st.dictionaries(_LINES, _SMALL, max_size=4).flatmap(lambda lines: _SMALL.map(lambda bits: {"": bits, **lines})),
)


def release(version: str, sha256: str = "0") -> MeasuredRelease:
    return MeasuredRelease(version=version, date="2024-01-02", filename="a.whl", sha256=sha256)


def head(*releases: MeasuredRelease) -> Head:
    return Head(distribution="pkg", reader=1, roots=("pkg",), releases=releases)


@given(_BITS)
def test_runs_say_which_bits_are_set(bits):
    assert bits_of(runs_of(bits)) == bits


@given(st.dictionaries(_NAMES, _MODULES, max_size=8))
def test_a_table_comes_back_as_it_was_written(tmp_path_factory, table):
    releases = tuple(
        MeasuredRelease(version=f"1.{at}", date="2024-01-02", filename="a.whl", sha256="0") for at in range(40)
    )
    head = Head(distribution="pkg", reader=1, roots=("pkg",), releases=releases)
    path: Path = tmp_path_factory.mktemp("names") / "pkg.names"
    path.write_bytes(encode(head, table))

    file = NamesFile(path)

    assert file.head == head
    assert file.table() == table
    for module, lines in table.items():
        read = file.module(module)
        assert read.bits == lines[""]
        for name in {line.partition(" ")[0] for line in lines if line}:
            assert dict(read.of(name)) == {
                b: lines[f"{n} {b}"] for n, _, b in (x.partition(" ") for x in lines) if n == name
            }
        assert read.of("absent_name") == ()
    assert file.module("absent.module") is None


@pytest.mark.parametrize(
    "releases",
    [
        [release("1.0"), release("2.0"), release("3.0")],
        [release("0.9"), release("1.0"), release("2.0")],
        [release("1.0"), release("1.5"), release("2.0")],
        [release("1.0"), release("2.0", sha256="another file")],
    ],
    ids=["after", "before", "between", "read again"],
)
@given(_TABLES, _TABLES)
def test_a_part_that_is_added_says_what_a_whole_file_would(releases: list[MeasuredRelease], old: Table, new: Table):
    first = NamesFile(Path("pkg.names"), encode(head(release("1.0"), release("2.0")), old))

    added = NamesFile(Path("pkg.names"), add_part(first, head(*releases), new))

    whole = NamesFile(Path("pkg.names"), encode(head(*releases), new))
    assert added.head == whole.head
    assert added.table() == whole.table()
    assert added.content.startswith(first.content)
    for module in {**old, **new}:
        one, other = added.module(module), whole.module(module)
        assert (one is None) == (other is None)
        for name in {line.partition(" ")[0] for line in new.get(module, {}) if line}:
            assert sorted(one.of(name)) == sorted(other.of(name))


def test_a_release_that_changes_nothing_adds_only_its_head():
    table = {"pkg": {"": 0b11, **{f"name_{n} =": 0b10 for n in range(1000)}}}
    first = NamesFile(Path("pkg.names"), encode(head(release("1.0"), release("2.0")), table))
    same = {module: {line: with_new(bits, [2]) for line, bits in lines.items()} for module, lines in table.items()}

    content = add_part(first, head(release("1.0"), release("2.0"), release("3.0")), same)

    assert len(content) - len(first.content) < 250


@pytest.mark.parametrize("cut", [1, 30])
def test_a_part_that_is_cut_is_refused(cut: int):
    first = NamesFile(Path("pkg.names"), encode(head(release("1.0")), {"pkg": {"": 1}}))
    content = add_part(first, head(release("1.0"), release("2.0")), {"pkg": {"": 1}})

    with pytest.raises(DataError, match=r"Cannot read pkg\.names"):
        NamesFile(Path("pkg.names"), content[:-cut])
