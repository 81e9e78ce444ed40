"""Which requirements the graph decides, and which the package resolver."""

from __future__ import annotations

from envsmith.knowledge.graph.load import version_graph
from envsmith.model.cell import Platform
from envsmith.project.demand import Demands, parse_line
from envsmith.project.division import divide


def _divide(*lines, named=(), bounds=(), **further):
    demands = [parse_line(line, f"r.txt:{number}") for number, line in enumerate(lines, 1)]
    demands += [parse_line(line, f"c.txt:{number}", is_bound=True) for number, line in enumerate(bounds, 1)]
    return divide(Demands(demands=tuple(demands), **further), named, version_graph(), Platform.LINUX_64)


def test_a_component_is_narrowed_with_the_place_and_the_resolver_checks_it_again():
    division = _divide("torch>=2.4", "wandb", "torch<2.10")
    spec, where = division.narrowed["torch"]
    assert (spec.text, where) == (">=2.4,<2.10", "r.txt:1 and r.txt:3")
    assert division.packages == ("torch<2.10", "torch>=2.4", "wandb")
    assert division.origins["wandb"] == "r.txt:2"


def test_a_marker_of_another_platform_leaves_a_requirement_out():
    assert _divide("triton ; sys_platform == 'win32'").packages == ()


def test_a_marker_of_some_pythons_is_the_resolver_s_alone():
    division = _divide("numpy<2 ; python_version < '3.12'")
    assert division.packages == ('numpy<2; python_version < "3.12"',)
    assert division.narrowed == {}


def test_a_release_that_the_graph_does_not_know_is_the_resolver_s_unless_every_cell_has_the_component():
    division = _divide("peft==99.9", "torch==99.9")
    assert set(division.narrowed) == {"torch"}


def test_a_bound_narrows_a_component_that_is_there_and_installs_none():
    division = _divide("peft", bounds=("peft<0.17", "trl<1", "torch<2.9"))
    assert {name: spec.text for name, (spec, _) in division.narrowed.items()} == {"peft": "<0.17", "torch": "<2.9"}
    assert division.packages == ("peft",)
    assert ("trl<1", "c.txt:2") in division.bounds


def test_a_named_build_of_torch_is_the_solver_s_because_the_default_index_does_not_spell_it():
    division = _divide("torch==2.9.1+cu128")
    assert division.packages == ()
    assert division.narrowed["torch"][0].text == "==2.9.1+cu128"


def test_the_cuda_of_an_index_counts_unless_the_request_names_it():
    cuda = (("12.8", "r.txt:9"),)
    assert _divide("torch", cuda=cuda).narrowed["cuda"][0].contains("12.8")
    assert "cuda" not in _divide("torch", cuda=cuda, named=("cuda",)).narrowed
