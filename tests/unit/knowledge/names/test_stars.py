"""A star import written out gives the answers that the star gives, and some that it leaves open."""

from __future__ import annotations

import pytest

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, Table, encode
from envsmith.knowledge.names.source import read_module
from envsmith.knowledge.names.stars import write_out


def table_of(*releases: dict[str, str]) -> Table:
    table: Table = {}
    for at, modules in enumerate(releases):
        for module, source in modules.items():
            package = any(other.startswith(f"{module}.") for other in modules)
            for line in {"", *read_module(source.encode(), module, package=package)}:
                lines = table.setdefault(module, {})
                lines[line] = lines.get(line, 0) | 1 << at
    return table


def stars_of(table: Table, module: str) -> dict[str, int]:
    return {line: bits for line, bits in table[module].items() if line.startswith("* ")}


def test_a_star_becomes_the_names_that_it_brings():
    table = table_of(
        {"pkg": "from .a import *", "pkg.a": "from .b import *\nx = 1\n_y = 1", "pkg.b": "def f(): ..."},
        {"pkg": "from .a import *", "pkg.a": "x = 1", "pkg.b": ""},
    )

    write_out(table, ["pkg"])

    assert table["pkg"] == {"": 3, "x >pkg.a:x": 3, "f >pkg.a:f": 1}
    assert table["pkg.a"]["f >pkg.b:f"] == 1


def test_a_name_that_the_module_binds_itself_is_not_written_out():
    table = table_of({"pkg": "from .a import *\nx = 2", "pkg.a": "x = 1"})

    write_out(table, ["pkg"])

    assert table["pkg"] == {"": 1, "x =": 1}


@pytest.mark.parametrize("hidden", ["globals().update(t)", "from other import *"])
def test_a_star_that_cannot_be_seen_through_stays_in_the_releases_where_it_cannot(hidden):
    table = table_of({"pkg": "from .a import *", "pkg.a": hidden}, {"pkg": "from .a import *", "pkg.a": "x = 1"})

    write_out(table, ["pkg"])

    assert stars_of(table, "pkg") == {"* >pkg.a": 1}
    assert table["pkg"]["x >pkg.a:x"] == 2


def test_a_compiled_module_may_bring_more_than_its_stub_lists():
    table = table_of({"pkg": "from ._c import *", "pkg._c": "x = 1"})
    table["pkg._c"]["* !"] = 1

    write_out(table, ["pkg"])

    assert table["pkg"] == {"": 1, "x >pkg._c:x": 1, "* >pkg._c": 1}


def test_stars_in_a_circle_stay():
    table = table_of({"pkg": "from .a import *", "pkg.a": "from . import *\nx = 1"})

    write_out(table, ["pkg"])

    assert stars_of(table, "pkg") == {"* >pkg.a": 1}


SOURCES = {
    "pkg": "from .a import *\nfrom .c import *\n__all__ = ['f', '_p', 'mine']\nmine = 1",
    "pkg.a": "__all__ = ['f', '_p', 'part']\nfrom .b import *\ndef _p(): ...\ndef hidden(): ...",
    "pkg.a.part": "z = 1",
    "pkg.b": "def f(a): ...\ntry:\n    import x\n    g = 1\nexcept ImportError:\n    pass",
    "pkg.c": "from .b import *\nfrom numpy import *",
    "pkg.top": "from pkg import *",
}
ASKED = ["f", "_p", "mine", "g", "hidden", "part", "z", "nope", "_nope"]


@pytest.mark.parametrize("module", ["pkg", "pkg.a", "pkg.c", "pkg.top"])
@pytest.mark.parametrize("name", ASKED)
def test_what_is_certain_stays_the_same(tmp_path, module, name):
    answers = []
    for at, written in enumerate((False, True)):
        folder = tmp_path / str(at)
        folder.mkdir()
        table = table_of(SOURCES)
        if written:
            write_out(table, ["pkg"])
        head = Head(
            distribution="pkg",
            reader=1,
            roots=("pkg",),
            releases=(MeasuredRelease(version="1", date="", filename="", sha256=""),),
        )
        (folder / "pkg.names").write_bytes(encode(head, table))
        (folder / "summary.tsv").write_text("distribution\troots\npkg\tpkg\n")
        presence = NameIndex(folder).ask(f"{module}.{name}", distribution="pkg")
        answers.append((presence.present, presence.absent))

    assert answers[0][0] <= answers[1][0]
    assert answers[0][1] <= answers[1][1]
