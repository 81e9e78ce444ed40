"""Every reader of what somebody else wrote, under atheris: any bytes give a value or one of our errors, and nothing else.

    python tests/fuzz/fuzz_readers.py READER [--structured] [libFuzzer options: -max_total_time=600 …]
    python tests/fuzz/fuzz_readers.py --all SECONDS     # every reader in turn, sharing the time

atheris comes from the package index (``pip install atheris``, Python 3.11). Without ``--structured`` libFuzzer changes bytes; with it hypothesis builds documents of
the right shape with a wrong value somewhere, and libFuzzer steers it. What was found stands in ``crashes/READER/``; ``test_readers.py`` reads it again.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Reader = Callable[[str], object]


@cache
def folder() -> Path:
    """One folder for readers that take a path; in memory where the host has such a place."""
    made = tempfile.TemporaryDirectory(prefix="envsmith-fuzz-")
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def raw(text: str) -> bytes:
    """The bytes that were decoded to ``text``; of a text made here, lone surrogates as they are."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def written(name: str, text: str) -> Path:
    path = folder() / name
    path.write_bytes(raw(text))
    return path


def report(text: str) -> None:
    from envsmith.doctor.judge_facts import diagnose
    from envsmith.doctor.read import read_texts
    from envsmith.doctor.read.pasted import clean
    from envsmith.doctor.report import as_markdown, as_text

    told = diagnose(read_texts([("t", text)]), [("t", clean(text))])
    json.dumps(told.to_json())
    as_text(told, notes=True)
    as_markdown(told)


def remains(text: str) -> None:
    """Logs, dumps and stacks of ranks, reports of NCCL, the kernel, Slurm and Kubernetes, and the verdict over them."""
    from envsmith.doctor.rank_failures import blame_texts
    from envsmith.doctor.read.pasted import clean

    blame_texts([("rank_0.log", clean(text)), ("dmesg", clean(text))])


def dump(text: str) -> None:
    """A flight recorder's dump, a pickle or JSON."""
    from envsmith.doctor.rank_failures import blame_texts
    from envsmith.doctor.read.dumps import dump_line, is_dump

    content = raw(text)
    if is_dump(content):
        with suppress(ValueError):
            blame_texts([("nccl_trace_rank_0", dump_line(content))])


def launches(text: str) -> None:
    """Hostfiles, DeepSpeed configurations, start commands, with the rules over them."""
    from envsmith.doctor.read import read_texts
    from envsmith.doctor.stated_environment import findings_of

    findings_of(read_texts([("t", text)]))


def snapshot(text: str) -> None:
    from envsmith.doctor.judge_facts import diagnose
    from envsmith.doctor.snapshot import compare, dump, load

    facts, texts = load(text, "t")
    dump(facts, texts)
    compare(facts, facts)
    diagnose(facts, texts)


def stated(text: str) -> None:
    from envsmith.doctor.facts import Draft
    from envsmith.doctor.stated_environment import check_environment, read_environment

    draft = Draft()
    given = read_environment(text, draft, "t")
    if given is not None:
        check_environment(given, draft)


def conda_file(text: str) -> None:
    from envsmith.errors import DataError
    from envsmith.lock.conda.foreign import read_conda_file

    for kind in (None, "conda-lock", "pixi-lock", "environment", "conda-list", "conda-list-json", "explicit"):
        with suppress(DataError):
            read_conda_file(text, kind=kind)


def conda_lock(text: str) -> None:
    from envsmith.lock.conda.lock_files import load_lock

    load_lock(text)


def lock(text: str) -> None:
    from envsmith.model.lock import parse_lock

    parse_lock(text, where="lock.json")


def pylock(text: str) -> None:
    from envsmith.lock.pip_files import parse_beside

    parse_beside(text)


def uv_edges(text: str) -> None:
    from envsmith.lock.uv_output import parse_edges

    parse_edges(text)


def declared(name: str) -> Reader:
    def read(text: str) -> None:
        from envsmith.project.ci.library import read_library
        from envsmith.project.declared import read_declared
        from envsmith.project.folder import ProjectPart, read_folder

        root = folder() / name.replace(".", "-")
        root.mkdir(exist_ok=True)
        (root / name).write_bytes(raw(text))
        read_declared(root)
        read_library(root)
        read_folder(root, ProjectPart())

    return read


def requirement_file(text: str) -> None:
    from envsmith.project.demand import Demands
    from envsmith.project.pip_format import read_requirement_file

    path = folder() / "fuzzed.txt"
    path.write_bytes(raw(text))
    read_requirement_file(path, lambda _root, _extras: Demands())


def setup_script(text: str) -> None:
    from envsmith.project.setup_script import read_setup

    read_setup(text)


def metadata(text: str) -> None:
    from envsmith.project.declared import read_metadata

    read_metadata(text, "METADATA")


def library(text: str) -> None:
    from envsmith.project.ci.library import read_library

    root = folder() / "library"
    root.mkdir(exist_ok=True)
    (root / "requirements.txt").write_text("torch>=2\ndeepspeed\n")
    (root / "envsmith.yaml").write_bytes(raw(text))
    read_library(root)


def record(text: str) -> None:
    from envsmith.model.record import read_record

    read_record("r.json", raw(text))


def campaign(text: str) -> None:
    from envsmith.knowledge.graph.load import components
    from envsmith.matrix.campaign.choices import read_campaign

    read_campaign(written("campaign.yaml", text), components())


def plan(text: str) -> None:
    from envsmith.matrix.campaign.job import CampaignPlan

    CampaignPlan.parse(text, "plan.json").text()


def nodes(text: str) -> None:
    from envsmith.smoke.nodes import parse_nodes

    parse_nodes(text)


def source_archive(text: str) -> None:
    """``--source``: the flag, bytes that should be an archive, and an archive whose metadata somebody wrote."""
    import gzip
    import hashlib
    import io
    import tarfile

    from envsmith.errors import EnvsmithError
    from envsmith.lock.index.archives import SourceWish, parse_wish, read_archive
    from envsmith.net.http import HttpClient

    with suppress(EnvsmithError):
        parse_wish(text)
    archives = [raw(text)]
    for name in ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for member, data in (("x/setup.py", b""), (f"x/{name}", raw(text))):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        archives.append(gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0))
    for data in archives:
        path = folder() / "source.tar.gz"
        path.write_bytes(data)
        wish = SourceWish(name="x", version="1.0", place=str(path), sha256=hashlib.sha256(data).hexdigest())
        with suppress(EnvsmithError):
            read_archive(wish, HttpClient(offline=True))


def loader(name: str) -> Reader:
    """The parser of a format itself, with the loader in C behind it. What it gives can be walked and written."""

    def read(text: str) -> None:
        from envsmith.base.schema import UnreadableError, parse_document, to_json

        with suppress(UnreadableError):
            json.dumps(to_json(parse_document(name, raw(text))), ensure_ascii=False, default=repr).encode()

    return read


def toml(text: str) -> None:
    from envsmith.base.files import read_toml

    with suppress(ValueError):
        read_toml(text)


def index_page(text: str) -> None:
    """A page of a package index, in HTML and in JSON, and where a server leads by a redirect."""
    from envsmith.errors import EnvsmithError
    from envsmith.lock.index.index import Listing, parse_html, parse_project_json, parse_simple_json
    from envsmith.net.address import follow

    page = "https://index.invalid/simple/demo/"
    for parse in (parse_html, parse_simple_json, parse_project_json):
        with suppress(EnvsmithError):
            parse(text, Listing(page, "demo"))
    with suppress(EnvsmithError):
        follow(page, text)


def project(text: str) -> None:
    """A file of somebody's code, the same bytes as a notebook and as what a project requires."""
    from envsmith.project.code.python_files import read_project
    from envsmith.project.code.reading import read_project_uses
    from envsmith.project.stated import read_stated

    root = folder() / "project"
    root.mkdir(exist_ok=True)
    for name in ("train.py", "train.ipynb", "setup.py", "README.md"):
        (root / name).write_bytes(raw(text))
    read = read_project(root)
    read_project_uses(read)
    read_stated(read.root, read.files)


READERS: Mapping[str, Reader] = {
    "json": loader("x.json"),
    "yaml": loader("x.yaml"),
    "toml": toml,
    "report": report,
    "remains": remains,
    "dump": dump,
    "launches": launches,
    "snapshot": snapshot,
    "stated": stated,
    "conda-file": conda_file,
    "conda-lock": conda_lock,
    "lock": lock,
    "pylock": pylock,
    "uv-edges": uv_edges,
    "pyproject": declared("pyproject.toml"),
    "requirement-file": requirement_file,
    "setup-script": setup_script,
    "setup-cfg": declared("setup.cfg"),
    "requirements-txt": declared("requirements.txt"),
    "environment-yml": declared("environment.yml"),
    "metadata": metadata,
    "library": library,
    "record": record,
    "campaign": campaign,
    "plan": plan,
    "nodes": nodes,
    "source-archive": source_archive,
    "index-page": index_page,
    "project": project,
}

SHA = "0" * 64
_COMPONENTS = {"torch": "2.13.0+cu130", "python": "3.11", "deepspeed": "0.19.6", "cuda": "13.0"}
_SNAPSHOT = {
    "kind": "envsmith doctor snapshot",
    "schema": 1,
    "texts": [["imports", "ImportError: x"]],
    "facts": {
        "components": {"torch": {"version": "2.6.0", "source": "x", "strength": 4, "exact": True}},
        "distributions": {"numpy": "2.0.0"}, "variables": {"NCCL_DEBUG": "INFO"}, "limits": {"shm": 64}, "tools": {"ninja": None},
        "gpus": ["NVIDIA A100"], "gpu_count": 1, "host": {"machine": "x86_64"}, "interfaces": ["eth0"], "disagreements": ["d"],
        "libraries": [{"name": "libnccl", "path": "/x", "version": "2.27.5", "how": "wheel", "first": True}],
        "launches": [{"tool": "torchrun", "options": {"nproc_per_node": "8"}, "text": "torchrun x"}],
    },
}  # fmt: skip
_CONDA_ENTRY = {
    "name": "pytorch", "version": "2.5.1", "manager": "conda", "platform": "linux-64", "dependencies": {"nccl": ">=2.21"},
    "url": "https://channel.example/linux-64/pytorch-2.5.1-cuda126_py311_0.conda", "hash": {"sha256": SHA, "md5": "0" * 32}, "category": "main", "optional": False,
}  # fmt: skip
_CONDA_PIP = {**_CONDA_ENTRY, "manager": "pip", "name": "deepspeed", "url": "https://index.example/d-1-py3-none-any.whl"}  # fmt: skip
_FILE = {"filename": "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", "sha256": SHA}
_LOCK = {
    "schema": 1, "request": "--framework deepspeed", "resolver": "uv 0.13.9", "python_version": "3.11", "exclude_newer": "2026-11-20", "os_source": "mirror 2026-11-21",
    "cell": {"id": "ds0.19.6-torch2.13.0-cu130-py311", "components": _COMPONENTS, "index": "default", "platform": "linux-64"}, "constraints": [["horovod>0.28.1", "why"]],
    "base": {"name": "python:3.11-slim", "digest": "sha256:" + SHA, "origin": "registry", "distribution": "bookworm", "python": "/usr/local/bin/python3"},
    "build_packages": [], "os_packages": [{"name": "binutils", "version": "2.40-2"}],
    "packages": [{"name": "torch", "version": "2.13.0+cu130", "layer": "torch", "sdist": False, "files": [_FILE]}, {"name": "deepspeed", "version": "0.19.6", "layer": "framework", "sdist": True, "files": [{**_FILE, "filename": "deepspeed-0.19.6.tar.gz"}]}],
}  # fmt: skip
_RECORD = {
    "schema": 2, "cell": "ds0.19.6-torch2.13.0-cu130-py311", "engine": "venv", "started": "2026-11-21T13:00:00+00:00", "components": _COMPONENTS,
    "rungs": ["solved", "installed", "imports"], "passed": False, "failure": {"symptom": "x", "stage": "imports", "of_host": True}, "host": {"gpu": "none"},
}  # fmt: skip
_PLAN = {
    "schema": 1, "name": "n", "exclude_newer": "2026-11-20", "ranks": 2, "tier": "quick", "executor": {"workers": 2}, "left_out": [["a", "b"]],
    "jobs": [{"components": _COMPONENTS, "chosen": ["deepspeed", "torch", "cuda", "python"], "platform": "linux-64", "index": "default", "expected": "good", "rules": ["r"], "stages": ["s"], "why": "w"}],
}  # fmt: skip
_CONDA_LOCK = {"version": 1, "metadata": {"content_hash": {"linux-64": SHA}, "channels": [{"url": "conda-forge"}], "platforms": ["linux-64"], "custom_metadata": {"envsmith_cell": "x"}}, "package": [_CONDA_ENTRY, _CONDA_PIP]}  # fmt: skip
_PIXI = {"version": 6, "environments": {"default": {"channels": [{"url": "https://c.example/"}], "packages": {"linux-64": [{"conda": _CONDA_ENTRY["url"]}, {"pypi": _CONDA_PIP["url"]}]}}}, "packages": [{"conda": _CONDA_ENTRY["url"], "sha256": SHA, "depends": ["nccl"]}, {"pypi": _CONDA_PIP["url"], "name": "deepspeed", "version": "0.19.6", "sha256": SHA, "requires_dist": ["torch"]}]}  # fmt: skip
_ENVIRONMENT = {"name": "e", "channels": ["conda-forge"], "dependencies": ["python=3.11", "pytorch >=2.5,<3", "conda-forge::nccl=2.21=h1", {"pip": ["deepspeed==0.19.6", "torch>=2"]}]}  # fmt: skip
_CONFIG = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "fp16": {"enabled": True}, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}  # fmt: skip
_DUMP = {
    # Documents that a reader takes, as values: what `--structured` spoils, one place at a time.
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 1,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1795411670308487550,
            "input_sizes": [[3]],
            "input_dtypes": ["Float"],
            "state": "completed",
            "retired": True,
            "is_p2p": False,
            "frames": [{"name": "f", "filename": "/w/t.py", "line": 3}],
        }
    ],
}
SHAPES: Mapping[str, tuple[Any, ...]] = {
    "snapshot": (_SNAPSHOT,),
    "stated": ({"components": {"torch": "2.6.0", "numpy": "*"}, "variables": {"NCCL_DEBUG": "INFO", "X": None}, "facts": {"limit.shm": "64M", "gpus": "2 x A100", "ranks": 8, "tool.ninja": None, "config.train_batch_size": 3, "os": "Ubuntu 22.04", "nodes": "2"}},),
    "conda-file": (_CONDA_LOCK, _PIXI, _ENVIRONMENT, [{"name": "torch", "version": "2.5.1", "build_string": "cuda126_0", "channel": "c", "base_url": "u", "dist_name": "d"}]),
    "conda-lock": (_CONDA_LOCK,),
    "lock": (_LOCK,),
    "environment-yml": (_ENVIRONMENT,),
    "library": ({"schema": 1, "library": "n", "requires": {"torch": ">=2.4", "deepspeed": "*"}, "python": ">=3.10", "axes": ["torch", "deepspeed"], "values": {"torch": ["2.5.1"]}, "grain": "minor", "platform": "linux-64", "driver": "535", "gpu": ["h100"], "smoke": "pytest", "runners": {"cpu": "ubuntu-24.04", "gpu": ["self-hosted", "gpu"]}, "limit": 5, "known_bad": 1},),
    "record": (_RECORD,),
    "campaign": ({"schema": 1, "name": "n", "ranks": 2, "tier": "quick", "exclude_newer": "2026-11-20", "cells": [{"ids": ["ds0.19.6-torch2.13.0-cu130-py311"]}, {"bad": {"deepspeed": "*", "stages": ["import"]}, "take": 3, "why": "w"}, {"changed": {"since": "2026-01-01", "torch": [">=2.13", "2.5.1"]}}]},),
    "plan": (_PLAN,),
    "launches": (_CONFIG,),
    "json": (_LOCK, _CONFIG),
    "remains": (_DUMP, {"message": {"message": "x", "extraInfo": {"py_callstack": "a\nKeyError: 1", "timestamp": "17"}}}, {"communicators": [{"size": 2, "ranks": [{"rank": 0, "collective_counts": {"AllReduce": 3}}], "missing_ranks": [{"rank": 1, "host": "h", "pid": 7}]}]}, {"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "coll_perf": {"coll": "AllReduce", "coll_sn": 5, "coll_msg_size_bytes": 8}}, {"items": [{"metadata": {"name": "p", "labels": {"batch.kubernetes.io/job-completion-index": "1"}}, "status": {"containerStatuses": [{"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-23T02:17:01Z"}}}]}}]}),
    "dump": (_DUMP,),
    "report": (_CONFIG, [{"name": "torch", "version": "2.6.0"}], _LOCK),
}  # fmt: skip
# Texts that a reader takes, where JSON is not its language.
TEXTS: Mapping[str, tuple[str, ...]] = {
    "requirement-file": ("torch>=2.4\n-r base.txt\n-c limits.txt\nwandb[media]==0.17 ; python_version > '3.9' \\\n  --hash=sha256:aa\n-e .\n${HOME}/x.whl\n", "# all\nflash-attn @ https://example.invalid/f-1.0-py3-none-any.whl\n--index-url https://example.invalid/simple\n"),
    "setup-script": ("from setuptools import setup\nNEEDS = ['torch>=2', 'einops']\nsetup(name='a', install_requires=NEEDS, extras_require={'dev': ['pytest']})\n", "import setuptools\nsetuptools.setup(install_requires=open('requirements.txt').read().splitlines())\n"),
    "report": ("Package Version\n------- -------\ntorch 2.6.0\ndeepspeed 0.14.0\n", "| NVIDIA-SMI 535.54.03 Driver Version: 535.54.03 CUDA Version: 12.2 |\nTraceback (most recent call last):\nImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'\n", "FROM nvidia/cuda:12.1.0-devel\nRUN pip install torch==2.1.0\n"),
    "remains": ('[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/t.py", line 9, in f\n[rank0]: RuntimeError: Connection closed by peer\n[rank1]: ValueError: x\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 42)\n', 'Process 1: python t.py\n\nThread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:4181)\n    <module> (train.py:1)\n', 'Current thread 0x00007f1c (most recent call first):\n  File "/w/t.py", line 1 in <module>\n', "#0-0 (27a0) MISMATCH\n  26 ranks have launched up to operation 6650\n  6 ranks have launched up to operation 6649\n  Rank 0 -- GPU 0 managed by process 483072 on node h\n  The missing ranks: 21, 3-9\n", "srun: error: g: tasks 0-1,7: Exited with exit code 1\n[1.2] Memory cgroup out of memory: Killed process 42 (python) x\n"),
    "dump": ("\udc80\x02}q\x00X\x07\x00\x00\x00entriesq\x01](}X\x0e\x00\x00\x00profiling_nameX\x01\x00\x00\x00asesX\x01\x00\x00\x00v\x86s.",),
    "launches": ("worker-1 slots=8\nworker-2 slots=4 # c\n", "torchrun --nproc_per_node=8 --nnodes=1:4 --rdzv_backend=c10d --master_port 29500 pretrain.py --tensor-model-parallel-size 8 --sequence-parallel \\\n --fp16 --bf16 --world-size 3\n", "deepspeed --include worker-1:0,1@w2 --num_gpus 3 --hostfile h train.py --deepspeed_config ds.json\n", "colossalai run --nproc_per_node 4 --host a,b train.py --plugin gemini\nplugin = HybridParallelPlugin(tp_size=3, pp_size=2, zero_stage=2)\n", "mpirun -np 7 -H a:4,b:4 -x NCCL_DEBUG=INFO python train.py\nsrun -N2 --ntasks-per-node=3 --gpus-per-node=8 python x.py\n"),
    "conda-file": ("@EXPLICIT\nhttps://c.example/linux-64/pytorch-2.5.1-cuda126_py311_0.conda#" + "0" * 32 + "\n", "# packages in environment at /x:\n#\n# Name Version Build Channel\npytorch 2.5.1 cuda126_0 conda-forge\n", "version: 6\nenvironments:\n  default:\n    packages: {}\n", "name: e\ndependencies:\n  - python=3.11  # [linux]\n  - pip:\n    - torch==2.5\n"),
    "pylock": ('lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "torch"\nversion = "2.13.0"\ndependencies = [{name = "numpy"}]\nwheels = [{name = "torch-2.13.0-cp311-cp311-linux_x86_64.whl", url = "https://h.example/t.whl", size = 3, hashes = {sha256 = "' + SHA + '"}}]\n[tool.envsmith]\nlock = "abc"\n',),
    "uv-edges": ('lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "torch"\n', "torch==2.5.1\n    # via deepspeed\nnumpy==1.26.4\n    # via\n    #   torch\n    #   deepspeed\n"),
    "pyproject": ('[project]\nname = "n"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2.4,<2.9", "deepspeed; extra == \'x\'"]\n[project.optional-dependencies]\na = ["numpy<2"]\n[dependency-groups]\ng = ["torch", {include-group = "h"}]\nh = []\n', '[tool.poetry]\nname = "p"\n[tool.poetry.dependencies]\npython = "^3.10"\ntorch = {version = "~2.4", optional = true}\ndeepspeed = "*"\n[tool.envsmith]\naxes = ["torch"]\n'),
    "yaml": ("a: &a [1, 0x1f, 1e3, ~, 'x']\nb: {<<: {c: d}, e: *a}\nf: |\n  text\n? g\n: !!int \"7\"\n", "- - - [{}]\n"),
    "toml": ("a = 1\n[b.c]\nd = [1, 'x', {e = 2026-01-01}]\n[[f]]\n",),
    "setup-cfg": ("[metadata]\nname = n\n[options]\npython_requires = >=3.9\ninstall_requires =\n    torch>=2\n    deepspeed\n[options.extras_require]\na = numpy\n",),
    "requirements-txt": ("torch>=2.4 # c\n-r other.txt\n--index-url https://x.example\ndeepspeed[a]==0.19.6 ; python_version >= '3.10'\n-e .\nhttps://x.example/a.whl\n",),
    "environment-yml": ("dependencies:\n  - python=3.11\n  - pip:\n    - torch==2.5\n",),
    "metadata": ("Metadata-Version: 2.1\nName: n\nVersion: 1\nRequires-Python: >=3.9\nRequires-Dist: torch>=2.4,<3\nRequires-Dist: deepspeed (>=0.14) ; extra == 'x' and python_version < '3.12'\nProvides-Extra: x\n\nbody\n",),
    "library": ("requires:\n  torch: '>=2.4'\naxes: [torch]\n",),
    "campaign": ("schema: 1\nname: n\ncells:\n  - ids: [a]\n",),
    "nodes": ("a,b=10.0.0.1,c", "4", "a, b"),
    "source-archive": ("x@a.tar.gz#sha256=" + SHA, "x==1.0 @ https://host.example/x.tar.gz#sha256=" + SHA, "Metadata-Version: 2.2\nName: x\nVersion: 1.0\nRequires-Dist: torch>=2\n", '[project]\nname = "x"\nversion = "1.0"\ndependencies = ["torch>=2"]\n', "[metadata]\nname = x\nversion = 1.0\n[options]\ninstall_requires =\n    torch>=2\n", "from setuptools import setup\nsetup(name='x', version='1.0', install_requires=['torch>=2', 3], ext=f())\n"),
    "stated": ('{"facts": {"gpus": "8 x H100"}}',),
    "project": ("import torch\nfrom transformers import Conversation as C\ntry:\n    import apex\nexcept ImportError:\n    apex = None\nC(dispatch_batches=None)\n", '{"cells": [{"cell_type": "code", "source": ["%pip install x\\n", "import trl"]}], "nbformat": 4}', "torch==2.0.1\ntransformers>=4.28,<4.42  # c\n"),
    "index-page": ('<html><base href="../"><a href="demo-1.0.tar.gz#sha256=' + SHA + '" data-yanked="x" data-core-metadata="sha256=' + SHA + '" data-upload-time="2026-01-02T03:04:05Z">d</a></html>', '{"files": [{"filename": "demo-1.0-py3-none-any.whl", "url": "demo-1.0-py3-none-any.whl", "hashes": {"sha256": "' + SHA + '"}, "size": 7, "core-metadata": true, "yanked": "x"}]}', "https://files.invalid/x"),
}  # fmt: skip


def seeds(name: str) -> list[str]:
    """Inputs that the reader takes or nearly takes, and what once broke it."""
    told = [*TEXTS.get(name, ()), *(json.dumps(shape, indent=1) for shape in SHAPES.get(name, ()))]
    return told + [path.read_text(encoding="utf-8", errors="surrogateescape") for path in crashes(name)]


def crashes(name: str) -> list[Path]:
    """The inputs that once broke the reader."""
    return sorted(path for path in (HERE / "crashes" / name).glob("*") if path.is_file())


def once(name: str, text: str) -> None:
    """Read ``text``; one of our errors is an answer, anything else goes through."""
    from envsmith.errors import EnvsmithError

    try:
        READERS[name](text)
    except EnvsmithError as error:
        str(error)


def structured(name: str) -> Any:
    """A hypothesis strategy: a document of the reader with up to three places spoilt, as JSON (which YAML reads too)."""
    from hypothesis import strategies as st

    hostile = st.one_of(
        st.sampled_from([None, True, False, 0, -1, 1 << 70, 1e308, "", "*", "none", "cpu", "2.5.1+cu124", "1" * 5000, "²", "\ud800", "\x00", "a\nb", "../..", "-x", "==", [], {}, [[]], [None], [{}], {"": None}, "x" * 300, ["torch==2.5"], {"a": [1]}, float("nan"), ">=1,<", "py3", "٣", "1!2.0", "2.0.dev1"]),
        st.text(max_size=12), st.integers(), st.floats(),
    )  # fmt: skip

    @st.composite
    def spoilt(draw: Any) -> str:
        value = json.loads(json.dumps(draw(st.sampled_from(SHAPES[name]))))
        for _ in range(draw(st.integers(1, 3))):
            value = _spoil(value, draw, hostile)
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    return spoilt()


def _spoil(value: Any, draw: Any, hostile: Any) -> Any:
    """``value`` with one place, found by walking down, replaced, removed, renamed or doubled."""
    from hypothesis import strategies as st

    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 5)) == 0:
        return copy.deepcopy(draw(hostile))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    what = draw(st.integers(0, 7))
    if what == 0:
        del value[key]
    elif what == 1 and isinstance(value, dict):
        value[str(draw(hostile))] = value.pop(key)
    elif what == 2 and isinstance(value, list):
        value.append(copy.deepcopy(value[key]))
    else:
        value[key] = _spoil(value[key], draw, hostile)
    return value


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--all"]:
        return _all(int(arguments[1]))
    name, *rest = arguments
    if name not in READERS:
        print(__doc__, "Readers:", ", ".join(READERS), file=sys.stderr)  # noqa: T201
        return 2
    import atheris

    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["envsmith"]):
        for text in seeds(name):
            once(name, text)
    if "--structured" in rest:
        rest.remove("--structured")
        from hypothesis import HealthCheck, given, settings

        @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(structured(name))
        def test(text: str) -> None:
            once(name, text)

        target = test.hypothesis.fuzz_one_input
        rest += ["-len_control=0", "-max_len=4096"]  # a document needs more bytes than libFuzzer starts with
    else:

        def target(data: bytes) -> None:
            once(name, data.decode("utf-8", "surrogateescape"))

        corpus = folder() / "corpus"
        corpus.mkdir()
        for number, text in enumerate(seeds(name)):
            (corpus / str(number)).write_bytes(raw(text))
        rest.append(str(corpus))
    atheris.Setup([sys.argv[0], "-timeout=25", "-rss_limit_mb=3000", *rest], target)
    atheris.Fuzz()
    return 0


def _all(seconds: int) -> int:
    """Every reader in a process of its own, as long as its share; the inputs that broke one stay in the working directory."""
    runs = [(name, ()) for name in READERS] + [(name, ("--structured",)) for name in SHAPES]
    share = max(seconds // len(runs), 1)
    broken = []
    for name, how in runs:
        mark = f"crash-{name}{''.join(how)}-"
        command = [sys.executable, __file__, name, *how, f"-max_total_time={share}", f"-artifact_prefix={mark}"]
        done = subprocess.run([*command, "-print_final_stats=1"], check=False, capture_output=True, text=True, errors="replace", env={**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
        count = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
        print(f"{name} {' '.join(how)}: {count} inputs in {share} s: {'broken' if done.returncode else 'fine'}", flush=True)  # noqa: T201  # fmt: skip
        if done.returncode:
            broken.append(name)
            print(done.stderr[-3000:], flush=True)  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
