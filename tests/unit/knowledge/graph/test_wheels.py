"""The catalogue of ready wheels, as files and as values."""

from __future__ import annotations

import pytest

from envsmith.errors import DataError
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.graph.wheel_files import PUBLISHERS_FILE, Publishers, WheelsFile
from envsmith.knowledge.graph.wheels import catalogued, ready_wheels

PUBLISHERS = """
distributions: [ext]
evidence:
  own: {kind: documented, source: "its setup.py", date: 2026-11-22}
publishers:
- {name: its/project, releases: "https://host.test/its/project", official: [ext], glibc: "2.32", evidence: own}
- {name: somebody/else, releases: "https://host.test/somebody/else", evidence: own}
"""
EXT = """
distribution: ext
evidence:
  lock: {kind: declared, source: "a lock", date: 2026-11-22}
requires:
- {versions: ["1.0"], requires: [torch], evidence: lock}
wheels:
- {by: its/project, tag: v1.0, file: "ext-1.0+cu12torch2.8-cp311-cp311-linux_x86_64.whl", version: "1.0", torch: "2.8", cuda: "12", sha256: "HEX", evidence: lock}
- {by: somebody/else, tag: v3, file: "ext-1.0+cu128-cp311-cp311-linux_x86_64.whl", version: "1.0+cu128", sha256: "HEX", evidence: lock}
""".replace("HEX", "a" * 64)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / PUBLISHERS_FILE).write_text(PUBLISHERS)
    (tmp_path / "wheels/ext.yaml").write_text(EXT)
    return tmp_path


def test_a_line_becomes_a_wheel_with_its_address_and_whose_it_is(root):
    own, other = ready_wheels("ext", root)

    assert own.address == "https://host.test/its/project/v1.0/ext-1.0%2Bcu12torch2.8-cp311-cp311-linux_x86_64.whl"
    assert (own.official, own.glibc, own.requires) == (True, "2.32", ("torch",))
    assert (other.official, other.glibc, other.requires) == (False, None, None)


def test_a_distribution_that_is_not_in_the_catalogue_has_no_wheels(root):
    assert ready_wheels("absent", root) == ()
    assert catalogued(root) == ("ext",)


def test_an_address_that_is_not_one_is_refused_with_its_key_path(root):
    path = root / PUBLISHERS_FILE
    path.write_text(PUBLISHERS.replace("https://host.test/its/project", "https://host.test/$(x)"))

    with pytest.raises(DataError) as error:
        ready_wheels("ext", root)

    assert "publishers[0].releases" in str(error.value.details)


def test_every_wheel_of_the_catalogue_has_a_known_publisher_and_one_place():
    publishers = load_table(Publishers, PUBLISHERS_FILE).publishers
    names = {p.name for p in publishers}

    for distribution in catalogued():
        lines = load_table(WheelsFile, f"wheels/{distribution}.yaml", find_matrix()).wheels
        assert {line.by for line in lines} <= names
        places = [(line.by, line.tag, line.file) for line in lines]
        assert len(places) == len(set(places))
        assert ready_wheels(distribution)


def test_the_catalogue_has_flash_attn_for_torch_2_8_with_cuda_12():
    fitting = [w for w in ready_wheels("flash-attn") if w.official and w.torch == "2.8" and w.requires]

    assert {w.filename.split("-")[2] for w in fitting} >= {"cp310", "cp311", "cp312", "cp313"}
