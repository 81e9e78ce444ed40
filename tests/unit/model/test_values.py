"""Values: parsed once; text and value are inverse."""

from __future__ import annotations

import pytest

from envsmith.graph.load import components
from envsmith.model.cell import CellId, Platform
from envsmith.model.version import Spec, parse_version


@pytest.mark.parametrize(
    ("spec", "version", "inside"),
    [
        ("2.4", "2.4.1+cu121", True),
        ("2.4", "2.5.0", False),
        ("2.4.1", "2.4.1+cu121", True),
        ("2.9.1+cu126", "2.9.1+cu128", False),
        (">=2.9", "2.9.1+cu128", True),
        ("<=2.5.1", "2.5.1+cu124", True),
        (">=sm_80", "sm_103", True),
        ("sm_90", "sm_89", False),
        ("cpu", "cpu", True),
        ("==12.*", "cpu", False),
        ("<2.4 || ==2.5.1", "2.5.1", True),
        ("*", "none", True),
        ("535", "535.54.03", True),
    ],
)
def test_a_spec_contains_what_people_mean(spec, version, inside):
    assert Spec.parse(spec).contains(version) is inside
    assert Spec.parse(str(Spec.parse(spec))) == Spec.parse(spec)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("*", ">=2", ">=2"),
        (">=2", "*", ">=2"),
        (">=2,<3", ">=2.4", ">=2,<3,>=2.4"),
        (">=1,<2 || >=3", "!=3.1", ">=1,<2,!=3.1 || >=3,!=3.1"),
    ],
)
def test_two_specs_meet_in_what_satisfies_both(one, other, both):
    assert str(Spec.parse(one).meet(Spec.parse(other))) == both


@pytest.mark.parametrize("text", [">=two", "|| 2", "2.4;x", "$(x)", ">=1" * 200, "==1.*,!!"])
def test_a_malformed_spec_is_refused(text):
    with pytest.raises(ValueError):
        Spec.parse(text)


@pytest.mark.parametrize("text", ["", "new", "1.0\n", "2.0 && rm", "x" * 100])
def test_a_malformed_version_is_refused(text):
    if text == "1.0\n":
        assert parse_version(text) == "1.0"
        return
    with pytest.raises(ValueError):
        parse_version(text)


@pytest.mark.parametrize(
    "text",
    [
        "ds0.19.8-torch2.13.0-cu130-py312",
        "ca0.5.0-torch2.5.1-cpu-py310-aarch64",
        "mc0.19.2-torch2.15.0-cu132-py313-te2.9.0-transformers4.51.3",
        "ds0.16.4-mc0.12.0-torch2.6.0-cu124-py39",
    ],
)
def test_a_cell_id_parses_and_prints_back(text):
    assert str(CellId.parse(text)) == text


def test_a_cell_id_gives_its_components_back():
    cell = CellId.parse("ds0.19.8-torch2.13.0-cu130-py312-aarch64")
    assert dict(cell.components) == {"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"}
    assert cell.platform is Platform.LINUX_AARCH64


@pytest.mark.parametrize("text", ["", "nonsense", "ds-torch", "ds0.19.8;torch2", "ds0.19.8-torch"])
def test_what_is_no_cell_id_is_refused(text):
    with pytest.raises(ValueError):
        CellId.parse(text)


def test_every_component_is_spelt_in_an_id_as_the_table_says():
    for component in components().by_name.values():
        cell = CellId(((component.name, "1.2"),))
        if component.name not in {"cuda", "python", "torch"}:
            assert str(cell) == f"{component.short}1.2", component.name
            assert CellId.parse(str(cell)) == cell
