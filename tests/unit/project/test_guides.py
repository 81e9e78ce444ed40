"""Which commands of a project's texts install what."""

from __future__ import annotations

import pytest

from envsmith.project.folder import ProjectPart, read_folder
from envsmith.project.guides import guide_lines, guides_of


def test_what_a_program_runs_comes_before_what_people_read_and_that_before_an_image():
    files = ["Dockerfile", "README.md", "scripts/install.sh", "train.sh", "a/b/install.sh", "docker/Dockerfile.cuda"]
    assert guides_of(files) == ["scripts/install.sh", "README.md", "Dockerfile", "docker/Dockerfile.cuda"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("pip install torch==2.7.0 xformers", ["torch==2.7.0", "xformers"]),
        ("uv add torch numpy", ["torch", "numpy"]),
        ("uv pip install -r x.txt wandb && true", ["wandb"]),
        ("RUN pip install --no-cache-dir \\\n  peft", ["peft"]),
        ("conda install -n me pytorch=2.4.0 pytorch-cuda=12.1 -c pytorch -c nvidia", ["torch==2.4.0.*", "cuda-version==12.1.*"]),
        ("pip install -e . ./here git+https://example.org/x a.whl", []),
    ],
)  # fmt: skip
def test_a_command_names_packages_beside_options_addresses_and_paths(tmp_path, line, named):
    (tmp_path / "install.sh").write_text(f"set -e\n{line}\n")
    assert [entry.text for entry in guide_lines(tmp_path / "install.sh", "install.sh").entries] == named


def test_a_project_that_declares_nothing_is_taken_at_the_word_of_its_script_with_a_note(tmp_path):
    script = "conda create --name me python=3.10.14\nconda install pytorch=2.4.0 ffmpeg\npip install peft==0.12.0\n"
    (tmp_path / "install.sh").write_text(script)
    (tmp_path / "README.md").write_text("pip install wandb\n")

    read = read_folder(tmp_path, ProjectPart())

    assert [str(demand.requirement) for demand in read.demands] == ["torch==2.4.0.*", "peft==0.12.0"]
    assert read.python == (("==3.10.14.*", f"{tmp_path}/install.sh:1"),)
    assert read.notes[-1] == f"no file declares what {tmp_path} requires: what install.sh says to install is taken"


def test_the_python_of_a_file_that_leaves_the_requirements_to_another_counts(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nrequires-python = '>=3.10,<3.12'\n")
    (tmp_path / "requirements.txt").write_text("torch\n")
    assert read_folder(tmp_path, ProjectPart()).python[0][0] == ">=3.10,<3.12"


def test_a_script_that_installs_the_torch_that_no_file_declares_is_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "setup").mkdir()
    (tmp_path / "setup" / "create_env.sh").write_text("pip install torch==2.7.0 xformers\npip install numpy\n")

    (note,) = read_folder(tmp_path, ProjectPart()).notes

    expected = "setup/create_env.sh is left out, because requirements.txt declares what is required"
    assert note == f"{expected}: torch==2.7.0, xformers"


@pytest.mark.parametrize(("listed", "noted"), [("torch\nwandb\n", True), ("torch>=2\n", False)])
def test_a_list_beside_the_file_that_declares_is_named_where_it_has_more(tmp_path, listed, noted):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['torch']\n")
    (tmp_path / "requirements.txt").write_text(listed)

    alone = read_folder(tmp_path, ProjectPart())
    beside = read_folder(tmp_path, ProjectPart(further_files=(tmp_path / "requirements.txt",)))

    assert [": wandb (" in note for note in alone.notes] == [True] * noted
    assert not beside.notes
