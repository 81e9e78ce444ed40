"""Thirty environments that the solver itself gives, told in several ways, with a healthy log beside them: nothing may be an error."""

from __future__ import annotations

import itertools

import pytest

from envsmith import solver
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.model.cell import Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec

LOG = """[2026-01-05 10:00:00,123] [INFO] [real_accelerator.py:222:get_accelerator] Setting ds_accelerator to cuda (auto detect)
[2026-01-05 10:00:01,456] [INFO] [comm.py:652:init_distributed] cdb=None
node-1:4711:4711 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
node-1:4711:4711 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
node-1:4711:4899 [0] NCCL INFO NET/IB : No device found.
libibverbs: Warning: couldn't load driver 'libipathverbs-rdmav25.so': libipathverbs-rdmav25.so: cannot open shared object file: No such file or directory
node-1:4711:4899 [0] NCCL INFO Connected all rings
node-1:4711:4899 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1a000 - Init COMPLETE
Using /home/user/.cache/torch_extensions/PYTAG as PyTorch extensions root...
Detected CUDA files, patching ldflags
Emitting ninja build file /home/user/.cache/torch_extensions/PYTAG/fused_adam/build.ninja...
ninja: no work to do.
Loading extension module fused_adam...
Time to load fused_adam op: 0.07 seconds
 [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
UserWarning: torch.utils._pytree._register_pytree_node is deprecated.
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.
iteration 100/ 500 | lm loss: 2.31 | grad norm: 1.02 | number of skipped iterations: 0 |
 [WARNING]  sparse_attn requires one of the following commands '['llvm-config', 'llvm-config-9']', but it does not exist!
 [WARNING]  sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.1
 [WARNING]  using untested triton version (2.1.0), only 1.0.0 is known to be compatible
UserWarning: Attempted to use ninja as the BuildExtension backend but we could not find ninja.. Falling back to using the slow distutils backend.
WARNING: could not load the optional plugin: No module named 'tensorrt'
UserWarning: FlashAttention only supports Ampere GPUs or newer.
[2026-01-05 10:09:00,000] [INFO] [launch.py:351:main] Process 4242 exits successfully.
Installed CUDA version 12.1 does not match the version torch was compiled with 12.4 but since the APIs are compatible, accepting this combination
step=200, skipped=0, lr=[0.0001], mom=[[0.9, 0.95]]
[rank0]: epoch 1 finished without errors, 0 failed samples
"""


def _requests():
    frameworks = ("deepspeed", "megatron-core", "colossalai")
    wishes = (
        {},
        {"torch": "2.5"},
        {"python": "3.11"},
        {"cuda": "==12.*"},
        {"torch": "<2.8"},
        {"torch": "2.4"},
        {"python": "3.10"},
    )
    for framework, wish in itertools.product(frameworks, wishes):
        yield Request(frameworks={framework: Spec.parse("*")}, constraints={k: Spec.parse(v) for k, v in wish.items()})


@pytest.fixture(scope="module")
def cells():
    found = []
    for request in _requests():
        try:
            solution = solver.solve(request)
        except UnsatisfiableError:
            continue
        found += [solution.cell, *solution.alternatives[:2]]
    return list({str(cell.id): cell for cell in found}.values())


def _freeze(cell) -> str:
    names = {"cuda", "python", "driver", "gpu", "toolkit", "gcc", "glibc", "nccl", "cudnn"}
    return "".join(f"{name}=={version}\n" for name, version in cell.components.items() if name not in names)


def _collect_env(cell) -> str:
    c = cell.components
    lines = [
        f"PyTorch version: {c['torch']}",
        f"CUDA used to build PyTorch: {c.get('cuda', 'None')}",
        f"Python version: {c['python']} (main)",
        "OS: Ubuntu 22.04.4 LTS (x86_64)",
        "Libc version: glibc-2.35",
        "GPU 0: NVIDIA A100-SXM4-80GB",
    ]
    return (
        "\n".join(
            [*lines, *(f"[pip3] {n}=={v}" for n, v in c.items() if n in cell.frameworks or n in {"numpy", "triton"})]
        )
        + "\n"
    )


def test_there_are_thirty_healthy_environments(cells):
    assert len(cells) >= 30


@pytest.mark.parametrize("number", range(30))
def test_a_healthy_environment_has_no_error_finding(cells, number):
    cell = cells[number]
    tag = f"py{cell.components['python'].replace('.', '')}_cu{cell.components.get('cuda', 'cpu').replace('.', '')}"
    log = LOG.replace("PYTAG", tag)
    for text in (_freeze(cell) + log, _collect_env(cell) + log):
        d = diagnose(read_texts([("report", text)]), [("report", clean(text))])
        assert [x.finding.message for x in d.diagnosed if x.finding.severity.value == "error"] == []
        assert d.status in {"ok", "unknown"}


NOTHING_FAILED = {
    "a report of macOS": "PyTorch version: 2.3.0\nIs debug build: False\nCUDA used to build PyTorch: None\n"
    "OS: macOS 14.5 (arm64)\nIs CUDA available: False\nCUDA runtime version: No CUDA\n[pip3] torch==2.3.0\n",
    "a plugin of RCCL that nobody needs": "mi250:42:42 [0] NCCL INFO NET/Plugin : dlerror=librccl-net.so: cannot open"
    " shared object file: No such file or directory No plugin found (librccl-net.so), using internal implementation\n",
    "a notice of xFormers": "A matching Triton is not available, some optimizations will not be enabled.\n"
    "Error caught was: No module named 'triton'\nprepare tokenizer\n",
    "steps of an installation": "## Installation\n1. Install PyTorch >= 1.10\n2. Install NVIDIA Apex\n",
    "an issue that a README knows": "## Known issues\n- On old drivers you may see `CUDA Setup failed despite GPU being"
    " available`: update bitsandbytes.\n",
}


@pytest.mark.parametrize("text", NOTHING_FAILED.values(), ids=list(NOTHING_FAILED))
def test_a_text_in_which_nothing_failed_has_no_finding(text):
    diagnosis = diagnose(read_texts([("text", text)]), [("text", clean(text))])

    assert [each.finding.message for each in diagnosis.diagnosed] == []
