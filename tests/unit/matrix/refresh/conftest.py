"""A small knowledge and a package index in memory, in which a new torch appears."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
import zipfile

import pytest

from envsmith.errors import NetworkError
from envsmith.lock.index.index import PackageIndex
from envsmith.net.http import NotFoundError, RangeReply, Reply

COMPONENTS = """components:
- {name: deepspeed, role: framework, short: ds, title: DeepSpeed, distributions: [deepspeed], aliases: []}
- {name: python, role: core, short: py, title: Python, distributions: [], aliases: []}
- {name: torch, role: core, short: torch, title: PyTorch, distributions: [torch], aliases: [pytorch]}
- {name: cuda, role: core, short: cu, title: CUDA, distributions: [], aliases: []}
- {name: nccl, role: core, short: nccl, title: NCCL, distributions: [nvidia-nccl-cu12, nvidia-nccl-cu13], aliases: []}
- {name: cudnn, role: core, short: cudnn, title: cuDNN, distributions: [nvidia-cudnn-cu13], aliases: []}
- {name: triton, role: core, short: triton, title: Triton, distributions: [triton], aliases: []}
- {name: toolkit, role: host, short: tk, title: toolkit, distributions: [], aliases: []}
- {name: gpu, role: host, short: sm, title: GPU, distributions: [], aliases: []}
- {name: glibc, role: host, short: glibc, title: glibc, distributions: [], aliases: []}
- {name: numpy, role: companion, short: np, title: NumPy, distributions: [numpy], aliases: []}
"""
HEAD = """# A comment that stays.
component: {name}
evidence:
  index: {{kind: declared, source: "package index: {name}", date: 2026-01-01}}
releases:
"""
TORCH = """# Builds of torch.
component: torch
evidence:
  hand: {kind: documented, source: "a page", date: 2026-01-01, note: "kept"}
builds:
- {version: "2.15.0+cu126",  platform: linux-64, date: 2026-10-28, index: pytorch, cuda: "12.6", evidence: hand}
# a comment between lines
"""
TOOLKIT_RULE = """evidence:
  builder: {kind: documented, source: "tags", date: 2026-01-01}
rules:
- id: deepspeed-toolkit-cuda
  kind: requires
  stage: build
  cause: "why"   # a comment
  rows:
  - {when: {deepspeed: ">=0.4.0", cuda: "12.4 || 12.8"}, needs: {toolkit: "12.4 || 12.8"}}
  - {when: {deepspeed: ">=0.4.0", cuda: "13.0"}, needs: {toolkit: "13.0"}}
  - {when: {deepspeed: ">=0.4.0", cuda: "13.2"}, needs: {toolkit: "13.2"}}
  evidence: [builder]
- id: another-rule
  kind: conflicts
  when: {deepspeed: "==0.1.0", torch: ">=9"}
  evidence: [builder]
"""


class World:
    """The index: ``publish`` adds a file to a project; ``asked`` are the addresses that were opened."""

    def __init__(self):
        self.pages = {}
        self.bodies = {}
        self.asked = []
        self.broken = set()

    def publish(self, project, filename, body, day, yanked=False):
        url = f"https://index.test/files/{filename}"
        self.bodies[url] = body
        digest = hashlib.sha256(body).hexdigest()
        entry = {
            "filename": filename,
            "url": url,
            "hashes": {"sha256": digest},
            "size": len(body),
            "upload-time": f"{day}T12:00:00Z",
            "yanked": yanked,
        }
        self.pages.setdefault(project, []).append(entry)
        return digest

    def get(self, url, *, max_bytes, accept=None, sha256=None, keep=True, check=None):
        self.asked.append(url)
        project = url.removeprefix("https://index.test/simple/").strip("/")
        if project in self.pages:
            body = json.dumps({"files": self.pages[project]}).encode()
            return Reply(body=body, url=url, content_type="application/vnd.pypi.simple.v1+json")
        if url in self.broken:
            raise NetworkError(f"{url}: the connection broke")
        if url not in self.bodies:
            raise NotFoundError(f"{url} does not exist")
        return Reply(body=self.bodies[url], url=url)

    @contextlib.contextmanager
    def open_range(self, url, start, stop=None):
        self.asked.append(url)
        if url in self.broken:
            raise NetworkError(f"{url}: the connection broke")
        body = self.bodies[url]
        first = max(0, len(body) + start) if start < 0 else start
        yield RangeReply(stream=io.BytesIO(body[first:stop]), start=first, total=len(body))

    def opened(self):
        return [u for u in self.asked if "/files/" in u]


def torch_wheel(version="2.16.0", cuda="13.4", nccl="2.33.1", triton="~=3.10.0"):
    build = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    pins = [f"nvidia-nccl-cu13=={nccl}", "nvidia-cudnn-cu13==9.30.0.1", f"triton{triton}"] if cuda else []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch/version.py", f"__version__ = '{version}+{build}'\ncuda = {cuda!r}\n")
        archive.writestr("torch/lib/libc10.so", b"\0_ZN3c103fooENSt7__cxx1112basic_stringIcE\0GLIBC_2.17\0")
        archive.writestr("torch/lib/libtorch_python.so", b"\0sm_80 sm_90 sm_120\0")
        archive.writestr(
            f"torch-{version}.dist-info/METADATA",
            f"Name: torch\nVersion: {version}\n" + "".join(f"Requires-Dist: {p}\n" for p in pins),
        )
    return buffer.getvalue()


def sdist(name, version, requires="torch>=2.0\n", table="{12: ['12.4', '12.8']}"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, text in {
            "PKG-INFO": f"Name: {name}\nVersion: {version}\n",
            f"{name}.egg-info/requires.txt": requires,
            "setup.py": "import os\n",
            "op_builder/builder.py": f"cuda_minor_mismatch_ok = {table}\n",
        }.items():
            info = tarfile.TarInfo(f"{name}-{version}/{member}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def world():
    made = World()
    for python in ("cp311", "cp312"):
        made.publish(
            "torch",
            f"torch-2.16.0-{python}-{python}-manylinux_2_28_x86_64.whl",
            torch_wheel() + python.encode(),
            "2026-12-02",
        )
    made.publish("torch", "torch-2.16.0-cp311-cp311-manylinux_2_28_aarch64.whl", torch_wheel(cuda=None), "2026-12-02")
    made.publish("torch", "torch-1.12.0-cp38-cp38-manylinux1_x86_64.whl", b"too old", "2022-06-01")
    made.publish("torch", "torch-2.17.0rc1-cp311-cp311-manylinux_2_28_x86_64.whl", b"not final", "2026-12-20")
    made.publish(
        "triton", "triton-3.10.1-cp311-cp311-manylinux_2_28_x86_64.whl", _pure("triton", "3.10.1"), "2026-11-30"
    )
    made.publish("triton", "triton-3.9.0-cp311-cp311-manylinux_2_28_x86_64.whl", _pure("triton", "3.9.0"), "2026-10-27")
    for major in ("12", "13"):
        made.publish(
            f"nvidia-nccl-cu{major}",
            f"nvidia_nccl_cu{major}-2.32.3-py3-none-manylinux_2_18_x86_64.whl",
            b"",
            f"2026-09-{major}",
        )
    made.publish("nvidia-nccl-cu13", "nvidia_nccl_cu13-2.33.1-py3-none-manylinux_2_18_x86_64.whl", b"", "2026-11-20")
    made.publish(
        "nvidia-cudnn-cu13", "nvidia_cudnn_cu13-9.30.0.1-py3-none-manylinux_2_18_x86_64.whl", b"", "2026-11-01"
    )
    made.publish(
        "nvidia-cudnn-cu13", "nvidia_cudnn_cu13-9.31.0.1-py3-none-manylinux_2_18_x86_64.whl", b"", "2026-11-09"
    )
    for toolkit in ("11.8.0", "13.2.0.0", "13.6.1.0", "13.7.0rc1"):
        extras = 'Provides-Extra: cudart\nRequires-Dist: nvidia-cuda-runtime==13.6.45.*; extra == "cudart"\n'
        made.publish(
            "cuda-toolkit",
            f"cuda_toolkit-{toolkit}-py3-none-any.whl",
            _pure("cuda_toolkit", toolkit, extras),
            "2026-12-01",
        )
    made.publish("deepspeed", "deepspeed-0.19.8.tar.gz", sdist("deepspeed", "0.19.8"), "2026-10-20")
    made.publish("numpy", "numpy-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl", _pure("numpy", "2.0.0"), "2024-06-16")
    return made


def _pure(name, version, more=""):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            f"{name}-{version}.dist-info/METADATA",
            f"Name: {name}\nVersion: {version}\nRequires-Python: >=3.11,<3.16\n{more}",
        )
    return buffer.getvalue()


@pytest.fixture
def index(world):
    return PackageIndex(world, "https://index.test/simple/")


@pytest.fixture
def knowledge(tmp_path, world):
    """A ``matrix/`` that does not know torch 2.16 yet, and a ``tests/`` beside it."""
    root = tmp_path / "project" / "matrix"
    (root / "releases").mkdir(parents=True)
    (root / "rules").mkdir()
    (root.parent / "tests" / "cases").mkdir(parents=True)
    (root / "components.yaml").write_text(COMPONENTS)
    digest = world.pages["numpy"][0]["hashes"]["sha256"]
    lines = {
        "deepspeed": '- {version: "0.19.8", date: 2026-10-20, requires: {torch: ">=2.0"}, sdist_only: true, evidence: index}\n',
        "nccl": '- {version: "2.32.3", date: 2026-09-12, cuda_majors: ["12", "13"], evidence: index}\n',
        "cudnn": '- {version: "9.26.0.51", date: 2026-09-10, cuda_majors: ["13"], evidence: index}\n',
        "triton": '- {version: "3.9.0", date: 2026-10-27, evidence: index}\n',
        "cuda": '- {version: "13.2", evidence: index}\n- {version: "cpu", evidence: index}\n',
        "toolkit": "".join(
            f'- {{version: "{v}", evidence: index}}\n' for v in ("12.4.1", "12.8.0", "13.0.2", "13.2.0")
        ),
        "numpy": '- {version: "2.0.0", date: 2024-06-16, requires: {python: ">=3.11,<3.16"}, '
        f'python: ["3.11"], sha256: "{digest}", evidence: index}}\n',
    }
    for name, text in lines.items():
        (root / "releases" / f"{name}.yaml").write_text(HEAD.format(name=name) + text)
    (root / "releases" / "torch.yaml").write_text(TORCH)
    (root / "rules" / "toolkit.yaml").write_text(TOOLKIT_RULE)
    return root


@pytest.fixture
def plan(knowledge, index, tmp_path):
    from envsmith.knowledge.graph.read import read_components
    from envsmith.matrix.refresh.shared import RefreshRun
    from envsmith.matrix.refresh.updates import plan_refresh

    def run(*components, **more):
        known = read_components(knowledge)
        context = RefreshRun(index=index, components=known, cache=tmp_path / "cache", today="2026-12-03", **more)
        return plan_refresh(knowledge, context, components=components)

    return run


@pytest.fixture
def make_sdist():
    return sdist


@pytest.fixture
def make_torch_wheel():
    return torch_wheel
