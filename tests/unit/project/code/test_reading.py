"""What a project's code takes from other packages."""

from __future__ import annotations

from pathlib import Path

from envsmith.project.code.python_files import ProjectSources, SourceText
from envsmith.project.code.reading import ProjectUses, read_project_uses


def read(is_package=lambda _name: False, **files: str) -> ProjectUses:
    """``a__b="…"`` is a/b.py."""
    paths = {name.replace("__", "/").replace("/init", "/__init__") + ".py": text for name, text in files.items()}
    sources = tuple(SourceText(path=p, text=t.encode()) for p, t in paths.items())
    return read_project_uses(ProjectSources(root=Path(), sources=sources, files=frozenset(paths)), is_package)


def test_modules_beside_a_file_and_above_it_are_its_own():
    uses = read(train="import model, torch", model="", sub__eval="import model, helper, peft", sub__helper="")
    assert uses.modules == {"torch", "peft"}


def test_an_installed_package_comes_before_a_folder_that_is_not_a_package():
    files = {"train": "import datasets", "datasets__load": "from . import x"}
    assert read(lambda name: name == "datasets", **files).modules == {"datasets"}
    assert read(lambda name: name == "datasets", datasets__init="", **files).modules == set()


def test_every_use_has_its_file_and_line():
    (place,) = read(train="\n\nimport torch").uses
    assert place.where == "train.py:3"


def test_a_file_of_python_2_is_left_out_with_the_reason():
    uses = read(train="import torch", old="print 'x'")
    assert uses.unreadable[0].startswith("old.py: not Python 3: ")


def test_names_that_are_chosen_at_run_time_are_counted_by_package():
    assert read(train="import torch\ngetattr(torch, a)\ngetattr(torch, b)").unseen == {"torch": 2}


def conditional(**files: str) -> set[str]:
    """Return the files of which every use stands under a condition."""
    return {place.where.partition(":")[0] for place in read(**files).uses if place.use.guard.branch}


def test_what_is_only_imported_in_a_function_stands_under_a_condition():
    files = {"train": "def f():\n    import part", "part": "import torch, other", "other": "import peft"}
    assert conditional(**files) == {"part.py", "other.py"}


def test_what_one_file_imports_at_once_does_not():
    files = {"train": "def f():\n    import part", "main": "import part", "part": "import torch"}
    assert conditional(**files) == set()


def test_a_package_is_loaded_with_its_modules():
    files = {"train": "from pkg.sub import x", "pkg__init": "import torch", "pkg__sub": "from .far import y"}
    assert (
        conditional(**files, pkg__far="import peft", pkg__lone="from . import late\n", pkg__late="import trl") == set()
    )


def test_files_that_only_import_each_other_are_programs_of_nobody():
    files = {"train": "def f():\n    from src_part import a", "src_part__init": "", "src_part__a": "import torch"}
    assert conditional(**files) == {"src_part/a.py"}


def test_who_waits_for_a_second_hears_how_much_is_read():
    sources = tuple(SourceText(path=f"part{number}.py", text=b"import torch") for number in range(5))
    project = ProjectSources(root=Path(), sources=sources, files=frozenset(source.path for source in sources))
    events, ticks = [], iter([0.0, 0.5, 0.9, 1.1])

    read_project_uses(project, progress=events.append, clock=lambda: next(ticks))

    assert [event.text for event in events] == ["2 of 5 files of Python are read"]


def test_the_folder_of_the_project_is_its_own():
    sources = (SourceText(path="sample.py", text=b"import DiT, torch"),)
    project = ProjectSources(root=Path("/x/DiT"), sources=sources, files=frozenset({"sample.py"}))
    assert read_project_uses(project).modules == {"torch"}
