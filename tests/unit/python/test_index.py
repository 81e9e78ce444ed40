"""Pages of an index, honest and hostile; where the index is."""

from __future__ import annotations

import json

import pytest

from envsmith.errors import NetworkError
from envsmith.python import index
from envsmith.python.index import PackageIndex, find_index, parse_html, parse_project_json, parse_simple_json

PAGE = "https://index.test/simple/demo/"
SHA = "a" * 64

HTML = f"""<!DOCTYPE html><html><body>
<a href="../../files/demo-1.0-py3-none-any.whl#sha256={SHA}" data-requires-python="&gt;=3.8" data-core-metadata="sha256={"b" * 64}">demo-1.0-py3-none-any.whl</a>
<a href="https://files.test/demo-1.1.tar.gz#sha256={SHA}" data-yanked="broken" data-upload-time="2026-01-02T03:04:05Z">demo-1.1.tar.gz</a>
<a href="demo-1.1.exe">demo-1.1.exe</a>
<a>no address</a>
</body></html>"""


def test_an_html_page_gives_addresses_hashes_bounds_and_withdrawals():
    wheel, sdist = parse_html(HTML, PAGE)
    assert wheel.url == "https://index.test/files/demo-1.0-py3-none-any.whl"
    assert (wheel.version, wheel.sha256, wheel.requires_python, wheel.yanked) == ("1.0", SHA, ">=3.8", None)
    assert (wheel.metadata, wheel.metadata_sha256, wheel.is_wheel) == (True, "b" * 64, True)
    assert (sdist.yanked, sdist.day, sdist.metadata, sdist.is_wheel) == ("broken", "2026-01-02", False, False)


def test_a_base_element_moves_relative_addresses():
    page = '<base href="https://elsewhere.test/x/"><a href="demo-1.0.tar.gz">d</a>'
    assert parse_html(page, PAGE)[0].url == "https://elsewhere.test/x/demo-1.0.tar.gz"


@pytest.mark.parametrize(
    "href",
    [
        "http://index.test/demo-1.0.tar.gz",
        "file:///etc/demo-1.0.tar.gz",
        "javascript:demo-1.0.tar.gz",
        "https://x.test/%2fetc%2fdemo-1.0.tar.gz",
    ],
)
def test_files_that_would_leave_the_encrypted_index_are_not_listed(href):
    assert parse_html(f'<a href="{href}">x</a>', PAGE) == ()


def test_a_json_page_gives_the_same():
    document = {
        "meta": {"api-version": "1.1"},
        "files": [
            {
                "filename": "demo-1.0-py3-none-any.whl",
                "url": "demo-1.0-py3-none-any.whl",
                "hashes": {"sha256": SHA},
                "size": 7,
                "upload-time": "2026-01-02T03:04:05Z",
                "requires-python": ">=3.8",
                "yanked": False,
                "core-metadata": {"sha256": "b" * 64},
            }
        ],
    }
    (file,) = parse_simple_json(json.dumps(document), PAGE)
    assert (file.url, file.sha256, file.size, file.day, file.metadata_sha256) == (
        PAGE + file.filename,
        SHA,
        7,
        "2026-01-02",
        "b" * 64,
    )


def test_a_project_document_gives_times_sizes_and_reasons():
    entry = {
        "filename": "demo-1.0.tar.gz",
        "url": "../../packages/demo-1.0.tar.gz",
        "digests": {"sha256": SHA},
        "size": 9,
        "upload_time_iso_8601": "2026-01-02T03:04:05Z",
        "requires_python": None,
        "yanked": True,
        "yanked_reason": "bad",
    }
    (file,) = parse_project_json(json.dumps({"releases": {"1.0": [entry]}}), "https://index.test/pypi/demo/json")
    assert (file.url, file.size, file.day, file.yanked) == (
        "https://index.test/packages/demo-1.0.tar.gz",
        9,
        "2026-01-02",
        "bad",
    )


HOSTILE = [b"", b"[]", b"null", b'{"files": 3}', b"\xff\xfe", b"[" * 100_000, b'{"releases": []}']


@pytest.mark.parametrize("body", HOSTILE)
@pytest.mark.parametrize("parse", [parse_simple_json, parse_project_json])
def test_what_is_no_document_is_one_kind_of_failure(parse, body):
    with pytest.raises(NetworkError):
        parse(body, PAGE)


def test_entries_of_wrong_types_are_left_out_not_believed():
    files = [
        3,
        None,
        {"filename": 1, "url": 2},
        {
            "filename": "demo-1.0.tar.gz",
            "url": "demo-1.0.tar.gz",
            "hashes": [],
            "size": -5,
            "upload-time": 7,
            "yanked": 1,
            "requires-python": {},
        },
        {"filename": "../demo-1.0.tar.gz", "url": "x"},
        {"filename": "demo-1.0.tar.gz", "url": "demo-1.0.tar.gz", "hashes": {"sha256": "zz"}},
    ]
    found = parse_simple_json(json.dumps({"files": files}), PAGE)
    assert [(f.filename, f.sha256, f.size, f.uploaded, f.yanked) for f in found] == [
        ("demo-1.0.tar.gz", None, None, None, None)
    ] * 2


def test_times_and_sizes_missing_on_the_page_come_from_the_project_document(fetcher):
    fetcher.files[PAGE] = HTML.encode()
    entry = {
        "filename": "demo-1.0-py3-none-any.whl",
        "url": "x",
        "digests": {"sha256": SHA},
        "size": 9,
        "upload_time": "2026-02-03T00:00:00",
    }
    liar = {
        "filename": "demo-1.1.tar.gz",
        "url": "x",
        "digests": {"sha256": "c" * 64},
        "size": 1,
        "upload_time": "2020-01-01",
    }
    fetcher.files["https://index.test/pypi/demo/json"] = json.dumps(
        {"releases": {"1.0": [entry], "1.1": [liar]}}
    ).encode()
    wheel, sdist = PackageIndex(fetcher, "https://index.test/simple").project("Demo").files
    assert (wheel.size, wheel.day) == (9, "2026-02-03")
    assert (sdist.size, sdist.day) == (None, "2026-01-02")


def test_an_index_without_project_documents_still_answers(fetcher):
    fetcher.files[PAGE] = HTML.encode()
    assert list(PackageIndex(fetcher, "https://index.test/simple/").project("demo").releases()) == ["1.0", "1.1"]


def test_two_spellings_of_a_version_are_one_release():
    page = '<a href="demo-69.3.tar.gz">x</a><a href="demo-69.3.0-py3-none-any.whl">x</a><a href="demo-7.0.tar.gz">x</a>'
    releases = index.Project(name="demo", files=parse_html(page, PAGE)).releases()
    assert {v: len(f) for v, f in releases.items()} == {"7.0": 1, "69.3.0": 2}


@pytest.fixture
def user(tmp_path):
    """A user without any configuration; ``user(NAME=value)`` is their environment."""
    for tool in ("pip", "uv"):
        (tmp_path / tool).mkdir()
    paths = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache")}
    return lambda **more: {**paths, "PIP_CONFIG_FILE": str(tmp_path / "pip" / "pip.conf"), **more}


def test_the_default_of_uv_is_used_when_nothing_is_configured(user):
    assert find_index(user()).startswith("https://")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"UV_DEFAULT_INDEX": "https://a.test/", "PIP_INDEX_URL": "https://b.test/"}, "https://a.test/"),
        ({"UV_DEFAULT_INDEX": "corp=https://a.test/"}, "https://a.test/"),
        ({"UV_INDEX_URL": "https://a.test/"}, "https://a.test/"),
        ({"PIP_INDEX_URL": "https://b.test/"}, "https://b.test/"),
    ],
)
def test_settings_of_the_environment_win(user, environ, expected):
    assert find_index(user(**environ)) == expected


def test_pip_conf_counts_unless_uv_is_configured(user, tmp_path):
    (tmp_path / "pip" / "pip.conf").write_text("[global]\nindex-url = https://pip.test/simple\n")
    assert find_index(user()) == "https://pip.test/simple"
    (tmp_path / "uv" / "uv.toml").write_text('index-url = "https://corp.test/simple"\n')
    assert find_index(user()) == "https://corp.test/simple"


def test_an_index_in_a_folder_of_this_machine_is_not_pips_answer(user, tmp_path):
    assert find_index(user(PIP_INDEX_URL=tmp_path.as_uri())).startswith("https://")


def test_a_broken_pip_conf_is_passed_over(user, tmp_path):
    (tmp_path / "pip" / "pip.conf").write_bytes(b"\xff[[[")
    assert find_index(user()).startswith("https://")
