"""Names that an import takes, held against the releases of another package."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.knowledge.names.name_index import SUMMARY, NameIndex
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, encode
from envsmith.knowledge.names.takes import Take
from envsmith.matrix.refresh.gaps import find_gaps

_NAMES = {
    "torch": {"": 0b111, "compiler >torch.compiler": 0b110},
    "torch.old": {"": 0b001, "inf =": 0b001},
    "torch.compiler": {"": 0b110, "is_compiling (": 0b100, "compile (model,mode=": 0b110, "Old :": 0b010},
}
_NAMES["torch.compiler"]["disable (fn,reason="] = 0b100
_NAMES["torch.compiler"]["disable (fn"] = 0b010


@pytest.fixture
def index(tmp_path: Path) -> NameIndex:
    releases = tuple(
        MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in ("1.0", "2.0", "3.0")
    )
    head = Head(distribution="torch", reader=1, roots=("torch",), releases=releases)
    (tmp_path / "torch.names").write_bytes(encode(head, _NAMES))
    (tmp_path / SUMMARY).write_text("distribution\troots\ntorch\ttorch\n")
    return NameIndex(tmp_path)


def gaps(index: NameIndex, **take: object) -> list[tuple[set[str], str]]:
    line = Take(module="ds", **take).line()  # type: ignore[arg-type]
    return [(set(g.lacking), g.error) for g in find_gaps({"ds": {line: 0b1}}, "ds", index)]


def test_a_name_is_missing_where_its_module_is_missing_too(index):
    error = "ImportError: cannot import name 'is_compiling' from 'torch.compiler'"
    assert gaps(index, path="torch.compiler.is_compiling", imported=True) == [({"1.0", "2.0"}, error)]


def test_the_error_is_the_one_of_the_newest_release_that_lacks_it(index):
    error = "ModuleNotFoundError: No module named 'torch.old'"
    assert gaps(index, path="torch.old.inf", imported=True) == [({"2.0", "3.0"}, error)]


def test_what_a_package_makes_at_run_time_is_not_a_module_that_can_be_imported(tmp_path):
    releases = tuple(MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in ("1.0", "2.0"))
    head = Head(distribution="torch", reader=1, roots=("torch",), releases=releases)
    table = {"torch": {"": 0b11, "* ?": 0b10}, "torch.old": {"": 0b01, "inf =": 0b01}}
    (tmp_path / "torch.names").write_bytes(encode(head, table))
    (tmp_path / SUMMARY).write_text("distribution\troots\ntorch\ttorch\n")

    error = "ModuleNotFoundError: No module named 'torch.old'"
    assert gaps(NameIndex(tmp_path), path="torch.old.inf", imported=True) == [({"2.0"}, error)]
    assert gaps(NameIndex(tmp_path), path="torch.old.inf") == []


def test_a_missing_attribute_is_told_as_python_tells_it(index):
    error = "AttributeError: module 'torch.compiler' has no attribute 'is_compiling'"
    assert gaps(index, path="torch.compiler.is_compiling") == [({"1.0", "2.0"}, error)]


def test_an_argument_that_a_release_does_not_take_is_a_gap(index):
    error = "TypeError: disable() got an unexpected keyword argument 'reason'"
    assert gaps(index, path="torch.compiler.disable", arguments=("reason",)) == [({"1.0", "2.0"}, error)]


def test_a_name_that_no_release_has_is_made_elsewhere(index):
    assert gaps(index, path="torch.compiler.nowhere") == [
        ({"1.0"}, "AttributeError: module 'torch' has no attribute 'compiler'")
    ]
    assert gaps(index, path="torch.nowhere") == []


def test_a_hasattr_on_the_way_leaves_the_releases_in_which_it_comes_out_so(index):
    (gap,) = gaps(index, path="torch.compiler.is_compiling", holds=("torch.compiler",))
    assert gap[0] == {"2.0"}
    assert gaps(index, path="torch.compiler.is_compiling", holds=("torch.compiler.is_compiling",)) == []
    assert gaps(index, path="torch.compiler.Old", lacks=("torch.compiler.is_compiling",))[0][0] == {"1.0"}


def test_what_runs_only_beside_a_third_package_is_no_gap_of_the_two(index):
    assert gaps(index, path="torch.old.inf", available=("peft",)) == []
    assert gaps(index, path="torch.old.inf", available=("torch",))


def test_of_a_compiled_module_nothing_is_said_since_its_stub_may_leave_names_out(tmp_path):
    releases = tuple(MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in ("1.0", "2.0"))
    head = Head(distribution="torch", reader=1, roots=("torch",), releases=releases)
    table = {"torch": {"": 0b11, "* >torch._C": 0b11}, "torch._C": {"": 0b11, "* !": 0b11, "HalfTensor :": 0b10}}
    (tmp_path / "torch.names").write_bytes(encode(head, table))
    (tmp_path / SUMMARY).write_text("distribution\troots\ntorch\ttorch\n")

    assert gaps(NameIndex(tmp_path), path="torch.HalfTensor") == []
    assert gaps(NameIndex(tmp_path), path="torch._C.HalfTensor", imported=True) == []


def test_a_package_without_an_index_is_not_judged(index):
    assert gaps(index, path="numpy.product") == []


def test_a_module_of_its_own_that_a_release_no_longer_has_is_missing_where_it_is_imported(tmp_path):
    releases = tuple(MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in ("81.0", "82.0"))
    head = Head(distribution="setuptools", reader=1, roots=("setuptools", "pkg_resources"), releases=releases)
    (tmp_path / "setuptools.names").write_bytes(encode(head, {"setuptools": {"": 0b11}, "pkg_resources": {"": 0b01}}))
    (tmp_path / SUMMARY).write_text("distribution\troots\nsetuptools\tsetuptools,pkg_resources\n")
    index = NameIndex(tmp_path)

    error = "ModuleNotFoundError: No module named 'pkg_resources'"
    assert gaps(index, path="pkg_resources", imported=True) == [({"82.0"}, error)]
    assert gaps(index, path="setuptools", imported=True) == []


def test_a_release_older_than_the_one_that_is_asked_for_is_not_reached(index):
    error = "ImportError: cannot import name 'is_compiling' from 'torch.compiler'"
    take = {"path": "torch.compiler.is_compiling", "imported": True}
    assert gaps(index, available=("torch>=2.0",), **take) == [({"2.0"}, error)]


def test_a_release_that_cannot_be_read_before_those_that_lack_a_name_is_taken_to_be_like_them(tmp_path):
    releases = tuple(
        MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in ("1.0", "2.0", "3.0")
    )
    head = Head(distribution="torch", reader=1, roots=("torch",), releases=releases)
    table = {"torch": {"": 0b111, "* ?": 0b001, "library >torch.library": 0b110}}
    table["torch.library"] = {"": 0b110, "custom_op (": 0b100}
    (tmp_path / "torch.names").write_bytes(encode(head, table))
    (tmp_path / SUMMARY).write_text("distribution\troots\ntorch\ttorch\n")

    assert gaps(NameIndex(tmp_path), path="torch.library.custom_op")[0][0] == {"1.0", "2.0"}
