"""A file of a project mended: the fewest changes, in place, and taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from lock_helpers import uv_for
from packaging.specifiers import SpecifierSet
from tiny_index import TinyIndex

from envsmith.doctor.mend.project_file import FileMend, propose_for_file, spec_for, undo_file, with_requirement
from envsmith.errors import LockError, UsageError
from envsmith.model.cell import Cell, Platform
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.rule import Severity
from envsmith.project.ranges import Declarations

FINDING = Finding(rule="numpy-2-abi", severity=Severity.ERROR, components={"numpy": "2.0.2"}, message="numpy 2")


def _judgement(*changes: Change, python: str = "3.11") -> Judgement:
    cell = Cell(components={"numpy": "1.26.4", "python": python}, chosen=("python",), platform=Platform.LINUX_64)
    repair = Repair(changes=changes or (Change(component="numpy", old="2.0.2", new="1.26.4"),), cell=cell)
    return Judgement(status="bad", findings=(FINDING,), repair=repair)


def _propose(path: Path, index: TinyIndex, judgement: Judgement | None = None, **options: object) -> FileMend:
    uv = uv_for(index.url, path.parent / "uv-cache")
    demands = Declarations.of(path).always
    return propose_for_file(path, demands, judgement or _judgement(), uv=uv, **options)  # type: ignore[arg-type]


def _requirements(folder: Path, text: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text(text)
    return path


def test_one_line_changes_and_the_others_stay_as_they_were(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = _requirements(tmp_path, "# mine\nnumpy==2.0.2  # why\nclick==8.0\n")
    mend = _propose(path, numpy_index)
    mend.write()

    assert path.read_text() == "# mine\nnumpy==1.26.4  # why\nclick==8.0\n"
    assert [(c.sentence, c.why) for c in mend.changes] == [("numpy 2.0.2 -> 1.26.4", "numpy-2-abi")]


def test_a_pin_that_does_not_go_with_the_change_moves_with_it(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = _requirements(tmp_path, "numpy==2.0.2\nscipy==1.14.0\nclick==8.0\n")
    _propose(path, numpy_index).write()

    assert path.read_text() == "numpy==1.26.4\nscipy==1.13.0\nclick==8.0\n"


def test_what_is_kept_does_not_move(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = _requirements(tmp_path, "numpy==2.0.2\nscipy==1.14.0\n")

    with pytest.raises(LockError, match="contradict each other"):
        _propose(path, numpy_index, keep=["scipy"])
    with pytest.raises(LockError, match="numpy would have to change, and --keep holds it"):
        _propose(path, numpy_index, keep=["numpy"])


def test_an_included_file_is_changed_where_the_line_stands(numpy_index: TinyIndex, tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("numpy==2.0.2\n")
    mend = _propose(_requirements(tmp_path, "-r base.txt\nclick==8.0\n"), numpy_index)

    assert {path.name: texts for path, texts in mend.texts.items()} == {
        "base.txt": ("numpy==2.0.2\n", "numpy==1.26.4\n")
    }


def test_a_pyproject_keeps_its_comments(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "x"\ndependencies = [\n  "numpy>=2,<3",  # fast\n  "click",\n]\n')
    _propose(path, numpy_index).write()

    assert path.read_text() == '[project]\nname = "x"\ndependencies = [\n  "numpy<=1.26.4",  # fast\n  "click",\n]\n'


def test_the_earlier_text_comes_back_once(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = _requirements(tmp_path, "numpy==2.0.2\n")
    _propose(path, numpy_index).write()
    undo_file(path)

    assert path.read_text() == "numpy==2.0.2\n"
    with pytest.raises(UsageError, match="no earlier text"):
        undo_file(path)


def test_a_file_with_hashes_is_left_to_the_tool_that_wrote_it(numpy_index: TinyIndex, tmp_path: Path) -> None:
    path = _requirements(tmp_path, f"numpy==2.0.2 --hash=sha256:{'a' * 64}\n")

    with pytest.raises(LockError, match="has hashes") as failure:
        _propose(path, numpy_index)
    assert "--upgrade-package numpy==1.26.4" in str(failure.value.hint)


def test_what_no_line_names_is_not_added(numpy_index: TinyIndex, tmp_path: Path) -> None:
    with pytest.raises(LockError, match="no line of it names that"):
        _propose(_requirements(tmp_path, "click==8.0\n"), numpy_index)


def test_another_python_is_by_hand(numpy_index: TinyIndex, tmp_path: Path) -> None:
    changes = (Change(component="python", old="3.9", new="3.11"), Change(component="numpy", old="2.0.2", new="1.26.4"))
    mend = _propose(_requirements(tmp_path, "numpy==2.0.2\n"), numpy_index, _judgement(*changes))

    assert [line.partition("  ")[0] for line in mend.by_hand] == ["python: 3.9 -> 3.11"]


def test_without_a_repair_nothing_is_proposed(numpy_index: TinyIndex, tmp_path: Path) -> None:
    with pytest.raises(LockError, match="no set of releases is known"):
        _propose(_requirements(tmp_path, "numpy==2.0.2\n"), numpy_index, Judgement(status="bad"))


# A requirement changed in a text: its specifier changes, everything else stays as it was written.


@pytest.mark.parametrize(
    ("old", "version", "new"),
    [
        ("==0.14.2", "0.14.5", "==0.14.5"),
        ("==2.*", "1.26.4", "==1.26.4"),
        ("", "1.0", "==1.0"),
        (">=0.12,<0.14.4", "0.19.8", ">=0.19.8"),
        (">=2.4", "2.3.1", "<=2.3.1"),
        (">=2,!=2.1", "1.26", "<=1.26,!=2.1"),
        ("<0.14.4,!=0.15.0", "0.16", ">=0.16,!=0.15.0"),
        ("~=1.4", "2.0", ">=2.0"),
    ],
)
def test_clauses_that_admit_the_release_stay_and_a_bound_takes_the_place_of_the_others(old, version, new):
    spec = spec_for(SpecifierSet(old), version)

    assert spec == new
    assert SpecifierSet(spec).contains(version)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch==2.4.1  # torch==2.4.1\n", "torch==2.5.1  # torch==2.4.1\n"),
        ("Torch[cuda] >=2.4, <2.5 ; python_version<'3.13'\n", "Torch[cuda]==2.5.1 ; python_version<'3.13'\n"),
        ("torch\n", "torch==2.5.1\n"),
        ("-e .\ntorchvision==0.19\ntorch==2.4.1\n", "-e .\ntorchvision==0.19\ntorch==2.5.1\n"),
        (
            'dependencies = ["torchvision", "torch>=2.4,<2.5", "peft"]',
            'dependencies = ["torchvision", "torch==2.5.1", "peft"]',
        ),
        ('torch = "^2.4"  # as measured', 'torch = "==2.5.1"  # as measured'),
        ('torch = {version = "^2.4", optional = true}', 'torch = {version = "==2.5.1", optional = true}'),
        ("    - torch==2.4.1", "    - torch==2.5.1"),
        ("torch==2.4.1 ; (sys_platform == 'linux')", "torch==2.5.1 ; (sys_platform == 'linux')"),
        ("torch (>=2.4)", "torch==2.5.1"),
    ],
)
def test_only_the_specifier_changes(old, new):
    assert with_requirement(old, 1, "torch", "==2.5.1") == new


def test_a_name_may_be_spelt_in_another_way():
    assert with_requirement("Flash_Attn==2.5.0\n", 1, "flash-attn", "==2.8.3") == "Flash_Attn==2.8.3\n"


@pytest.mark.parametrize(
    "text", ["", "# torch==2.4\n", "torch-geometric==2.5\n", "my-torch==1\n", "x\n" * 9 + "torch\n"]
)
def test_what_is_not_that_requirement_is_not_changed(text):
    assert with_requirement(text, 1, "torch", "==2.5.1") is None
