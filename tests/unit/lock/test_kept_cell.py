"""Whether what was pinned is the cell."""

from __future__ import annotations

import dataclasses

import pytest
from lock_helpers import component

from envsmith.lock.kept_cell import differences
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Artifact, Pin


def _pins(versions: dict[str, str]) -> list[Pin]:
    return [
        Pin(name=name, version=version, layer="torch", artifacts=(Artifact(filename="a-1.whl", sha256="0" * 64),))
        for name, version in versions.items()
    ]


@pytest.mark.parametrize(
    ("components", "pinned", "lines"),
    [
        ({"driver": "580", "torch": "2.9.1"}, {"torch": "2.8.0"}, ["torch: the cell says 2.9.1, the resolver pinned torch 2.8.0"]),
        ({"torch": "2.9.1", "unknown": "1", "numpy": "1.0"}, {"numpy": "1.0.0"}, ["torch: the cell says 2.9.1, the resolver pinned none"]),
        ({"torch": "2.9.1", "numpy": "1.26"}, {"torch": "2.9.1", "numpy": "1.26.0"}, []),
        ({"torch": "2.9.1", "numpy": "none"}, {"torch": "2.9.1", "numpy": "2.0"}, ["numpy: the cell says none, the resolver pinned numpy 2.0"]),
        ({"torch": "2.9.1", "numpy": "odd one"}, {"torch": "2.9.1", "numpy": "odd one"}, []),
        ({"torch": "2.9.1", "numpy": "odd one"}, {"torch": "2.9.1", "numpy": "2"}, ["numpy: the cell says odd one, the resolver pinned numpy 2"]),
    ],
)  # fmt: skip
def test_each_component_that_was_pinned_otherwise_is_named(cell, table, components, pinned, lines):
    other = dataclasses.replace(cell, components=components, chosen=tuple(components))
    known = (
        ComponentTable([*table, component("numpy", Role.COMPANION, "numpy")]) if "numpy" not in table.by_name else table
    )

    assert list(differences(other, _pins(pinned), known)) == lines
