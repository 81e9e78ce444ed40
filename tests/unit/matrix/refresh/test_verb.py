"""The verb: dry by default, a diff on stdout, documented exit codes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from envsmith.cli import matrix as verb
from envsmith.errors import NetworkError
from envsmith.matrix.refresh import updates as module


@pytest.fixture
def run(knowledge, index, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796256000")  # 2026-12-02
    monkeypatch.setattr(module, "find_index", lambda: index.url)
    monkeypatch.setattr(module, "PackageIndex", lambda *_: index)

    def invoke(*words):
        return CliRunner().invoke(verb.matrix, ["refresh", "--matrix", str(knowledge), *words], standalone_mode=False)

    return invoke


def test_without_write_the_diff_is_shown_and_nothing_written(run, knowledge):
    before = (knowledge / "releases/torch.yaml").read_bytes()
    result = run("--component", "torch")
    assert result.return_value == 0, result.output
    assert '+- {version: "2.16.0+cu134"' in result.stdout
    assert "write with --write" in result.stderr
    assert (knowledge / "releases/torch.yaml").read_bytes() == before


def test_with_write_the_files_are_written_and_a_second_run_has_nothing_to_do(run, knowledge):
    assert run("--write").return_value == 0
    assert "2.16.0+cu134" in (knowledge / "releases/torch.yaml").read_text()
    assert "date: 2026-12-02" in (knowledge / "releases/torch.yaml").read_text()
    again = run("--write")
    assert (again.return_value, again.stdout) == (0, "")
    assert "nothing to do" in again.stderr


def test_what_could_not_be_read_is_a_network_failure_after_the_rest_was_written(run, world, knowledge):
    world.broken.add("https://index.test/files/torch-2.16.0-cp311-cp311-manylinux_2_28_aarch64.whl")
    result = run("--component", "torch", "--write")
    assert isinstance(result.exception, NetworkError)
    assert "2.16.0+cu134" in (knowledge / "releases/torch.yaml").read_text()


def test_an_escape_sequence_of_the_index_does_not_reach_the_terminal(run, world):
    for entry in world.pages["torch"]:
        entry["yanked"] = "\x1b[2J\x1b]0;owned\x07"
    result = run("--component", "torch")
    assert "\x1b" not in result.output
