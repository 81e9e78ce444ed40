"""A refresh reads in the compiled files of a wheel for which numpy they were built, and writes it as a rule."""

from __future__ import annotations

import pytest

from envsmith.matrix.refresh.array_abi import update_arrays
from envsmith.matrix.refresh.shared import RefreshRun

OLD, NEW = (
    b"\x7fELF numpy.core._multiarray_umath",
    b"\x7fELF numpy._core._multiarray_umath numpy.core._multiarray_umath",
)


@pytest.fixture
def publish(world, make_wheel):
    def publish_(version, *files):
        members = {f"pandas/_libs/{at}.so": content for at, content in enumerate(files)}
        name = f"pandas-{version}-cp311-cp311-manylinux_2_17_x86_64.whl"
        world.publish("pandas", name, make_wheel(members), "2026-12-01")

    return publish_


@pytest.fixture
def context(index, tmp_path):
    return RefreshRun(index=index, components=None, today="2026-12-03", cache=tmp_path)


def records(*versions, numpy=">=1.20"):
    return [{"version": version, "requires": {"numpy": numpy}} for version in versions]


def test_releases_built_for_numpy_1_are_a_rule(publish, context):
    publish("2.0.0", b"\x7fELF", OLD)
    publish("2.1.0", OLD)
    publish("2.2.0", NEW)

    text, summary = update_arrays(None, "pandas", records("2.0.0", "2.1.0", "2.2.0"), context)

    assert '- {when: {pandas: ">=2.0.0,<=2.1.0", numpy: ">=2"}}' in text
    assert '# both: pandas: "2.2.0"' in text
    assert "pandas 2.0.0: built for numpy: one" in summary


def test_what_was_measured_is_not_read_again(publish, context):
    publish("2.0.0", OLD)
    publish("2.2.0", NEW)
    text, _ = update_arrays(None, "pandas", records("2.0.0"), context)

    again, summary = update_arrays(text, "pandas", records("2.0.0", "2.2.0"), context)

    assert summary == ["pandas 2.2.0: built for numpy: both"]
    assert '- {when: {pandas: "==2.0.0", numpy: ">=2"}}' in again


def test_a_release_whose_metadata_admits_no_numpy_2_is_not_measured(publish, context):
    publish("2.2.0", OLD)
    assert update_arrays(None, "pandas", records("2.2.0", numpy="<2,>=1.22"), context) == (None, [])


def test_a_wheel_that_takes_nothing_from_numpy_is_no_rule(publish, context):
    publish("2.0.0", b"\x7fELF")
    text, _ = update_arrays(None, "pandas", records("2.0.0"), context)
    assert '# none: pandas: "2.0.0"' in text
    assert "when:" not in text
