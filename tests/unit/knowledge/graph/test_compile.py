"""The mask of a spec over a component's versions says what the spec says of each of them."""

from __future__ import annotations

import pytest

from envsmith.knowledge.graph.compile import _Listed, sort_versions
from envsmith.model.version import Spec

LISTED = """cpu none 0 0.9 1 1.0.0 1.0.1 1.0.post1 1.1rc1 1.1rc1.dev3 1.1 1.1+cu118 1.1+cu121 1.1.dev2 1.1.0.post2 1.2a1
    1.2 1.10 1.10.0rc0.dev7 1.10.0rc0 1.10.0 1.10.1 2 2.0.1 2.1 2.1+cpu 2.9.1+cu128 2024.1 1!0.5 1!1.1 sm_70 sm_90 sm_103"""
VERSIONS = tuple(sort_versions(LISTED.split()))
OWN = "0 1 1.0 1.1 1.1rc1 1.1rc1.dev3 1.1.0.post2 1.1.dev2 1.10.0rc0 1.10 2.1 1!1 3"
NUMBERS = OWN.split()
SPECS = """*; none; cpu || >=1.1,<2; ==1.1+cu118; !=1.1+cu118; ==1.*; ==1.0.*; !=1.10.*; ==1!1.*; 1; 1.1; 1.1.0;
    >=1.1,!=1.10.*,<2.1; ==sm_90; >=sm_70,<sm_103; ~=1.10.0; ~=1.1rc1; ~=1.1.0.post2"""


@pytest.mark.parametrize(
    ("operator", "number"),
    [(o, n) for o in ("<", "<=", ">", ">=", "==", "!=", "~=") for n in NUMBERS if o != "~=" or "." in n],
)
def test_mask_of_a_clause_over_many_kinds_of_versions(operator: str, number: str) -> None:
    spec = Spec.parse(f"{operator}{number}")

    mask = _Listed(VERSIONS).mask(spec)

    assert _named(mask) == [version for version in VERSIONS if spec.contains(version)]


@pytest.mark.parametrize("text", [text.strip() for text in SPECS.split(";")])
def test_mask_of_a_spec_over_many_kinds_of_versions(text: str) -> None:
    spec = Spec.parse(text)

    assert _named(_Listed(VERSIONS).mask(spec)) == [version for version in VERSIONS if spec.contains(version)]


def _named(mask: int) -> list[str]:
    return [version for i, version in enumerate(VERSIONS) if mask >> i & 1]
