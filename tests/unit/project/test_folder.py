"""What the project in a folder asks for, as an installer would read it."""

from __future__ import annotations

import pytest

from envsmith.errors import DataError
from envsmith.project.folder import ProjectPart, read_declaring_file, read_folder

PYPROJECT = """
[project]
name = "mine"
requires-python = ">=3.10"
dependencies = ["torch>=2.4", "wandb"]
[project.optional-dependencies]
gpu = ["flash-attn==2.8.3"]
all = ["mine[gpu]", "peft"]
[dependency-groups]
eval = [{include-group = "base"}, "lm-eval"]
base = ["pytest"]
"""


def _read(folder, part=None, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return read_folder(folder, part or ProjectPart()).refuse_problems()


def _lines(demands):
    return [str(demand.requirement) for demand in demands.demands]


def test_dependencies_have_file_and_line(tmp_path):
    read = _read(tmp_path, pyproject__toml=PYPROJECT)
    assert [(str(d.requirement), d.where) for d in read.demands] == [
        ("torch>=2.4", f"{tmp_path}/pyproject.toml:5"),
        ("wandb", f"{tmp_path}/pyproject.toml:5"),
    ]
    assert read.python == ((">=3.10", f"{tmp_path}/pyproject.toml:4"),)


def test_an_extra_brings_the_extras_that_it_names_itself(tmp_path):
    read = _read(tmp_path, ProjectPart(extras=("all",)), pyproject__toml=PYPROJECT)
    assert sorted(_lines(read)) == ["flash-attn==2.8.3", "peft", "torch>=2.4", "wandb"]


def test_a_group_brings_the_groups_that_it_includes(tmp_path):
    read = _read(tmp_path, ProjectPart(groups=("eval",)), pyproject__toml=PYPROJECT)
    assert sorted(_lines(read)) == ["lm-eval", "pytest", "torch>=2.4", "wandb"]


@pytest.mark.parametrize("part", [ProjectPart(extras=("cuda",)), ProjectPart(groups=("cuda",))])
def test_an_extra_or_group_that_the_project_does_not_have_is_refused(tmp_path, part):
    with pytest.raises(DataError, match="has no such"):
        _read(tmp_path, part, pyproject__toml=PYPROJECT)


def test_dependencies_that_setuptools_reads_from_a_file_are_read_from_it(tmp_path):
    text = '[project]\nname = "x"\ndynamic = ["dependencies"]\n'
    text += '[tool.setuptools.dynamic]\ndependencies = {file = ["deps.txt"]}\n'
    assert _lines(_read(tmp_path, pyproject__toml=text, deps__txt="einops\n-e .\n")) == ["einops"]


def test_poetry_s_notation_its_optional_packages_and_its_groups_are_read(tmp_path):
    text = """
[tool.poetry.dependencies]
python = ">=3.10,<3.13"
torch = "^2.4"
peft = {version = "*", optional = true}
triton = [{version = "^3.0", python = ">=3.11"}]
[tool.poetry.extras]
tune = ["peft"]
[tool.poetry.group.dev.dependencies]
pytest = "*"
"""
    read = _read(tmp_path, pyproject__toml=text)
    assert _lines(read) == ["torch<3,>=2.4", 'triton<4,>=3.0; python_version >= "3.11"']
    assert read.python[0][0] == ">=3.10,<3.13"
    assert "peft" in _lines(read_folder(tmp_path, ProjectPart(extras=("tune",))))
    assert "pytest" in _lines(read_folder(tmp_path, ProjectPart(groups=("dev",))))


def test_the_builds_of_a_uv_project_s_only_torch_index_name_the_cuda(tmp_path):
    text = PYPROJECT + (
        '[tool.uv.sources]\ntorch = [{index = "a", extra = "cpu"}, {index = "b", extra = "gpu"}]\n'
        '[[tool.uv.index]]\nname = "a"\nurl = "https://example.org/whl/cpu"\n'
        '[[tool.uv.index]]\nname = "b"\nurl = "https://example.org/whl/cu128"\n'
    )
    assert _read(tmp_path, ProjectPart(extras=("gpu",)), pyproject__toml=text).cuda[0][0] == "12.8"
    assert _read(tmp_path, pyproject__toml=text).cuda == ()


def test_a_setup_cfg_is_read_where_the_pyproject_declares_nothing(tmp_path):
    read = _read(
        tmp_path,
        pyproject__toml='[build-system]\nrequires = ["setuptools"]\n',
        setup__cfg="[options]\ninstall_requires =\n    wandb>=0.15\n",
    )
    assert _lines(read) == ["wandb>=0.15"]


def test_a_setup_script_is_read_and_not_run(tmp_path):
    text = """
raise SystemExit("run")
_deps = ["accelerate==1.4.0", "wandb>=0.19"]
deps = {line.split("=")[0]: line for line in _deps}
REQUIRES = [deps["accelerate"], "einops"]
setup(name="x", install_requires=REQUIRES, extras_require={"gpu": ["vllm"]}, python_requires=">=3.10")
"""
    read = _read(tmp_path, ProjectPart(extras=("gpu",)), setup__py=text)
    assert [(str(d.requirement), d.where.rpartition(":")[2]) for d in read.demands] == [
        ("accelerate==1.4.0", "3"),
        ("einops", "5"),
        ("vllm", "6"),
    ]


def test_a_setup_script_that_reads_a_file_gives_the_lines_of_the_file(tmp_path):
    text = 'setup(install_requires=read("requirements.txt"))\n'
    assert _lines(_read(tmp_path, setup__py=text, requirements__txt="ray[default]\n")) == ["ray[default]"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("requirements.txt", "def read_requirements():\n    with open('requirements.txt') as f:\n        return f.read().split()\nsetup(install_requires=read_requirements())\n"),
        ("core/requirements.txt", "def req_file(name, folder='core'):\n    with open(os.path.join(folder, name)) as f:\n        return f.readlines()\nsetup(install_requires=req_file('requirements.txt'))\n"),
        ("requirements.txt", "with open(path.join(here, 'requirements.txt')) as f:\n    lines = f.read().splitlines()\nsetup(install_requires=[x for x in lines if x])\n"),
    ],
)  # fmt: skip
def test_a_setup_script_that_opens_a_file_in_a_function_gives_the_lines_of_the_file(tmp_path, file, text):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("einops>=0.7\n")
    assert _lines(_read(tmp_path, setup__py=text)) == ["einops>=0.7"]


def test_what_a_setup_script_computes_is_taken_from_the_file_beside_it_with_a_note(tmp_path):
    text = "setup(install_requires=[x.requirement(), 'wandb'])\n"
    read = _read(tmp_path, setup__py=text, requirements__txt="einops\n")
    assert _lines(read) == ["wandb", "einops"]
    assert read.problems == ()
    assert read.notes == (f"{tmp_path}/setup.py:1: it is computed, and setup.py is not run: requirements.txt is taken in its place",)  # fmt: skip


def test_requirements_that_only_running_the_script_would_tell_are_refused_with_the_line(tmp_path):
    with pytest.raises(DataError) as failure:
        _read(tmp_path, setup__py="import x\nsetup(install_requires=[x.requirement()])\n")
    assert failure.value.details == (f"{tmp_path}/setup.py:2: it is computed, and setup.py is not run",)


def test_a_requirement_of_a_repository_is_refused_and_can_be_left_out(tmp_path):
    text = '[project]\ndependencies = ["a", "b @ git+https://example.org/b"]\n'
    with pytest.raises(DataError, match="cannot be followed"):
        _read(tmp_path, pyproject__toml=text)
    assert _lines(read_folder(tmp_path, ProjectPart(leave_out=("B",)))) == ["a"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("git+https://example.org/o/CLIP.git", "clip"),
        ("git+https://example.org/o/diffusers@v0.20.0#egg=diffusers", "diffusers"),
        ("git+https://example.org/o/peft@main", "peft"),
        ("git+ssh://git@example.org/o/trl.git", "trl"),
        ("-e git+https://example.org/o/b#egg=b-b", "b-b"),
        ("https://example.org/apex-0.1-cp310-cp310-linux_x86_64.whl", "apex"),
    ],
)
def test_an_address_of_an_environment_file_is_refused_by_its_name_and_can_be_left_out(tmp_path, line, name):
    text = f"dependencies: [pip: [einops, '{line}']]"

    with pytest.raises(DataError) as failure:
        _read(tmp_path, environment__yml=text)
    without = _read(tmp_path, ProjectPart(leave_out=(name,)), environment__yml=text)

    assert failure.value.details[0].startswith(f"{tmp_path}/environment.yml:1: {name} comes from ")
    assert _lines(without) == ["einops"]


def test_an_environment_file_includes_a_list_of_requirements(tmp_path):
    text = "dependencies: [pip: [-r more.txt, -e ., einops]]"
    assert _lines(_read(tmp_path, environment__yml=text, more__txt="peft\n")) == ["einops", "peft"]


def test_an_environment_file_is_read_last(tmp_path):
    text = "dependencies:\n- python=3.11\n- pytorch=2.5\n- pytorch-cuda=12.4\n- ffmpeg\n- pip:\n  - wandb\n"
    read = _read(tmp_path, environment__yml=text)
    assert _lines(read) == ["torch==2.5.*", "wandb"]
    assert read.cuda == (("12.4", f"{tmp_path}/environment.yml:4"),)
    assert read.notes == (
        f"{tmp_path}/environment.yml: left out are 1 Conda packages that envsmith does not know: ffmpeg",
    )


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("environment.yml", "dependencies: [python=3.11, pytorch=2.5.1, {pip: [peft]}]", ["torch==2.5.1.*", "peft"]),
        ("gpu.yaml", "dependencies: [pytorch=2.5.1]", ["torch==2.5.1.*"]),
        ("pyproject.toml", PYPROJECT, ["torch>=2.4", "wandb"]),
    ],
)
def test_a_file_that_is_named_is_read_as_what_it_is(tmp_path, name, text, lines):
    (tmp_path / name).write_text(text)
    assert _lines(read_declaring_file(tmp_path / name)) == lines


def test_a_list_of_requirements_is_left_to_who_reads_pip_s_format(tmp_path):
    assert read_declaring_file(tmp_path / "requirements.txt") is None


@pytest.mark.parametrize(("name", "text"), [("settings.yaml", "model: gpt-4"), ("pyproject.toml", "[tool.ruff]")])
def test_a_file_that_is_named_and_declares_nothing_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="it declares none"):
        read_declaring_file(tmp_path / name)


def test_a_folder_without_requirements_is_refused(tmp_path):
    with pytest.raises(DataError, match="no file of it declares requirements"):
        _read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "project = 1",
        "tool = []",
        "[tool]\nuv = 1",
        "[project]\ndynamic = 1",
        "[project]\ndependencies = 1",
        '[tool.uv]\nindex = 1\nsources = {torch = {index = "x"}}\n[project]\ndependencies = []',
        '[tool.uv]\nindex = [1]\nsources = {torch = {index = "x"}}\n[project]\ndependencies = []',
    ],
)
def test_tables_that_are_none_declare_nothing(tmp_path, text):
    (tmp_path / "requirements.txt").write_text("a\n")
    assert _lines(_read(tmp_path, pyproject__toml=text)) in ([], ["a"])
