"""Disk and seconds of three framework cells on one torch, beside three images from plain Dockerfiles, in one run.

    python bench/images.py [--torch 2.5.1] [--python 3.11] [--frameworks deepspeed megatron-core colossalai] [--keep] [--json]

Ours are built by the docker engine: the first framework alone; all in one go, as `envsmith build --all-frameworks --no-smoke --jobs 1` does it
(solving and locking included, a cell's seconds are those between its end and that of the one before); and one after the other from locks that
are made before. Every step's text carries a time of this run, so that nothing comes from an earlier cache. The plain images are what people
write: the same base, a compiler,
one `uv pip install` of the same versions, one Dockerfile a framework. Disk is the size of the layers that an image adds. The images need about
38 GB while it runs; they are removed unless --keep. On ext4, files are created slowly for five minutes after many were deleted: run it on a
machine that has been idle for so long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from envsmith.base.progress import EventKind
from envsmith.builder.batch import build_many
from envsmith.builder.choice import narrow
from envsmith.builder.engines import buildkit
from envsmith.builder.engines.docker import DockerEngine
from envsmith.builder.image.context import read_host_settings, write_secrets
from envsmith.builder.image.dockerfile import ImageOptions, from_reference
from envsmith.builder.locking import lock_cell
from envsmith.builder.options import Options
from envsmith.cli.flags import RequestFlags
from envsmith.lock.index.uv import find_uv
from envsmith.solver import solve


def options_of(framework, how, output):
    """What `envsmith build --framework F --torch T --python P --no-smoke --no-conda` makes of its flags."""
    flags = RequestFlags(
        framework=(framework,), python=how.python, torch=how.torch,

    )  # fmt: skip
    return Options(request=flags.request(), request_text=flags.text(), output=output, smoke=False, conda=None)


def lock_of(framework, how, engine):
    """The complete lock of a framework's best cell."""
    options = options_of(framework, how, Path())
    cell = solve(narrow(options.request, engine)).cell
    return engine.pin_image(lock_cell(cell, options))


def layers(engine, image):
    """Layer to bytes, the base's among them."""
    attributes = engine.client.images.get(image)
    sizes = [row["Size"] for row in reversed(attributes.history())]
    names = attributes.attrs["RootFS"]["Layers"]
    # BuildKit writes lines without a layer for ENV, USER and the like.
    if len(sizes) != len(names):
        sizes = [size for size in sizes if size]
        names = names[: len(sizes)]
    return dict(zip(names, sizes, strict=True))


def in_one_go(frameworks, how, engine):
    """Seconds from one image's end to the next's, and new bytes; the first's from the start."""
    ends = {}

    def note(event):
        if event.kind is EventKind.DONE and event.step.endswith("] build"):
            ends[event.step] = time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        asked = [options_of(framework, how, Path(folder)) for framework in frameworks]
        last = time.monotonic()
        results = build_many(asked, jobs=1, engine=engine, progress=note)
    if bad := [result.error.message for result in results if not result.good]:
        raise SystemExit(f"a cell was not built: {bad}")
    rows, seen = [], {}
    # They end in the order asked for: it is one job.
    for result, end in zip(results, ends.values(), strict=True):
        mine = layers(engine, result.outcome.built.image)
        fresh = {name: size for name, size in mine.items() if name not in seen}
        seen |= mine
        rows.append(
            {
                "cell": result.outcome.lock.name,
                "seconds": round(end - last, 1),
                "bytes": sum(fresh.values()),
                "image": result.outcome.built.digest,
            }
        )
        last = end
    return rows


def ours(locks, engine):
    """Seconds and new bytes of each image, in order."""
    rows, seen = [], {}
    for lock in locks:
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            complete = engine.pin_wheels(lock)
            built = engine.build(complete, Path(folder))
            seconds = time.monotonic() - started
        mine = layers(engine, built.image)
        fresh = {name: size for name, size in mine.items() if name not in seen}
        seen |= mine
        rows.append(
            {"cell": lock.name, "seconds": round(seconds, 1), "bytes": sum(fresh.values()), "image": built.digest}
        )
    return rows


def plain(locks, engine, epoch):
    """The same for one Dockerfile each, as it is usually written."""
    rows, seen = [], {}
    for lock in locks:
        with tempfile.TemporaryDirectory() as folder:
            context, private = Path(folder) / "context", Path(folder) / "private"
            context.mkdir()
            private.mkdir()
            versions = " ".join(f"{pin.name}=={pin.version}" for pin in lock.pins)
            secrets = "--mount=type=secret,id=ca,target=/run/ca,required=false,mode=0444 --mount=type=secret,id=uv,target=/run/uv.toml,required=false"
            (context / "uv").write_bytes(Path(find_uv()).read_bytes())
            (context / "uv").chmod(0o755)
            (context / "Dockerfile").write_text(
                f"FROM {from_reference(lock.base)}\n"
                f"ENV RUN_OF={epoch}\n"
                "RUN --mount=type=secret,id=ca,target=/run/ca,required=false,mode=0444 "
                "apt-get -o Acquire::https::CaInfo=/run/ca update && apt-get -o Acquire::https::CaInfo=/run/ca install -y "
                "--no-install-recommends g++ python3-dev\n"
                f"RUN --mount=type=bind,source=uv,target=/run/uv {secrets} python3 -m venv /opt/venv && "
                "if [ -f /run/ca ]; then export SSL_CERT_FILE=/run/ca; fi && "
                "if [ -f /run/uv.toml ]; then export UV_CONFIG_FILE=/run/uv.toml; fi && "
                f"VIRTUAL_ENV=/opt/venv /run/uv pip install --no-cache {versions}\n"
            )
            settings = read_host_settings()
            given = write_secrets(settings, private)
            command = [
                buildkit.find_client(),
                "build",
                "--iidfile",
                f"{folder}/id",
                "--network",
                engine.network or "default",
            ]
            command += [f"--secret=id={name},src={path}" for name, path in given.items()]
            started = time.monotonic()
            subprocess.run([*command, str(context)], check=True, env={**os.environ, "DOCKER_BUILDKIT": "1"})
            seconds = time.monotonic() - started
            image = (Path(folder) / "id").read_text().strip()
        mine = layers(engine, image)
        fresh = {name: size for name, size in mine.items() if name not in seen}
        seen |= mine
        rows.append({"cell": lock.name, "seconds": round(seconds, 1), "bytes": sum(fresh.values()), "image": image})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="2.5.1", help="The newest that all three frameworks can have.")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--frameworks", nargs="+", default=["deepspeed", "megatron-core", "colossalai"])
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", action="store_true")
    how = parser.parse_args()
    # Any time in the past that no run had: it stands in the text of every step.
    epoch = 1_600_000_000 + int(time.time()) % 100_000_000
    engine = DockerEngine(ImageOptions(epoch=epoch))
    if reason := engine.available():
        print(f"no docker engine: {reason}", file=sys.stderr)
        return 2
    result = {
        "alone": in_one_go(how.frameworks[:1], how, DockerEngine(ImageOptions(epoch=epoch + 2))),
        "one go": in_one_go(how.frameworks, how, DockerEngine(ImageOptions(epoch=epoch + 1))),
    }
    locks = [lock_of(framework, how, engine) for framework in how.frameworks]
    result |= {"ours": ours(locks, engine), "plain": plain(locks, engine, epoch)}
    if not how.keep:
        for row in (row for rows in result.values() for row in rows):
            engine.client.images.remove(row["image"], force=True)
    totals = {name: {key: sum(r[key] for r in rows) for key in ("seconds", "bytes")} for name, rows in result.items()}
    if how.json:
        print(json.dumps({**result, "totals": totals}, indent=1))
    else:
        for name, rows in result.items():
            first = rows[0]
            for row in rows:
                share = f"{row['bytes'] / first['bytes']:.1%} of the first's disk, {row['seconds'] / first['seconds']:.1%} of its time"
                print(f"{name:6} {row['cell']:42} {row['seconds']:8.1f} s {row['bytes'] / 1e9:7.2f} GB  {share}")
        for name in ("one go", "ours"):
            ratio = {key: totals[name][key] / totals["plain"][key] for key in ("seconds", "bytes")}
            print(
                f"{name}: {ratio['bytes']:.0%} of the disk and {ratio['seconds']:.0%} of the time of plain Dockerfiles"
            )
        more = totals["one go"]["seconds"] - totals["alone"]["seconds"]
        share = more / max(1, len(how.frameworks) - 1) / totals["alone"]["seconds"]
        print(
            f"in one go the others add {more:.1f} s to the {totals['alone']['seconds']:.1f} s of the first alone, {share:.1%} each"
        )
    first, *others = result["one go"]
    marginal = max((row[key] / first[key] for row in others for key in ("bytes", "seconds")), default=0.0)
    return 0 if marginal <= 0.15 else 1


if __name__ == "__main__":
    sys.exit(main())
