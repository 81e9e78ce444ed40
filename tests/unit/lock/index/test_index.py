"""Pages of an index, honest and hostile; where the index is."""

from __future__ import annotations

import json

import pytest

from envsmith.errors import NetworkError
from envsmith.lock.index import index
from envsmith.lock.index.index import (
    Listing,
    PackageIndex,
    find_index,
    parse_html,
    parse_project_json,
    parse_simple_json,
)
from envsmith.net.http import HttpClient, Reply

PAGE = "https://index.test/simple/demo/"
SHA = "a" * 64

HTML = f"""<!DOCTYPE html><html><body>
<a href="../../files/demo-1.0-py3-none-any.whl#sha256={SHA}" data-requires-python="&gt;=3.8" data-core-metadata="sha256={"b" * 64}">demo-1.0-py3-none-any.whl</a>
<a href="https://files.test/demo-1.1.tar.gz#sha256={SHA}" data-yanked="broken" data-upload-time="2026-01-02T03:04:05Z">demo-1.1.tar.gz</a>
<a href="demo-1.1.exe">demo-1.1.exe</a>
<a>no address</a>
</body></html>"""


def listed(parse, text, page=PAGE):
    listing = Listing(page)
    parse(text, listing)
    return tuple(listing.files)


def test_an_html_page_gives_addresses_hashes_bounds_and_withdrawals():
    wheel, sdist = listed(parse_html, HTML, PAGE)
    assert wheel.url == "https://index.test/files/demo-1.0-py3-none-any.whl"
    assert (wheel.version, wheel.sha256, wheel.requires_python, wheel.yanked) == ("1.0", SHA, ">=3.8", None)
    assert (wheel.metadata, wheel.metadata_sha256, wheel.is_wheel) == (True, "b" * 64, True)
    assert (sdist.yanked, sdist.day, sdist.metadata, sdist.is_wheel) == ("broken", "2026-01-02", False, False)


def test_a_variant_of_a_wheel_is_left_out_and_named():
    listing = Listing(PAGE)
    links = ("demo-1.0-py3-none-any.whl", "demo-1.0-py3-none-any-cu128.whl", "demo-1.0-variants.json")
    parse_html(f"<html>{''.join(f'<a href={link}>x</a>' for link in links)}</html>", listing)

    assert [file.filename for file in listing.files] == ["demo-1.0-py3-none-any.whl"]
    assert listing.left_out == [
        "demo-1.0-py3-none-any-cu128.whl: it is the variant cu128 of its release, which installers do not take"
    ]


def test_a_base_element_moves_relative_addresses():
    page = '<base href="https://elsewhere.test/x/"><a href="demo-1.0.tar.gz">d</a>'
    assert listed(parse_html, page)[0].url == "https://elsewhere.test/x/demo-1.0.tar.gz"


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
    assert listed(parse_html, f'<a href="{href}">x</a>') == ()


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
    (file,) = listed(parse_simple_json, json.dumps(document), PAGE)
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
    (file,) = listed(
        parse_project_json, json.dumps({"releases": {"1.0": [entry]}}), "https://index.test/pypi/demo/json"
    )
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
        listed(parse, body)


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
    found = listed(parse_simple_json, json.dumps({"files": files}), PAGE)
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


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"log in first",
        b"\x1f\x8b\x08" + bytes(range(200)),
        b"<html><body><form action=/login><input type=password></form></body></html>",
        b"<html><head><script src=/sso.js></script></head><body><a href=/help>help</a></body></html>",
        HTML.encode()[:-20],
        HTML.encode()[:300],
        b'<a href="demo-1.0.tar.gz">demo</a><a href="demo-1.1.tar.',
        b"<![nonsense[>",
        b'<a href="&#' + b"9" * 5000 + b';">',
    ],
    ids=[
        "nothing",
        "a word",
        "gzip",
        "a login",
        "a script",
        "cut at the end",
        "cut in a link",
        "cut without html",
        "a marked section",
        "a number",
    ],
)
def test_a_page_that_is_cut_or_not_of_an_index_is_refused_and_not_kept(server, tmp_path, page):
    server.routes["/simple/demo/"] = lambda h: h.reply(200, page, Content_Type="text/html")
    fetcher = HttpClient(cache=tmp_path)

    with pytest.raises(NetworkError, match="Cannot read"):
        PackageIndex(fetcher, server.url + "/simple").project("demo")

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("content_type", ["application/pdf", "text/plain", "application/octet-stream"])
def test_a_page_of_another_type_is_refused(fetcher, content_type):
    fetcher.files[PAGE], fetcher.types[PAGE] = HTML.encode(), content_type

    with pytest.raises(NetworkError, match=f"'{content_type}' is not a page"):
        PackageIndex(fetcher, "https://index.test/simple/").project("demo")


def test_a_project_without_files_is_one(fetcher):
    fetcher.files[PAGE] = b"<!DOCTYPE html><html><body><h1>Links for demo</h1></body></html>"

    assert PackageIndex(fetcher, "https://index.test/simple/").project("demo").files == ()


def test_a_page_of_the_cache_is_read_again(server, tmp_path):
    server.routes["/simple/demo/"] = lambda h: h.reply(200, HTML.encode(), Content_Type="text/html")
    projects = [PackageIndex(HttpClient(cache=tmp_path), server.url + "/simple").project("demo") for _ in range(2)]

    assert projects[0] == projects[1]
    assert len([request for request in server.seen if request.path == "/simple/demo/"]) == 1


@pytest.mark.parametrize(
    ("filename", "url", "reason"),
    [
        ("demo-2.0.tar.gz", "https://[bad/demo-2.0.tar.gz", "malformed address"),
        ("demo-2.0.tar.gz", "https://10.0.0.1/demo-2.0.tar.gz", "closer to this machine"),
        ("demo-2.0.tar.gz", "http://files.test/demo-2.0.tar.gz", "unencrypted"),
        ("demo-2.0.tar.gz", "file:///etc/demo-2.0.tar.gz", "not an http address"),
        ("evil-2.0.tar.gz", "evil-2.0.tar.gz", "another project"),
        ("evil-2.0-py3-none-any.whl", "demo-2.0-py3-none-any.whl", "another project"),
        ("demo-2.0.tar.gz", "demo-1.9.tar.gz", "its address names demo-1.9.tar.gz"),
        ("demo-2.0.tar.gz", "evil-2.0.tar.gz", "its address names evil-2.0.tar.gz"),
    ],
)
def test_a_lying_or_malformed_entry_is_left_out_and_named_and_the_others_stay(fetcher, filename, url, reason):
    entries = [
        {"filename": name, "url": place} for name, place in ((filename, url), ("demo-1.0.tar.gz", "demo-1.0.tar.gz"))
    ]
    fetcher.files[PAGE], fetcher.types[PAGE] = json.dumps({"files": entries}).encode(), "application/json"

    project = PackageIndex(fetcher, "https://index.test/simple/").project("demo")

    assert [file.filename for file in project.files] == ["demo-1.0.tar.gz"]
    assert len(project.left_out) == 1
    assert project.left_out[0].startswith(f"{filename}: ")
    assert reason in project.left_out[0]


def test_a_malformed_link_of_a_page_in_html_is_left_out(fetcher):
    fetcher.files[PAGE] = (
        b'<base href="https://[bad/"><a href="https://[bad/demo-2.0.tar.gz">x</a><a href="demo-1.0.tar.gz">x</a>'
    )

    project = PackageIndex(fetcher, "https://index.test/simple/").project("demo")

    assert [file.filename for file in project.files] == ["demo-1.0.tar.gz"]
    assert len(project.left_out) == 1


@pytest.mark.parametrize("port_or_host", ["other.test", "index.test:8443"])
def test_the_login_of_an_index_does_not_go_to_links_of_another_server(port_or_host):
    class Redirected:
        def get(self, url, *, check, **_):
            reply = Reply(body=b'<a href="demo-1.0.tar.gz">x</a>', url=f"https://{port_or_host}/simple/demo/")
            check(reply)
            return reply

    (file,) = PackageIndex(Redirected(), "https://user:secret@index.test/simple/").project("demo").files

    assert file.url == f"https://{port_or_host}/simple/demo/demo-1.0.tar.gz"


def test_a_day_that_is_none_is_not_believed(fetcher):
    entry = {"filename": "demo-1.0.tar.gz", "url": "demo-1.0.tar.gz", "upload-time": "9999-99-99T00:00:00Z"}

    assert listed(parse_simple_json, json.dumps({"files": [entry]}))[0].day is None


def test_two_spellings_of_a_version_are_one_release():
    page = '<a href="demo-69.3.tar.gz">x</a><a href="demo-69.3.0-py3-none-any.whl">x</a><a href="demo-7.0.tar.gz">x</a>'
    releases = index.IndexProject(name="demo", files=listed(parse_html, page)).releases()
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
