"""A layer in its canonical form, member by member, and what hides a folder of the layers below."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envsmith.base.files import HashedWriter
from envsmith.errors import ContentError
from envsmith.net.oci.layers import CHUNK, Seen, member_name, normalise, stream

EPOCH = 1000
FOLDER = {"type": tarfile.DIRTYPE, "mode": 0o755}
CAPABILITY = "SCHILY.xattr.security.capability"


def _tar(*members: tuple[str, dict[str, Any]]) -> tarfile.TarFile:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            content = fields.pop("content", "").encode()
            info.size = len(content)
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    out.seek(0)
    return tarfile.open(fileobj=out)


def _normal(tmp_path: Path, layer: tarfile.TarFile, seen: Seen | None = None) -> tuple[int, list[tarfile.TarInfo]]:
    with (tmp_path / "layer").open("wb") as file:
        count = normalise(layer, HashedWriter(file), seen or Seen(), epoch=EPOCH)
    with tarfile.open(tmp_path / "layer") as archive:
        return count, archive.getmembers()


def _seen(*layers: tarfile.TarFile) -> Seen:
    seen = Seen()
    for layer in layers:
        seen.take_base(layer)
    return seen


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_a_file_is_read_in_pieces_of_a_mebibyte(size: int) -> None:
    assert CHUNK == 1 << 20
    pieces = [len(piece) for piece in stream(io.BytesIO(b"x" * size))]
    assert pieces == [n for n in (min(size, CHUNK), size - CHUNK) if n > 0]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b", "a/b"),
        ("./a/b", "a/b"),
        ("/a//b/", "a/b"),
        ("a/./b", "a/b"),
        ("a/..b/c..", "a/..b/c.."),
        ("./", "."),
        ("", "."),
        ("/", "."),
    ],
)
def test_a_path_has_one_spelling(name: str, path: str) -> None:
    assert member_name(name) == path


@pytest.mark.parametrize("name", ["..", "../a", "a/..", "/a/../b", "a/../" + "b" * 200])
def test_a_path_that_leads_out_is_refused_with_its_first_120_characters(name: str) -> None:
    with pytest.raises(ContentError) as caught:
        member_name(name)

    assert caught.value.message == f"Cannot read a layer: its path {name[:120]!r} leads out of the image."


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("etc/hosts", False),
        ("etc/hostname", False),
        ("etc/resolv.conf", False),
        ("etc/mtab", False),
        (".dockerenv", False),
        ("run/.containerenv", False),
        ("dev", False),
        ("dev/null", False),
        ("proc/1/maps", False),
        ("sys/kernel", False),
        ("run/secrets", False),
        ("run/secrets/key", False),
        ("./", False),
        ("etc/hosts.allow", True),
        ("etc/hosts/x", True),
        ("device", True),
        ("opt/dev/null", True),
        ("run/secretsx", True),
        ("run/lock", True),
    ],
)
def test_what_an_engine_mounts_over_is_left_out(tmp_path: Path, name: str, is_kept: bool) -> None:
    count, members = _normal(tmp_path, _tar((name, {})))

    assert count == is_kept
    assert [member.name for member in members] == [name] * is_kept


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mode": 0o104755, "uid": 7, "gid": 8}, {"mode": 0o4755, "uid": 7, "gid": 8}),
        ({"uname": "me", "gname": "us"}, {"uname": "", "gname": "", "uid": 0}),
        ({"mtime": EPOCH - 1}, {"mtime": EPOCH}),
        ({"mtime": EPOCH}, {"mtime": EPOCH}),
        ({"mtime": EPOCH + 1}, {"mtime": EPOCH}),
        ({"mtime": EPOCH - 0.5}, {"mtime": EPOCH}),
        ({"type": tarfile.CONTTYPE, "content": "abc"}, {"type": tarfile.REGTYPE, "size": 3}),
        ({"type": tarfile.SYMTYPE, "linkname": "../b"}, {"type": tarfile.SYMTYPE, "linkname": "../b", "size": 0}),
        (
            {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
            {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        ),
        ({"type": tarfile.FIFOTYPE}, {"type": tarfile.FIFOTYPE, "devmajor": 0}),
        ({"linkname": "left over"}, {"linkname": "", "type": tarfile.REGTYPE}),
        ({"pax_headers": {CAPABILITY: "x", "comment": "y"}}, {"pax_headers": {CAPABILITY: "x"}}),
    ],
)
def test_a_member_keeps_what_a_container_sees_of_it(
    tmp_path: Path, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    _, (member,) = _normal(tmp_path, _tar(("opt/a", dict(fields))))

    assert {key: getattr(member, key) for key in expected} == expected


def test_members_stand_sorted_by_name_whatever_their_order(tmp_path: Path) -> None:
    names = ["b", "a/z", "a.x", "a", "B", "a-x"]

    count, members = _normal(tmp_path, _tar(*((name, {}) for name in names)))

    assert count == len(names)
    assert [member.name for member in members] == ["B", "a", "a-x", "a.x", "a/z", "b"]


def test_the_smallest_name_of_a_file_carries_its_content_and_the_others_link_to_it(tmp_path: Path) -> None:
    link = {"type": tarfile.LNKTYPE}
    layer = _tar(
        ("./c", {"content": "shared"}), ("b", {**link, "linkname": "/c"}), ("d", {**link, "linkname": "./c"}),
        ("e", {"content": "alone"}), ("f", {"content": "two"}), ("g", {**link, "linkname": "f"}),
    )  # fmt: skip

    count, members = _normal(tmp_path, layer)

    assert count == 6
    assert [(m.name, m.type, m.linkname, m.size) for m in members] == [
        ("b", tarfile.REGTYPE, "", 6),
        ("c", tarfile.LNKTYPE, "b", 0),
        ("d", tarfile.LNKTYPE, "b", 0),
        ("e", tarfile.REGTYPE, "", 5),
        ("f", tarfile.REGTYPE, "", 3),
        ("g", tarfile.LNKTYPE, "f", 0),
    ]
    with tarfile.open(tmp_path / "layer") as archive:
        texts = [file.read() for name in "bcdefg" if (file := archive.extractfile(name))]
    assert texts == [b"shared", b"shared", b"shared", b"alone", b"two", b"two"]


def test_a_hard_link_to_a_file_of_another_layer_is_refused(tmp_path: Path) -> None:
    layer = _tar(("b", {"type": tarfile.LNKTYPE, "linkname": "a"}), ("c", {"type": tarfile.LNKTYPE, "linkname": "a"}))

    with pytest.raises(ContentError) as caught:
        _normal(tmp_path, layer)

    assert caught.value.message == "Cannot read a layer: it links b to a, which it does not hold."


@pytest.mark.parametrize(
    ("below", "again", "is_kept"),
    [
        ({}, {}, False),
        ({}, {"mtime": 7}, False),
        ({"mode": 0o40755}, {}, False),
        ({}, {"mode": 0o700}, True),
        ({}, {"mode": 0o1755}, True),
        ({}, {"uid": 1}, True),
        ({}, {"gid": 1}, True),
        ({"type": tarfile.REGTYPE}, {}, True),
        ({}, {"type": tarfile.REGTYPE}, True),
    ],
)
def test_a_folder_that_was_only_touched_is_left_out(
    tmp_path: Path, below: dict[str, Any], again: dict[str, Any], is_kept: bool
) -> None:
    seen = _seen(_tar(("opt", {**FOLDER, **below})))

    count, members = _normal(tmp_path, _tar(("opt", {**FOLDER, **again})), seen)

    assert count == is_kept
    assert [member.name for member in members] == ["opt"] * is_kept


TREE = ["a", "a/b", "a/b/c", "ab", "d"]


@pytest.mark.parametrize(
    ("above", "left"),
    [
        ("x", TREE),
        (".wh.a", ["ab", "d"]),
        ("a/.wh.b", ["a", "ab", "d"]),
        ("a/b/.wh.c", ["a", "a/b", "ab", "d"]),
        (".wh.d", ["a", "a/b", "a/b/c", "ab"]),
        (".wh.unknown", TREE),
        ("a/.wh..wh..opq", ["a", "ab", "d"]),
        ("a/b/.wh..wh..opq", ["a", "a/b", "ab", "d"]),
        ("d/.wh..wh..opq", TREE),
        # A file in the place of a folder.
        ("d", ["a", "a/b", "a/b/c", "ab"]),
    ],
)
def test_a_whiteout_hides_what_stands_below_it(above: str, left: list[str]) -> None:
    seen = _seen(_tar(*((name, dict(FOLDER)) for name in TREE)), _tar((above, {})))

    assert sorted(seen.directories) == left


@pytest.mark.parametrize("names", [(".wh.a", "a"), ("a", ".wh.a")])
def test_a_layer_that_hides_a_folder_and_makes_it_again_has_the_new_one(names: tuple[str, str]) -> None:
    again = [(name, {"type": tarfile.DIRTYPE, "mode": 0o700} if name == "a" else {}) for name in names]
    seen = _seen(_tar(("a", dict(FOLDER)), ("a/b", dict(FOLDER))), _tar(*again))

    assert seen.directories == {"a": (0o700, 0, 0)}


def test_a_layer_that_was_written_is_below_the_next(tmp_path: Path) -> None:
    seen = Seen()

    counts = [_normal(tmp_path, _tar(("opt", dict(FOLDER)), ("opt/a", {})), seen)[0] for _ in range(2)]

    assert counts == [2, 1]


@pytest.mark.parametrize(("below", "stays"), [((), False), ((("a", {"type": tarfile.DIRTYPE}),), True)])
def test_an_opaque_mark_in_a_folder_that_is_new_is_left_out(
    tmp_path: Path, below: tuple[tuple[str, dict[str, Any]], ...], stays: bool
) -> None:
    layer = _tar(("a", {"type": tarfile.DIRTYPE, "mode": 0o700}), ("a/.wh..wh..opq", {}), ("a/b", {}))

    _, members = _normal(tmp_path, layer, _seen(_tar(*below)))

    assert ("a/.wh..wh..opq" in [member.name for member in members]) is stays
