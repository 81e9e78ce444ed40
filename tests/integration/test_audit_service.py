"""The audit through the real pip-audit, against a service of our own on loopback: answers in the shape of OSV's, and hostile ones.

No advisory service can be reached from where these tests run; ``PIP_AUDIT_OSV_URL`` is pip-audit's own way to another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import http.server
import importlib.util
import json
import threading
from pathlib import Path

import pytest

from envsmith.lock import store
from envsmith.publish.audit import audit

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("pip_audit") is None, reason="pip-audit is not installed"),
]

WHEN = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)


def advisory(package, *, name="GHSA-xxxx-test-0001", aliases=("CVE-2026-0001",), fixed="99.0"):
    """In the shape that OSV's API gives; the advisory itself is made up."""
    return {
        "id": name,
        "summary": "Made up for a test",
        "details": "Nothing of this is so.",
        "aliases": list(aliases),
        "modified": "2026-01-02T00:00:00Z",
        "published": "2026-01-01T00:00:00Z",
        "schema_version": "1.7.0",
        "database_specific": {"severity": "HIGH"},
        "references": [{"type": "WEB", "url": "https://example.invalid/"}],
        "affected": [
            {
                "package": {"name": package, "ecosystem": "PyPI", "purl": f"pkg:pypi/{package}"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}],
                "versions": ["1.0"],
            }
        ],
    }


@contextlib.contextmanager
def service(answer):
    """``answer`` gets the name of the package that is asked about and returns status and body; yields its address and what was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((question["package"]["name"], question["version"]))
            status, body = answer(question["package"]["name"])
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def lock():
    """A lock that was published, cut to three packages: one question each."""
    (folder,) = (Path(__file__).parents[2] / "images").glob("mc*")
    whole = store.read(folder)
    return dataclasses.replace(whole, pins=tuple(p for p in whole.pins if p.name in {"jinja2", "torch", "sympy"}))


def told(lock, monkeypatch, answer):
    with service(answer) as (address, asked):
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", address)
        return audit(lock, services=["osv"], now=WHEN), asked


def test_every_package_is_asked_about_and_none_is_bad(lock, monkeypatch):
    result, asked = told(lock, monkeypatch, lambda _name: (200, b"{}"))
    assert sorted(asked) == sorted((p.name, p.version.partition("+")[0]) for p in lock.pins)
    assert (result.status, result.asked, result.service) == ("clean", len(lock.pins), "osv")
    assert result.tool.startswith("pip-audit ")


def test_an_advisory_is_told_with_its_package_aliases_and_mending_release(lock, monkeypatch):
    bad = lock.pins[0].name

    def answer(name):
        return 200, json.dumps({"vulns": [advisory(name)]} if name == bad else {}).encode()

    result, _ = told(lock, monkeypatch, answer)
    (found,) = result.findings
    assert result.status == "1 known vulnerability"
    assert (found.package, found.version) == (bad, lock.pins[0].version.partition("+")[0])
    assert {found.id, *found.aliases} == {"GHSA-xxxx-test-0001", "CVE-2026-0001"}
    assert found.fixed == ("99.0",)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"broken"),
        (404, b"{}"),
        (200, b"<html>log in to the proxy</html>"),
        (200, b'{"vulns": 5}'),
        (200, b'{"vulns": [5]}'),
        (200, b'{"vulns": [{"id": 7, "affected": "x"}]}'),
        (200, b'{"vulns": ' + b"[" * 100_000),
    ],
    ids=["500", "404", "html", "number", "numbers", "types", "deep"],
)
def test_a_hostile_answer_is_not_audited_and_never_clean(lock, monkeypatch, status, body):
    result, _ = told(lock, monkeypatch, lambda _name: (status, body))
    assert result.status.startswith("not audited: osv: ")
    assert "127.0.0.1" not in result.status
    assert not result.done
    assert result.findings == ()


def test_text_of_a_service_reaches_no_terminal_raw(lock, monkeypatch):
    name = "GHSA-\x1b[31mred\n" + "9" * 5000

    def answer(package):
        return 200, json.dumps({"vulns": [advisory(package, name=name, aliases=["CVE-\x1b]0;t\x07"])]}).encode()

    result, _ = told(lock, monkeypatch, answer)
    texts = [text for found in result.findings for text in (found.id, *found.aliases)]
    assert len(texts) == 6
    assert all(text.isprintable() and len(text) <= 128 for text in texts)


def test_a_service_that_cannot_be_reached_is_not_audited(lock, monkeypatch):
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", "http://127.0.0.1:9/v1/query")
    result = audit(lock, services=["osv"], now=WHEN)
    assert result.status == "not audited: osv: it cannot be reached (ConnectionError)"
