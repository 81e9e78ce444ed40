"""Record what users and other programs see of one checkout, so that two checkouts can be compared.

    python tools/freeze.py OUT [--envsmith PATH] [--only NAME] [--smoke-python PYTHON]
    python tools/freeze.py --compare A B

Only the command line of `--envsmith` (default: beside this interpreter) and its tools/render_images.py are used; what they read is copied from the
checkout that this file stands in. A day is given, so that answers do not change with it; locks ask the package index.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import contextlib
import difflib
import fcntl
import gc
import gzip
import hashlib
import io
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(tempfile.gettempdir()) / "envsmith-freeze"  # always the same, as the port is: some digests cover addresses
DAY, EPOCH, LARGE, WORKERS, PORT = "2026-10-01", "1795348800", 300_000, 2, "48211"
REQUESTS = """-f deepspeed; -f megatron-core; -f colossalai; -f deepspeed -f megatron-core; -f deepspeed --driver 535.54.03 --gpu h100
-f deepspeed==0.14.* --torch 2.3; -f deepspeed>=0.16 --cuda 12.4; -f deepspeed --platform linux-aarch64; -f deepspeed --gpu b200
-f deepspeed --gpu v100; -f deepspeed --gpu a100 --gpu rtx5090; -f deepspeed --with transformers --with numpy<2; -f deepspeed --cuda cpu
-f megatron-core --python 3.11 --with transformer-engine; -f megatron-core --nccl >=2.27; -f megatron-core --with flash-attn --gpu h100
-f megatron-core --torch >=2.6,<2.10 --driver 550.54.14; -f megatron-core --with apex; -f colossalai --python 3.10 --gpu a100
-f colossalai==0.4.* --torch 2.4.1; -f deepspeed --with horovod --with ray; -f deepspeed --torch 2.9.1+cu126; -f colossalai --torch >=2.9
-f deepspeed --torch 2.13 --driver 470.82.01; -f megatron-core --python 3.14 --torch 2.4; -f deepspeed==0.14.0 --torch 2.6
-f deepspeed --torch 99; -f megatron-core --gpu b200 --cuda 12.1"""
LOCKS = """-f deepspeed --no-conda; -f megatron-core --no-conda --flavour devel; -f colossalai --no-conda
-f deepspeed --no-conda --gpu h100 --compile deepspeed:DS_BUILD_FUSED_ADAM=1; -f deepspeed --no-conda --platform linux-aarch64
-f megatron-core --no-conda --gpu h100 --with transformer-engine; -f deepspeed==0.16.* --no-conda --torch 2.6 --python 3.11
-f deepspeed --no-conda --base example/base:1@sha256:1111111111111111111111111111111111111111111111111111111111111111
-f megatron-core --no-conda --torch 2.13 --gpu a100 --source SOURCE; -f deepspeed --torch 2.14.1 --channel FOLDER TOLERATED
-f deepspeed --torch 2.14.1 --channel SERVED TOLERATED; -f deepspeed --torch 2.14.1 --channel SERVED TOLERATED --format conda"""
CHECKS = """deepspeed==0.14.0 torch==2.6.0; torch==2.9.1 driver==470.82.01 gpu==h100; torch==2.99
deepspeed==* mpi4py==none --env RANK --env WORLD_SIZE --fact limit.shm=64M; torch==2.5.1 gpu==b200 --platform linux-aarch64
deepspeed==0.19.7 torch==2.14.1 python==3.12 --fact nodes=2 --fact ssh=refused; --from images/deepspeed/requirements.txt
--from images/deepspeed/lock.json; --from tests/cases/conda/golden/environment.yml; --from tests/cases/conda/golden/conda-linux-64.lock"""
REFUSED = """nothing; solve; solve -f nothing; solve -f deepspeed --with nothing; solve -f deepspeed --torch 'not a version'
solve -f deepspeed --gpu nothing; solve -f deepspeed --driver x; solve -f deepspeed --platform win-64; solve -f deepspeed --exclude-newer yesterday
solve -f deepspeed --limit 0 --all; solve --nothing; lock -f deepspeed --base 'a b'; lock -f deepspeed --frozen; lock -f deepspeed --compile nothing
lock -f deepspeed --source apex@missing.tar.gz#sha256=aa; build -f deepspeed --engine nothing; check; check torch; check nothing==1
check torch==2.6.0 --fact nothing=1; check --from missing.yml; doctor --from missing.log; doctor --compare missing.json missing.json; explain
explain nothing; explain ds0.0.1-torch2.9.1-cu128-py312; explain --from ds0.14.0-torch2.3.1-cu121-py311; smoke --python missing; smoke --ranks 0
smoke --nodes 2 --emit jobset; smoke --read-logs missing.log; publish missing --to registry.example/x --key missing.pem; publish; verify
verify --bundle missing.tar --key missing.pub; matrix; matrix show nothing; matrix merge missing; matrix run missing.yaml
matrix list --with nothing; ci; ci check missing; ci matrix empty; ci run nothing empty; init empty; completion nothing"""
# Reader whose crashes are kept -> the name that its file has in a folder of its own, and the commands that read it there.
CRASHES: Mapping[str, tuple[str, str]] = {
    "report": ("a.txt", "doctor --from a.txt --json"), "launches": ("a.txt", "doctor --from a.txt --json"),
    "pylock": ("pylock.toml", "doctor --from pylock.toml --json"), "conda-file": ("a.yml", "check --from a.yml --json"),
    "conda-lock": ("conda-lock.yml", "check --from conda-lock.yml --json"), "stated": ("a.json", "check --from a.json --json"),
    "environment-yml": ("environment.yml", "ci check .; init ."),
    "library": ("envsmith.yaml", "ci check .; ci matrix ."), "pyproject": ("pyproject.toml", "ci check .; init ."),
    "metadata": ("METADATA", "ci check --metadata METADATA --format json"), "plan": ("plan.json", "matrix run --state . --plan"),
}  # fmt: skip
# A Conda channel for the cells of LOCKS: name, version, build, subdir, what it needs.
CHANNEL: Sequence[tuple[str, str, str, str, list[str]]] = (
    ("python", "3.12.12", "h0_0_cpython", "linux-64", ["__glibc >=2.17"]),
    ("pytorch", "2.14.1", "cuda130_generic_py312_h0_200", "linux-64", ["__cuda", "python 3.12.*", "cuda-version 13.*", "nccl", "cudnn", "triton"]),
    ("cuda-version", "13.0", "h0_0", "noarch", []), ("nccl", "2.30.7.1", "h0_0", "linux-64", ["cuda-version >=13.0,<14"]),
    ("cudnn", "9.24.0.43", "h0_0", "linux-64", ["cuda-version >=13.0,<14"]), ("triton", "3.8.0", "cuda130py312h0_0", "linux-64", []),
    ("cuda-nvcc", "13.0.88", "h0_0", "linux-64", []), ("c-compiler", "1.0.0", "h0_0", "linux-64", []),
    ("cxx-compiler", "1.0.0", "h0_0", "linux-64", ["c-compiler 1.0.0 h0_0"]), ("deepspeed", "0.19.7", "pyh0_0", "noarch", ["python >=3.9", "pytorch"]),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Hold what one command said, without what only this machine knows."""

    said: str
    code: int
    out: str
    err: str

    def transcript(self) -> str:
        """Tell it as a terminal would."""
        err = f"--- stderr\n{self.err}" if self.err else ""
        return f"$ envsmith {self.said}\nexit {self.code}\n{self.out}{err}"

    def line(self, case: str) -> str:
        """Tell it as one JSON line."""
        told: object = self.out.splitlines()
        with contextlib.suppress(ValueError):
            told = json.loads(self.out)
        return json.dumps({"case": case, "exit": self.code, "answer": told, "stderr": self.err}) + "\n"


@dataclass
class Freezer:
    """Run commands of one checkout and write what they say below one folder."""

    envsmith: Path
    out: Path
    torch: Path | None = None
    checkout: str = ""
    idle: queue.Queue[subprocess.Popen[str]] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        """Start the warm interpreters."""
        python, pipe = str(self.envsmith.parent / "python"), subprocess.PIPE
        code = (
            "import sys; del sys.path[0]; import envsmith, pathlib; print(pathlib.Path(envsmith.__file__).parents[1])"
        )
        self.checkout = subprocess.check_output([python, "-c", code], text=True, cwd=WORK).strip()
        for _ in range(WORKERS):
            command = [python, str(Path(__file__).resolve()), "--serve"]
            self.idle.put(subprocess.Popen(command, env=_environment(), cwd=WORK, text=True, stdin=pipe, stdout=pipe))

    def tidy(self, text: str) -> str:
        """Replace paths of this machine and times by words."""
        for place, word in ((str(WORK), "WORK"), (str(self.torch or "\0"), "TORCH"), (self.checkout, "CHECKOUT")):
            text = text.replace(place, f"<{word}>")
        return re.sub(r"(done|kept) in [\d.]+ s\b", r"\1 in N s", text)

    def ask(self, argv: Sequence[str], folder: str = "") -> Answer:
        """Run one command in a folder below the work folder."""
        warm = self.idle.get()
        try:
            print(json.dumps([list(argv), str(WORK / folder)]), file=warm.stdin, flush=True)
            code = int(warm.stdout.readline() if warm.stdout else "")
            out, err = (self.tidy(_text(WORK / f"io/{warm.pid}.{name}")) for name in ("out", "err"))
        finally:
            self.idle.put(warm)
        return Answer(self.tidy(shlex.join(argv)), code, out, err)

    def ask_all(self, commands: Iterable[Sequence[str]], folder: str = "") -> list[Answer]:
        """Run many, two at a time, and give their answers in order."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(lambda argv: self.ask(argv, folder), commands))

    def put(self, name: str, text: str) -> None:
        """Write one file; of a large one its digest."""
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(text) > LARGE and path.suffix != ".jsonl":
            text = f"sha256 {hashlib.sha256(text.encode()).hexdigest()}\nlines {text.count(chr(10))}\n"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def put_tree(self, name: str, folder: Path, without: Path | None = None) -> None:
        """Write every file of a folder that is not in the other folder."""
        for path in sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file()):
            if not without or not (without / path).exists():
                self.put(f"{name}/{path}", self.tidy(_text(folder / path)))

    def put_all(self, name: str, commands: Iterable[str], folder: str = "") -> None:
        """Write the transcripts of commands into one file."""
        answers = self.ask_all([shlex.split(command) for command in commands], folder)
        self.put(name, "\n".join(answer.transcript() for answer in answers))

    def put_cases(self, name: str, cases: Mapping[str, Sequence[str]], folder: str = "") -> None:
        """Write the answers to cases, one JSON line each."""
        answers = self.ask_all(cases.values(), folder)
        self.put(name, "".join(answer.line(case) for case, answer in zip(cases, answers, strict=True)))


def _environment() -> dict[str, str]:
    kept = re.compile(r"PATH|HOME|TMPDIR|LD_LIBRARY_PATH|ENVSMITH_MATRIX|(UV|PIP|SSL|REQUESTS)_.*|(?i:.*_proxy)")
    uv_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    given = {"NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8", "COLUMNS": "100", "SOURCE_DATE_EPOCH": EPOCH}
    given |= {"UV_CACHE_DIR": str(uv_cache), "XDG_CACHE_HOME": str(WORK / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    return given | {name: value for name, value in os.environ.items() if kept.fullmatch(name)}


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "backslashreplace")


def _each(table: str) -> list[str]:
    return [entry for entry in re.split(r"; ?|\n", table) if entry]


def serve() -> int:
    """Run every command of stdin in a fork of this warm interpreter, and answer with its exit code."""
    del sys.path[0]  # tools/ is no folder of modules
    from envsmith.__main__ import main

    stem = WORK / f"io/{os.getpid()}"
    stem.write_text("ImportError: x")
    for words in (["check", "torch==2.6.0"], ["solve", "-f", "deepspeed"], ["doctor", "--from", str(stem)]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _code(main, words)
    gc.freeze()  # a fork must not copy what it only looks at
    for line in iter(sys.stdin.readline, ""):
        argv, folder = json.loads(line)
        child = os.fork()
        if not child:
            signal.alarm(300)
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{stem}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            code = _code(main, argv)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return 0


def _code(main: Callable[[], None], argv: list[str]) -> int:
    sys.argv = ["envsmith", *argv]
    try:
        main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1 if left.code else 0
    except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
        traceback.print_exc()
        return 70
    return 0


def help_texts(box: Freezer) -> None:
    """Freeze the help of every command, found by walking it."""
    waiting: list[list[str]] = [[]]
    while waiting:
        path = waiting.pop()
        answer = box.ask([*path, "--help"])
        box.put(f"help/{'-'.join(['envsmith', *path])}.txt", answer.transcript())
        listed = re.split(r"^(?:Verbs|Commands):\n", answer.out, flags=re.MULTILINE)[1:]
        waiting += [[*path, name] for name in re.findall(r"^  (\w[\w-]*)", "".join(listed), re.MULTILINE)]
    others = "--version; completion bash; completion zsh; completion fish; check --fact help; ci schema"
    box.put_all("help/others.txt", _each(others))
    for name in ("--version", "nothing"):  # the installed program itself
        done = subprocess.run([box.envsmith, name], env=_environment(), capture_output=True, text=True, check=False)
        box.put(f"help/program-{name}.txt", f"exit {done.returncode}\n{done.stdout}{done.stderr}")


def solves(box: Freezer) -> None:
    """Freeze the answers to requests, as text, as JSON and as the list of all cells."""
    for number, words in enumerate(_each(REQUESTS)):
        forms = ("", "--json", "--all --json --limit 12", "--all --limit 12")
        asked = shlex.join(["solve", *words.split(), "--exclude-newer", DAY])
        box.put_all(f"solve/{number:02}.txt", [f"{asked} {form}" for form in forms])
    box.put_all(
        "solve/newest.txt", [f"solve -f {name} --json" for name in ("deepspeed", "megatron-core", "colossalai")]
    )


def locks(box: Freezer) -> None:
    """Freeze every file of locked cells, and what is said of a lock that is there."""
    for subdir in ("linux-64", "noarch"):
        packages = {f"{n}-{v}-{b}.conda": _record(n, v, b, s, needs) for n, v, b, s, needs in CHANNEL if s == subdir}
        (WORK / "channel" / subdir).mkdir(parents=True)
        data = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": packages, "repodata_version": 1}
        (WORK / "channel" / subdir / "repodata.json").write_text(json.dumps(data))
    words = {"FOLDER": (WORK / "channel").as_uri(), "SERVED": f"http://127.0.0.1:{PORT}/channel", "SOURCE": _source(WORK / "apex.tar.gz"),
             "TOLERATED": "--conda-tolerate nccl --conda-tolerate cudnn"}  # fmt: skip
    table = re.sub("|".join(words), lambda found: words[found.group()], LOCKS)
    asked = [["lock", *w.split(), "--exclude-newer", DAY, "-o", f"locks/{n:02}"] for n, w in enumerate(_each(table))]
    server = subprocess.Popen([sys.executable, "-m", "http.server", PORT, "--bind", "127.0.0.1", "--directory", str(WORK)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    time.sleep(1)
    for number, answer in enumerate(box.ask_all(asked)):
        box.put(f"lock/{number:02}/said.txt", answer.transcript())
        box.put_tree(f"lock/{number:02}", WORK / f"locks/{number:02}")
    later = [f"{shlex.join(asked[n])} {flag} --json" for n in (0, 11) for flag in ("--check", "--locked", "--frozen", "--offline")]  # fmt: skip
    box.put("lock/later.txt", "\n".join(box.ask(shlex.split(command)).transcript() for command in later))
    server.terminate()
    server.wait()


def _record(name: str, version: str, build: str, subdir: str, needs: list[str]) -> dict[str, object]:
    said = hashlib.sha256(f"{name}-{version}-{build}".encode()).hexdigest()
    kind = {"noarch": "python"} if build.startswith("py") else {}
    number = {"build_number": int(build.rsplit("_", 1)[-1]) if build[-1].isdigit() else 0, "size": 1, "timestamp": 1700000000000}  # fmt: skip
    named = {"name": name, "version": version, "build": build, "subdir": subdir, "sha256": said, "md5": said[:32]}
    return {**named, **number, **kind, "depends": needs, "constrains": []}


def _source(path: Path) -> str:
    """Make a small source archive that always has the same bytes, and give the flag for it."""
    made = io.BytesIO()
    text = b'[project]\nname = "apex"\nversion = "0.1"\ndependencies = ["torch>=2"]\n'
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in (("apex/pyproject.toml", text), ("apex/setup.py", b""), ("apex/csrc/a.cu", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    path.write_bytes(gzip.compress(made.getvalue(), mtime=0))
    return f"apex@{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


def images(box: Freezer) -> None:
    """Freeze the folders of images/, rendered anew from their locks, records and digests."""
    folder = WORK / "rendered"
    for path in (ROOT / "images").glob("*/*.json"):
        if path.name in {"image.json", "lock.json", "record.json"}:
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.parent.name)
    tool: list[str] = [str(box.envsmith.parent / "python"), f"{box.checkout}/tools/render_images.py", "--write", "--images", str(folder)]  # fmt: skip
    done = subprocess.run(tool, env=_environment(), cwd=WORK, capture_output=True, text=True, check=False)
    box.put("images/said.txt", f"exit {done.returncode}\n{box.tidy(done.stderr)}")
    box.put_tree("images", folder)


def matrix(box: Freezer) -> None:
    """Freeze the matrix as data, as the page, as tables, and what is listed and shown of it."""
    shutil.copy(ROOT / "docs/tables.md", WORK / "tables.md")
    base = "--base-url https://pages.example/x"
    said = ["export -o export", f"site -o site {base}", "export --markdown tables.md", f"export -o linked {base}"]
    box.put_all("matrix/said.txt", [f"matrix {words}" for words in said])
    box.put("matrix/tables.md", _text(WORK / "tables.md"))
    box.put("matrix/feed.xml", _text(WORK / "linked/feed.xml"))
    box.put_tree("matrix/export", WORK / "export")
    box.put_tree("matrix/site", WORK / "site", without=WORK / "export")
    lists = "--framework deepspeed --with torch>=2.13; --status failed; --stale; --disagreeing; --format json; --format csv; --format markdown"
    box.put_all("matrix/lists.txt", ["matrix list", *(f"matrix list {words}" for words in _each(lists))])
    box.put_all(
        "matrix/shows.txt", [f"matrix show {cell}{flag}" for cell in _cells()[::40] for flag in ("", " --json")]
    )
    box.put_all("matrix/plans.txt", [f"matrix run {path} --plan --json" for path in sorted((WORK / "campaigns").iterdir())])  # fmt: skip


def _cells() -> list[str]:
    return sorted({json.loads(_text(path))["cell"] for path in (ROOT / "matrix/records").glob("*.json")})


def explains(box: Freezer) -> None:
    """Freeze what is said of every rule and of some cells and upgrades."""
    text = "".join(_text(path) for path in sorted((ROOT / "matrix/rules").glob("*.yaml")))
    subjects = [*re.findall(r"^\s*-?\s*id: ([\w.-]+)", text, re.MULTILINE), *_cells()[::12]]
    box.put_cases("explain/all.jsonl", {name: ["explain", name, "--json"] for name in subjects})
    box.put_all("explain/all.txt", [f"explain {name}" for name in subjects])
    moves = ("ds0.14.0-torch2.3.1-cu121-py311 --to torch>=2.9", "ca0.4.5-torch2.3.1-cu121-py312 --to colossalai==0.5.0 --to torch")  # fmt: skip
    box.put_all("explain/moves.txt", [f"explain --from {move}{flag}" for move in moves for flag in ("", " --json")])


def checks(box: Freezer) -> None:
    """Freeze the judgements of given sets: by hand, of files, of the corpora."""
    forms = ("text", "json", "sarif", "github")
    box.put_all("check/by-hand.txt", [f"check {words} --format {form}" for words in _each(CHECKS) for form in forms])
    sets = [(p.stem, json.loads(_text(p))["check"]) for p in sorted((ROOT / "tests/cases/solve").glob("check-*.json"))]
    for case in json.loads(_text(ROOT / "tests/cases/knowledge/environments.json")):
        sets += [(f"{case['name']} {number}", given) for number, given in enumerate(case["sets"])]
    known = {path.stem for path in (ROOT / "matrix/releases").iterdir()}
    for corpus, record in _records():
        env = {("cuda" if name == "torch_cuda" else name): str(value) for name, value in record.get("env", {}).items()}
        env[env.pop("framework", "")] = env.pop("framework_version", "*")
        found = {name: re.search(r"\d+(\.\d+)+(\+\w+)?", value) for name, value in env.items() if name in known}
        sets.append((f"{corpus} {record['id']}", {name: text.group() if text else "*" for name, text in found.items()}))
    cases = {name: ["check", *(f"{n}=={v}" for n, v in given.items()), "--json"] for name, given in sets}
    box.put_cases("check/cases.jsonl", cases)


def _records() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(
        [*(ROOT / "bench/corpus").glob("threads*.jsonl"), *(ROOT / "tests/cases/doctor").glob("*.jsonl")]
    ):
        for line in _text(path).splitlines():
            yield path.stem, json.loads(line)


def _reports() -> Iterator[tuple[str, str, str]]:
    """Yield corpus, case and text of everything that the doctor is asked about."""
    for corpus, record in _records():
        env = dict(record.get("env", {}))
        lines = [f"{env.pop('framework', 'framework')} version: {env.pop('framework_version', '?')}"]
        lines += [f"{key}: {value}" for key, value in env.items()]
        yield corpus, record["id"], "\n".join([*lines, record.get("env_report", ""), *record.get("error_lines", [])])
    for corpus, place in (("messages", 0), ("refusals", 1)):
        for number, case in enumerate(json.loads(_text(ROOT / f"tests/cases/doctor/{corpus}.json"))["cases"]):
            yield corpus, str(number), case[place]
    for case in json.loads(_text(ROOT / "tests/cases/doctor/threads.json"))["cases"]:
        yield "thread-texts", case["url"], "\n".join(case["text"])


def doctors(box: Freezer) -> None:
    """Freeze the doctor's answers to every text of the corpora, and its other forms for some."""
    cases: dict[str, dict[str, list[str]]] = {}
    (WORK / "texts").mkdir()
    for corpus, case, text in _reports():
        part = cases.setdefault(corpus, {})
        name = f"{corpus}-{len(part)}.txt"
        (WORK / "texts" / name).write_text(text, encoding="utf-8", errors="replace")
        part[f"{case} {len(part)}"] = ["doctor", "--from", name, "--json"]
    for corpus, part in cases.items():
        box.put_cases(f"doctor/{corpus}.jsonl", part, "texts")
    told = [f"doctor --from {name}-{n}.txt --all" for name in ("round3", "thread-texts") for n in range(60)]
    told += [f"doctor --from round3-{n}.txt --format {form}" for n in range(12) for form in ("markdown", "sarif", "github")]  # fmt: skip
    box.put_all("doctor/told.txt", told, "texts")
    box.put_all(
        "doctor/saved.txt", [f"doctor --from round3-{n}.txt --save {n}.json --verify" for n in range(2)], "texts"
    )
    box.put_all("doctor/read.txt", ["doctor --from 0.json --json", "doctor --compare 0.json 1.json --json"], "texts")
    box.put("doctor/snapshot.json", box.tidy(_text(WORK / "texts/0.json")))


def libraries(box: Freezer) -> None:
    """Freeze what maintainers of a library see."""
    names = [f"tests/cases/ci/metadata/{path.name}" for path in sorted((ROOT / "tests/cases/ci/metadata").iterdir())]
    forms = ("text", "sarif", "junit", "github", "markdown", "json")
    box.put_cases("ci/metadata.jsonl", {n: ["ci", "check", "--metadata", n, "--format", "json"] for n in names})
    box.put_all("ci/metadata.txt", [f"ci check --metadata {n} --format {form}" for n in names[::4] for form in forms])
    (WORK / "library").mkdir()
    text = '[project]\nname = "library"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2.4", "deepspeed>=0.16", "numpy"]\n'
    (WORK / "library/pyproject.toml").write_text(text)
    box.put_all("ci/init.txt", ["init library"])
    box.put("ci/envsmith.yaml", _text(WORK / "library/envsmith.yaml"))
    jobs = [f"ci matrix library --format {form}" for form in ("table", "github", "gitlab", "nox", "json")]
    box.put_all("ci/library.txt", [*jobs, *(f"ci check library --format {form}" for form in forms)])


def pods(box: Freezer) -> None:
    """Freeze the jobs for Kubernetes; the plan in them is unpacked, the agent left out."""

    def unpacked(found: re.Match[str]) -> str:
        packed = base64.b64decode(found.group())
        text = bz2.decompress(packed).decode() if packed.startswith(b"BZh") else ""
        return text if text.startswith("{") else "<AGENT>"

    more = ("--gpus 8", "--backend gloo", "--tier bandwidth --gpus 8")
    for name, words in [(f"{kind}-{n}", f"--emit {kind} {m}") for kind in ("jobset", "trainjob") for n, m in enumerate(more)]:  # fmt: skip
        said = box.ask(f"smoke --nodes 4 --ranks 8 --image registry.example/cell:1 {words}".split()).transcript()
        box.put(f"pods/{name}.txt", re.sub("sha256 [0-9a-f]{64}", "sha256 <AGENT>", re.sub("[A-Za-z0-9+/]{200,}=*", unpacked, said)))  # fmt: skip


def refusals(box: Freezer) -> None:
    """Freeze exit code and message of bad input, and of every file that once broke a reader."""
    (WORK / "empty").mkdir()
    box.put_all("refusals/given.txt", ["", *_each(REFUSED)])
    for reader, (name, commands) in CRASHES.items():
        for path in sorted((ROOT / "tests/fuzz/crashes" / reader).glob("*")):
            folder = f"crashes/{reader}/{path.name}"
            (WORK / folder).mkdir(parents=True)
            shutil.copy(path, WORK / folder / name)
            if reader == "library":
                (WORK / folder / "requirements.txt").write_text("torch>=2\ndeepspeed\n")
            told = [box.ask(shlex.split(command), folder).transcript() for command in _each(commands)]
            box.put(f"refusals/{reader}-{path.name}.txt", "\n".join(told))


def smoke(box: Freezer) -> None:
    """Freeze the smoke test on the CPU: what the agent writes, what is said of it, the plans."""
    if box.torch is None:
        print("smoke is left out: no --smoke-python")
        return
    folder = WORK / "bin"
    folder.mkdir()
    for name, text in (("python", f'{box.torch} "$@" | tee {folder}/events.$$\nexit ${{PIPESTATUS[0]}}'), ("reach", 'shift\nexec "$@"')):  # fmt: skip
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    nodes = f"quick --ranks 2 --nodes a=127.0.0.1,b=127.0.0.1 --rsh '{folder}/reach {{host}}'"
    tiers = ("import", "quick --ranks 2", "quick", "framework", "bandwidth --ranks 2", nodes)
    for name, tier in zip(("import", "two", "four", "framework", "bandwidth", "nodes"), tiers, strict=True):
        words = shlex.split(f"smoke --tier {tier} --backend gloo --python {folder}/python")
        box.put(f"smoke/{name}.txt", _timeless(box.ask([*words, "--json"]).transcript()))
        found = "".join(_text(path) for path in folder.glob("events.*")).splitlines()
        log = sorted((line for line in found if line.startswith('{"event"')), key=_order)
        events = {json.dumps(json.loads(line), sort_keys=True) for line in log}
        ordered = sorted((box.tidy(_timeless(event)) for event in events), key=_order)
        box.put(f"smoke/{name}.jsonl", "".join(event + "\n" for event in ordered))
        (WORK / f"{name}.log").write_text("\n".join(log))
        for path in folder.glob("events.*"):
            path.unlink()
    lines = _text(WORK / "nodes.log").replace('"status":"ok"', '"status":"wrong","detail":"read 3"', 1).splitlines()
    (WORK / "wrong.log").write_text("\n".join(lines))
    (WORK / "cut.log").write_text("\n".join(lines[: len(lines) // 2]))
    for name in ("nodes", "wrong", "cut", "four"):
        box.put(f"smoke/read-{name}.txt", _timeless(box.ask(["smoke", "--read-logs", f"{name}.log"]).transcript()))
    plans = [f"smoke --plan-only --python {box.torch} --tier {words}" for words in (*tiers, *(f"{t} --backend nccl --ranks 8" for t in ("full", "quick", "framework", "bandwidth")))]  # fmt: skip
    for number, command in enumerate(plans):
        box.put(f"smoke/plan-{number}.json", box.ask(shlex.split(command)).transcript())
    box.put("smoke/said.txt", _timeless(box.ask(["smoke", "--python", str(box.torch), "-v"]).transcript()))


def _order(line: str) -> tuple[int, str, int, str]:
    """Sort by rank, then by kind; a rank's own cases by their numbers."""
    event = json.loads(line)
    return event.get("rank", -1), str(event.get("row", event["event"])), int(event.get("case") or 0), line


def _timeless(text: str) -> str:
    """Replace what was measured, and what the system chose, in a text."""
    keys = r"pid|ms|us|seconds|time|at|started|free|port|algbw|busbw|\w*free_bytes|\w*_(?:ms|us|seconds|GBps|gb_s)"
    text = re.sub(rf'("(?:{keys})": )(?:\[[^\]]*\]|\{{[^}}]*\}}|"[^"]*"|[-\d.e]+)', r'\1"<N>"', text)
    text = re.sub(r"envsmith-smoke-\w{8}", "envsmith-smoke-<N>", text)
    return re.sub(r"\d+(\.\d+)? (s|ms|us|GB/s|MB/s)\b", r"N \2", text)


PARTS: Mapping[str, Callable[[Freezer], None]] = {
    "help": help_texts, "solve": solves, "lock": locks, "images": images, "matrix": matrix, "explain": explains, "check": checks,
    "doctor": doctors, "ci": libraries, "pods": pods, "refusals": refusals, "smoke": smoke,
}  # fmt: skip


def compare(before: Path, after: Path) -> int:
    """Print a short diff of every file that differs; 1 when there is one."""
    names = sorted({str(p.relative_to(root)) for root in (before, after) for p in root.rglob("*") if p.is_file()})
    differing = 0
    for name in names:
        one, two = (_shown(root / name) for root in (before, after))
        if one != two:
            differing += 1
            diff = list(difflib.unified_diff(one, two, str(before / name), str(after / name), n=1, lineterm=""))
            more = [f"… {len(diff) - 40} more lines"] if diff[40:] else []
            print(*(line[:240] for line in diff[:40]), *more, sep="\n")
    print(f"{differing} of {len(names)} files differ")
    return 1 if differing else 0


def _shown(path: Path) -> list[str]:
    lines = _text(path).splitlines() if path.is_file() else ["(no such file)"]
    if path.suffix == ".jsonl" and path.is_file():
        return [row for line in lines for row in json.dumps(json.loads(line), indent=1).splitlines()]
    return lines


def main() -> int:
    """Freeze, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--envsmith", type=Path, default=Path(sys.executable).parent / "envsmith")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--smoke-python", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"))
    asked = parser.parse_args()
    if asked.compare:
        return compare(*asked.compare)
    if asked.out is None:
        parser.error("OUT is missing")
    with WORK.with_suffix(".lock").open("w") as alone:
        fcntl.flock(alone, fcntl.LOCK_EX)
        shutil.rmtree(WORK, ignore_errors=True)
        (WORK / "io").mkdir(parents=True)
        for name, place in (("tests/cases", "tests/cases"), ("matrix/campaigns", "campaigns")):
            shutil.copytree(ROOT / name, WORK / place)
        shutil.copytree(next((ROOT / "images").glob("ds*")), WORK / "images/deepspeed")
        torch = asked.smoke_python and asked.smoke_python.absolute()
        box = Freezer(asked.envsmith.absolute(), asked.out.absolute(), torch)
        for name in asked.only or PARTS:
            shutil.rmtree(box.out / name, ignore_errors=True)
            began = time.monotonic()
            PARTS[name](box)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["--serve"] else main())
