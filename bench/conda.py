"""Times the Conda lock beside conda-lock itself and beside rattler's bare solver, on one channel in one run.

    python bench/conda.py --conda-lock-python VENV/bin/python [--repeat 7]

The channel is the index of real records in tests/cases/conda. conda-lock needs a conda executable; where none is to be had it is given
a stand-in (below) that answers its calls with the same rattler, so that the solver is not what differs. Every answer is checked: the
three must name the same files. Times are wall clock, medians; the first run of each is told apart (imports, cold cache).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent

STAND_IN = """#!{python}
import asyncio, json, os, pathlib, sys
args = sys.argv[1:]
if args[:1] in (["--version"], ["-V"]):
    sys.exit(print("conda 26.7.0"))
if args[:1] == ["info"]:
    sys.exit(print(json.dumps({{"conda_version": "26.7.0", "platform": "linux-64", "pkgs_dirs": []}})))
if args[:1] == ["list"]:
    sys.exit(print("[]"))
from rattler import *
channels, specs, rest = [], [], iter(args[1:])
for word in rest:
    if word in ("--channel", "-c"):
        channels.append(next(rest))
    elif word in ("--prefix", "-p", "--file"):
        next(rest)
    elif not word.startswith("-"):
        specs.append(word)
subdir = os.environ.get("CONDA_SUBDIR", "linux-64")
virtual, real = [], []
for channel in channels:
    path = pathlib.Path(channel.removeprefix("file://"))
    if "fake-repodata" not in channel:
        real += [SparseRepoData(Channel(channel), s, path / s / "repodata.json") for s in (subdir, "noarch")]
        continue
    data = json.loads((path / subdir / "repodata.json").read_text())
    virtual += [GenericVirtualPackage(PackageName(r["name"]), Version(r["version"]), BuildString(r.get("build") or "0"))
                for r in data.get("packages", {{}}).values()]
try:
    found = asyncio.run(solve_with_sparse_repodata([MatchSpec(s) for s in specs], real, virtual_packages=virtual))
except Exception as error:
    sys.exit(print(json.dumps({{"message": str(error)}})) or 1)
fetch = [{{**json.loads(r.to_json()), "url": r.url, "fn": r.file_name, "channel": r.url.rsplit("/", 1)[0]}} for r in found]
link = [{{"base_url": r.url.rsplit("/", 2)[0], "channel": r.url.rsplit("/", 2)[0], "name": r.name.normalized, "platform": r.subdir,
         "dist_name": r.file_name.removesuffix(".conda").removesuffix(".tar.bz2"), "version": str(r.version)}} for r in found]
print(json.dumps({{"success": True, "actions": {{"FETCH": fetch, "LINK": link}}}}))
"""


def helpers():
    spec = importlib.util.spec_from_file_location("localchannel", HERE.parent / "tests/unit/lock/conda/localchannel.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def timed(action: Callable[[], set[str]], repeat: int) -> tuple[float, float, set[str]]:
    """First time, median of the others (milliseconds), and the files named, which must always be the same."""
    times, answers = [], []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        answers.append(action())
        times.append((time.perf_counter() - start) * 1000)
    if any(a != answers[0] for a in answers):
        raise SystemExit("one of the runs gave another answer")
    return times[0], statistics.median(times[1:]), answers[0]


def ours(local, channel: Path, folder: Path) -> Callable[[], set[str]]:
    from envsmith.lock import store
    from envsmith.lock.conda.lock import lock_conda
    from envsmith.lock.conda.lock_files import files
    from envsmith.lock.conda.model import CondaRequest

    cell, pins = local.cell(**local.DEEPSPEED), local.pins_for(local.DEEPSPEED)

    def action() -> set[str]:
        lock = lock_conda(cell, pins, CondaRequest(channels=(channel.as_uri(),), cache_dir=folder / "cache"))
        store.write(folder / "ours", files(lock))
        return {p.filename for p in lock.platforms[0].packages}

    return action


def ours_command(channel: Path, folder: Path) -> Callable[[], set[str]]:
    """The same from a new interpreter, as a shell user pays for it."""
    script = (
        f"import importlib.util as i, sys, pathlib; s=i.spec_from_file_location('l', {str(HERE.parent / 'tests/unit/lock/conda/localchannel.py')!r});"
        "m=i.module_from_spec(s); sys.modules['l']=m; s.loader.exec_module(m);"
        "from envsmith.lock.conda.lock_files import files; from envsmith.lock import store; from envsmith.lock.conda.lock import lock_conda; from envsmith.lock.conda.model import CondaRequest;"
        f"k=lock_conda(m.cell(**m.DEEPSPEED), m.pins_for(m.DEEPSPEED), CondaRequest(channels=({channel.as_uri()!r},), cache_dir=pathlib.Path({str(folder / 'cache')!r})));"
        f"store.write(pathlib.Path({str(folder / 'ours')!r}), files(k)); print(*(p.filename for p in k.platforms[0].packages))"
    )

    def action() -> set[str]:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    return action


def bare(channel: Path, folder: Path) -> Callable[[], set[str]]:
    import rattler

    from envsmith.lock.conda.foreign import load_document

    specs = load_document((folder / "ours/environment.yml").read_text(), "environment.yml")["dependencies"]
    machine = load_document((folder / "ours/virtual-packages.yml").read_text(), "virtual")["subdirs"]["linux-64"][
        "packages"
    ]
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(n), rattler.Version(v.split(" ")[0]), rattler.BuildString([*v.split(" "), "0"][1])
        )
        for n, v in machine.items()
    ]
    limits = ["triton ==3.4.0", "numpy ==2.2.6", "packaging ==25.0"]

    def action() -> set[str]:
        sparse = [
            rattler.SparseRepoData(rattler.Channel(channel.as_uri()), s, channel / s / "repodata.json")
            for s in ("linux-64", "noarch")
        ]
        found = asyncio.run(
            rattler.solve_with_sparse_repodata(specs, sparse, virtual_packages=virtual, constraints=limits)
        )
        return {r.file_name for r in found}

    return action


def peer(python: str, folder: Path) -> Callable[[], set[str]]:
    stand_in = folder / "conda"
    stand_in.write_text(STAND_IN.format(python=python))
    stand_in.chmod(0o755)
    lookup = folder / "lookup.json"
    lookup.write_text("{}")
    # conda-lock knows no limits on what is not asked for: they are asked for, so that all three have one answer.
    text = (
        folder / "ours/environment.yml"
    ).read_text() + "  - triton ==3.4.0\n  - numpy ==2.2.6\n  - packaging ==25.0\n"
    (folder / "environment.yml").write_text(text)
    (folder / "virtual-packages.yml").write_text((folder / "ours/virtual-packages.yml").read_text())

    def action() -> set[str]:
        (folder / "peer.yml").unlink(missing_ok=True)
        command = [
            python,
            "-m",
            "conda_lock",
            "lock",
            "-f",
            "environment.yml",
            "--lockfile",
            "peer.yml",
            "--conda",
            str(stand_in),
        ]
        command += ["--pypi_to_conda_lookup_file", lookup.as_uri(), "--no-mamba", "--no-micromamba"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit("conda-lock failed:\n" + done.stderr[-1500:])
        from envsmith.lock.conda.lock_files import load_lock

        return {p.filename for p in load_lock((folder / "peer.yml").read_text()).platforms[0].packages}

    return action


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--conda-lock-python", help="an interpreter with conda-lock and py-rattler; left out, the peer is not run"
    )
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    local = helpers()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        channel = local.write_index(folder / "channels", local.real_records()) / "conda-forge"
        rows = {"envsmith, in process": timed(ours(local, channel, folder), options.repeat)}
        rows["envsmith, new interpreter"] = timed(ours_command(channel, folder), options.repeat)
        rows["rattler solver alone, no files"] = timed(bare(channel, folder), options.repeat)
        if options.conda_lock_python:
            python = str(Path(options.conda_lock_python).absolute())
            rows["conda-lock with a stand-in conda"] = timed(peer(python, folder), max(2, options.repeat // 2))
        answers = {name: answer for name, (_, _, answer) in rows.items()}
        first = answers["envsmith, in process"]
        equal = {name: answer == first for name, answer in answers.items()}
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {len(first)} packages"
        )
        for name, (cold, median, _) in rows.items():
            print(
                f"{name:34} first {cold:8.1f} ms   median {median:8.1f} ms   same files: {'yes' if equal[name] else 'NO'}"
            )
        print(
            json.dumps(
                {
                    n: {"first_ms": round(c, 1), "median_ms": round(m, 1), "same": equal[n]}
                    for n, (c, m, _) in rows.items()
                }
            )
        )
        if not all(equal.values()):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
