"""images/ is generated: rendering it again changes nothing, and nothing in it names an index or a machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envsmith.errors import UsageError
from envsmith.publish.image_folder import IMAGE_FILE, index_text, read_folder, rendered, write_folder

IMAGES = Path(__file__).resolve().parents[3] / "images"
FOLDERS = sorted(path.parent for path in IMAGES.glob(f"*/{IMAGE_FILE}"))


def test_there_are_published_cells():
    assert FOLDERS
    assert {path.name for path in IMAGES.iterdir()} == {"README.md", *(folder.name for folder in FOLDERS)}


def names_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_rendering_again_changes_nothing(folder):
    lock, told, record = read_folder(folder)
    files = rendered(lock, told, record)
    hint = "tools/render_images.py shows what; the image must be built and published again where its Dockerfile changes"
    assert names_of(folder) == {*files, "record.json"}
    for name, text in files.items():
        assert (folder / name).read_text(encoding="utf-8") == text, (
            f"{folder.name}/{name} is not what is rendered now: {hint}"
        )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_no_address_and_no_path_of_a_machine(folder):
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!json-schema)", text), path.name
        assert not re.search(r"(?<![\w.])/(root|home/(?!cell)|work|Users)/", text), path.name


def test_the_index_lists_them():
    assert (IMAGES / "README.md").read_text(encoding="utf-8") == index_text(IMAGES)


def test_a_readme_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "README.md").write_text("# My images\n")

    with pytest.raises(UsageError, match=r"Cannot replace .*README\.md"):
        write_folder(tmp_path, None, None, ())

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("README.md", "# My images\n")]
