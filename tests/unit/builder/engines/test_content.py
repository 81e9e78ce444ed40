"""The script that reads what is installed inside a cell, and the reader of its answer."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile

import pytest

from envsmith.builder.engines.content import INSPECT_SCRIPT, parse_inspection, wheel_content
from envsmith.errors import ContentError
from envsmith.lock.index.uv import find_uv


def run(path):
    script = f"import sys; sys.path.insert(0, {str(path)!r})\n{INSPECT_SCRIPT}"
    return subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_script_names_distributions_normalised_and_the_interpreter(tmp_path):
    info = tmp_path / "My_Odd.Name-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: My_Odd.Name\nVersion: 1.2\n")
    found = parse_inspection(run(tmp_path))
    assert found["my-odd-name"] == "1.2"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_torch_is_reported_by_its_own_file_without_being_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcuda is missing')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    found = parse_inspection(run(tmp_path))
    assert (found["torch.version"], found["cuda.version"]) == ("2.9.1+cu128", "12.8")


def test_a_torch_without_cuda_is_cpu(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda = None\n")
    assert parse_inspection(run(tmp_path))["cuda.version"] == "cpu"


def test_a_broken_version_file_is_told_and_fails_no_script(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert parse_inspection(run(tmp_path))["torch.version"].startswith("unreadable")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "noise\n",
        "ENVSMITH-CONTENT {",
        "ENVSMITH-CONTENT []",
        'ENVSMITH-CONTENT {"a": 1}',
        'ENVSMITH-CONTENT {"a": "1"}',
    ],
)
def test_what_is_no_answer_is_refused(output):
    with pytest.raises(ContentError):
        parse_inspection(output)


def test_warnings_around_the_answer_are_passed_over():
    assert parse_inspection('warning: x\nENVSMITH-CONTENT {"python": "3.12.1"}\n') == {"python": "3.12.1"}


def test_hostile_names_are_dropped_and_versions_bounded():
    found = parse_inspection('ENVSMITH-CONTENT {"python": "3.12.1", "a\\u001b[31m": "1", "x": "' + "9" * 500 + '"}')
    assert set(found) == {"python", "x"}
    assert len(found["x"]) == 128


def wheel_of(folder, files, *, name="odd", version="1.2"):
    """A wheel with these files; its RECORD is what a builder writes."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{file},sha256={encoded(text)},{len(text)}" for file, text in files.items()]
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


def encoded(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


FILES = {
    "odd/__init__.py": "x = 1\n",
    "odd-1.2.data/purelib/odd/more.py": "y = 2\n",
    "odd-1.2.data/scripts/odd": "#!python\nprint(1)\n",
    "odd-1.2.data/data/share/odd.txt": "z\n",
}


def installed(tmp_path, *wheels):
    """The wheels in a virtual environment's folder, as uv installs them."""
    target = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True)
    command = [
        find_uv(),
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        str(target / "bin" / "python"),
    ]
    for wheel in wheels:  # one after the other: what two of them bring is the last one's
        subprocess.run([*command, str(wheel)], check=True)
    return target


def read_files(target, *skip):
    command = [str(target / "bin" / "python"), "-I", "-c", INSPECT_SCRIPT, "files", *skip]
    return parse_inspection(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def site(target):
    return next(target.glob("lib/python*/site-packages"))


@pytest.fixture
def one(tmp_path):
    wheel = wheel_of(tmp_path, FILES)
    return wheel, installed(tmp_path, wheel)


def test_installed_files_have_the_digest_of_their_wheel(one):
    """Scripts get another first line and data go elsewhere: neither is part of it, and both are held against what the installer recorded."""
    wheel, target = one
    found = read_files(target)
    assert found["content.odd"] == wheel_content(wheel)
    assert int(found["files.checked"]) >= 6
    assert not {"files.broken", "files.unlike"} & found.keys()


@pytest.mark.parametrize("file", ["odd/__init__.py", "odd/more.py", "../../../bin/odd", "../../../share/odd.txt"])
def test_a_file_that_was_changed_is_named(one, file):
    _wheel, target = one
    (site(target) / file).write_text("changed\n")
    digest = hashlib.sha256(b"changed\n").hexdigest()
    assert read_files(target)["files.unlike"] == f"odd {digest} {file}"
    assert "files.unlike" not in read_files(target, "odd")


def test_more_changed_files_than_are_listed_are_not_passed_over(tmp_path):
    names = [f"odd/part{number}.py" for number in range(2001)]
    target = installed(tmp_path, wheel_of(tmp_path, dict.fromkeys(names, "x = 1\n")))
    for name in names:
        (site(target) / name).write_text("changed\n")
    found = read_files(target)
    assert found["files.broken"] == "2001 files are not what their RECORD says"
    assert "files.unlike" not in found


def test_byte_code_that_is_believed_unchecked_and_is_of_another_source_is_named(one):
    _wheel, target = one
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(site(target))]
    subprocess.run(compiling, check=True)
    assert "files.broken" not in read_files(target)
    code = next(site(target).rglob("more.*.pyc"))
    content = bytearray(code.read_bytes())
    content[8] ^= 1
    code.write_bytes(content)
    assert read_files(target)["files.broken"] == f"{code.relative_to(site(target))} is not the byte-code of its source"


def test_a_file_that_is_gone_is_named_and_a_record_that_was_changed_too_is_another_digest(one):
    wheel, target = one
    (site(target) / "odd" / "more.py").unlink()
    assert read_files(target)["files.broken"] == "odd: odd/more.py is missing"
    (site(target) / "odd" / "more.py").write_text("forged\n")
    record = site(target) / "odd-1.2.dist-info" / "RECORD"
    record.write_text(record.read_text().replace(encoded("y = 2\n"), encoded("forged\n")))
    found = read_files(target)
    assert "files.broken" not in found
    assert found["content.odd"] != wheel_content(wheel)


def test_two_distributions_that_bring_different_files_of_one_name_are_named_even_where_one_is_not_read(tmp_path):
    other = wheel_of(tmp_path, {"odd/__init__.py": "x = 3\n"}, name="even")
    target = installed(tmp_path, wheel_of(tmp_path, FILES), other)
    for skip in ((), ("odd",), ("even",)):
        told = read_files(target, *skip)["files.broken"].splitlines()
        assert len(told) == 1
        assert "both bring odd/__init__.py, and it is not the same" in told[0]
        assert "even" in told[0]


def test_helpers_of_a_build_that_two_distributions_pack_by_oversight_are_no_damage(tmp_path):
    own = wheel_of(tmp_path, {**FILES, "build_backend.py": "x = 1\n", "tests/__init__.py": "x = 1\n"})
    other = wheel_of(tmp_path, {"build_backend.py": "x = 2\n", "tests/__init__.py": "x = 2\n"}, name="even")
    assert "files.broken" not in read_files(installed(tmp_path, own, other))


def test_two_distributions_may_bring_the_same_file(tmp_path):
    other = wheel_of(tmp_path, {"odd/__init__.py": FILES["odd/__init__.py"]}, name="even")
    assert "files.broken" not in read_files(installed(tmp_path, wheel_of(tmp_path, FILES), other))


def test_a_file_that_is_listed_without_a_hash_is_part_of_the_content(one):
    """Small build backends write RECORD like that."""
    wheel, target = one
    record = site(target) / "odd-1.2.dist-info" / "RECORD"
    record.write_text(re.sub(r",sha256=[^,]*,\d+", ",,", record.read_text()) + "odd/__pycache__/x.cpython-311.pyc,,\n")
    assert read_files(target)["content.odd"] == wheel_content(wheel)
    (site(target) / "odd" / "more.py").write_text("changed\n")
    assert read_files(target)["content.odd"] != wheel_content(wheel)
    (site(target) / "odd" / "more.py").unlink()
    assert read_files(target)["files.broken"] == "odd: odd/more.py is missing"


def test_without_the_word_no_file_is_read(one):
    _wheel, target = one
    command = [str(target / "bin" / "python"), "-I", "-c", INSPECT_SCRIPT]
    found = parse_inspection(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert not [name for name in found if name.startswith(("files.", "content."))]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 nothing", b"x" * 200])
def test_what_is_no_wheel_has_no_content(tmp_path, data):
    path = tmp_path / "odd-1.2-py3-none-any.whl"
    path.write_bytes(data)
    with pytest.raises(ContentError, match="it is not a wheel"):
        wheel_content(path)
