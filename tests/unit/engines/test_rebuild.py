"""A published image against a rebuild, with a pretended engine: what is fetched, what is told, and what base it stands on."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.engines import rebuild
from envsmith.engines.base import Built
from envsmith.engines.rebuild import rebuild_published
from envsmith.errors import EngineError

PUBLISHED = "sha256:" + "1" * 64


class Engine:
    """An engine that makes images and bases; ``gives`` is the digest that a rebuild has."""

    name = "pretended"

    def __init__(self, gives=PUBLISHED, *, base=None):
        self.gives, self.base, self.done = gives, base, []

    def build(self, lock, directory, *, progress=None, cache=True):
        self.done.append(("build", cache))
        return Built(digest="sha256:" + "2" * 64, kind="image", reference="x", python="/p")

    def manifest_digest(self, built, scratch, *, compress=False, progress=None):
        self.done.append(("digest", compress))
        return self.gives

    def export(self, built, directory, *, compress=False, progress=None):
        self.done.append(("export", compress))
        return "again"

    def discard(self, built):
        self.done.append(("discard", built.digest))

    # -- bases ---------------------------------------------------------------------------------------------------------

    def has_base(self, base):
        return self.base is None

    def base_for(self, python, wanted, *, progress):
        self.done.append(("base", python))
        return self.base

    def os_packages(self, base, install, *, progress):
        raise AssertionError("packages stand in the lock")


def never(_folder):
    raise AssertionError("gigabytes were fetched for nothing")


def test_the_published_image_is_not_fetched_while_the_digests_agree(locks, tmp_path):
    engine = Engine()
    report = rebuild_published(locks.megatron(), PUBLISHED, never, tmp_path, engine=engine, compress=True)
    assert (report.same, report.second, report.differences) == (True, PUBLISHED, ())
    assert [step for step, _ in engine.done] == ["build", "digest", "discard"]
    assert ("build", False) in engine.done
    assert ("digest", True) in engine.done


def test_another_digest_is_explained_by_file(locks, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(rebuild, "difference", lambda one, two: seen.append((one, two)) or ("layer 2: /x: content",))
    engine = Engine(gives="sha256:" + "3" * 64)
    report = rebuild_published(locks.megatron(), PUBLISHED, lambda _folder: "first", tmp_path, engine=engine)
    assert not report.same
    assert report.differences == ("layer 2: /x: content",)
    assert seen == [("first", "again")]
    assert engine.done[-1][0] == "discard"


def test_a_base_that_is_missing_is_made_again(locks, tmp_path):
    lock = locks.megatron()
    engine = Engine(base=lock.base)
    assert rebuild_published(lock, PUBLISHED, never, tmp_path, engine=engine).same
    assert engine.done[0] == ("base", "3.11")


def test_a_base_that_cannot_be_made_any_more_is_told_before_anything_is_built(locks, tmp_path):
    lock = locks.megatron()
    engine = Engine(base=dataclasses.replace(lock.base, digest="sha256:" + "7" * 64))
    with pytest.raises(EngineError, match="cannot be made any more") as caught:
        rebuild_published(lock, PUBLISHED, never, tmp_path, engine=engine)
    assert "docker load" in caught.value.hint
    assert [step for step, _ in engine.done] == ["base"]


def test_an_engine_without_images_is_refused(locks, tmp_path):
    from envsmith.engines.venv import VenvEngine

    with pytest.raises(EngineError, match="makes no images"):
        rebuild_published(locks.megatron(), PUBLISHED, never, tmp_path, engine=VenvEngine())
