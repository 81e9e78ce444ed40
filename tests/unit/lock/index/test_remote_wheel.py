"""Remote wheels: few requests, bounded reading, hostile archives refused."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsmith.errors import NetworkError
from envsmith.lock.index.remote_wheel import RemoteFile, RemoteWheel

URL = "https://index.test/demo-1.0-py3-none-any.whl"
META = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"


def test_one_member_costs_two_requests_and_not_the_whole_file(fetcher, make_wheel):
    noise = bytes(range(256)) * 40_000
    fetcher.files[URL] = make_wheel(
        {"big.bin": noise, "demo/a.txt": b"x" * 300_000, "demo-1.0.dist-info/METADATA": META}, zipfile.ZIP_STORED
    )
    with RemoteWheel(fetcher, URL) as wheel:
        assert wheel.read("demo/a.txt", max_bytes=1 << 20) == b"x" * 300_000
        assert wheel.metadata() == META
    assert len(fetcher.asked) == 2


def test_a_wheel_that_is_known_to_be_small_costs_one_request(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"a.bin": b"x" * 200_000, "demo/a.py": b"x = 1"}, zipfile.ZIP_STORED)
    with RemoteWheel(fetcher, URL, size=len(fetcher.files[URL])) as wheel:
        assert dict(wheel.read_all(["a.bin", "demo/a.py"], max_bytes=1 << 20))["demo/a.py"] == b"x = 1"
    assert len(fetcher.asked) == 1


def test_a_stream_can_be_left_early(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"lib.so": b"begin" + b"\0" * 5_000_000 + b"end"}, zipfile.ZIP_STORED)
    with RemoteWheel(fetcher, URL, budget=1 << 20) as wheel:
        stream = wheel.stream("lib.so")
        assert next(stream).startswith(b"begin")
        stream.close()


def test_a_member_that_unpacks_to_too_much_is_refused(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"demo-1.0.dist-info/METADATA": b"\0" * 50_000_000})
    with RemoteWheel(fetcher, URL) as wheel, pytest.raises(NetworkError, match="longer than"):
        wheel.metadata()


def test_reading_more_than_the_budget_is_refused(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"lib.so": bytes(range(256)) * 20_000}, zipfile.ZIP_STORED)
    with RemoteWheel(fetcher, URL, budget=1 << 20) as wheel, pytest.raises(NetworkError, match="more would be read"):
        wheel.read("lib.so", max_bytes=1 << 30)


def test_a_central_directory_without_end_is_refused(fetcher, make_wheel, monkeypatch):
    from envsmith.lock.index import remote_wheel

    monkeypatch.setattr(remote_wheel, "_MAX_DIRECTORY", 1 << 17)
    fetcher.files[URL] = make_wheel({f"{i:0>200}": b"" for i in range(2000)})
    with pytest.raises(NetworkError, match="more would be read"):
        RemoteWheel(fetcher, URL)


def _damaged(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        offset = archive.getinfo("demo-1.0.dist-info/METADATA").header_offset
    return content[: offset + 60] + b"\xff\xff" + content[offset + 62 :]


def test_a_member_with_a_wrong_checksum_is_refused(fetcher, make_wheel):
    fetcher.files[URL] = _damaged(make_wheel({"demo-1.0.dist-info/METADATA": META * 9}))
    with RemoteWheel(fetcher, URL) as wheel, pytest.raises(NetworkError, match="is not a wheel"):
        wheel.metadata()


@pytest.mark.parametrize(
    "body", [b"", b"PK", b"not a zip" * 1000, b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 9, 9, 2**31, 5, 0)]
)
def test_what_is_no_archive_is_one_kind_of_failure(fetcher, body):
    fetcher.files[URL] = body
    with pytest.raises(NetworkError):
        RemoteWheel(fetcher, URL)


def test_a_wheel_without_metadata_says_so(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"x/y.dist-info/METADATA": META})
    with RemoteWheel(fetcher, URL) as wheel, pytest.raises(NetworkError, match="no METADATA"):
        wheel.metadata()
    with RemoteWheel(fetcher, URL) as wheel, pytest.raises(NetworkError, match="no member"):
        wheel.read("absent", max_bytes=9)


def test_small_members_are_the_small_libraries_largest_first(fetcher, make_wheel):
    members = {"a.so": b"1" * 10, "b.so.1": b"1" * 50, "c.so": b"1" * 5000, "d.txt": b"1"}
    fetcher.files[URL] = make_wheel(members, zipfile.ZIP_STORED)
    with RemoteWheel(fetcher, URL) as wheel:
        assert wheel.small_members(".so", below=1000, limit=9) == ["b.so.1", "a.so"]
        assert wheel.small_members(".so", below=1000, limit=1) == ["b.so.1"]


BODY = bytes(i * 7 % 251 for i in range(300_000))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(reads=st.lists(st.tuples(st.integers(0, 300_100), st.integers(0, 90_000)), max_size=8), expect=st.booleans())
def test_a_remote_file_reads_like_a_local_one(fetcher, reads, expect):
    fetcher.files[URL] = BODY
    remote, local = RemoteFile(fetcher, URL), io.BytesIO(BODY)
    for start, size in reads:
        if expect and start < len(BODY):
            remote.expect(start, start + size + 1)
        remote.seek(start)
        local.seek(start)
        assert remote.read(size) == local.read(size)
        assert remote.tell() == local.tell()
    remote.close()


def test_members_that_lie_near_each_other_cost_one_request_together(fetcher, make_wheel):
    small = {f"demo/m{i}.py": b"x = %d\n" % i for i in range(40)}
    big, last = {"demo/big.bin": b"\0" * 3_000_000}, {"far/last.bin": b"\0" * 100_000}
    fetcher.files[URL] = make_wheel({**small, **big, "far/a.py": b"y", **last}, zipfile.ZIP_STORED)
    with RemoteWheel(fetcher, URL) as wheel:
        before = len(fetcher.asked)
        found = dict(wheel.read_all([*reversed(small), "far/a.py"], max_bytes=100))
    assert found == {**small, "far/a.py": b"y"}
    assert len(fetcher.asked) - before == 2


def test_reading_many_refuses_a_long_member_and_one_that_is_not_there(fetcher, make_wheel):
    fetcher.files[URL] = make_wheel({"demo/a.py": b"\0" * 5_000})
    with RemoteWheel(fetcher, URL) as wheel:
        with pytest.raises(NetworkError, match="longer than"):
            list(wheel.read_all(["demo/a.py"], max_bytes=100))
        with pytest.raises(NetworkError, match="no member"):
            list(wheel.read_all(["demo/b.py"], max_bytes=100))
