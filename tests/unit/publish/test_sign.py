"""Signing with a key: what is said where a package lacks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envsmith.base.about import command_for
from envsmith.errors import EngineError
from envsmith.publish import sign
from envsmith.publish.sign import open_envelope


@pytest.mark.parametrize(
    ("module", "ask", "what", "extra"),
    [
        ("securesystemslib.signer", sign.load_signer, "sign an image", "publish"),
        ("securesystemslib.signer", sign.load_key, "check a signature", "publish"),
        ("securesystemslib.dsse", lambda _: open_envelope(b"{}", []), "check a signature", "publish"),
    ],
)
def test_a_package_that_is_not_installed_is_named_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, ask: Any, what: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "key.pem").write_text("a key")

    with pytest.raises(EngineError) as caught:
        ask(tmp_path / "key.pem")

    assert caught.value.message == f"Cannot {what}: packages for it are not installed."
    assert caught.value.hint == f"Install them: {command_for(extra)}."
