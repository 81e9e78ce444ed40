"""An index that wants a login, and a source distribution whose build looks for that login wherever it can."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import http.server
import io
import tarfile
import threading
from pathlib import Path

USER, SECRET = "ann", "s3cr3t-Tok3n"
BASIC = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()


class Guarded:
    """A server of files that wants a header or a token; it notes what came."""

    def __init__(self, root: Path, *, header: str = "", token: str = "") -> None:
        self.seen: list[tuple[str, str]] = []
        self.header, self.token = header, token
        self.move: dict[str, str] = {}
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Authorization", "")))
                if self.path.split("/")[1] in outer.move:
                    first = self.path.split("/")[1]
                    self.send_response(302)
                    self.send_header("Location", outer.move[first] + self.path[len(first) + 1 :])
                    self.end_headers()
                    return
                if outer.token:
                    head = f"/t/{outer.token}"
                    if not self.path.startswith(head + "/"):
                        self.send_error(403)
                        return
                    self.path = self.path[len(head) :]
                if outer.header and self.headers.get("Authorization") != outer.header:
                    self.send_error(401)
                    return
                super().do_GET()

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.address = f"127.0.0.1:{self.http.server_port}"
        self.url = f"http://{self.address}"
        self.url_with_login = f"http://{USER}:{SECRET}@{self.address}"

    @contextlib.contextmanager
    def up(self):
        thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.http.shutdown()
            thread.join()
            self.http.server_close()


# Ends the build with the places where the password stands. It is put together, or its own text would be one of them.
_BACKEND = """
import glob, os, pwd, re, zipfile
SECRET = re.compile(b"s3cr" + b"3t-Tok3n")
def hunt():
    home = [os.environ.get("HOME", "/"), pwd.getpwuid(os.getuid()).pw_dir, "/root"]
    places = [f"{h}/{name}" for h in home for name in (".netrc", ".config/uv/uv.toml", ".config/pip/pip.conf", ".pip/pip.conf")]
    places += [value for key, value in os.environ.items() if key in ("NETRC", "UV_CONFIG_FILE", "PIP_CONFIG_FILE")]
    for top in ("/dev/envsmith", "/run/secrets", "/build", "/tmp/envsmith-*"):
        places += glob.glob(top + "/**", recursive=True)
    places += glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/self/environ") + glob.glob("/proc/self/fd/*")
    if os.getuid() in (10001, 65534):  # nobody's own processes: what they were started with is not the build's to read
        places += glob.glob("/proc/[0-9]*/environ")
    found = [key for key, value in os.environ.items() if SECRET.search(value.encode())]
    for place in places:
        try:
            if os.path.isfile(place):
                with open(place, "rb") as file:
                    if SECRET.search(file.read(1 << 20)):
                        found.append(place)
        except OSError:
            pass
    if found:
        raise SystemExit("the build reads a login in " + ", ".join(found))
INFO = "Metadata-Version: 2.1\\nName: deepspeed\\nVersion: 0.18.5\\nRequires-Dist: torch\\n"
def prepare_metadata_for_build_wheel(folder, settings=None):
    hunt()
    os.makedirs(os.path.join(folder, "deepspeed-0.18.5.dist-info"))
    with open(os.path.join(folder, "deepspeed-0.18.5.dist-info", "METADATA"), "w") as file:
        file.write(INFO)
    return "deepspeed-0.18.5.dist-info"
def build_wheel(folder, settings=None, metadata=None):
    hunt()
    name = "deepspeed-0.18.5-py3-none-any.whl"
    info = "deepspeed-0.18.5.dist-info"
    files = {"deepspeed.py": f"__version__ = '0.18.5'\\nBUILT_AS = {os.getuid()}\\n", f"{info}/METADATA": INFO,
             f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    files[f"{info}/RECORD"] = "".join(f"{n},,\\n" for n in files) + f"{info}/RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for member, text in files.items():
            wheel.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), text)
    return name
"""
_PROJECT = (
    '[project]\nname = "deepspeed"\ndynamic = ["version", "dependencies"]\n'
    '[build-system]\nrequires = ["tiny-backend>=1"]\nbuild-backend = "hunting"\nbackend-path = ["."]\n'
)


def hunting_sdist() -> tuple[str, bytes]:
    """Return name and bytes of a deepspeed whose build looks for the login."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in (("pyproject.toml", _PROJECT), ("hunting.py", _BACKEND)):
            member = tarfile.TarInfo(f"deepspeed-0.18.5/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return "deepspeed-0.18.5.tar.gz", gzip.compress(buffer.getvalue(), mtime=0)
