"""A registry, request by request: what is asked in which order, which answer is taken, and in which words one is refused."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envsmith.base.files import digest_of
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.net.oci.access import Login, login
from envsmith.net.oci.registry import Reference, Repository, parse_reference, resolve_digest
from envsmith.net.oci.spec import IMAGE_INDEX, MAX_MANIFEST, Descriptor, artifact, describe, image_manifest, index_bytes
from envsmith.net.wire import Response

ROOT = "https://reg.invalid/v2/a/"
DIGEST = "sha256:" + "a" * 64
IMAGE = image_manifest(b"{}", [])
PROOF = artifact(artifact_type="x/y", layers=[], subject=IMAGE.descriptor, annotations={})
TAG = IMAGE.digest.replace(":", "-")
# The registry of an image without a host name.
DEFAULT = parse_reference("a/b").registry
BASIC = base64.b64encode(b"user:pass").decode()
BEARER = {"www-authenticate": 'Bearer realm="https://auth.invalid/token",service="reg.invalid"'}
INDEX = {"content-type": IMAGE_INDEX}


@dataclass(frozen=True)
class Request:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Wire:
    """Gives its answers in order, the last one again and again, and keeps the requests."""

    answers: list[Any]
    requests: list[Request] = field(default_factory=list)

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None = None
    ) -> Response:
        sent = body if isinstance(body, bytes) else b"".join(body or ())
        self.requests.append(Request(method, url, dict(headers), sent))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, fields, content = answer
        return Response(status=status, headers=fields, body=io.BytesIO(content))

    @property
    def lines(self) -> list[str]:
        return [f"{request.method} {request.url.removeprefix(ROOT)}" for request in self.requests]


def _answer(status: int, fields: Mapping[str, str] | None = None, content: bytes = b"") -> tuple[Any, ...]:
    return status, dict(fields or {}), content


def _place(number: int = 1, status: int = 202, **fields: str) -> tuple[Any, ...]:
    return _answer(status, {"location": f"/v2/a/blobs/uploads/{number}", **fields})


def _repository(*answers: Any, **options: Any) -> tuple[Repository, Wire, list[float]]:
    wire, waits = Wire(list(answers)), list[float]()
    return Repository("reg.invalid", "a", wire=wire, wait=waits.append, **options), wire, waits


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file of logins, which is not there yet."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    return tmp_path / "config.json"


# -- references and digests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("python", (DEFAULT, "library/python", "latest", None)),
        ("localhost/a", ("localhost", "a", "latest", None)),
        ("localhosts/a", (DEFAULT, "localhosts/a", "latest", None)),
        (f"{DEFAULT}/a:b", (DEFAULT, "library/a", "b", None)),
        (f"a/b@{DIGEST}", (DEFAULT, "a/b", "latest", DIGEST)),
        ("host:5000/a", ("host:5000", "a", "latest", None)),
    ],
)
def test_a_reference_has_four_parts(text: str, parts: tuple[str, str, str, str | None]) -> None:
    registry, repository, tag, digest = parts

    assert parse_reference(text) == Reference(registry=registry, repository=repository, tag=tag, digest=digest)


@pytest.mark.parametrize("claim", ["sha256:" + "0" * 64, "sha256:" + "f" * 64, IMAGE.digest, "", "nonsense"])
def test_a_claim_that_is_a_digest_is_that_of_the_bytes(claim: str) -> None:
    wire = Wire([_answer(200, {"docker-content-digest": claim}, IMAGE.raw)])
    if claim in {IMAGE.digest, "", "nonsense"}:
        assert resolve_digest("reg.invalid/a:b", wire=wire) == IMAGE.digest
        return
    with pytest.raises(ContentError) as caught:
        resolve_digest("reg.invalid/a:b", wire=wire)

    assert caught.value.message == (
        f"Cannot trust reg.invalid/a:b: the registry says {claim[:19]}… and sends {IMAGE.digest[:19]}…."
    )
    assert caught.value.hint == "Check what stands between here and the registry: it changes manifests."


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "sha256:" + "f" * 64, IMAGE.digest])
def test_a_reference_by_digest_leads_to_it(digest: str) -> None:
    text, wire = f"reg.invalid/a:b@{digest}", Wire([_answer(200, {}, IMAGE.raw)])
    if digest == IMAGE.digest:
        assert resolve_digest(text, wire=wire) == digest
        assert wire.lines == [f"GET manifests/{digest}"]
        return
    with pytest.raises(ContentError) as caught:
        resolve_digest(text, wire=wire)

    assert caught.value.message == f"Cannot trust {text}: the registry answers with {IMAGE.digest[:19]}…."


@pytest.mark.parametrize(
    ("raw", "is_good"),
    [
        (b'{"schemaVersion": 2, "config": 1}', True),
        (b'{"schemaVersion": 2, "manifests": 1}', True),
        (b'{"schemaVersion": 2}', False),
        (b'{"schemaVersion": 3, "config": 1}', False),
        (b'{"schemaVersion": 1, "config": 1}', False),
        (b'{"config": 1}', False),
        (b"1", False),
        (b"{", False),
    ],
)
def test_an_answer_is_a_manifest_or_an_index(raw: bytes, is_good: bool) -> None:
    wire = Wire([_answer(200, {}, raw)])
    if is_good:
        assert resolve_digest("reg.invalid/a:b", wire=wire) == digest_of(raw)
        return
    with pytest.raises(NetworkError, match=r"reg.invalid/a:b: the registry's answer is not a manifest"):
        resolve_digest("reg.invalid/a:b", wire=wire)


def test_an_image_that_is_not_there_is_a_usage_error_with_a_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_digest("reg.invalid/a:b", wire=Wire([_answer(404)]))

    assert (caught.value.message, caught.value.hint) == (
        "Cannot find reg.invalid/a:b: the registry has no such image.",
        "Check the name and the tag.",
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "is_good"), [(0, True), (MAX_MANIFEST, True), (MAX_MANIFEST + 1, False)])
def test_a_manifest_is_read_up_to_its_bound(size: int, is_good: bool) -> None:
    repository, _, _ = _repository(_answer(200, {"docker-content-digest": "x"}, b"x" * size))
    if is_good:
        assert repository.manifest("b") == b"x" * size
        assert repository.claim == "x"
        return
    with pytest.raises(
        NetworkError, match=f"Cannot read manifests/b of reg.invalid/a: it is longer than {MAX_MANIFEST} bytes"
    ):
        repository.manifest("b")


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        (200, {}, True),
        (200, {"content-length": "5"}, True),
        (200, {"content-length": "4"}, False),
        (200, {"content-length": "6"}, False),
        (404, {}, False),
        (404, {"content-length": "5"}, False),
        *((status, {"content-length": "0"}, True) for status in (301, 302, 303, 307, 308)),
    ],
)
def test_a_registry_has_a_blob_of_that_size(status: int, fields: dict[str, str], expected: bool) -> None:
    repository, wire, _ = _repository(_answer(status, fields))

    assert repository.has_blob(DIGEST, 5) is expected
    assert wire.lines == [f"HEAD blobs/{DIGEST}"]


@pytest.mark.parametrize(("hops", "status"), [(0, 200), (1, 200), (5, 200), (6, 200), (0, 404), (2, 404), (1, 500)])
def test_five_redirects_to_a_blob_are_followed(hops: int, status: int) -> None:
    leads = [_answer(307, {"location": f"/v2/a/{number}"}) for number in range(hops)]
    repository, wire, _ = _repository(*leads, _answer(status, {}, b"a blob"))
    if hops > 5 or status == 500:
        with pytest.raises(NetworkError) as caught:
            repository.blob(DIGEST)

        last = 307 if hops > 5 else status
        assert (
            caught.value.message
            == f"Cannot read {DIGEST[:19]}… at reg.invalid/a: the registry answers with status {last}."
        )
        assert caught.value.hint == "Run the same command again. What was sent is not sent again."
        return
    body = repository.blob(DIGEST)

    assert (body.read() if body else None) == (b"a blob" if status == 200 else None)
    assert wire.lines == [f"GET blobs/{DIGEST}", *(f"GET {number}" for number in range(hops))]


def test_pages_of_referrers_are_read_to_the_twentieth() -> None:
    pages = [
        _answer(
            200,
            {"content-type": f"{IMAGE_INDEX}; charset=utf-8", "link": f'</v2/a/referrers/{n + 1}>; rel="next"'},
            index_bytes([describe(str(n).encode(), "a/b")]),
        )
        for n in range(30)
    ]
    repository, wire, _ = _repository(*pages)

    rows = repository.referrers(DIGEST)

    assert [row.digest for row in rows] == [digest_of(str(n).encode()) for n in range(20)]
    assert wire.lines == [f"GET referrers/{DIGEST}", *(f"GET referrers/{n}" for n in range(1, 20))]
    assert {request.headers["Accept"] for request in wire.requests} == {IMAGE_INDEX}


@pytest.mark.parametrize(
    "link",
    ["", '</v2/a/referrers/2>; rel="prev"', '</v2/b/referrers/2>; rel="next"', '<https://x.invalid/>; rel="next"'],
)
def test_no_other_page_is_read(link: str) -> None:
    repository, wire, _ = _repository(_answer(200, {**INDEX, "link": link}, index_bytes([PROOF.descriptor])))

    assert repository.referrers(DIGEST) == (PROOF.descriptor,)
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    "answer", [_answer(400), _answer(404), _answer(405), _answer(200), _answer(200, {"content-type": "a/b"})]
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_registry_without_the_api_has_a_tag_of_referrers(answer: Any, is_listed: bool) -> None:
    tag = _answer(200, {}, index_bytes([PROOF.descriptor])) if is_listed else _answer(404)
    repository, wire, _ = _repository(answer, tag)

    assert repository.referrers(IMAGE.digest) == ((PROOF.descriptor,) if is_listed else ())
    assert wire.lines == [f"GET referrers/{IMAGE.digest}", f"GET manifests/{TAG}"]


# -- writing -----------------------------------------------------------------------------------------------------------

CONTENT = b"0123456789"
BLOB = Descriptor(media_type="a/b", digest=digest_of(CONTENT), size=len(CONTENT))
LOOK = f"HEAD blobs/{BLOB.digest}"
BEGIN = "POST blobs/uploads/"


def _opener() -> io.BytesIO:
    return io.BytesIO(CONTENT)


def _end(number: int) -> str:
    return f"PUT blobs/uploads/{number}?digest=sha256%3A{BLOB.digest[7:]}"


def test_a_blob_that_is_there_is_kept() -> None:
    repository, wire, _ = _repository(_answer(200))

    assert repository.push_blob(BLOB, _opener) == "kept"
    assert wire.lines == [LOOK]


@pytest.mark.parametrize("refusal", [202, 401, 403, 404])
def test_a_blob_is_mounted_from_the_first_neighbour_that_has_it(refusal: int) -> None:
    repository, wire, _ = _repository(_answer(404), _answer(refusal), _answer(201), also=("n/1", "n/2", "n/3"))
    if refusal == 401:
        with pytest.raises(NetworkError, match="wants a kind of login"):
            repository.push_blob(BLOB, _opener)
        return

    assert repository.push_blob(BLOB, _opener) == "mounted"
    mount = f"{BEGIN}?mount=sha256%3A{BLOB.digest[7:]}&from=n%2F"
    assert wire.lines == [LOOK, f"{mount}1", f"{mount}2"]


@pytest.mark.parametrize(
    ("piece", "ranges"),
    [
        (100, ["0-9"]),
        (10, ["0-9"]),
        (9, ["0-8", "9-9"]),
        (5, ["0-4", "5-9"]),
        (4, ["0-3", "4-7", "8-9"]),
    ],
)
@pytest.mark.parametrize("status", [201, 202, 204])
def test_a_blob_is_sent_in_pieces(piece: int, ranges: list[str], status: int) -> None:
    places = [_place(number, status) for number in range(2, 2 + len(ranges))]
    repository, wire, waits = _repository(_answer(404), _place(1), *places, _answer(201), piece=piece)

    assert repository.push_blob(BLOB, _opener) == "sent"
    patches = [f"PATCH blobs/uploads/{number}" for number in range(1, 1 + len(ranges))]
    assert wire.lines == [LOOK, BEGIN, *patches, _end(1 + len(ranges))]
    sent = wire.requests[2:-1]
    assert [request.headers["Content-Range"] for request in sent] == ranges
    assert [request.headers["Content-Length"] for request in sent] == [str(len(request.body)) for request in sent]
    assert {request.headers["Content-Type"] for request in sent} == {"application/octet-stream"}
    assert b"".join(request.body for request in sent) == CONTENT
    assert waits == []


def test_an_empty_blob_is_sent_without_a_piece_and_a_state_is_kept() -> None:
    state = _answer(202, {"location": "/v2/a/blobs/uploads/1?state=x"})
    repository, wire, _ = _repository(_answer(404), state, _answer(201))
    blob = describe(b"", "a/b")

    assert repository.push_blob(blob, io.BytesIO) == "sent"
    assert wire.lines[1:] == [BEGIN, f"PUT blobs/uploads/1?state=x&digest=sha256%3A{blob.digest[7:]}"]


@pytest.mark.parametrize(
    "broken",
    [OSError("broken pipe"), *(_answer(n) for n in (416, 408, 425, 429, 500, 502, 503, 504)), _answer(401, BEARER)],
)
@pytest.mark.parametrize(
    ("progress", "status", "start"),
    [("0-4", 204, 5), ("0-1", 204, 2), ("0-0", 204, None), ("", 204, None), ("0-04", 204, None), ("0-4", 202, None), ("0-4", 404, None)],
)  # fmt: skip
def test_a_broken_piece_is_continued_where_the_registry_got_to(
    broken: Any, progress: str, status: int, start: int | None
) -> None:
    token = [_answer(200, {}, b'{"token":"t"}')] if isinstance(broken, tuple) and broken[0] == 401 else []
    again = [_place(7, status, range=progress), *([] if start else [_place(8)])]
    repository, wire, waits = _repository(_answer(404), _place(1), broken, *token, *again, _place(9), _answer(201))

    assert repository.push_blob(BLOB, _opener) == "sent"
    number = 7 if start else 8
    first = ["PATCH blobs/uploads/1", "GET blobs/uploads/1", *([] if start else [BEGIN])]
    assert [line for line in wire.lines[2:] if "token" not in line] == [
        *first,
        f"PATCH blobs/uploads/{number}",
        _end(9),
    ]
    assert wire.requests[-2].headers["Content-Range"] == f"{start or 0}-9"
    assert wire.requests[-2].body == CONTENT[start or 0 :]
    assert waits == [0.5]
    assert ("Authorization" in wire.requests[-1].headers) is bool(token)


@pytest.mark.parametrize("breaks", [1, 4, 5])
def test_an_upload_may_break_four_times(breaks: int) -> None:
    lost = [OSError("broken pipe"), _answer(404), _place(2)]
    repository, wire, waits = _repository(_answer(404), _place(1), *(lost * breaks), _place(9), _answer(201))
    if breaks < 5:
        assert repository.push_blob(BLOB, _opener) == "sent"
        assert waits == [0.5, 1.0, 2.0, 4.0][:breaks]
        return
    with pytest.raises(NetworkError) as caught:
        repository.push_blob(BLOB, _opener)

    assert caught.value.message == f"Cannot send {BLOB.digest[:19]}… to reg.invalid/a: the connection broke 5 times."
    assert sum(line.startswith("PATCH") for line in wire.lines) == 5


def test_a_registry_that_names_no_place_is_refused() -> None:
    repository, _, _ = _repository(_answer(404), _answer(202))

    with pytest.raises(NetworkError, match=r"^Cannot upload to reg.invalid/a: the registry names no place"):
        repository.push_blob(BLOB, _opener)


@pytest.mark.parametrize("claim", [None, IMAGE.digest, "sha256:" + "0" * 64, "sha256:" + "f" * 64])
@pytest.mark.parametrize("tag", [None, "v1", ""])
def test_a_manifest_is_set_under_its_digest_or_a_tag(claim: str | None, tag: str | None) -> None:
    repository, wire, _ = _repository(_answer(201, {} if claim is None else {"docker-content-digest": claim}))
    if claim in {None, IMAGE.digest}:
        repository.push_manifest(IMAGE, tag)

        assert wire.lines == [f"PUT manifests/{IMAGE.digest if tag is None else tag}"]
        assert wire.requests[0].body == IMAGE.raw
        assert wire.requests[0].headers["Content-Type"] == IMAGE.media_type
        return
    with pytest.raises(ContentError) as caught:
        repository.push_manifest(IMAGE, tag)

    assert caught.value.message == f"Cannot trust reg.invalid/a: it calls {IMAGE.digest[:19]}… {str(claim)[:19]}…."


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        ([_answer(201, {"oci-subject": "x"})], []),
        ([_answer(201), _answer(200, INDEX, index_bytes([]))], ["GET referrers"]),
        (
            [_answer(201), _answer(404), _answer(200, {}, index_bytes([PROOF.descriptor]))],
            ["GET referrers", "GET tag"],
        ),
        (
            [_answer(201), _answer(404), _answer(404), _answer(201), _answer(200, {}, index_bytes([PROOF.descriptor]))],
            ["GET referrers", "GET tag", "PUT tag", "GET tag"],
        ),
    ],
)
def test_a_proof_is_listed_where_there_is_no_api(answers: list[Any], lines: list[str]) -> None:
    repository, wire, _ = _repository(*answers)

    repository.push_manifest(PROOF)

    names = {"GET referrers": f"GET referrers/{IMAGE.digest}"}
    assert wire.lines[1:] == [names.get(line, line.replace("tag", f"manifests/{TAG}")) for line in lines]


def test_a_list_that_loses_what_is_written_is_mended_five_times() -> None:
    other = index_bytes([IMAGE.descriptor])
    repository, wire, _ = _repository(
        _answer(201), _answer(404), *([_answer(200, {}, other), _answer(201)] * 5), _answer(500)
    )

    with pytest.raises(NetworkError) as caught:
        repository.push_manifest(PROOF)

    assert caught.value.message == f"Cannot set {TAG} at reg.invalid/a: the registry does not keep what is written."
    assert caught.value.hint == "Check whether another publish is running."
    puts = [request for request in wire.requests if request.method == "PUT"][1:]
    assert [put.body for put in puts] == [index_bytes([IMAGE.descriptor, PROOF.descriptor])] * 5
    assert {put.headers["Content-Type"] for put in puts} == {IMAGE_INDEX}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"errors":[{"code":"A","message":"b"}]}', " (A b)"),
        (b'{"errors":[{"code":1},{"message":2},{},{"code":4}]}', " (1 None; None 2; None None)"),
        (json.dumps({"errors": [{"code": "x" * 300}]}).encode(), f" ({'x' * 200})"),
        (b'{"errors":[]}', ""),
        (b'{"errors":[1]}', ""),
        (b'{"errors":1}', ""),
        (b"{}", ""),
        (b"<html>", ""),
        (b'{"errors":[{"code":"A","message":"b"}]}' + b" " * 65536, " (A b)"),
        (b" " * 65536 + b'{"errors":[{"code":"A","message":"b"}]}', ""),
    ],
)
def test_a_refusal_has_a_little_of_the_words_of_the_registry(content: bytes, words: str) -> None:
    repository, _, _ = _repository(_answer(418, {}, content))

    with pytest.raises(NetworkError) as caught:
        repository.manifest("b")

    assert (
        caught.value.message
        == f"Cannot read manifests/b at reg.invalid/a: the registry answers with status 418{words}."
    )


def test_a_registry_that_does_not_answer_is_asked_five_times() -> None:
    repository, wire, waits = _repository(OSError("x" * 300))

    with pytest.raises(NetworkError) as caught:
        repository.manifest("b")

    assert caught.value.message == f"Cannot reach the registry reg.invalid: {'x' * 200}."
    assert (len(wire.requests), waits) == (5, [0.5, 1.0, 2.0, 4.0])


# -- logins ------------------------------------------------------------------------------------------------------------


def _auths(**entries: Any) -> str:
    return json.dumps({"auths": {name.replace("_", "."): entry for name, entry in entries.items()}})


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_denies_says_how_to_log_in(status: int) -> None:
    repository, _, _ = _repository(_answer(status, BEARER), _answer(200, {}, b'{"token":"t"}'), _answer(403))

    with pytest.raises(NetworkError) as caught:
        repository.manifest("b")

    assert caught.value.message == "Cannot use a: reg.invalid denies access."
    assert caught.value.hint == "Log in first: docker login reg.invalid."


@pytest.mark.parametrize("challenges", [0, 1, 2, 3])
def test_a_registry_may_challenge_twice(challenges: int) -> None:
    rounds = [_answer(401, BEARER), _answer(200, {}, b'{"token":"t"}')] * min(challenges, 2)
    repository, wire, _ = _repository(*rounds, _answer(200 if challenges < 3 else 401, BEARER, b"x"))
    if challenges < 3:
        assert repository.manifest("b") == b"x"
    else:
        with pytest.raises(NetworkError, match="denies access"):
            repository.manifest("b")

    assert sum("manifests" in line for line in wire.lines) == 1 + min(challenges, 2)


@pytest.mark.parametrize(
    ("status", "content", "token"),
    [
        (200, b'{"token":"abc"}', "abc"),
        (200, b'{"access_token":"abc"}', "abc"),
        (200, b'{"token":"","access_token":"abc"}', "abc"),
        (200, json.dumps({"token": "x" * 16384}).encode(), "x" * 16384),
        (200, json.dumps({"token": "x" * 16385}).encode(), None),
        (200, b'{"token":1}', None),
        (200, b'{"token":"a b"}', None),
        (200, b"[]", None),
        (200, b"{", None),
        (201, b'{"token":"abc"}', None),
        (199, b'{"token":"abc"}', None),
    ],
)
def test_a_token_has_its_form_and_the_status_200(status: int, content: bytes, token: str | None) -> None:
    repository, wire, _ = _repository(_answer(401, BEARER), _answer(status, {}, content), _answer(200, {}, b"x"))
    if token is not None:
        assert repository.manifest("b") == b"x"
        assert wire.requests[2].headers["Authorization"] == f"Bearer {token}"
        return
    with pytest.raises(NetworkError) as caught:
        repository.manifest("b")

    assert caught.value.message == f"Cannot log in to reg.invalid: it gave no token (status {status})."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_answer(401), "Cannot use a: reg.invalid denies access."),
        (_answer(403), "Cannot use a: reg.invalid denies access."),
        (TimeoutError("slow"), "Cannot log in to reg.invalid: its place for tokens does not answer (slow)."),
    ],
)
def test_a_place_for_tokens_that_gives_none_is_told(answer: Any, words: str) -> None:
    repository, _, _ = _repository(_answer(401, BEARER), answer)

    with pytest.raises(NetworkError) as caught:
        repository.manifest("b")

    assert caught.value.message == words


def test_a_token_is_for_what_will_be_done(config: Path) -> None:
    config.write_text(_auths(reg_invalid={"auth": BASIC}))
    challenge = {"www-authenticate": 'bearer Realm="https://auth.invalid/token?x=1",Service="s"'}
    answers = _answer(401, challenge), _answer(200, {}, b'{"token":"t"}'), _answer(404)
    repository, wire, _ = _repository(*answers, push=True, also=("n",))

    assert repository.manifest("b") is None
    scopes = "scope=repository%3Aa%3Apull%2Cpush&scope=repository%3An%3Apull"
    assert wire.lines[1] == f"GET https://auth.invalid/token?x=1&service=s&{scopes}"
    assert wire.requests[1].headers == {"Authorization": f"Basic {BASIC}"}


def test_a_refresh_token_is_sent_in_a_form(config: Path) -> None:
    config.write_text(_auths(reg_invalid={"identitytoken": "r", "auth": BASIC}))
    repository, wire, _ = _repository(
        _answer(401, BEARER), _answer(200, {}, b'{"token":"t"}'), _answer(404), also=("n",)
    )

    assert repository.manifest("b") is None
    assert wire.lines[1] == "POST https://auth.invalid/token"
    assert wire.requests[1].headers == {"Content-Type": "application/x-www-form-urlencoded"}
    assert wire.requests[1].body == (
        b"grant_type=refresh_token&refresh_token=r&client_id=envsmith&service=reg.invalid"
        b"&scope=repository%3Aa%3Apull+repository%3An%3Apull"
    )


@pytest.mark.parametrize("status", [200, 401])
def test_basic_credentials_are_sent_once(config: Path, status: int) -> None:
    config.write_text(_auths(reg_invalid={"auth": BASIC}))
    basic = {"www-authenticate": "BASIC realm=x"}
    repository, wire, _ = _repository(_answer(401, basic), _answer(status, basic, b"x"))
    if status == 200:
        assert repository.manifest("b") == b"x"
    else:
        with pytest.raises(NetworkError, match=r"reg\.invalid denies access"):
            repository.manifest("b")

    assert [request.headers.get("Authorization") for request in wire.requests] == [None, f"Basic {BASIC}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_auths(reg_invalid={"auth": BASIC}), Login(basic=BASIC)),
        (json.dumps({"auths": {"https://reg.invalid": {"auth": BASIC}}}), Login(basic=BASIC)),
        (_auths(reg_invalid={"identitytoken": "r", "auth": BASIC}), Login(identity="r")),
        (_auths(reg_invalid={"identitytoken": "", "auth": BASIC}), Login(basic=BASIC)),
        (_auths(reg_invalid={"identitytoken": 1, "auth": BASIC}), Login(basic=BASIC)),
        (_auths(reg_invalid={"auth": base64.b64encode(b"user").decode()}), None),
        (_auths(reg_invalid={"auth": "?"}), None),
        (_auths(reg_invalid={"auth": 1}), None),
        (_auths(reg_invalid=BASIC), None),
        (_auths(other_invalid={"auth": BASIC}), None),
        ("{}", None),
        ("[]", None),
        ("{", None),
        (_auths(reg_invalid={"auth": BASIC}).ljust(1 << 20), Login(basic=BASIC)),
        (_auths(reg_invalid={"auth": BASIC}).ljust((1 << 20) + 1), None),
        (json.dumps({"credsStore": "not there", "auths": {"reg.invalid": {"auth": BASIC}}}), Login(basic=BASIC)),
        (json.dumps({"credsStore": 1, "auths": {"reg.invalid": {"auth": BASIC}}}), Login(basic=BASIC)),
        (None, None),
    ],
)
def test_a_login_is_read_as_docker_keeps_it(config: Path, text: str | None, expected: Login | None) -> None:
    if text is not None:
        config.write_text(text)

    assert login("reg.invalid") == expected


def test_the_registry_without_a_host_has_a_name_of_its_own(config: Path) -> None:
    config.write_text(json.dumps({"auths": {f"https://index.{DEFAULT}/v1/": {"auth": BASIC}}}))

    assert login(DEFAULT) == Login(basic=BASIC)
    assert login("reg.invalid") is None


def test_the_login_of_docker_goes_before_that_of_podman(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = config.parent / "auth.json"
    other.write_text(_auths(reg_invalid={"identitytoken": "podman"}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(other))
    assert login("reg.invalid") == Login(identity="podman")

    config.write_text(_auths(reg_invalid={"identitytoken": "docker"}))

    assert login("reg.invalid") == Login(identity="docker")


@pytest.mark.parametrize(
    ("name", "output", "code", "expected"),
    [
        ("h", {"Username": "user", "Secret": "pass"}, 0, Login(basic=BASIC)),
        ("h", {"Username": "<token>", "Secret": "r"}, 0, Login(identity="r")),
        ("h", {"Username": "user", "Secret": "pass"}, 1, None),
        ("h", {"Username": "user"}, 0, None),
        ("h", {"Secret": "pass"}, 0, None),
        ("h", {"Username": 1, "Secret": "pass"}, 0, None),
        ("h", [], 0, None),
        ("../h", {"Username": "user", "Secret": "pass"}, 0, None),
        ("g", {"Username": "user", "Secret": "pass"}, 0, None),
    ],
)
@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_a_helper_is_asked_for_the_registry(
    config: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str, output: Any, code: int, expected: Login | None
) -> None:
    program = config.parent / "docker-credential-h"
    check = "assert (sys.argv[1:], sys.stdin.read().strip()) == (['get'], 'reg.invalid')"
    program.write_text(f"#!{sys.executable} -S\nimport sys\n{check}\nprint({json.dumps(output)!r})\nsys.exit({code})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(config.parent))
    config.write_text(json.dumps({key: name if key == "credsStore" else {"reg.invalid": name}}))

    assert login("reg.invalid") == expected
