"""A base image made from a root file system: its id, its stream, and the tool that makes the root."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile

import pytest

from envsmith.builder.engines.bases import Bases
from envsmith.errors import BuildError, EngineError, UsageError
from envsmith.knowledge.graph.fields import load_table
from envsmith.model.cell import Platform

INCLUDE = ("ca-certificates", "python3")


@pytest.fixture
def tool(load_file):
    return load_file("tools/base_image.py")


def root(tmp_path, data=b"file system"):
    path = tmp_path / "root.tar"
    path.write_bytes(data)
    return path


def test_the_image_id_is_known_before_loading_and_is_the_configuration_s(tool, tmp_path):
    image_id, chunks = tool.archive(root(tmp_path), "envsmith/base:bookworm-{id}", Platform.LINUX_64)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar}
    manifest = json.loads(files["manifest.json"])[0]
    config = files[manifest["Config"]]
    assert image_id == f"sha256:{hashlib.sha256(config).hexdigest()}"
    assert manifest["RepoTags"] == [f"envsmith/base:bookworm-{image_id[7:19]}"]
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(files['layer.tar']).hexdigest()}"]


def test_the_same_file_system_is_the_same_image(tool, tmp_path):
    one, _ = tool.archive(root(tmp_path), "a:{id}", Platform.LINUX_64)
    two, _ = tool.archive(root(tmp_path), "a:{id}", Platform.LINUX_64)
    other, _ = tool.archive(root(tmp_path, b"another"), "a:{id}", Platform.LINUX_64)
    assert one == two != other


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 3_000_000])
def test_the_stream_is_a_whole_archive_for_any_size(tool, size, tmp_path):
    _, chunks = tool.archive(root(tmp_path, b"x" * size), "a:{id}", Platform.LINUX_64)
    data = b"".join(chunks)
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.extractfile("layer.tar").read()) == size


def mmdebstrap(tmp_path, monkeypatch, body):
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "mmdebstrap"
    path.write_text(
        f"#!{sys.executable}\nimport sys, os\nout = next(a for a in sys.argv if a.endswith('.partial'))\n{body}\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_root_appears_under_its_name_only_when_it_is_whole(tool, tmp_path, monkeypatch, events):
    mmdebstrap(tmp_path, monkeypatch, "open(out, 'w').write(os.environ['SOURCE_DATE_EPOCH']); print('I: done')")
    tool.make_root("bookworm", INCLUDE, tmp_path / "root.tar", events)
    assert (tmp_path / "root.tar").read_text() == "1735689600"
    assert events.kinds("base image of bookworm") == ["start", "line", "done"]


def test_a_failing_tool_leaves_nothing_and_shows_its_last_lines(tool, tmp_path, monkeypatch, events):
    mmdebstrap(tmp_path, monkeypatch, "open(out, 'w').write('half'); print('E: cannot fetch'); sys.exit(1)")
    with pytest.raises(BuildError) as caught:
        tool.make_root("bookworm", INCLUDE, tmp_path / "root.tar", events)
    assert caught.value.details == ("E: cannot fetch",)
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


def test_without_a_tool_the_error_says_what_to_install(tool, tmp_path, monkeypatch, events):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError) as caught:
        tool.make_root("bookworm", INCLUDE, tmp_path / "root.tar", events)
    assert "mmdebstrap" in caught.value.hint
    assert "--base" in caught.value.hint


@pytest.mark.parametrize("name", ["x; rm -rf /", "--customize-hook=id", "a b", "$(id)"])
def test_a_hostile_package_never_reaches_the_tool(tool, name, tmp_path, monkeypatch, events):
    mmdebstrap(tmp_path, monkeypatch, f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UsageError):
        tool.make_root("bookworm", (name,), tmp_path / "root.tar", events)
    assert not (tmp_path / "ran").exists()


def test_a_measured_row_reads_back_as_a_row_of_the_bases(tool, tmp_path):
    closure = {"libc6": "2.36-9+deb12u14", "g++": "4:12.2.0-3", **{f"package-{n}": "1.0" for n in range(40)}}
    rows = tool._row("bookworm", Platform.LINUX_AARCH64, "c++", ["g++"], closure)
    head = "evidence:\n  apt-bookworm: {kind: measured, source: x, date: 2026-11-21}\nimages: []\ndistributions: []\npackages:\n"
    (tmp_path / "bases.yaml").write_text(head + "\n".join(rows) + "\n")
    (row,) = load_table(Bases, "bases.yaml", tmp_path).packages
    assert (row.need, row.platform, row.install, dict(row.closure)) == ("c++", "linux-aarch64", ("g++",), closure)
    assert max(map(len, rows)) <= 160
