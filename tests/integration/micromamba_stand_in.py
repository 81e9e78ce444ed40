"""A stand-in for micromamba: one executable file with its command line, as far as ``Dockerfile.conda`` uses that, made of py-rattler.

micromamba's own image cannot be pulled on a test machine. What is proved with this is our Dockerfile (mounts, order, the check of every
sha256, what stays in a layer), not micromamba. It needs ``/usr/bin/python3`` in the base image, which micromamba does not.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

MAIN = """
import os, pathlib, sys, tempfile, zipfile
scratch = tempfile.mkdtemp(prefix="stand-in-", dir="/tmp")
with zipfile.ZipFile(sys.argv[0]) as archive:
    archive.extractall(scratch)
sys.path.insert(0, scratch)
from stand_in import main
code = main(sys.argv[1:])
sys.stdout.flush()
os._exit(code)
"""

BODY = """
import argparse, asyncio, hashlib, os, pathlib, re, sys, urllib.request


def main(argv):
    parser = argparse.ArgumentParser(prog="micromamba")
    parser.add_argument("verb", choices=["create"])
    for flag in ("--yes", "--quiet", "--no-rc", "--always-copy"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--file", required=True)
    told = parser.parse_args(argv)
    pkgs = pathlib.Path(os.environ["MAMBA_ROOT_PREFIX"]) / "pkgs"
    pkgs.mkdir(parents=True, exist_ok=True)
    lines = pathlib.Path(told.file).read_text().splitlines()
    if "@EXPLICIT" not in lines:
        print("critical libmamba: not an explicit file", file=sys.stderr)
        return 1
    found = [re.fullmatch(r"(https?://[^#]+/([^/#]+))#([0-9a-f]{32})", line) for line in lines]
    packages = [fetch(pkgs, *match.groups()) for match in found if match]
    asyncio.run(install(packages, told.prefix, pkgs))
    return 0


def fetch(pkgs, url, name, md5):
    path = pkgs / name
    if not path.exists():
        with urllib.request.urlopen(url, timeout=60) as answer:
            path.write_bytes(answer.read())
    if hashlib.md5(path.read_bytes()).hexdigest() != md5:
        path.unlink()
        sys.exit("critical libmamba: MD5 of " + name + " is not that of the file")
    return url, path


async def install(packages, prefix, pkgs):
    import rattler
    from rattler.package_streaming import extract

    records = []
    for url, path in packages:
        folder = pkgs / path.name.removesuffix(".conda").removesuffix(".tar.bz2")
        if not (folder / "info" / "index.json").exists():
            extract(path, folder)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        record = rattler.PackageRecord.from_index_json(folder / "info" / "index.json", path.stat().st_size, digest)
        records.append(rattler.RepoDataRecord(record, file_name=path.name, url=path.as_uri(), channel=url.rsplit("/", 2)[0]))
    config = rattler.Config.from_toml("allow-hard-links = false\\nallow-ref-links = false")
    await rattler.install(
        records, target_prefix=prefix, cache_dir=pkgs / "linked", installed_packages=[], platform=rattler.Subdir("linux-64"),
        execute_link_scripts=False, show_progress=False, config=config,
    )
"""


def write(path: Path) -> Path:
    """The executable file."""
    spec = importlib.util.find_spec("rattler")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    with path.open("wb") as out:
        out.write(b"#!/usr/bin/python3 -I\n")
        with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
            archive.writestr("__main__.py", MAIN)
            archive.writestr("stand_in.py", BODY)
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, Path("rattler") / file.relative_to(package))
    path.chmod(0o755)
    return path
