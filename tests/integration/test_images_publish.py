"""Publishing against Debian's ``docker-registry`` and reading back with skopeo: a small image, a real registry of the tests' own.

The registry is 2.8: no referrers API, so the fallback tag is what carries the proof here; the in-process registry of the unit tests has the API.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from envsmith.cli.app import run

from . import docker_engine

pytestmark = [pytest.mark.integration]

CELL = "ds0.19.8-torch2.15.0-cu132-py312"
CONFIG = """version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {root}}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def _missing() -> str | None:
    """Why no registry can be started here; ``None`` when one can."""
    if importlib.util.find_spec("securesystemslib") is None:
        return "securesystemslib is not installed (pip install 'envsmith-train[publish]')"
    wanted = [name for name in ("docker-registry", "skopeo") if not shutil.which(name)]
    failed = docker_engine.install(*wanted) if wanted else None
    return f"{' and '.join(wanted)} not installed, and {failed}" if failed else None


class RealRegistry:
    """``docker-registry`` on a port of this machine; :meth:`kill` and :meth:`start` again keep what it stored."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.root = folder / "storage"
        self.config = folder / "config.yml"
        self.log = folder / "log"
        self.config.write_text(CONFIG.format(root=self.root, port=self.port))
        self.process = None

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as out:
            command = [shutil.which("docker-registry"), "serve", str(self.config)]
            # It would read REGISTRY_* as settings.
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("REGISTRY_", "OTEL_"))}
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{self.name}/v2/", timeout=2) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"docker-registry did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(300)
            self.process = None

    def tags(self, repo="cells"):
        folder = self.root / "docker/registry/v2/repositories" / repo / "_manifests/tags"
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith("sha256-")) if folder.is_dir() else []

    def blob(self, digest):
        return self.root / "docker/registry/v2/blobs/sha256" / digest[7:9] / digest[7:] / "data"


@pytest.fixture(scope="module")
def kit(load_file):
    if reason := _missing():
        pytest.skip(reason)
    return load_file("tests/unit/publish/publish_kit.py")


@pytest.fixture
def registry(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    real = RealRegistry(tmp_path)
    real.start()
    try:
        yield real
    finally:
        real.kill()


@pytest.fixture
def keys(kit, tmp_path):
    return kit.make_keys(tmp_path)


@pytest.fixture
def published(kit, registry, keys, tmp_path, capsys):
    cell = kit.make_cell(tmp_path / "cell")
    words = ["publish", str(cell), "--to", f"{registry.name}/cells", "--key", str(keys[0]), "--json"]
    assert run(words) == 0
    return json.loads(capsys.readouterr().out)["published"][0]


def verify(registry, keys, *words, repo="cells"):
    return run(["verify", f"{registry.name}/{repo}:{CELL}", "--key", str(keys[1]), *words])


def test_others_pull_by_digest_what_was_published(registry, keys, published, tmp_path):
    assert registry.tags() == [CELL]
    by_digest = f"docker://{registry.name}/cells@{published['digest']}"
    subprocess.run(
        ["skopeo", "copy", "--preserve-digests", "--src-tls-verify=false", by_digest, f"oci:{tmp_path / 'pulled'}:x"],
        check=True,
        capture_output=True,
        timeout=600,
    )
    index = json.loads((tmp_path / "pulled" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == published["digest"]
    told = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{registry.name}/cells:{CELL}"],
        check=True,
        capture_output=True,
        timeout=600,
    )
    assert json.loads(told.stdout)["Labels"]["io.envsmith.cell"] == CELL
    assert verify(registry, keys) == 0


def other_tool(name, *words, **environment):
    """What another program prints; the test is skipped where it is not installed."""
    program = shutil.which(name) or pytest.skip(f"{name} is not installed")
    ran = subprocess.run(
        [program, *words], check=False, capture_output=True, timeout=600, env={**os.environ, **environment}, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


SIGNED = ("https://in-toto.io/attestation/test-result/v0.1", "slsaprovenance1", "cyclonedx")


def test_cosign_verifies_each_statement_and_oras_lists_each_kind(registry, keys, published):
    image = f"{registry.name}/cells:{CELL}"
    for kind in SIGNED:
        verified = other_tool(
            "cosign", "verify-attestation", "--key", keys[1], "--insecure-ignore-tlog", "--type", kind, image
        )
        assert json.loads(verified.splitlines()[0])["payloadType"] == "application/vnd.in-toto+json"
    listed = json.loads(other_tool("oras", "discover", "--plain-http", "--format", "json", image))["referrers"]
    assert sorted(row["artifactType"] for row in listed) == [
        "application/vnd.cyclonedx+json",
        *["application/vnd.dev.sigstore.bundle.v0.3+json"] * 3,
        "application/vnd.envsmith.proof.v1",
    ]


def test_what_a_company_attaches_stays_when_the_cell_is_published_again(
    kit, registry, keys, published, tmp_path, capsys
):
    image = f"{registry.name}/cells:{CELL}"
    (tmp_path / "audit.json").write_text("{}")
    theirs = {"COSIGN_PASSWORD": "x"}
    own = kit.make_keys(tmp_path, "company", kind="ecdsa")
    prefix = str(tmp_path / "theirs")
    other_tool("cosign", "import-key-pair", "--key", own[0], "--output-key-prefix", prefix, **theirs)
    attest = ("attest", "-y", "--key", f"{prefix}.key", "--tlog-upload=false", "--predicate", tmp_path / "audit.json")
    other_tool("cosign", *attest, "--use-signing-config=false", image, **theirs)
    audit = f"{tmp_path / 'audit.json'}:application/json"
    kind = "application/vnd.company.audit+json"
    other_tool("oras", "attach", "--plain-http", "--disable-path-validation", "--artifact-type", kind, image, audit)
    newer = kit.make_cell(tmp_path / "newer", record={"started": "2026-11-22T04:05:31+00:00"})
    assert run(["publish", str(newer), "--to", f"{registry.name}/cells", "--key", str(keys[0])]) == 0
    capsys.readouterr()
    assert verify(registry, keys, "--history", "--json") == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    uncovered = " ".join(check["text"] for check in checks if check["state"] == "not covered")
    assert kind in uncovered
    assert "cosign.sigstore.dev" in uncovered
    assert sum(check["part"] == "history" for check in checks) == 2
    for key, of in ((own[1], "custom"), (keys[1], "slsaprovenance1")):
        other_tool("cosign", "verify-attestation", "--key", key, "--insecure-ignore-tlog", "--type", of, image)


def test_what_is_changed_in_the_storage_is_named(registry, keys, published, capsys):
    digests = {
        "attachment": published["attachments"][4],
        "manifest": published["digest"],
    }
    manifest = json.loads(registry.blob(published["digest"]).read_bytes())
    digests |= {"config": manifest["config"]["digest"], "layer 2": manifest["layers"][1]["digest"]}
    for artifact, names in ((0, ("lock", "record")), (1, ("sbom",)), (2, ("provenance",)), (4, ("statement",))):
        rows = json.loads(registry.blob(published["attachments"][artifact]).read_bytes())["layers"]
        digests |= dict(zip(names, (row["digest"] for row in rows), strict=True))
    for part, digest in digests.items():
        path = registry.blob(digest)
        good = path.read_bytes()
        path.write_bytes(good.replace(b"0", b"1", 1) if b"0" in good else b"x" + good[1:])
        assert verify(registry, keys, "--json") == 8, part
        told = json.loads(capsys.readouterr().out)
        assert part in {c["part"] for c in told["checks"] if c["state"] == "differs"}
        path.write_bytes(good)
    assert verify(registry, keys) == 0


def test_a_tag_that_was_moved_in_the_storage_is_refused(kit, registry, keys, published, tmp_path, capsys):
    other = kit.make_cell(tmp_path / "other", deepspeed="0.19.7")
    assert run(["publish", str(other), "--to", f"{registry.name}/cells", "--key", str(keys[0])]) == 0
    tags = registry.root / "docker/registry/v2/repositories/cells/_manifests/tags"
    moved = (tags / CELL.replace("0.19.8", "0.19.7") / "current/link").read_text()
    (tags / CELL / "current/link").write_text(moved)
    # The registry keeps tags in memory for nothing: a link that changed is what it answers.
    assert verify(registry, keys) == 8
    assert "tag" in capsys.readouterr().err


def test_a_registry_that_dies_in_the_middle_has_no_tag_and_the_next_push_ends_it(
    kit, registry, keys, tmp_path, monkeypatch
):
    """Killed after every n-th request of ours; the tag is never there until the push that ends well."""
    from envsmith.net.oci.registry import Repository
    from envsmith.net.wire import HttpWire

    monkeypatch.setattr("time.sleep", lambda _s: None)
    send = HttpWire.__call__
    state = {"left": 0}

    def counted(self, *words):
        if state["left"] == 0:
            registry.kill()
        state["left"] -= 1
        return send(self, *words)

    monkeypatch.setattr(HttpWire, "__call__", counted)
    for number, requests in enumerate((4, 11, 17, 30)):
        cell = kit.make_cell(tmp_path / f"cell{number}")
        words = ["publish", str(cell), "--to", f"{registry.name}/r{number}", "--key", str(keys[0])]
        state["left"] = requests
        assert run(words) == 5
        assert registry.tags(f"r{number}") == []
        monkeypatch.undo()
        registry.start()
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
        assert run(words) == 0
        assert registry.tags(f"r{number}") == [CELL]
        assert verify(registry, keys, repo=f"r{number}") == 0
        assert Repository(registry.name, f"r{number}").resolve(CELL)
        monkeypatch.setattr("time.sleep", lambda _s: None)
        monkeypatch.setattr(HttpWire, "__call__", counted)
