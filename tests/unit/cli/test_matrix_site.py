"""``envsmith matrix site --open``: the page is made and shown; where no browser is, its place is said."""

from __future__ import annotations

import types

import pytest
from click.testing import CliRunner

from envsmith.cli import site


@pytest.fixture
def launched(monkeypatch):
    """Makes no page: what would be shown is noted, and the browser's exit code is the first of ``codes``."""
    shown, codes = [], [0]
    monkeypatch.setattr(site, "read_page", lambda _root: types.SimpleNamespace(records=()))
    monkeypatch.setattr(site, "write_all", lambda *_a, **_k: 1)
    monkeypatch.setattr(site, "FIRST", ())
    monkeypatch.setattr(site.click, "launch", lambda place: shown.append(place) or codes[0])
    return types.SimpleNamespace(shown=shown, codes=codes)


def _site(folder, *arguments):
    return CliRunner().invoke(site.site, ["--output", str(folder / "page"), *arguments], standalone_mode=False)


def test_the_page_is_shown_only_when_that_is_asked(launched, tmp_path):
    _site(tmp_path)
    assert launched.shown == []

    _site(tmp_path, "--open")

    assert launched.shown == [str(tmp_path / "page" / "index.html")]


def test_without_a_browser_the_file_is_named(launched, tmp_path):
    launched.codes[0] = 1

    result = _site(tmp_path, "--open")

    assert str(tmp_path / "page" / "index.html") in result.stdout
    assert "no browser" in result.stderr
