"""An address: where its server may lead, what of it is told, and what is none."""

from __future__ import annotations

import pytest

from envsmith.errors import NetworkError
from envsmith.net.address import follow, is_loopback, origin, parts_of, redact, split

HERE, THERE = "https://index.test/simple/", "https://8.8.8.8/simple/"


@pytest.mark.parametrize(
    ("before", "location", "place"),
    [
        (HERE, "x/", "https://index.test/simple/x/"),
        (HERE, "//files.test/x", "https://files.test/x"),
        (THERE, "https://9.9.9.9/x", "https://9.9.9.9/x"),
        ("http://index.test/x", "http://files.test/x", "http://files.test/x"),
        ("http://index.test/x", "https://files.test/x", "https://files.test/x"),
        ("https://10.0.0.1/x", "https://192.168.0.2/x", "https://192.168.0.2/x"),
        ("https://10.0.0.1/x", "https://8.8.8.8/x", "https://8.8.8.8/x"),
        ("http://127.0.0.1:1/x", "http://localhost:2/x", "http://localhost:2/x"),
        ("http://127.0.0.1:1/x", "https://10.0.0.1/x", "https://10.0.0.1/x"),
        ("https://localhost/x", "https://[::1]/x", "https://[::1]/x"),
    ],
)
def test_a_server_may_lead_to_places_that_are_as_far_and_as_closed_as_its_own(before, location, place):
    assert follow(before, location) == place


@pytest.mark.parametrize(
    ("before", "location"),
    [
        (HERE, "file:///etc/passwd"),
        (HERE, "ftp://index.test/x"),
        (HERE, "javascript:x"),
        (HERE, "http://index.test/x"),
        (HERE, "http://localhost/x"),
        (HERE, "https://[nonsense/x"),
        (HERE, "https://index.test:port/x"),
        (HERE, "https://localhost/x"),
        (THERE, "https://127.0.0.1:8080/x"),
        (THERE, "https://[::1]/x"),
        (THERE, "https://[::ffff:127.0.0.1]/x"),
        (THERE, "https://0.0.0.0/x"),
        (THERE, "https://2130706433/x"),
        (THERE, "https://169.254.169.254/latest/meta-data"),
        (THERE, "https://[fe80::1]/x"),
        (THERE, "https://10.0.0.1/x"),
        (THERE, "https://[fd00::1]/x"),
        (THERE, "https://100.64.0.1/x"),
        ("https://10.0.0.1/x", "https://127.0.0.1/x"),
        ("https://10.0.0.1/x", "https://169.254.169.254/x"),
        ("http://10.0.0.1/x", "http://127.0.0.1/x"),
        ("http://127.0.0.1:1/x", "http://10.0.0.1/x"),
    ],
)
def test_a_server_may_not_lead_to_files_open_ways_or_closer_to_this_machine(before, location):
    with pytest.raises(NetworkError):
        follow(before, location)


def test_what_the_user_named_decides_and_not_the_stop_before():
    assert follow("https://8.8.8.8/x", "https://10.0.0.2/x", first="https://10.0.0.1/x") == "https://10.0.0.2/x"
    with pytest.raises(NetworkError, match="closer to this machine"):
        follow("https://10.0.0.1/x", "https://10.0.0.2/x", first="https://8.8.8.8/x")


def test_redact_keeps_what_identifies_and_drops_what_opens():
    assert redact("https://user:secret@index.test:8443/simple/x/#sha256=1") == "https://index.test:8443/simple/x/"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("127.0.0.2", False),
        ("localhost.test", False),
        ("", False),
        (None, False),
    ],
)
def test_this_machine_has_three_names(host, is_here):
    assert is_loopback(host) is is_here


@pytest.mark.parametrize(
    ("url", "is_address"),
    [
        ("http://a.test", True),
        ("https://a.test:1/x", True),
        ("https://a.test:65535/x", True),
        ("https://a.test:0/x", False),
        ("https://a.test:65536/x", False),
        ("https://a.test:x/x", False),
        ("https://[::1/x", False),
        ("https://:443/x", False),
        ("a.test/x", False),
        ("", False),
    ],
)
def test_an_address_has_a_scheme_a_host_and_a_port_that_can_be(url, is_address):
    if is_address:
        assert split(url).geturl() == url
        return
    with pytest.raises(NetworkError, match="not an http address") as caught:
        split(url)
    assert caught.value.hint


def test_an_address_that_is_none_is_told_without_its_login_and_shortly():
    with pytest.raises(NetworkError) as caught:
        split("ftp://user:hunter2@" + "a" * 300)
    assert caught.value.message == f"Cannot read {'a' * 200!r}: it is not an http address."


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:word@a.test:8443/x", ("https", "a.test:8443")),
        ("http://a.test", ("http", "a.test")),
        ("https://[nonsense/x", ("", "")),
        ("https://a.test:port/x", ("", "")),
    ],
)
def test_the_origin_of_an_address_is_scheme_host_and_port(url, expected):
    assert origin(url) == expected
    assert parts_of(url).scheme == expected[0]


@pytest.mark.parametrize(
    ("first", "before", "place", "is_followed"),
    [
        ("https://127.0.0.1/x", "https://127.0.0.1/x", "https://0.0.0.0/x", True),
        ("https://169.254.0.1/x", "https://169.254.0.1/x", "https://224.0.0.1/x", True),
        ("https://169.254.0.1/x", "https://169.254.0.1/x", "https://0.0.0.0/x", False),
        ("https://169.254.0.1/x", "https://169.254.0.1/x", "https://10.0.0.1/x", True),
        ("https://10.0.0.1/x", "https://10.0.0.1/x", "https://224.0.0.1/x", False),
        ("https://10.0.0.1/x", "https://10.0.0.1/x", "https://10.0.0.1:8443/x", True),
        ("https://[2606:4700::1]/x", "https://8.8.8.8/x", "https://[::ffff:8.8.4.4]/x", True),
        ("https://8.8.8.8/x", "https://8.8.8.8/x", "https://[::ffff:10.0.0.1]/x", False),
        ("https://8.8.8.8/x", "https://10.0.0.1/x", "https://8.8.8.8/y", True),
        ("http://8.8.8.8/x", "https://8.8.8.8/x", "http://8.8.8.8/y", False),
        ("http://8.8.8.8/x", "http://9.9.9.9/x", "http://8.8.8.8/y", True),
        ("http://127.0.0.1/x", "http://localhost/x", "http://8.8.8.8/y", False),
    ],
)
def test_a_stop_on_the_way_makes_nothing_closer_or_more_open(first, before, place, is_followed):
    if is_followed:
        assert follow(before, place, first=first) == place
        return
    with pytest.raises(NetworkError, match=r"it leads to .*(closer to this machine|unencrypted)") as caught:
        follow(before, place, first=first)
    assert caught.value.hint
