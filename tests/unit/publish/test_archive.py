"""A pack archive is signed and verified by the keys of images: verified, changed, signed by somebody else, unsigned."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from envsmith.cli.app import run
from envsmith.publish.archive import SUFFIX, sign_archive
from envsmith.publish.cell import seal_with
from envsmith.publish.statement import RECORD_TYPE, attestation


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "cell.tar"
    path.write_bytes(b"wheels" * 1000)
    return path


def _sign(archive: Path, key: Path) -> None:
    sign_archive(archive, hashlib.sha256(archive.read_bytes()).hexdigest(), "a-cell", seal_with(key))


def _verify(archive: Path, capsys: pytest.CaptureFixture[str], *keys: Path) -> tuple[int, dict[str, str]]:
    code = run(["verify", str(archive), "--json", *(word for key in keys for word in ("--key", str(key)))])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return code, {check["part"]: check["text"] for check in checks}


def test_an_archive_is_verified_by_the_key_that_signed_it(archive, kit, tmp_path, capsys):
    private, public = kit.make_keys(tmp_path)
    _sign(archive, private)
    code, checks = _verify(archive, capsys, public)
    assert code == 0
    assert checks["archive"] == "the archive of a-cell"


def test_an_archive_that_was_changed_on_the_way_differs(archive, kit, tmp_path, capsys):
    private, public = kit.make_keys(tmp_path)
    _sign(archive, private)
    archive.write_bytes(archive.read_bytes() + b"x")
    code, checks = _verify(archive, capsys, public)
    assert code == 8
    assert checks["archive"].startswith("the signature is of sha256:")


def test_a_signature_by_a_key_that_is_not_trusted_proves_nothing(archive, kit, tmp_path, capsys):
    _sign(archive, kit.make_keys(tmp_path)[0])
    code, checks = _verify(archive, capsys, kit.make_keys(tmp_path, "other")[1])
    assert code == 1
    assert "say with --key whether you trust that" in checks["statement"]


def test_an_archive_without_a_signature_is_unproved(archive, kit, tmp_path, capsys):
    code, checks = _verify(archive, capsys, kit.make_keys(tmp_path)[1])
    assert code == 1
    assert "no one vouches for this archive" in checks["statement"]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]"])
def test_what_is_no_signature_differs(archive, kit, tmp_path, capsys, text):
    archive.with_name(archive.name + SUFFIX).write_bytes(text)
    assert _verify(archive, capsys, kit.make_keys(tmp_path)[1])[0] == 8


def test_a_statement_about_something_else_does_not_vouch_for_an_archive(archive, kit, tmp_path, capsys):
    private, public = kit.make_keys(tmp_path)
    digest = "sha256:" + hashlib.sha256(archive.read_bytes()).hexdigest()
    statement = attestation(digest, "a-cell", RECORD_TYPE, {})
    archive.with_name(archive.name + SUFFIX).write_bytes(seal_with(private).close(statement))
    code, checks = _verify(archive, capsys, public)
    assert code == 8
    assert "not about a pack archive" in checks["statement"]


def test_pack_refuses_two_ways_to_sign(capsys):
    assert run(["pack", "torch", "--key", "k.pem", "--keyless"]) == 2
    assert "Cannot sign an archive twice" in capsys.readouterr().err
