"""The probe: a distribution of envsmith's own files, without requirements, for the environment that trains."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a person of the training environment calls.
DOORS = ("envsmith.preflight.__main__", "envsmith.launch.run.__main__", "envsmith.launch.run.hook.sitecustomize")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT / "probe",
        check=True,
        capture_output=True,
    )
    return next(folder.glob("envsmith_probe-*.whl"))


def test_it_holds_what_its_doors_import_and_no_other_module(wheel):
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if name.endswith(".py")}

    assert modules == {str(path.relative_to(ROOT)) for path in _reached(DOORS)}


def test_its_files_are_those_of_envsmith(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name.startswith("envsmith/")}

    assert "envsmith/preflight/known.json" in files
    assert all(content == (ROOT / name).read_bytes() for name, content in files.items())


def test_it_is_small_and_requires_nothing(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()

    assert wheel.stat().st_size < 300_000
    assert "Requires-Dist" not in metadata
    assert "Requires-Python: >=3.9" in metadata


@pytest.mark.parametrize("door", ["envsmith.preflight", *DOORS[:2]])
def test_it_works_with_the_standard_library_alone(wheel, door):
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import {door} as door; print(door.__file__)"

    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(wheel))


def test_a_launch_is_watched_with_the_standard_library_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    watch = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from envsmith.launch.run.__main__ import main; main()"
    rank = f"RANK=0 WORLD_SIZE=1 {sys.executable} -c 'raise SystemExit(3)'; exit 3"

    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", watch, "--evidence", str(tmp_path), "--", "sh", "-c", rank],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "envsmith run: the launch of 1 rank ended with exit code 3" in ran.stderr
    assert list(tmp_path.glob("evidence-*.jsonl"))


def test_its_modules_run_on_python_3_9():
    import vermin

    too_new = {}
    for path in _reached(DOORS):
        source = path.read_text(encoding="utf-8")
        config = vermin.Config()
        config.set_eval_annotations(False)
        least = vermin.detect(source, config=config)[1]
        if least is not None and least > (3, 9):
            too_new[str(path.relative_to(ROOT))] = least
        # vermin does not see these.
        unions = [node for node in ast.walk(ast.parse(source)) if _asks_for_a_union(node)]
        if unions:
            too_new[str(path.relative_to(ROOT))] = f"isinstance with | in line {unions[0].lineno}"
    assert too_new == {}


def _asks_for_a_union(node):
    is_question = isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"isinstance", "issubclass"}
    return is_question and isinstance(node.args[1], ast.BinOp)


def _reached(doors):
    """The files that these modules import, those inside functions too, and not those for types."""
    files, waiting = set(), list(doors)
    while waiting:
        spec = importlib.util.find_spec(waiting.pop())
        path = Path(spec.origin)
        if path in files:
            continue
        files.add(path)
        waiting += [spec.name.rpartition(".")[0]] if "." in spec.name else []
        waiting += _imports(ast.parse(path.read_text(encoding="utf-8")))
    return files


def _imports(tree):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envsmith"):
            yield node.module
            yield from (name for each in node.names if _is_module(name := f"{node.module}.{each.name}"))
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("envsmith"))
        yield from _imports(node)


def _is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
