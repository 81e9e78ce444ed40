"""Signatures by SSH keys: made and read by the real ``ssh-keygen``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.base.ssh import SUFFIX, SshSigner, sign_file, signer_of
from envsmith.errors import ContentError, EngineError, UsageError

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")


@pytest.fixture
def key(ssh_key: Path) -> Path:
    return ssh_key


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    path.write_bytes(b'{"passed": true}\r\n')
    return path


def _signers(folder: Path, key: Path, name: str = "alice") -> Path:
    path = folder / "signers"
    path.write_text(f"# who is who\n{name} {key.with_name(key.name + '.pub').read_text()}")
    return path


def test_a_signature_names_the_key_and_nothing_of_the_machine(tmp_path: Path, key: Path, record: Path) -> None:
    signature = sign_file(record, key)
    assert signer_of(record, tmp_path / "none").key.startswith("SHA256:")
    assert "a-host" not in signature.read_text()


def test_a_key_in_the_list_of_signers_has_a_name(tmp_path: Path, key: Path, record: Path) -> None:
    sign_file(record, key)
    signer = signer_of(record, _signers(tmp_path, key))
    assert signer == SshSigner(key=signer.key, name="alice")


def test_a_key_that_is_listed_for_another_purpose_has_no_name(tmp_path: Path, key: Path, record: Path) -> None:
    sign_file(record, key)
    assert signer_of(record, _signers(tmp_path, key, 'alice namespaces="git"')).name == ""


def test_a_file_that_was_changed_after_it_was_signed_is_refused(tmp_path: Path, key: Path, record: Path) -> None:
    sign_file(record, key)
    record.write_text("{}")
    with pytest.raises(ContentError, match="its signature is not valid"):
        signer_of(record, _signers(tmp_path, key))


def test_a_signature_for_another_purpose_is_none(tmp_path: Path, key: Path, record: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(record)], check=True)
    with pytest.raises(ContentError, match="its signature is not valid"):
        signer_of(record, _signers(tmp_path, key))


@pytest.mark.parametrize(
    "text", ["", "not a signature", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----"]
)
def test_what_is_no_signature_is_refused(tmp_path: Path, record: Path, text: str) -> None:
    record.with_name(record.name + SUFFIX).write_text(text)
    with pytest.raises(ContentError):
        signer_of(record, tmp_path / "none")


def test_a_file_that_is_no_key_signs_nothing_and_the_reason_is_said(record: Path) -> None:
    with pytest.raises(UsageError, match=r"Cannot sign record\.json with") as caught:
        sign_file(record, record)
    assert "ssh-add" in str(caught.value.hint)


def test_a_host_without_ssh_keygen_says_so(record: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match="ssh-keygen is not installed"):
        sign_file(record, key)
