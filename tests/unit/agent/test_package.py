"""What every module of the agent keeps to."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from envsmith import agent

FOLDER = Path(agent.__file__).parent


MODULES = sorted(FOLDER.rglob("*.py"))


def _imports(tree: ast.AST) -> set[str]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_module_of_the_agent_parses_as_python_3_9_and_needs_the_standard_library_and_its_own_package_only(path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    top = ast.Module(body=[node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)])
    outside = {name for name in _imports(top) if not name.startswith("envsmith.agent")}
    assert {name.partition(".")[0] for name in outside} <= set(sys.stdlib_module_names)
    assert not [name for name in _imports(tree) if name.startswith("envsmith") and name not in _imports(top)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_module_of_the_agent_can_be_read_on_two_screens(path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 500
    assert max(map(len, lines)) <= 120
