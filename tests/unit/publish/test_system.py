"""The packages of the distribution, read from the layers of an image."""

from __future__ import annotations

import io

import pytest
from tars import tar_bytes

from envsmith.model.lock import OsPackage
from envsmith.publish.system import SystemPackages

LIST = "var/lib/dpkg/status"


def stanza(name: str, version: str, *, arch: str = "amd64", status: str = "install ok installed") -> bytes:
    return (
        f"Package: {name}\nStatus: {status}\nArchitecture: {arch}\nVersion: {version}\nDescription: x\n y\n\n".encode()
    )


def layer(**files: bytes) -> io.BytesIO:
    """A layer of files by their names, in which `__` stands for the slash."""
    return io.BytesIO(tar_bytes((name.replace("__", "/"), data) for name, data in files.items()))


class Stream(io.BytesIO):
    """A layer that is unpacked while it is read."""

    def seekable(self) -> bool:
        return False


def packages(*layers: io.BytesIO) -> dict[str, str]:
    system = SystemPackages()
    for one in layers:
        system.take(one)
    return {package.name: package.version for package in system.packages}


def test_the_packages_of_an_image_are_those_of_its_last_list_with_their_architecture() -> None:
    base = layer(var__lib__dpkg__status=stanza("libc6", "2.36-9"))
    cell = layer(var__lib__dpkg__status=stanza("g++", "4:12.2.0-3") + stanza("libc6", "2.36-9", arch="all"))

    assert packages(base, layer(opt__x=b"x"), cell) == {"g++:amd64": "4:12.2.0-3", "libc6:all": "2.36-9"}


def test_a_layer_that_can_be_read_once_says_the_same() -> None:
    whole = layer(opt__x=b"x" * 3_000_000, var__lib__dpkg__status=stanza("libc6", "2.36-9"), opt__y=b"y")

    assert packages(Stream(whole.getvalue())) == packages(whole) == {"libc6:amd64": "2.36-9"}


def test_a_member_with_a_name_of_its_own_header_is_no_list() -> None:
    long = "opt/" + "x" * 300

    assert packages(layer(**{long: b"x", "var__lib__dpkg__status": stanza("libc6", "2.36-9")})) == {
        "libc6:amd64": "2.36-9"
    }


@pytest.mark.parametrize("size", [b"\x80" + (600).to_bytes(11, "big"), b"00000001130\0", b"      1130 \0"])
def test_a_size_is_read_in_octal_or_in_binary(size: bytes) -> None:
    block = bytearray(layer(opt__x=b"x" * 600, var__lib__dpkg__status=stanza("libc6", "2.36-9")).getvalue())
    block[124:136] = size

    assert packages(io.BytesIO(block)) == {"libc6:amd64": "2.36-9"}


@pytest.mark.parametrize("size", [b"\x80" + b"\xff" * 11, b"77777777777\0", b"notanumber\0\0"])
def test_a_size_that_nothing_has_is_no_memory(size: bytes) -> None:
    block = bytearray(layer(var__lib__dpkg__status=stanza("libc6", "2.36-9")).getvalue())
    block[124:136] = size

    assert packages(Stream(bytes(block))) == packages(io.BytesIO(block)) == {}


def test_a_package_that_was_removed_is_not_there() -> None:
    status = stanza("libc6", "2.36-9") + stanza("perl", "5.36", status="deinstall ok config-files")

    assert packages(layer(var__lib__dpkg__status=status)) == {"libc6:amd64": "2.36-9"}


def test_an_image_without_dpkg_has_a_file_for_each_package() -> None:
    one = b"Package: tzdata\nArchitecture: all\nVersion: 2024a\n"

    assert packages(layer(var__lib__dpkg__status_d__tzdata=b"", **{"var__lib__dpkg__status.d__tzdata": one})) == {
        "tzdata:all": "2024a"
    }


@pytest.mark.parametrize(
    "gone", ["var__lib__dpkg__.wh.status", "var__lib__.wh.dpkg", "var__lib__dpkg__.wh..wh..opq", ".__var__.wh.lib"]
)
def test_a_list_that_a_layer_takes_away_is_not_there(gone: str) -> None:
    base = layer(var__lib__dpkg__status=stanza("libc6", "2.36-9"))

    assert packages(base, layer(**{gone: b""})) == {}


@pytest.mark.parametrize("order", ["before it", "after it"])
def test_a_list_that_a_layer_replaces_in_an_emptied_folder_is_the_new_one(order: str) -> None:
    base = layer(var__lib__dpkg__status=stanza("libc6", "2.36-9"))
    fresh = {LIST.replace("/", "__"): stanza("musl", "1.2.3"), "var__lib__dpkg__.wh..wh..opq": b""}
    cell = layer(**fresh if order == "after it" else dict(reversed(fresh.items())))

    assert packages(base, cell) == {"musl:amd64": "1.2.3"}


@pytest.mark.parametrize("data", [b"", b"no tar", b"\0" * 4096, b"x" * 2000])
def test_what_is_no_tar_says_nothing(data: bytes) -> None:
    assert packages(io.BytesIO(data)) == {}


@pytest.mark.parametrize(("name", "version"), [("../evil", "1"), ("a", "1 2"), ("A", "1"), ("a" * 300, "1")])
def test_a_name_or_a_version_that_no_package_has_is_passed_over(name: str, version: str) -> None:
    status = stanza(name, version) + stanza("libc6", "2.36-9")

    assert packages(layer(var__lib__dpkg__status=status)) == {"libc6:amd64": "2.36-9"}


def test_a_layer_that_ends_in_the_middle_keeps_what_came_before() -> None:
    system = SystemPackages()
    whole = layer(var__lib__dpkg__status=stanza("libc6", "2.36-9"), opt__x=b"x" * 5000).getvalue()

    system.take(io.BytesIO(whole[:3000]))

    assert system.packages == (OsPackage(name="libc6:amd64", version="2.36-9"),)
