"""What code knows of a framework stands in its plugin, and nowhere else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import envsmith
from envsmith.frameworks import CORE, EXAMPLE, FRAMEWORKS, added_frameworks, frameworks_of
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import CellId, Request, short_names
from envsmith.model.component import Role
from envsmith.solver import solve

ROOT = Path(envsmith.__file__).parent
NAMES = re.compile("deepspeed|megatron|colossal", re.IGNORECASE)
# Help texts, examples of what may be typed and hints.
HELP_TEXTS = {"cli/explain.py", "cli/run.py", "cli/sources.py"}
PLUGINS = ("frameworks/", "agent/steps/")


def _strings(tree: ast.Module) -> set[str]:
    """Return the string constants that are not docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    constants = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docstrings)
    return {n.value for n in constants if isinstance(n.value, str)}


def test_no_module_outside_the_plugins_names_a_framework():
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    naming = {
        name
        for name, source in sources.items()
        if not name.startswith(PLUGINS)
        and NAMES.search(source)
        and any(NAMES.search(text) for text in _strings(ast.parse(source)))
    }
    assert naming <= HELP_TEXTS


def test_frameworks_are_registered_under_their_names():
    assert {name: framework.name for name, framework in FRAMEWORKS.items()} == {name: name for name in FRAMEWORKS}
    assert EXAMPLE in FRAMEWORKS


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_a_component_with_releases_and_rules(name):
    component = components().by_name[name]
    assert component.role is (Role.CORE if name == CORE else Role.FRAMEWORK)
    assert component.short == FRAMEWORKS[name].short
    matrix = ROOT.parent / "matrix"
    assert (matrix / "releases" / f"{name}.yaml").is_file()
    assert (matrix / "rules" / f"{name}.yaml").is_file()


def test_short_names_are_those_of_the_components():
    table = components().by_name
    spelt = short_names()
    assert {name: spelt.get(name, name.replace("-", "_")) for name in table} == {n: c.short for n, c in table.items()}
    assert len(set(spelt.values())) == len(spelt)


@pytest.mark.parametrize("name", added_frameworks())
def test_a_cell_id_spells_the_framework_short_and_is_read_back(name):
    cell = CellId(((name, "1.2"), ("torch", "2.13.0+cu130"), ("cuda", "13.0"), ("python", "3.12")))
    assert str(cell) == f"{FRAMEWORKS[name].short}1.2-torch2.13.0-cu130-py312"
    assert CellId.parse(str(cell)) == cell


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_step_begins_with_the_name_of_its_framework(name):
    steps = (*FRAMEWORKS[name].quick_steps, *FRAMEWORKS[name].steps)
    assert FRAMEWORKS[name].quick_steps
    assert all(step.name.startswith(f"{name} ") for step in steps)


def test_a_cell_that_adds_no_framework_is_one_of_its_core():
    assert frameworks_of(["torch", "cuda", "numpy"]) == ("torch",)
    assert frameworks_of(["deepspeed", "torch", "accelerate"]) == ("deepspeed", "accelerate")
    assert frameworks_of(["cuda"]) == ()


def test_asking_for_the_core_gives_the_cell_that_asking_for_its_release_gives():
    both = Request(frameworks={"torch": ">=2.9"}, constraints={"torch": "<2.12"})
    assert solve(both).cell == solve(Request(constraints={"torch": ">=2.9,<2.12"})).cell
    assert solve(both).cell.frameworks == ("torch",)


def test_the_package_imports_nothing_heavy():
    heavy = ("yaml", "packaging", "networkx", "click", "envsmith.model", "envsmith.knowledge.graph")
    code = f"import sys, envsmith.frameworks; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
