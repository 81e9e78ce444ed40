"""Packages from the dated archive that a base image names: a tiny archive of our own on the loopback interface."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import shutil
import subprocess
import threading

import pytest

from envsmith.builder.image.dockerfile import APT_DATED, DATED_OPTIONS, DATED_SOURCES, apt_probe

pytestmark = [pytest.mark.integration]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass


@pytest.fixture
def archive(tmp_path):
    """The address of a dated archive with one package, ``envsmith-tiny`` 1.0-1; yields (address, folder)."""
    for tool in ("dpkg-deb", "apt-get"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: this is no Debian")
    served = tmp_path / "served"
    dated = served / "archive" / "debian" / "20260805T000000Z"
    index = dated / "dists" / "here" / "main" / "binary-amd64"
    index.mkdir(parents=True)
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = (
        "Package: envsmith-tiny\nVersion: 1.0-1\nArchitecture: amd64\nMaintainer: x <x@x.invalid>\nDescription: tiny\n"
    )
    (tree / "DEBIAN" / "control").write_text(control)
    deb = dated / "tiny.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(tree), str(deb)], check=True, capture_output=True)
    data = deb.read_bytes()
    entry = f"{control}Filename: tiny.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (index / "Packages.gz").write_bytes(gzip.compress(entry.encode(), mtime=0))
    packed = (index / "Packages.gz").read_bytes()
    (dated / "dists" / "here" / "Release").write_text(
        "Suite: here\nCodename: here\nComponents: main\nArchitectures: amd64\nDate: Wed, 05 Aug 2020 00:00:00 UTC\n"
        "Valid-Until: Wed, 12 Aug 2020 00:00:00 UTC\n"
        f"SHA256:\n {hashlib.sha256(packed).hexdigest()} {len(packed)} main/binary-amd64/Packages.gz\n"
        f" {hashlib.sha256(entry.encode()).hexdigest()} {len(entry)} main/binary-amd64/Packages\n"
    )
    handler = functools.partial(Quiet, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/archive/debian/20260805T000000Z", tmp_path
        server.shutdown()


def words(text, folder, live):
    """The words of the Dockerfile with its fixed places moved below a folder."""
    text = text.replace("/etc/apt/sources.list.d/debian.sources", str(live))
    text = text.replace("/dev/cell", str(folder / "dev"))
    state = folder / "state"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    private = f"-o Dir::State::lists={state}/lists -o Dir::Cache={state}/cache -o APT::Architecture=amd64 -o Acquire::http::Proxy=false -o APT::Sandbox::User=root"
    return text.replace("apt-get $ca", f"apt-get {private}")


def sources(address):
    return (
        f"Types: deb\n# {address}\nURIs: http://127.0.0.1:9/live\nSuites: here\nComponents: main\nTrusted: yes\n"
        if address
        else "Types: deb\nURIs: http://127.0.0.1:9/live\nSuites: here\nComponents: main\nTrusted: yes\n"
    )


def test_the_archive_that_the_base_names_is_asked_though_its_index_is_past_its_date(archive):
    address, folder = archive
    live = folder / "debian.sources"
    live.write_text(sources(address))
    done = subprocess.run(
        ["sh", "-c", words(apt_probe("envsmith-tiny"), folder, live)], capture_output=True, text=True, check=False
    )
    assert f"{APT_DATED}20260805T000000Z" in done.stdout, done.stderr
    assert "Inst envsmith-tiny (1.0-1" in done.stdout


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:9/archive/debian/20260805T000000Z"])
def test_without_an_archive_that_answers_the_live_mirror_is_asked(archive, address):
    """apt calls an archive that cannot be reached a warning; the lock must not say that it was asked."""
    reachable, folder = archive
    live = folder / "debian.sources"
    live.write_text(sources(address).replace("http://127.0.0.1:9/live", reachable))
    done = subprocess.run(
        ["sh", "-c", words(apt_probe("envsmith-tiny"), folder, live)], capture_output=True, text=True, check=False
    )
    assert APT_DATED not in done.stdout
    # The live sources of this test's folder are not those of the host, where the package is unknown.
    assert "Unable to locate package envsmith-tiny" in done.stderr


def test_the_step_of_the_image_downloads_from_the_archive(archive):
    address, folder = archive
    live = folder / "debian.sources"
    live.write_text(sources(address))
    (folder / "dev").mkdir()
    script = f"{DATED_SOURCES} && apt-get $ca {DATED_OPTIONS} -qq update && apt-get $ca {DATED_OPTIONS} -qq download envsmith-tiny=1.0-1"
    subprocess.run(["sh", "-c", words(script, folder, live)], cwd=folder, check=True, capture_output=True)
    assert list(folder.glob("envsmith-tiny_1.0-1_*.deb"))
