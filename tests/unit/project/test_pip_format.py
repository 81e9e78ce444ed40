"""Requirement files in pip's format: understood, or refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import DataError
from envsmith.project.demand import Demand, Demands
from envsmith.project.pip_format import logical_lines, read_requirement_file

HASH = "a" * 64


def _no_folder(root: Path, extras: object) -> Demands:
    raise AssertionError(f"{root} is not read: {extras}")


def _read(folder: Path, text: str | bytes, read_folder=_no_folder, **settings) -> Demands:
    path = folder / "requirements.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_requirement_file(path, read_folder, **settings).refuse_problems()


def _lines(demands: Demands) -> list[str]:
    return [str(demand.requirement) for demand in demands.demands]


def test_a_line_that_goes_on_is_one_line_with_the_number_of_its_beginning():
    text = "# top\na==1 \\\n  --hash=sha256:x\n\nb # why\n"
    assert list(logical_lines(text)) == [(2, "a==1   --hash=sha256:x"), (5, "b")]


def test_a_requirement_has_its_file_and_line(tmp_path):
    (demand,) = _read(tmp_path, "\n\nwandb>=0.15 ; python_version >= '3.10'\n").demands
    assert demand.where == f"{tmp_path}/requirements.txt:3"
    assert str(demand.requirement.marker) == 'python_version >= "3.10"'


def test_hashes_belong_to_their_requirement(tmp_path):
    (demand,) = _read(tmp_path, f"a==1 \\\n    --hash=sha256:{HASH.upper()} \\\n    --hash sha256:{'b' * 64}\n").demands
    assert demand.hashes == (HASH, "b" * 64)


def test_a_constraint_file_bounds_and_does_not_install(tmp_path):
    (tmp_path / "bounds.txt").write_text("numpy<2\n")
    read = _read(tmp_path, "-c bounds.txt\npandas\n")
    assert [(d.name, d.is_bound) for d in read.demands] == [("numpy", True), ("pandas", False)]
    assert len(read.files) == 2


def test_an_included_file_is_read_from_the_folder_of_the_file_that_includes_it(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("-rnext.txt\na\n")
    (tmp_path / "more" / "next.txt").write_text("b\n")
    assert _lines(_read(tmp_path, "-r more/base.txt\nc\n")) == ["b", "a", "c"]


def test_a_circle_of_includes_is_refused_with_the_line_that_closes_it(tmp_path):
    (tmp_path / "other.txt").write_text("x\n-r requirements.txt\n")
    with pytest.raises(DataError, match="cannot be followed") as failure:
        _read(tmp_path, "-r other.txt\n")
    assert failure.value.details[0].startswith(f"{tmp_path}/other.txt:2: ")
    assert "circle" in failure.value.details[0]


def test_a_variable_is_replaced_and_one_that_is_not_set_is_refused(tmp_path):
    assert _lines(_read(tmp_path, "a==${RELEASE}\n", environ={"RELEASE": "1.5"})) == ["a==1.5"]
    with pytest.raises(DataError) as failure:
        _read(tmp_path, "a==${RELEASE}\n", environ={})
    assert failure.value.details == (f"{tmp_path}/requirements.txt:1: the environment variable RELEASE is not set",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("lm_eval @ git+https://example.org/x.git", "comes from git+https"),
        ("git+https://example.org/x.git#egg=x", "x comes from git+https"),
        ("https://example.org/x-1-py3-none-any.whl", "x comes from https"),
        ("-e git+https://example.org/x.git#egg=x", "x comes from git+https"),
        ("a==1 --hash=md5:123", "is not a sha256"),
        ("a=1", "is not a requirement"),
        ("--frobnicate", "is not an option"),
        ("-r https://example.org/r.txt", "only files of this machine"),
        ('--index-url "x', "a quote that does not end"),
        ("-r missing.txt", "cannot be read"),
    ],
)
def test_what_a_lock_cannot_follow_is_refused_with_file_and_line(tmp_path, line, reason):
    with pytest.raises(DataError) as failure:
        _read(tmp_path, f"wandb\n{line}\n")
    (detail,) = failure.value.details
    assert detail.startswith(f"{tmp_path}/requirements.txt:2: ")
    assert reason in detail


def test_every_problem_is_in_one_error(tmp_path):
    with pytest.raises(DataError) as failure:
        _read(tmp_path, "a=1\nb\nc=2\n")
    assert [line.rpartition(": ")[0].split(":")[1] for line in failure.value.details][:2] == ["1", "3"]


def test_a_requirement_that_is_left_out_is_not_read_further(tmp_path):
    text = "Lm_Eval @ git+https://example.org/x.git\nwandb\n"
    assert _lines(_read(tmp_path, text, leave_out=["lm-eval"])) == ["wandb"]


def test_an_editable_folder_gives_its_requirements(tmp_path):
    def folder(root: Path, extras: object) -> Demands:
        assert (root, extras) == (tmp_path / "sub", {"gpu"})
        return Demands(demands=(Demand(requirement=_read(tmp_path, "x").demands[0].requirement, where="sub"),))

    read = _read(tmp_path, "-e ./sub[gpu]\n", folder)
    assert _lines(read) == ["x"]
    assert "itself is not installed" in read.notes[0]


def test_an_index_of_torch_builds_names_the_cuda_of_torch(tmp_path):
    read = _read(tmp_path, "--extra-index-url https://example.org/whl/cu121\n-i https://example.org/simple\ntorch\n")
    assert read.cuda == (("12.1", f"{tmp_path}/requirements.txt:1"),)
    assert "settings of uv and pip" in read.notes[0]


def test_a_file_in_utf_16_and_one_with_a_mark_are_read(tmp_path):
    assert _lines(_read(tmp_path, "﻿a\n".encode("utf-16-le"))) == ["a"]
    assert _lines(_read(tmp_path, "﻿a\r\nb\r\n".encode())) == ["a", "b"]


def test_five_thousand_lines_are_read(tmp_path):
    assert len(_read(tmp_path, "".join(f"package-{n}=={n}\n" for n in range(5000))).demands) == 5000


def test_a_line_of_a_file_outside_the_project_is_not_quoted(tmp_path):
    (tmp_path / "shadow").write_text("root:$6$planted:19000:0:99999:7:::\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("-r ../shadow\n")

    problems = read_requirement_file(project / "requirements.txt", lambda *_: Demands()).problems

    assert [problem.partition(": ")[0] for problem in problems] == [f"{project}/../shadow:1"]
    assert "planted" not in problems[0]
