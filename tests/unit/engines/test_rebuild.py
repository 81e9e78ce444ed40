"""A published image against a rebuild, with a pretended engine: what is fetched, what is told, and when it is built."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from envsmith.engines import rebuild
from envsmith.errors import EngineError

PUBLISHED = "sha256:" + "1" * 64


class Engine:
    """An engine that makes images; ``gives`` is the identity of a rebuild."""

    name = "pretended"

    def __init__(self, gives=PUBLISHED):
        self.gives, self.done = gives, []

    @property
    def images(self):
        return self

    def build_again(self, lock, layout, *, progress=None):
        self.done.append(layout.name)
        return SimpleNamespace(identity=self.gives)


def never(_folder):
    raise AssertionError("gigabytes were fetched for nothing")


def test_the_published_image_is_not_fetched_while_the_digests_agree(locks, tmp_path):
    engine = Engine()

    report = rebuild.rebuild(locks.megatron(), PUBLISHED, never, tmp_path, engine=engine)

    assert (report.same, report.second, report.differences) == (True, PUBLISHED, ())
    assert engine.done == ["oci"]


def test_another_digest_is_explained_by_file(locks, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(rebuild, "difference", lambda *images: seen.append(images) or ("layer 2: /x: content",))
    engine = Engine(gives="sha256:" + "3" * 64)

    report = rebuild.rebuild(locks.megatron(), PUBLISHED, lambda _folder: "first", tmp_path, engine=engine)

    assert not report.same
    assert report.differences == ("layer 2: /x: content",)
    assert [(one, two.identity) for one, two in seen] == [("first", engine.gives)]


def test_an_engine_without_images_is_refused(locks, tmp_path):
    from envsmith.engines.venv import VenvEngine

    with pytest.raises(EngineError, match="makes no images"):
        rebuild.rebuild(locks.megatron(), PUBLISHED, never, tmp_path, engine=VenvEngine())
