"""METADATA, sdists and what setup.py enforces."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from tars import tar_bytes

from envsmith.base.schema import parse_value, to_json
from envsmith.errors import ContentError, NetworkError
from envsmith.frameworks.deepspeed import cuda_minor_table
from envsmith.lock.index.distribution import ReleaseFacts, best_file, read_release, setup_imports
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.metadata import active, as_meant, parse_metadata, parse_requires_txt, read_members
from envsmith.model.cell import Platform

PKG_INFO = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Python: >=3.8\n"
BUILDER = b"cuda_minor_mismatch_ok = {\n    10: ['10.0', '10.2'],\n    12: ['12.0', '12.1'],\n}\nraise SystemExit('never run')\n"


def _tar(members):
    return gzip.compress(tar_bytes(members.items()))


def _publish(fetcher, filename, body, **more):
    file = IndexFile(
        filename=filename,
        url=f"https://index.test/{filename}",
        version="1.0",
        sha256=hashlib.sha256(body).hexdigest(),
        **more,
    )
    fetcher.files[file.url] = body
    return file


def test_an_sdist_tells_requirements_imports_and_the_table_of_its_builder(fetcher):
    members = {
        "demo-1.0/PKG-INFO": PKG_INFO,
        "demo-1.0/setup.py": b"import os\nfrom torch.utils import cpp_extension\ntry:\n    import numpy\nexcept ImportError:\n    pass\n",
        "demo-1.0/op_builder/builder.py": BUILDER,
        "demo-1.0/demo.egg-info/requires.txt": b"torch>=2\n\n[dev]\npytest\n",
    }
    facts = read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", _tar(members)))
    assert facts.requires == ("torch>=2", 'pytest ; extra == "dev"')
    assert (facts.setup_imports, facts.requires_python) == (("os", "torch"), ">=3.8")
    assert facts.cuda_minors == {"10": ("10.0", "10.2"), "12": ("12.0", "12.1")}
    assert parse_value(ReleaseFacts, to_json(facts)) == facts


def test_requirements_of_pkg_info_win_over_the_file_beside_it(fetcher):
    members = {"d/PKG-INFO": PKG_INFO + b"Requires-Dist: torch>=1\n", "d/d.egg-info/requires.txt": b"numpy\n"}
    assert read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", _tar(members))).requires == ("torch>=1",)


def test_a_file_of_requirements_that_are_none_is_refused(fetcher):
    members = {"d/PKG-INFO": PKG_INFO, "d/d.egg-info/requires.txt": b"\n[all]\npytz>dev\n"}

    with pytest.raises(ContentError, match="is not a requirement"):
        read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", _tar(members)))


def test_a_requirement_of_an_sdist_that_setuptools_no_longer_takes_is_read_and_named(fetcher):
    members = {"d/PKG-INFO": PKG_INFO, "d/d.egg-info/requires.txt": b"\n[all]\nopencv-python>=3.\n"}

    facts = read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", _tar(members)))

    assert facts.requires == ('opencv-python>=3 ; extra == "all"',)
    assert facts.refused == ('opencv-python>=3. ; extra == "all"',)


def test_a_zip_sdist_is_read_too(fetcher, make_wheel):
    file = _publish(fetcher, "demo-1.0.zip", make_wheel({"demo-1.0/PKG-INFO": PKG_INFO}))
    assert read_release(fetcher, file).requires_python == ">=3.8"


def test_metadata_that_the_index_serves_alone_costs_one_small_request(fetcher):
    file = _publish(fetcher, "demo-1.0-py3-none-any.whl", b"never opened", metadata=True)
    fetcher.files[file.url + ".metadata"] = PKG_INFO
    assert read_release(fetcher, file).requires_python == ">=3.8"
    assert fetcher.asked == [file.url + ".metadata"]


def test_metadata_that_is_announced_and_missing_is_read_in_the_wheel(fetcher, make_wheel):
    file = _publish(
        fetcher, "demo-1.0-py3-none-any.whl", make_wheel({"demo-1.0.dist-info/METADATA": PKG_INFO}), metadata=True
    )
    assert read_release(fetcher, file).requires_python == ">=3.8"


def test_metadata_with_another_hash_is_refused(fetcher):
    file = _publish(fetcher, "demo-1.0-py3-none-any.whl", b"", metadata=True, metadata_sha256="0" * 64)
    fetcher.files[file.url + ".metadata"] = PKG_INFO
    with pytest.raises(ContentError):
        read_release(fetcher, file)


BROKEN = {"empty": b"", "head": b"\x1f\x8b", "text": b"no archive", "cut": _tar({"d/PKG-INFO": PKG_INFO})[:60]}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_broken_sdist_is_one_kind_of_failure(fetcher, body):
    with pytest.raises(NetworkError):
        read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", body))


def test_links_and_members_outside_the_top_folder_are_not_followed(fetcher):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("demo-1.0/PKG-INFO")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert read_members(fetcher, _publish(fetcher, "demo-1.0.tar.gz", buffer.getvalue()), ["PKG-INFO"]) == {}


def test_an_sdist_that_unpacks_without_end_is_refused(fetcher, monkeypatch):
    from envsmith.lock.index import metadata

    monkeypatch.setattr(metadata, "_MAX_UNPACKED", 1 << 20)
    body = _tar({"d/big": b"\0" * (8 << 20), "d/PKG-INFO": PKG_INFO})
    with pytest.raises(NetworkError, match="unpacks to more"):
        read_release(fetcher, _publish(fetcher, "demo-1.0.tar.gz", body))


@pytest.mark.parametrize(
    "nest", [b"-" * 1_000_000, b"(" * 1_000_000, b"x = " + b"not " * 300_000, b"a" + b".b" * 300_000]
)
def test_code_that_crashes_a_parser_is_only_text_here(nest):
    source = b"import torch\ncuda_minor_mismatch_ok = {12: ['12.4']}\n" + nest
    assert setup_imports(source) == ("torch",)
    assert cuda_minor_table(source) == {"12": ("12.4",)}


def test_only_imports_at_the_margin_count():
    source = b'"""\nimport docs\n"""\nimport os, sys as s, a.b\nfrom x.y import z\nfrom . import q\nif 1:\n    import inner\ntry:\n    import torch\nexcept ImportError: pass\n'
    assert setup_imports(source) == ("os", "sys", "a", "x")


@pytest.mark.parametrize(
    "source", [b"", b"print 'python 2'", b"cuda_minor_mismatch_ok = compute()", b"cuda_minor_mismatch_ok = [1]", b"\0"]
)
def test_code_that_is_not_understood_gives_no_facts(source):
    assert cuda_minor_table(source) == {}
    assert setup_imports(source) == ()


@pytest.mark.parametrize(
    ("names", "sdist", "expected"),
    [
        (["d-1.0-cp310-cp310-win_amd64.whl", "d-1.0.tar.gz"], False, "d-1.0.tar.gz"),
        (
            [
                "d-1.0.tar.gz",
                "d-1.0-cp310-cp310-manylinux_2_28_aarch64.whl",
                "d-1.0-cp310-cp310-manylinux_2_28_x86_64.whl",
            ],
            False,
            "d-1.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        ),
        (["d-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", "d-1.0-py3-none-any.whl"], False, "d-1.0-py3-none-any.whl"),
        (["d-1.0-py3-none-any.whl", "d-1.0.tar.gz"], True, "d-1.0.tar.gz"),
        (["d-1.0-cp310-cp310-win_amd64.whl"], False, None),
    ],
)
def test_the_file_that_is_read_is_one_for_linux(names, sdist, expected):
    files = [IndexFile(filename=n, url="https://x.test/" + n, version="1.0", sha256="a" * 64) for n in names]
    found = best_file(files, sdist=sdist)
    assert (found.filename if found else None) == expected


def test_metadata_is_parsed_with_folded_lines_and_repeated_fields():
    data = b"Name: Demo\nVersion: 1.0\nRequires-Dist: a>=1;\n  python_version >= '3.8'\nRequires-Dist: b\nProvides-Extra: x\n\nbody: not a field\n"
    metadata = parse_metadata(data, "demo")
    assert (metadata.requires, metadata.extras, metadata.requires_python) == (
        ("a>=1; python_version >= '3.8'", "b"),
        ("x",),
        None,
    )


@pytest.mark.parametrize("data", [b"", b"Name: x", b"\xff\xfe\0", b"Name: x\nVersion: \n", b"x" * (5 << 20)])
def test_metadata_without_name_or_version_is_refused(data):
    with pytest.raises(NetworkError):
        parse_metadata(data, "demo")


def test_a_bound_by_a_series_is_read_as_setuptools_meant_it():
    text = b"Metadata-Version: 2.1\nName: d\nVersion: 1\nRequires-Python: >=3.6.*\nRequires-Dist: torch (>=1.7.*,!=1.8.*)\n"

    metadata = parse_metadata(text, "d")

    assert (metadata.requires, metadata.requires_python) == (("torch (>=1.7,!=1.8.*)",), ">=3.6")
    assert metadata.refused == ("torch (>=1.7.*,!=1.8.*)",)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("PyYAML (>=5.1.*)", "PyYAML (>=5.1)"),
        ("extract-msg (<=0.29.*)", "extract-msg (<0.30)"),
        ("a<2.*", "a<2"),
        ("opencv-python>=3.", "opencv-python>=3"),
        ('b>=3. ; extra == "all"', 'b>=3 ; extra == "all"'),
        ("c>1.,<2", "c>1,<2"),
    ],
)
def test_a_requirement_that_pip_no_longer_takes_is_read_as_it_was_meant(line, meant):
    assert as_meant(line) == meant
    assert Requirement(meant)
    with pytest.raises(InvalidRequirement):
        Requirement(line)


@pytest.mark.parametrize(
    "line",
    ["a==1.*", "a!=1.2.*", "a>=1.0.dev1", "a<=1.0.post1", "a>=1.2,<3", "a===1.", "a~=1.2", f"a<={'9' * 5000}.*"],
    ids=lambda line: line[:12],
)
def test_a_requirement_that_is_valid_or_means_nothing_else_stays(line):
    assert as_meant(line) == line


def test_sections_of_requires_txt_become_markers():
    text = b'a\n[:python_version < "3.8"]\nb\n[gpu]\nc>=1\n[dev:sys_platform == "linux"]\nd\n'
    assert parse_requires_txt(text) == (
        "a",
        'b ; (python_version < "3.8")',
        'c>=1 ; extra == "gpu"',
        'd ; (sys_platform == "linux") and extra == "dev"',
    )


def test_only_what_holds_on_the_platform_is_active():
    lines = [
        'a==1; platform_machine == "x86_64"',
        'b; extra == "dev"',
        "c>=1",
        "C<3",
        'd; python_version < "3.9"',
        "not a requirement !!",
        'e; sys_platform == "win32"',
        'f; nonsense == "x"',
    ]
    x86 = active(lines, python="3.12", platform=Platform.LINUX_64)
    arm = active(lines, python="3.8", platform=Platform.LINUX_AARCH64, extras=["dev"])
    assert {n: str(r.specifier) for n, r in x86.items()} == {"a": "==1", "c": "<3,>=1"}
    assert sorted(arm) == ["b", "c", "d"]


def test_a_zip_bomb_in_an_sdist_is_refused(fetcher):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("d/PKG-INFO", b"\0" * (64 << 20))
    with pytest.raises(NetworkError, match="no PKG-INFO"):
        read_release(fetcher, _publish(fetcher, "demo-1.0.zip", buffer.getvalue()))


@pytest.mark.parametrize("line", ["Requires-Dist: torch (>=1", "Requires-Dist: ???", "Requires-Python: three"])
def test_a_release_whose_requirements_cannot_be_read_is_refused_and_not_taken_for_one_without(fetcher, line):
    file = _publish(fetcher, "demo-1.0-py3-none-any.whl", b"never opened", metadata=True)
    fetcher.files[file.url + ".metadata"] = f"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n{line}\n".encode()

    with pytest.raises(ContentError, match=r"Cannot read what demo-1\.0-py3-none-any\.whl requires"):
        read_release(fetcher, file)
