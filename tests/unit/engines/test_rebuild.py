"""A published image against a rebuild, with a pretended engine: what is fetched, what is told, and what base it stands on."""

from __future__ import annotations

import pytest

from envsmith.engines import rebuild
from envsmith.engines.base import Built
from envsmith.engines.rebuild import rebuild_published
from envsmith.errors import EngineError

PUBLISHED = "sha256:" + "1" * 64


class Engine:
    """An engine that makes images and bases; ``gives`` is the digest that a rebuild has."""

    name = "pretended"

    def __init__(self, gives=PUBLISHED, *, base=True):
        self.gives, self.base, self.done = gives, base, []

    @property
    def images(self):
        return self

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

    def has_base(self, _base):
        return self.base


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


def test_a_base_that_is_missing_is_told_before_anything_is_built(locks, tmp_path):
    engine = Engine(base=False)
    with pytest.raises(EngineError, match="is not in the engine") as caught:
        rebuild_published(locks.megatron(), PUBLISHED, never, tmp_path, engine=engine)
    assert "docker load" in caught.value.hint
    assert "tools/base_image.py" in caught.value.hint
    assert engine.done == []


def test_an_engine_without_images_is_refused(locks, tmp_path):
    from envsmith.engines.venv import VenvEngine

    with pytest.raises(EngineError, match="makes no images"):
        rebuild_published(locks.megatron(), PUBLISHED, never, tmp_path, engine=VenvEngine())
