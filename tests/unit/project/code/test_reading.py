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


def test_the_folder_of_the_project_is_its_own():
    sources = (SourceText(path="sample.py", text=b"import DiT, torch"),)
    project = ProjectSources(root=Path("/x/DiT"), sources=sources, files=frozenset({"sample.py"}))
    assert read_project_uses(project).modules == {"torch"}
