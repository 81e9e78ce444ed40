"""Names of wheels, with and without the label of a variant. The examples are those of PEP 825."""

from __future__ import annotations

import pytest
from packaging.utils import InvalidWheelFilename

from envsmith.model.wheel_name import read_wheel_name, variant_of

PLAIN = "numpy-2.3.2-cp313-cp313t-musllinux_1_2_x86_64"


@pytest.mark.parametrize(
    ("filename", "variant", "build"),
    [
        (f"{PLAIN}.whl", "", ()),
        (f"{PLAIN}-x86_64_v3.whl", "x86_64_v3", ()),
        (f"{PLAIN}-null.whl", "null", ()),
        ("numpy-2.3.2-1-cp313-cp313t-musllinux_1_2_x86_64.whl", "", (1, "")),
        ("numpy-2.3.2-1a-cp313-cp313t-musllinux_1_2_x86_64-cu12.8.whl", "cu12.8", (1, "a")),
    ],
)
def test_the_label_is_the_last_part_and_never_the_build(filename, variant, build):
    name = read_wheel_name(filename)

    assert (name.project, str(name.version), name.variant, name.build) == ("numpy", "2.3.2", variant, build)
    assert {str(tag) for tag in name.tags} == {"cp313-cp313t-musllinux_1_2_x86_64"}


@pytest.mark.parametrize(
    "filename", [f"{PLAIN}-CU128.whl", f"{PLAIN}-{'a' * 17}.whl", f"{PLAIN}-a-b.whl", "numpy-2.3.2.tar.gz", ""]
)
def test_what_is_not_the_name_of_a_wheel_is_refused_and_has_no_variant(filename):
    with pytest.raises(InvalidWheelFilename):
        read_wheel_name(filename)
    assert variant_of(filename) == ""
