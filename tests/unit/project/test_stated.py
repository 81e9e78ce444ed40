"""What a project says it requires."""

from __future__ import annotations

from pathlib import Path

from envsmith.project.stated import read_stated


def read(tmp_path: Path, **files: str) -> dict[str, tuple[str, str]]:
    names = {name.replace("_", "."): text for name, text in files.items()}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    return {d.name: (d.spec, d.where) for d in read_stated(tmp_path, names).demands}


def test_a_file_of_requirements_comes_before_a_text(tmp_path):
    requirements = read(tmp_path, requirements_txt="torch==2.0\n", README_md="pip install torch wandb\n")
    assert requirements == {"torch": ("==2.0", "requirements.txt:1"), "wandb": ("", "README.md:1")}


def test_the_lists_of_a_setup_are_read_and_nothing_is_run(tmp_path):
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\nneeds = ['einops>=0.6', 'x' + y]\nsetup(install_requires=needs)"
    assert read(tmp_path, setup_py=text) == {"einops": (">=0.6", "setup.py:2")}
    assert not (tmp_path / "ran").exists()


def test_options_addresses_and_paths_of_pip_are_not_requirements(tmp_path):
    text = "`pip install -U -r requirements.txt 'peft>=0.3' git+https://x/y ./here --index-url https://z`"
    assert read(tmp_path, README_md=text) == {"peft": (">=0.3", "README.md:1")}


def test_what_cannot_be_read_states_nothing(tmp_path):
    assert read(tmp_path, pyproject_toml="[", setup_py="def (") == {}


def test_a_conda_file_lists_what_is_installed_where_the_code_imports_it(tmp_path):
    (tmp_path / "environment.yml").write_text("dependencies: [cudatoolkit=11.3, numpy=1.19.2, pip: [einops==0.6]]")
    stated = {d.name: (d.spec, d.is_optional) for d in read_stated(tmp_path, ["environment.yml"]).demands}
    assert stated["numpy"] == ("==1.19.2", True)
    assert stated["cudatoolkit"][1]


def test_an_extra_and_a_dockerfile_name_what_is_installed_where_the_code_imports_it(tmp_path):
    (tmp_path / "Dockerfile").write_text("RUN pip install --no-cache-dir tqdm==4.65 && true\n")
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'x'\nversion = '1'\ndependencies = ['torch']\n"
        "[project.optional-dependencies]\ntrain = ['wandb>=0.15', 'torch==2.0']\n"
    )

    stated = {d.name: (d.spec, d.is_optional) for d in read_stated(tmp_path, ["Dockerfile", "pyproject.toml"]).demands}

    assert stated == {"torch": ("", False), "wandb": (">=0.15", True), "tqdm": ("==4.65", True)}


def test_what_was_not_read_is_said(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch\npeft @ git+https://example.org/peft\n")

    (line,) = read_stated(tmp_path, ["requirements.txt"]).problems

    assert line.startswith("requirements.txt:2: peft comes from a URL")


def test_what_stands_beside_a_loose_file_is_not_of_it(tmp_path):
    (tmp_path / "environment.yml").write_text("dependencies: [python=3.8, pytorch=1.9]")

    stated = read_stated(tmp_path, ["train.py"])

    assert (stated.demands, stated.python) == ((), ())
    assert stated.problems[0].startswith("environment.yml: beside what was named")
