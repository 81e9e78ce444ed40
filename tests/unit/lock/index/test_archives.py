from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest

from envsmith.errors import ContentError, LockError, NetworkError, UsageError
from envsmith.lock.index.archives import SourceWish, parse_wish, read_archive
from envsmith.net.http import Reply

SETUP = b"from setuptools import setup\nsetup(name='Apex', version='0.1', install_requires=['packaging>20.6'], packages=find())\n"


def member(name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def packed(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def project(**files):
    named = {"setup.py": SETUP} if not files else {n.replace("__", "."): d for n, d in files.items()}
    return packed(*(member(f"top/{name}", data) for name, data in named.items()))


class Served:
    """A fetcher with one file."""

    def __init__(self, data):
        self.data = data

    def get(self, url, *, max_bytes, accept=None, sha256=None, keep=True, check=None):
        if hashlib.sha256(self.data).hexdigest() != sha256:
            raise ContentError("not the one that the index names")
        return Reply(body=self.data, url=url)

    def open_range(self, url, start, stop=None):
        raise NetworkError("no ranges")


def read(tmp_path, data, name="apex", version=None):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)
    wish = SourceWish(name=name, version=version, place=str(path), sha256=hashlib.sha256(data).hexdigest())
    return read_archive(wish, Served(b""))


def test_a_name_a_place_and_a_hash_are_read_in_the_spelling_of_pip_too():
    one = parse_wish(f"Apex@sub folder/apex.tar.gz#sha256={'AB' * 32}")
    assert (one.name, one.version, one.place, one.sha256) == ("apex", None, "sub folder/apex.tar.gz", "ab" * 32)
    two = parse_wish(f"my_ops == 1.0 @ https://host.example/a/b.tar.gz#sha256={'0' * 64}")
    assert (two.name, two.version, two.place) == ("my-ops", "1.0", "https://host.example/a/b.tar.gz")
    assert two.text == f"--source my-ops==1.0@sha256:{'0' * 64}"
    assert "sub folder" not in one.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("apex@apex.tar.gz", "no #sha256="),
        ("apex@apex.tar.gz#sha256=abc", "not NAME@ARCHIVE"),
        ("apex#sha256=" + "0" * 64, "not NAME@ARCHIVE"),
        ("apex@http://host.example/a.tar.gz#sha256=" + "0" * 64, "does not read http addresses"),
        ("apex@git+https://host.example/a#sha256=" + "0" * 64, "does not read git"),
        ("apex@https://user:word@host.example/a.tar.gz#sha256=" + "0" * 64, "a lock cannot hold this address"),
        ("apex@https://host.example/a b.tar.gz#sha256=" + "0" * 64, "a lock cannot hold this address"),
        ("apex==x.y@a.tar.gz#sha256=" + "0" * 64, "is not a version"),
        ("x" * 5000, "no #sha256="),
    ],
)
def test_what_is_no_hashed_archive_is_a_usage_error(text, told):
    with pytest.raises(UsageError, match=told):
        parse_wish(text)


def test_the_archive_says_what_it_is(tmp_path):
    found = read(tmp_path, project())
    assert (found.name, found.version, found.requires, found.cuda) == ("apex", "0.1", ("packaging>20.6",), False)
    assert found.filename == "apex-0.1.tar.gz"
    assert found.origin == "file"
    assert found.artifact.url == (tmp_path / "x.tar.gz").as_uri()


@pytest.mark.parametrize(
    "files",
    [
        {
            "PKG-INFO": b"Metadata-Version: 2.2\nName: apex\nVersion: 0.1\nRequires-Dist: packaging>20.6\n",
            "setup.py": b"boom(",
        },
        {"pyproject.toml": b'[project]\nname = "apex"\nversion = "0.1"\ndependencies = ["packaging>20.6"]\n'},
        {
            "setup.cfg": b"[metadata]\nname = apex\nversion = 0.1\n[options]\ninstall_requires =\n  packaging>20.6\n",
            "setup.py": b"",
        },
    ],
)
def test_every_place_where_a_project_says_it_is_read(tmp_path, files):
    data = packed(*(member(f"top/{name}", text) for name, text in files.items()), member("top/csrc/a.cu"))
    found = read(tmp_path, data)
    assert (found.version, found.requires, found.cuda) == ("0.1", ("packaging>20.6",), True)


def test_a_version_that_only_the_setup_knows_is_given(tmp_path):
    data = project(setup__py=b"setup(name='apex', version=read())")
    with pytest.raises(LockError, match="only its setup knows its version") as caught:
        read(tmp_path, data)
    assert "apex==VERSION@" in caught.value.hint
    assert read(tmp_path, data, version="26.7").version == "26.7"
    with pytest.raises(LockError, match=r"version 0\.1, not 0\.2"):
        read(tmp_path, project(), version="0.2")


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (member("/etc/passwd", b"x"), ContentError),
        (member("top/../../x", b"x"), ContentError),
        (member("top/link", type=tarfile.SYMTYPE, linkname="../../etc"), ContentError),
        (member("top/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), ContentError),
        (member("top/hard", type=tarfile.LNKTYPE, linkname="other/x"), ContentError),
        (member("top/null", type=tarfile.CHRTYPE), ContentError),
        (member("top/pipe", type=tarfile.FIFOTYPE), ContentError),
        (member("second/setup.py", b""), LockError),
    ],
)
def test_a_member_that_leads_elsewhere_refuses_the_archive(tmp_path, bad, kind):
    with pytest.raises(kind, match="--source apex"):
        read(tmp_path, packed(member("top/setup.py", SETUP), bad))


def test_a_link_within_its_folder_is_fine(tmp_path):
    link = member("top/docs/README", type=tarfile.SYMTYPE, linkname="../README")
    assert read(tmp_path, packed(member("top/setup.py", SETUP), link)).version == "0.1"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"not an archive", "not a .tar.gz"),
        (project()[:-40], "not a .tar.gz"),
        (project(README=b"x"), "it is not a source archive"),
        (packed(member("setup.py", SETUP)), "it is not a source archive"),
        (project(setup__py=b"setup(name='another', version='1')"), "is that of 'another'"),
        (project(pyproject__toml=b"[project"), "pyproject.toml is not valid"),
        (project(setup__py=b"setup(name='apex', version='1', install_requires=['x @ https://host.example/x.whl'])"), "without a hash"),
        (project(setup__py=b"setup(name='apex', version='1', install_requires=['=='])"), "is not a requirement"),
    ],
)  # fmt: skip
def test_what_is_no_source_archive_of_that_name_is_refused(tmp_path, data, told):
    with pytest.raises(LockError, match=told):
        read(tmp_path, data)


def test_another_file_than_the_hash_says_is_refused_and_one_that_is_not_there_is_told(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(project())
    with pytest.raises(ContentError, match="not 0000"):
        read_archive(
            SourceWish(name="apex", version=None, place=str(tmp_path / "x.tar.gz"), sha256="0" * 64), Served(b"")
        )
    with pytest.raises(UsageError, match=r"Cannot read .*: No such file"):
        read_archive(SourceWish(name="apex", version=None, place=str(tmp_path / "none"), sha256="0" * 64), Served(b""))


def test_an_archive_at_an_address_is_held_against_its_hash(tmp_path):
    data = project()
    place = "https://host.example/apex.tar.gz"
    wish = SourceWish(name="apex", version=None, place=place, sha256=hashlib.sha256(data).hexdigest())
    found = read_archive(wish, Served(data))
    assert (found.address, found.origin) == (place, place)
    with pytest.raises(ContentError, match="is not the file with sha256"):
        read_archive(wish, Served(data + b" "))
