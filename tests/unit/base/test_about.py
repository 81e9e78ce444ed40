"""What envsmith says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.base import about
from envsmith.base.about import DISTRIBUTION, VERSION, command_for

_ROOT = Path(__file__).parents[3]


class _Copy:
    def __init__(self, **texts: str) -> None:
        self.texts = {name.replace("_", "."): text for name, text in texts.items()}

    def read_text(self, name: str) -> str | None:
        return self.texts.get(name.replace("_", "."))


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ({}, "pip install 'envsmith-train[zstd]'"),
        ({"url": "file:///a%20b/src", "dir_info": {"editable": True}}, "pip install -e '/a b/src[zstd]'"),
        ({"url": "file:///x/e.whl", "archive_info": {}}, "pip install '/x/e.whl[zstd]'"),
        (
            {"url": "https://h/e", "vcs_info": {"vcs": "git", "commit_id": "1a"}},
            "pip install 'envsmith-train[zstd] @ git+https://h/e@1a'",
        ),
    ],
)
def test_the_command_for_an_extra_names_the_copy_that_is_installed(address, command, monkeypatch):
    copy = _Copy(direct_url_json=json.dumps(address), INSTALLER="pip\n")
    monkeypatch.setattr(about.metadata, "distribution", lambda _name: copy)
    assert command_for("zstd") == command


def test_the_distribution_has_the_name_and_version_of_pyproject():
    lines = (_ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f'name = "{DISTRIBUTION}"') for line in lines)
    assert f'version = "{VERSION}"' in lines


def test_no_page_hint_or_workflow_installs_the_package_of_another_author():
    files = [_ROOT / "README.md", _ROOT / "action.yml", *(_ROOT / ".github").rglob("*.yml")]
    files += [*(_ROOT / "docs").rglob("*.md"), *(_ROOT / "envsmith").rglob("*.py")]
    install = ("pip install envsmith", "pip install 'envsmith[", "pip install --no-deps envsmith", "uvx envsmith")
    named = [
        str(path.relative_to(_ROOT))
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(words in line.replace(DISTRIBUTION, "") for words in install)
    ]
    assert named == []
