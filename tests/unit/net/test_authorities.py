"""Which CA bundle is trusted, and what is said of one that holds nothing."""

from __future__ import annotations

import os

import pytest

from envsmith.errors import UsageError
from envsmith.net.authorities import ca_bundle, ssl_context


def test_the_first_bundle_that_is_there_counts_and_pips_setting_is_the_last(tmp_path):
    names = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"]
    files = {name: tmp_path / f"{name}.pem" for name in names}
    conf = tmp_path / "pip.conf"
    conf.write_text(f"[global]\ncert = {tmp_path / 'conf.pem'}\n")
    (tmp_path / "conf.pem").write_text("x")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(conf)}
    for name in names[:3]:
        environ[name] = str(tmp_path / "gone.pem")
        assert ca_bundle(environ) == tmp_path / "conf.pem"
    for name in reversed(names):
        files[name].write_text("x")
        environ[name] = str(files[name])
        assert ca_bundle(environ) == files[name]


def test_without_a_bundle_the_system_decides(tmp_path):
    assert ca_bundle({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}) is None


def test_a_bundle_without_a_certificate_is_a_usage_error_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text("nothing")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with pytest.raises(UsageError, match=r"ca\.pem"):
        ssl_context()
