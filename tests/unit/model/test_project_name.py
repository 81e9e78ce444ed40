"""Names of distributions in the spelling of an index."""

from __future__ import annotations

import pytest
from packaging.utils import canonicalize_name

from envsmith.model.project_name import normal_name


@pytest.mark.parametrize(
    "name", ["Pillow", "ruamel.yaml.clib", "zope__interface", "a-_.b", "torch", "NVIDIA_nccl-cu12"]
)
def test_a_name_is_spelled_as_packaging_spells_it(name: str) -> None:
    assert normal_name(name) == canonicalize_name(name)
