"""Wheels whose RECORD does not know their own files."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from envsmith.builder.engines.published import is_published
from envsmith.errors import NetworkError
from envsmith.model.lock import Artifact, Pin

DIGEST = hashlib.sha256(b"repaired").hexdigest()


def a_pin() -> Pin:
    files = tuple(Artifact(filename=name, sha256="a" * 64) for name in ("odd-1.2.tar.gz", "odd-1.2-py3-none-any.whl"))
    return Pin(name="odd", version="1.2", layer="framework", artifacts=files)


def a_wheel(_name: str, artifact: Artifact) -> bytes:
    assert artifact.filename.endswith(".whl")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("odd/a.so", b"repaired")
    return data.getvalue()


@pytest.mark.parametrize(
    ("digests", "expected"),
    [({"odd/a.so": DIGEST}, True), ({"odd/a.so": "b" * 64}, False), ({"odd/b.so": DIGEST}, False)],
    ids=["the wheel's own", "changed after it", "not in it"],
)
def test_file_is_published_where_the_wheel_has_the_same(digests, expected):
    assert is_published(a_pin(), digests, a_wheel) == expected


def test_wheel_that_cannot_be_had_or_read_vouches_for_nothing():
    def unreachable(_name: str, _artifact: Artifact) -> bytes:
        raise NetworkError("Cannot read odd: no network.")

    assert not is_published(a_pin(), {"odd/a.so": DIGEST}, unreachable)
    assert not is_published(a_pin(), {"odd/a.so": DIGEST}, lambda _name, _artifact: b"no wheel")
