"""Which file of a pin is installed."""

from __future__ import annotations

from envsmith.lock.index.wheel_tags import best_artifact, wheel_tags
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact, Pin

TAGS = list(wheel_tags(Platform.LINUX_64, "3.11", "2.35"))


def _best(*filenames):
    files = tuple(Artifact(filename=name, sha256="a" * 64, url=f"https://x.test/{name}") for name in filenames)
    artifact = best_artifact(Pin(name="x", version="1.0", layer="framework", artifacts=files), TAGS)
    return artifact and artifact.filename


def test_the_wheel_with_the_first_tag_is_chosen():
    assert _best("x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0.tar.gz") == (
        "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    )


def test_a_variant_is_not_chosen_in_place_of_the_plain_wheel():
    assert _best("x-1.0-cp311-cp311-linux_x86_64-cu128.whl", "x-1.0-py3-none-any.whl") == "x-1.0-py3-none-any.whl"


def test_of_variants_alone_none_is_chosen():
    assert _best("x-1.0-py3-none-any-cu128.whl", "x-1.0-py3-none-any-null.whl") is None
