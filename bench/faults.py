"""What is said of launches that fail: by the launcher alone, by `doctor --from` on its text, by `envsmith run`, by other tools.

    python bench/faults.py launch alone|detail|spy|run --env ddp=ENV --env zero2=ENV … [--half HALF] [--only ID …] [--jobs 2]
    python bench/faults.py count [--half …] [--json FILE]

``launch`` starts the rows of ``faults.yaml`` and ``launches.yaml`` with the real launcher, without and with `envsmith run`, and keeps what was
printed under ``--folder``: a row that was run is not run again. ``detail`` is ``alone`` with TORCH_DISTRIBUTED_DEBUG=DETAIL, ``spy`` adds what
py-spy shows of every rank after twenty seconds. ``count`` reads that, and compares it with the labels. The scripts are copied without the
marks of places first, so that no mark stands in a traceback. ENV is a virtual environment that has torch and the framework.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import yaml

HERE = Path(__file__).parent
STALL = 6
# How long gloo waits: alone the others must give up some time, under `envsmith run` the verdict has to come first.
TIMEOUTS = {"alone": 12, "detail": 12, "spy": 60, "run": 60}
SPY_AFTER = 20
LIMIT = 150
# A hang that was judged is ended, because a launcher takes half a minute for ranks that are stopped.
AFTER_VERDICT = 6
SCRIPTS = ("train.py", "frameworks.py", "injected.py")
ENVIRONMENTS = {"fsdp2": "ddp", "tensor": "ddp", "pipeline": "zero2", "lightning": "accelerate"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["launch", "count"])
    parser.add_argument("mode", nargs="?", choices=list(TIMEOUTS), default="alone")
    parser.add_argument("--env", action="append", default=[], metavar="FRAMEWORK=FOLDER")
    parser.add_argument("--half", help="the rows of one set, as launches.yaml names it")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=9, help="start no further row after this time")
    parser.add_argument(
        "--load", type=float, default=1e9, help="start a row, and keep it, only while the machine's load is not above"
    )
    parser.add_argument("--folder", type=Path, default=Path("bench-faults"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for row in labels() if chosen(row, options)]
    options.folder = options.folder.absolute()
    if options.verb == "launch":
        launch_all(rows, options)
        return 0
    from measuring.fault_answers import count

    return count(rows, options)


def labels() -> list[dict]:
    """Return faults and healthy launches, each with what it is expected to be named."""
    document = yaml.safe_load((HERE / "faults.yaml").read_text())
    halves = {None: "seen", True: "unseen", "later": "later", "third": "third"}
    faults = [row | {"half": halves[row.get("unseen")]} for row in document["faults"]]
    rows = faults + [row | {"half": "healthy"} for row in document["healthy"]]
    document = yaml.safe_load((HERE / "launches.yaml").read_text())
    for kind, half in (("faults", "fourth"), ("healthy", "odd")):
        rows += [
            {"half": half} | row | {"framework": "any", "text": script_of(document, row), "sh": document["sh"]}
            for row in document[kind]
        ]
    return rows


def script_of(document: dict, row: dict) -> str:
    """Return the script of a row behind what all scripts begin with, and what those of its kind do."""
    return document["prelude"] + document.get(row.get("prelude"), "") + row["script"]


def chosen(row: dict, options: argparse.Namespace) -> bool:
    return (not options.half or row["half"] == options.half) and (not options.only or row["id"] in options.only)


def launch_all(rows: list[dict], options: argparse.Namespace) -> None:
    """Launch the rows that were not launched yet, some at a time."""
    environments = dict(entry.split("=", 1) for entry in options.env)
    scripts = options.folder / "scripts"
    copy_scripts(scripts)
    end = time.monotonic() + options.minutes * 60

    def one(row: dict) -> None:
        place = options.folder / options.mode / row["id"]
        name = row.get("framework", "ddp")
        environment = environments.get(name) or environments.get(ENVIRONMENTS.get(name, ""))
        if (place / "result.json").exists() or time.monotonic() > end:
            return
        if environment is None:
            print(f"{row['id']}: no environment for {name}", flush=True)
            return
        while os.getloadavg()[0] > options.load:
            if time.monotonic() > end:
                return
            time.sleep(2)
        result = launch(row, options.mode, Path(environment), place, scripts)
        print(
            f"{row['id']:28} status {result['status']:4} {result['seconds']:6.1f} s, load {result['load']:.1f}",
            flush=True,
        )
        if result["load"] > options.load:
            (place / "result.json").unlink()  # what was slow for others' work says nothing of a tool

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, rows))


def copy_scripts(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCRIPTS:
        text = (HERE / "faults" / name).read_text()
        (folder / name).write_text(re.sub(r"[ \t]*(?:# noqa[^#\n]*)?# place: .*", "", text))


def launch(row: dict, mode: str, environment: Path, place: Path, scripts: Path) -> dict:
    """Launch one row, keep what it prints with the time of each line, and return its status and times."""
    place.mkdir(parents=True, exist_ok=True)
    if "text" in row:
        (place / "train.py").write_text(re.sub(r"[ \t]*# here$", "", row["text"], flags=re.MULTILINE))
    command = command_of(row, mode, environment, place, scripts)
    variables = environment_of(row, place, environment) | {"GROUP_SECONDS": str(TIMEOUTS[mode])}
    if mode == "detail":
        variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    taken = occupied_port() if row.get("launch") == "port" else None
    if taken:
        command = [part.replace("--master-port=0", f"--master-port={taken.getsockname()[1]}") for part in command]
    command = [part.replace("--master-port=0", f"--master-port={free_port()}") for part in command]
    start = time.time()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=variables,
        cwd=place, start_new_session=True, stdin=subprocess.PIPE if row.get("stdin") else subprocess.DEVNULL,
    )  # fmt: skip
    timers = [threading.Timer(LIMIT, end_all, [process, place])]
    if "signal" in row:
        number = getattr(signal, f"SIG{row['signal']}")
        timers.append(threading.Timer(row["after"], process.send_signal, [number]))
    if mode == "spy":
        timers += [
            threading.Timer(SPY_AFTER, spy, [place, environment]),
            threading.Timer(SPY_AFTER + 9, end_all, [process, place]),
        ]
    for timer in timers:
        timer.start()
    lines = []
    for line in process.stdout or ():
        lines.append((time.time(), line))
        if line.startswith("envsmith run: hang"):
            timers.append(threading.Timer(AFTER_VERDICT, end_all, [process, place]))
            timers[-1].start()
    status = process.wait()
    end_all(process, place)
    for timer in timers:
        timer.cancel()
    if taken:
        taken.close()
    (place / "output.txt").write_text("".join(line for _, line in lines))
    (place / "times.txt").write_text("".join(f"{at:.2f}\n" for at, _ in lines))
    mark = place / "mark"
    result = {
        "id": row["id"], "mode": mode, "status": status, "start": start, "seconds": time.time() - start,
        "injected": float(mark.read_text()) if mark.exists() else None, "load": os.getloadavg()[0],
    }  # fmt: skip
    (place / "result.json").write_text(json.dumps(result) + "\n")
    return result


def command_of(row: dict, mode: str, environment: Path, place: Path, scripts: Path) -> list[str]:
    """Return the command line: small disks, `envsmith run`, the launcher, the script."""
    count = row.get("ranks", 2)
    if "text" in row:
        return watched(command_of_script(row, environment, count), mode, place)
    script = [str(scripts / "train.py"), "--framework", row.get("framework", "ddp")]
    script += ["--steps", str(row.get("steps", 16)), "--workers", str(row.get("workers", 0))]
    script += ["--timeout", str(TIMEOUTS[mode])]
    if row.get("launcher") == "deepspeed":
        command = [str(environment / "bin/deepspeed"), "--num_accelerators", str(count), "--master_port=0", *script]
        command = [part.replace("--master_port=0", f"--master_port={free_port()}") for part in command]
    else:
        command = [str(environment / "bin/torchrun"), f"--nproc-per-node={count}", "--master-port=0"]
        command += wrapped(row, environment, script)
    command = watched(command, mode, place)
    mounts = []
    if "shm" in row:
        mounts.append(f"mount -t tmpfs -o size={row['shm']}m tmpfs /dev/shm")
    if "disk" in row:
        mounts.append(f'mkdir -p "$SMALL_DISK" && mount -t tmpfs -o size={row["disk"]}m tmpfs "$SMALL_DISK"')
    if mounts:
        command = ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *command]
    return command


def watched(command: list[str], mode: str, place: Path) -> list[str]:
    """Return the command under `envsmith run`, in that mode."""
    if mode != "run":
        return command
    own = [sys.executable, "-m", "envsmith", "run", "--stall", str(STALL), "--on-hang", "stop"]
    return [*own, "--evidence", str(place / "evidence"), "--", *command]


def command_of_script(row: dict, environment: Path, count: int) -> list[str]:
    """Return what starts the script of a row, which stands in the working folder."""
    kind = row.get("launch", "torchrun")
    if kind == "python":
        return [str(environment / "bin/python"), "train.py"]
    if kind == "deepspeed":
        return [
            str(environment / "bin/deepspeed"),
            "--num_accelerators",
            str(count),
            f"--master_port={free_port()}",
            "train.py",
        ]
    if kind == "sh":
        text = row["sh"].replace("{program}", row["program"]) + row.get("after", "exit $worst") + "\n"
        head = f"exec 3<&0\nPYTHON={environment}/bin/python\nPORT={free_port()}\n"
        return ["sh", "-c", head + text]
    return [str(environment / "bin/torchrun"), f"--nproc-per-node={count}", "--master-port=0", "train.py"]


def wrapped(row: dict, environment: Path, script: list[str]) -> list[str]:
    """Return what the launcher starts: the script, or a shell that changes what one rank, or every rank, is given."""
    python = str(environment / "bin/python")
    changes = {
        "world": "WORLD_SIZE=3",
        "address": "if [ $LOCAL_RANK = 1 ]; then export MASTER_PORT=9; fi",
        "same-rank": "if [ $LOCAL_RANK = 1 ]; then export RANK=0; fi",
        "environment": "if [ $LOCAL_RANK = 1 ]; then export MODEL_WIDTH=48 DATA_WIDTH=48; fi",
    }
    change = changes.get(row.get("launch", ""))
    return ["--no-python", "sh", "-c", f'{change}; exec "$@"', "sh", python, *script] if change else script


def environment_of(row: dict, place: Path, environment: Path) -> dict[str, str]:
    ranks = range(row.get("ranks", 2)) if row.get("all") else [row.get("rank", 1)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FAULT", "SLURM"))}
    variables |= {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE.parent),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1" if row.get("framework") == "pipeline" else "0",
        "FAULT": row.get("fault", ""),
        "FAULT_RANK": ",".join(map(str, ranks)),
        "FAULT_MARK": str(place / "mark"),
        "SMALL_DISK": str(place / "disk"),
        "DS_ACCELERATOR": "cuda" if row.get("prelude") == "cuda" else "cpu",
        "OWN_PORT": str(free_port()),
    }
    if "seconds" in row:
        variables["FAULT_SECONDS"] = str(row["seconds"])
    return variables


def occupied_port() -> socket.socket:
    return socket.create_server(("", 0))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def spy(place: Path, environment: Path) -> None:
    """Keep what py-spy shows of every rank of a launch."""
    rows = []
    for pid, variables in processes_of(place):
        rank = next(
            (value for name, _, value in (entry.partition(b"=") for entry in variables) if name == b"RANK"), None
        )
        if rank is not None and pid != os.getpid():
            dump = subprocess.run(
                [environment / "bin/py-spy", "dump", "--pid", str(pid)], capture_output=True, text=True, check=False
            )
            rows.append({"rank": int(rank), "pid": pid, "dump": dump.stdout})
    (place / "spy.json").write_text(json.dumps(rows))


def processes_of(place: Path) -> list[tuple[int, list[bytes]]]:
    """Return the processes of a launch and their variables. Launchers give ranks sessions of their own."""
    mark, rows = f"FAULT_MARK={place / 'mark'}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            rows += [(int(folder.name), variables)] if mark in variables else []
    return rows


def end_all(process: subprocess.Popen, place: Path) -> None:
    """End what is left of a launch, which is told by its environment."""
    for pid, _ in processes_of(place):
        with suppress(OSError):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
