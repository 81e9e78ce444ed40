"""Against the real package index, when asked: three torch wheels at random are measured again, and nothing differs from the YAML."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from envsmith.base.schema import parse_value
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.torch_wheel import TorchFacts, linux_wheels, read_torch_wheel
from envsmith.matrix.refresh.updates import open_context, plan_refresh
from envsmith.model.cell import Platform
from envsmith.net.http import HttpClient

pytestmark = [pytest.mark.integration, pytest.mark.network]

ROOT = Path(__file__).parents[2]
WHEELS = [
    parse_value(TorchFacts, w)
    for w in json.loads((ROOT / "tests/cases/wheels/torch.json").read_text(encoding="utf-8"))["wheels"]
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return PackageIndex(HttpClient(cache=tmp_path_factory.mktemp("cache"), jobs=2), find_index())


@pytest.mark.parametrize("wheel", random.Random().sample(WHEELS, 3), ids=lambda w: f"{w.version}-{w.platform}")
def test_a_wheel_measured_again_says_what_was_recorded(index, wheel):
    files = linux_wheels(index.project("torch").releases()[wheel.version])[Platform(wheel.platform)]
    file = next(f for f in files if f.sha256 == wheel.sha256)
    assert read_torch_wheel(index.fetcher, file, files, Platform(wheel.platform)) == wheel


def test_a_run_right_after_a_refresh_finds_nothing_and_opens_no_artifact(tmp_path):
    """The committed YAML may be older than today's index, so the first run is applied to a copy."""
    import shutil

    from envsmith.matrix.refresh.updates import apply

    copy = tmp_path / "project" / "matrix"
    shutil.copytree(ROOT / "matrix", copy)

    def refresh():
        context = open_context(copy, cache=tmp_path / "cache", jobs=2)
        return plan_refresh(copy, context, components=["torch", "numpy"])

    apply(refresh().changes)
    again = refresh()
    assert (again.changes, again.problems, again.requests) == ((), (), 0)
