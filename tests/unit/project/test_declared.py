"""What a library's own files declare (pyproject, setup.cfg, requirements, environment.yml, Poetry, METADATA), with file and line."""

from __future__ import annotations

import pytest

from envsmith.errors import DataError, UsageError
from envsmith.project.ci.library import ranges_of, read_library
from envsmith.project.declared import PYTHONS, read_declared, read_metadata

PYPROJECT = """
[project]
name = "mylib"
version = "1.2.0"
requires-python = ">=3.10"
dependencies = [
  "torch>=2.4,<2.13",
  "numpy>=1.24 ; python_version < '3.12'",
  "numpy>=1.26 ; python_version >= '3.12'",
  "pywin32 ; sys_platform == 'win32'",
  "broken >>= 3",
]
[project.optional-dependencies]
gpu = ["deepspeed>=0.15"]
dev = ["deepspeed==0.1.0"]
"""


def test_pyproject_lines_extras_and_markers(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    read = read_declared(tmp_path)
    assert (read.name, read.version, read.python) == ("mylib", "1.2.0", ">=3.10")
    assert read.python_at == ("pyproject.toml", 5)
    named = {(d.name, d.extra): d for d in read.requirements}
    assert named["torch", None].line == 7
    assert ("pywin32", None) not in named
    assert named["deepspeed", "gpu"].spec == ">=0.15"
    assert ("deepspeed", "dev") not in named
    assert [d.pythons for d in read.requirements if d.name == "numpy"][1] == tuple(
        p for p in PYTHONS if int(p[2:]) >= 12
    )
    assert any("broken" in line and "pyproject.toml:11" in line for line in read.skipped)
    ranges = ranges_of(read)
    assert ranges["numpy"].contains("1.24.0")
    assert not ranges["numpy"].contains("1.23.0")


def test_requirements_file(tmp_path):
    text = "# comment\n-r other.txt\ntorch==2.6.0 \\\n    --hash=sha256:00\nnumpy  # as is\n--index-url https://example.invalid/simple\n"
    (tmp_path / "requirements.txt").write_text(text, encoding="utf-8")
    read = read_declared(tmp_path)
    assert [(d.name, d.spec, d.line) for d in read.requirements] == [("torch", "==2.6.0", 3), ("numpy", "", 5)]


def test_setup_cfg(tmp_path):
    (tmp_path / "setup.cfg").write_text(
        "[metadata]\nname = old\n[options]\npython_requires = >=3.8\ninstall_requires =\n    torch>=2\n[options.extras_require]\nfast =\n    deepspeed<0.17\n",
        encoding="utf-8",
    )
    read = read_declared(tmp_path)
    assert (read.name, read.python) == ("old", ">=3.8")
    assert [(d.name, d.spec, d.extra, d.line) for d in read.requirements] == [
        ("torch", ">=2", None, 6),
        ("deepspeed", "<0.17", "fast", 9),
    ]


def test_environment_yml(tmp_path):
    (tmp_path / "environment.yml").write_text(
        "name: env\ndependencies:\n- python=3.11\n- pytorch=2.5\n- conda-forge::numpy >=1.26\n- pip:\n  - deepspeed==0.16.0\n",
        encoding="utf-8",
    )
    read = read_declared(tmp_path)
    assert read.python == "==3.11.*"
    assert {d.name: d.spec for d in read.requirements} == {
        "torch": "==2.5.*",
        "numpy": ">=1.26",
        "deepspeed": "==0.16.0",
    }


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        ("^2.1", "2.9.0", "3.0"),
        ("~2.1", "2.1.9", "2.2.0"),
        ("^0.15.1", "0.15.9", "0.16.0"),
        ("2.6.0", "2.6.0", "2.6.1"),
        (">=2,<2.5", "2.4", "2.5"),
        ("^2.4 || ~2.3.1", "2.3.1", "2.3.0"),
        ("^1.13 || ^2.0", "2.9", "3.0"),
        ("2.1.0 || >=2.4,<2.6", "2.5", "2.1.0"),
    ],
)
def test_poetry(tmp_path, spec, inside, outside):
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.poetry.dependencies]\npython = "^3.10"\ntorch = "{spec}"\n', encoding="utf-8"
    )
    read = read_declared(tmp_path)
    assert read.python == "<4,>=3.10"
    torch = ranges_of(read)["torch"]
    assert torch.contains(inside)
    assert not torch.contains(outside)


def test_of_poetry_s_ranges_with_a_gap_the_last_is_read_and_a_note_says_so(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.poetry.dependencies]\npython = "~2.7 || ^3.10"\ntorch = "2.1.0 || ^2.4"\n', encoding="utf-8"
    )
    read = read_declared(tmp_path)
    assert read.python == "<4,>=3.10"
    assert read.skipped == (
        "pyproject.toml:2: of '~2.7 || ^3.10' for python only >=3.10,<4 is read",
        "pyproject.toml:3: of '2.1.0 || ^2.4' for torch only >=2.4,<3 is read",
    )


@pytest.mark.parametrize("text", ["[project", "= 1", "\x00\x01"])
def test_broken_toml_is_told(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"pyproject\.toml"):
        read_declared(tmp_path)


def test_nothing_declared(tmp_path):
    with pytest.raises(DataError, match="it has no file for that"):
        read_declared(tmp_path)


def test_metadata_ends_with_its_headers():
    read = read_metadata("Name: x\nRequires-Dist: torch>=2\n\nRequires-Dist: numpy>=9\n", "METADATA")
    assert [d.name for d in read.requirements] == ["torch"]


CONFIG_PROBLEMS = [
    ("axes: [pyton]", "did you mean python"),
    ("schema: 2", "schema 1"),
    ("limit: 1000", "1 to 256"),
    ("requires: {torch: 2.1}", "quote it"),
    ("grain: patch", "unknown grain"),
    ("runners: {tpu: x}", "cpu or gpu"),
    ("gpu: h9000", "unknown GPU"),
    ("frobnicate: 1", "unknown key"),
]


@pytest.mark.parametrize(("text", "told"), CONFIG_PROBLEMS)
def test_problems_of_the_configuration(tmp_path, text, told):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "envsmith.yaml").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_library(tmp_path)
    assert told in str(caught.value)


def test_tool_table_in_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        PYPROJECT + '[tool.envsmith]\naxes = ["torch"]\nlimit = 3\nrequires = {torch = ">=2.6"}\n', encoding="utf-8"
    )
    library = read_library(tmp_path)
    assert (library.axes, library.settings.limit) == (("torch",), 3)
    assert not library.ranges["torch"].contains("2.5.1")
    assert not library.ranges["torch"].contains("2.13.0")


def test_a_host_is_no_axis(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "envsmith.yaml").write_text("axes: [torch, gpu]\n", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot choose a GPU"):
        read_library(tmp_path)


def test_a_library_without_torch(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["requests"]\n', encoding="utf-8")
    with pytest.raises(UsageError, match="neither torch nor a framework"):
        read_library(tmp_path)


def test_a_range_that_is_too_long_is_refused_with_its_name(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch" + ",".join(f">=1.{n}" for n in range(3000)) + "\n")

    with pytest.raises(DataError, match=r"Cannot judge what is declared of torch: spec of \d+ characters is longer"):
        read_library(tmp_path)


def test_a_setup_script_is_read_beside_a_pyproject_that_declares_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    (tmp_path / "setup.py").write_text("setup(name='x', install_requires=['torch>=2.0.0'])\n")
    declared = read_declared(tmp_path).requirements
    assert [(one.name, one.spec, one.file, one.line) for one in declared] == [("torch", ">=2.0.0", "setup.py", 1)]


def test_extras_that_a_setup_script_puts_into_a_table_one_by_one_are_read(tmp_path):
    text = "extras = {}\nextras['fast'] = ['deepspeed']\nsetup(name='x', install_requires=['torch'], extras_require=extras)\n"
    (tmp_path / "setup.py").write_text(text)
    declared = read_declared(tmp_path).requirements
    assert [(one.name, one.extra, one.line) for one in declared] == [("torch", None, 3), ("deepspeed", "fast", 2)]


def test_a_marker_is_judged_for_each_python_and_never_by_the_one_that_runs():
    text = 'Name: x\nVersion: 1\nRequires-Dist: torch ; implementation_version < "3.9"\n'

    declaration = read_metadata(text, "METADATA")

    assert [line.pythons for line in declaration.requirements] == [("3.8",)]
