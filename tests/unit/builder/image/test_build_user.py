"""Code of a source distribution runs as the image's ordinary user, and cannot read the login of the index."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from envsmith.builder.image.dockerfile import STEPS, image_files, render
from envsmith.lock.index.uv import Uv

BACKEND = """
import os, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name = "demo-1.0-py3-none-any.whl"
    try:
        login = open(os.environ["LOGIN"]).read()
    except OSError:
        login = "denied"
    open("made-here", "w").close()
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("demo.py", f"user, login = {os.getuid()}, {login!r}")
        wheel.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n")
        wheel.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("demo-1.0.dist-info/RECORD", "demo.py,,\\ndemo-1.0.dist-info/METADATA,,\\ndemo-1.0.dist-info/WHEEL,,\\ndemo-1.0.dist-info/RECORD,,\\n")
    return name
def prepare_metadata_for_build_wheel(folder, settings=None):
    os.makedirs(os.path.join(folder, "demo-1.0.dist-info"))
    with open(os.path.join(folder, "demo-1.0.dist-info", "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n")
    return "demo-1.0.dist-info"
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "demo"\ndynamic = ["version"]\n'


def source_distribution(folder):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in (("pyproject.toml", PROJECT), ("backend.py", BACKEND)):
            info = tarfile.TarInfo(f"demo-1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    (folder / "demo-1.0.tar.gz").write_bytes(out.getvalue())
    return hashlib.sha256(out.getvalue()).hexdigest()


# One that every user can read, as that of an image is.
PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).is_file()), None)


@pytest.mark.skipif(PYTHON is None, reason="no Python of the system")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_build_runs_as_the_user_and_the_resolver_alone_reads_the_login(locks, tmp_path):
    for folder in (*tmp_path.parents, tmp_path):
        if folder.stat().st_uid == 0 and folder.name.startswith(("pytest", "popen", "test_")):
            folder.chmod(0o755)
    digest = source_distribution(tmp_path)
    requirements, login, target = (tmp_path / name for name in ("requirements.txt", "login", "target"))
    requirements.write_text(f"demo==1.0 --hash=sha256:{digest}\n")
    login.write_text("secret")
    login.chmod(0o400)
    steps = tmp_path / STEPS
    steps.mkdir(mode=0o755)
    (steps / "sitecustomize.py").write_text(image_files(locks.deepspeed())[f"{STEPS}/sitecustomize.py"])
    uv = Uv().binary
    install = f"{uv} pip install --no-config --no-index --find-links {tmp_path} --require-hashes --no-deps"
    commands = [
        f"{install} --python {PYTHON} --target {target} --requirements {requirements}",
        f"find {tmp_path}/cache/sdists-v* -name '*.whl' -user 10001",
    ]
    ran = subprocess.run(
        ["sh", "-ec", " && ".join(commands)],
        env={
            **os.environ,
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "LOGIN": str(login),
            "PYTHONPATH": str(steps),
            "CELL_USER": "10001",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (target / "demo.py").read_text() == "user, login = 10001, 'denied'"
    assert ran.stdout.strip().endswith(".whl")
    assert (target / "demo.py").stat().st_uid == 0


def test_every_step_that_runs_code_of_a_source_distribution_becomes_the_user_first_and_checks_it(locks):
    functions = re.findall(
        r"^(\w+)\(\) \{\n(.*?)^\}", image_files(locks.deepspeed())[f"{STEPS}/cell.sh"], re.MULTILINE | re.DOTALL
    )
    building = {
        name: body for name, body in functions if re.search(r"^    (hashed_and_built|\$uv build)", body, re.MULTILINE)
    }
    assert sorted(building) == ["build_wheels", "compile", "install_and_build"]
    for body in building.values():
        order = [body.index("as_build_user"), body.index("hashed_and_built" if "hashed_and" in body else "$uv build")]
        assert [*order, body.index("built_by_user")] == sorted([*order, body.index("built_by_user")])


@pytest.mark.parametrize("lock", ["deepspeed", "compiled"])
def test_a_step_that_takes_a_source_distribution_is_one_of_those(lock, locks):
    steps = render(getattr(locks, lock)()).split("\nRUN ")
    building = [step for step in steps if "target=/dev/cell/build.txt" in step or "/source.tar.gz" in step]
    assert building
    assert all(re.search(r"cell\.sh (build_wheels|compile|install_and_build)", step) for step in building)
