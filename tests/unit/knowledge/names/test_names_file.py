"""What is written into a file of names comes out again."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envsmith.knowledge.names.names_file import Head, MeasuredRelease, NamesFile, bits_of, encode, runs_of

_NAMES = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
_LINES = st.builds(
    lambda name, body: f"{name} {body}", _NAMES, st.sampled_from(["=", "(a,b=,*,**", ":Base", ">m:n", "^x.y"])
)
_BITS = st.integers(min_value=1, max_value=(1 << 40) - 1)
_MODULES = st.dictionaries(_LINES, _BITS, max_size=6).flatmap(lambda lines: _BITS.map(lambda bits: {"": bits, **lines}))


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
