"""A stub beside a source or a compiled module: what can be imported, and what only a type checker reads."""

from __future__ import annotations

from envsmith.knowledge.names.source import read_module
from envsmith.knowledge.names.stubs import additions


def lines_of(source: str, *, stub: bool = False) -> frozenset[str]:
    return read_module(source.encode(), "pkg.part", package=False, stub=stub)


def test_a_stub_passes_an_import_on_only_under_its_own_name():
    lines = lines_of("from a import B, C as C, D as E\nimport numpy as np\nfrom x import *", stub=True)

    assert lines == {"C >a:C", "* >x"}


def test_a_stub_passes_on_an_import_that_it_lists():
    lines = lines_of("from a import B\n__all__ = ['B']", stub=True)

    assert "B >a:B" in lines


def test_a_private_type_of_a_stub_cannot_be_imported():
    stub = (
        "_T = TypeVar('_T')\n_Alias: TypeAlias = int\n"
        "class _Like(Protocol[_T]): ...\nclass _Real: ...\ndef _f(): ...\n_version: str\n"
    )

    assert lines_of(stub, stub=True) == {"_Real :", "_f (", "_version ="}


def test_a_stub_in_the_syntax_of_a_later_python_has_the_names_at_its_left_edge():
    lines = lines_of("def f[T: (int, str) = int](x: T) -> T: ...\nclass A: ...\nx: int\ntype Y = list[@]\n", stub=True)

    assert {"A =", "x ="} <= lines
    assert "* ?" not in lines


def test_the_source_decides_which_names_exist():
    source = lines_of("def f(a): ...\nclass A:\n    def g(self): ...")
    stub = lines_of(
        "def f(a, b): ...\ndef h(): ...\nclass A:\n    def g(self, more): ...\nclass B:\n    def k(self): ...",
        stub=True,
    )

    assert additions(stub, source) == set()


def test_a_value_of_the_stub_comes_from_a_star_import_of_the_source():
    stub = lines_of("string_ = bytes_\n_private = int\nclass B: ...\ndef f(): ...", stub=True)

    assert additions(stub, lines_of("from .core import *\nf = 1")) == {"string_ =bytes_", "f ("}
    assert additions(stub, lines_of("f = 1")) == {"f ("}


def test_a_class_that_has_more_members_in_the_stub_is_given_them_elsewhere():
    source = lines_of("class Array:\n    def g(self): ...\nclass Other:\n    def k(self): ...")
    stub = lines_of(
        "class Array:\n    def g(self): ...\n    def itemsize(self): ...\nclass Other:\n    def k(self): ...", stub=True
    )

    assert {line.partition(" ")[0] for line in additions(stub, source)} == {"Array.*"}


def test_a_stub_has_the_signature_of_what_the_source_binds_to_a_value():
    source = lines_of("pool = dispatch(a, b)")
    stub = lines_of("def pool(size, *, stride=1): ...", stub=True)

    assert additions(stub, source) == {"pool (size,|,stride="}


def test_a_stub_has_the_names_of_a_source_that_makes_them():
    stub = lines_of("def f(a): ...", stub=True)

    assert additions(stub, lines_of("globals().update(table)")) == stub


def test_a_source_that_attaches_its_stub_has_what_the_stub_passes_on():
    source = lines_of(
        "import lazy_loader as lazy\n__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)"
    )
    stub = lines_of("from .core import load as load", stub=True)

    assert additions(stub, source) == stub


def test_a_stub_says_what_a_class_of_a_compiled_module_has():
    stub = lines_of("class A:\n  def f(self, x): ...\nclass B: ...", stub=True)
    source = lines_of("from ._compiled import A\nfrom .plain import B")

    assert additions(stub, source, {"pkg._compiled"}) == {"A :", "A.f (x"}
