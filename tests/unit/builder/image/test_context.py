"""The folder that is sent to a build: archives of the user's are in it for the one step that compiles them."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import pytest
from lock_helpers import pinned_in

from envsmith.builder.image.context import write_context
from envsmith.errors import ContentError
from envsmith.lock.pip_files import requirement_files
from envsmith.model.lock import Artifact


@pytest.fixture
def lock(locks, tmp_path):
    """A lock whose compiled source is a file of this host, given by the user."""
    archive = tmp_path / "mine.tar.gz"
    archive.write_bytes(b"archive")
    artifact = Artifact(
        filename="flash_attn-2.8.3.tar.gz", sha256=hashlib.sha256(b"archive").hexdigest(), url=archive.as_uri()
    )
    lock = locks.compiled()
    pins = tuple(dataclasses.replace(p, artifacts=(artifact,)) if p.name == "flash-attn" else p for p in lock.pins)
    return dataclasses.replace(
        lock, pins=pins, compiled=(dataclasses.replace(lock.compiled[0], archive="file"),), wheels=lock.wheels
    )


def test_an_archive_that_was_given_is_among_the_sources_and_not_among_the_wheels(lock, tmp_path):
    (tmp_path / "context").mkdir()
    write_context(lock, tmp_path / "context", builder=True)
    assert (tmp_path / "context" / "sources" / "flash_attn-2.8.3.tar.gz").read_bytes() == b"archive"
    assert not (tmp_path / "context" / "wheels").exists()


def test_an_archive_that_changed_since_is_refused(lock, tmp_path):
    (tmp_path / "context").mkdir()
    (tmp_path / "mine.tar.gz").write_bytes(b"another")
    with pytest.raises(ContentError, match="the lock says"):
        write_context(lock, tmp_path / "context", builder=True)


def test_a_lock_alone_does_not_know_where_a_file_of_the_user_s_is(lock, tmp_path):
    (tmp_path / "context").mkdir()
    pins = tuple(
        dataclasses.replace(p, artifacts=tuple(dataclasses.replace(a, url=None) for a in p.artifacts))
        for p in lock.pins
    )
    with pytest.raises(ContentError, match="does not know where it is") as caught:
        write_context(dataclasses.replace(lock, pins=pins), tmp_path / "context", builder=True)
    assert "--source 'flash-attn@ARCHIVE#sha256=" in caught.value.hint


def test_the_address_in_the_lock_is_enough(lock, tmp_path, monkeypatch):
    (tmp_path / "context").mkdir()
    asked = []

    def fetch(name, artifact):
        asked.append((name, artifact.url))
        return b"archive"

    monkeypatch.setattr("envsmith.builder.image.context.fetch_archive", fetch)
    place = "https://host.example/fa.tar.gz"
    pins = tuple(
        dataclasses.replace(p, artifacts=tuple(dataclasses.replace(a, url=None) for a in p.artifacts))
        for p in lock.pins
    )
    compiled = (dataclasses.replace(lock.compiled[0], archive=place),)
    write_context(dataclasses.replace(lock, pins=pins, compiled=compiled), tmp_path / "context", builder=True)
    assert asked == [("flash-attn", place)]


def test_the_requirements_say_what_no_installer_will_find(lock):
    text = requirement_files(lock)["requirements.txt"]
    assert "# flash-attn is on no index" in text
    assert pinned_in(text)["flash-attn"][0] == "2.8.3"
    from_the_index = dataclasses.replace(lock, compiled=(dataclasses.replace(lock.compiled[0], archive=""),))
    text = requirement_files(from_the_index)["requirements.txt"]
    assert "no index" not in text
    assert "# flash-attn is compiled against torch: envsmith build does so." in text


@pytest.mark.parametrize("builder", [False, True])
@pytest.mark.parametrize("case", ["whole", "no torch", "no dependencies", "nothing built"])
def test_every_file_that_a_step_mounts_is_there(lock, tmp_path, case, builder):
    """BuildKit ends the build at the first that is not."""
    leave_out = {"no torch": "torch", "no dependencies": "einops"}.get(case)
    wheels = () if case == "nothing built" else lock.wheels
    compiled = () if case == "nothing built" else lock.compiled
    pins = tuple(p for p in lock.pins if p.name != leave_out and (compiled or p.name != "flash-attn"))
    folder = tmp_path / "context"
    folder.mkdir()
    write_context(dataclasses.replace(lock, pins=pins, wheels=wheels, compiled=compiled), folder, builder=builder)
    mounted = re.findall(r"type=bind,source=([^,]+),", (folder / "Dockerfile").read_text())
    assert mounted
    assert [name for name in mounted if not (folder / name).exists()] == []
