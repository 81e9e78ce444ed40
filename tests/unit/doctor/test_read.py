"""Facts read out of pasted reports, lists, environment files, Dockerfiles and logs."""

from __future__ import annotations

import io

import pytest

from envsmith.doctor.read import read_texts
from envsmith.doctor.read.lines import bytes_of, gpu_architecture, version_in
from envsmith.doctor.read.pasted import clean, decode, read_bounded, unwrapped

DS_REPORT = """--------------------------------------------------
DeepSpeed C++/CUDA extension op report
--------------------------------------------------
ninja .................. [OKAY]
async_io ............... [NO] ....... [NO]
DeepSpeed general environment info:
torch install path ............... ['/opt/conda/lib/python3.10/site-packages/torch']
torch version .................... 2.1.2+cu121
deepspeed install path ........... ['/opt/conda/lib/python3.10/site-packages/deepspeed']
deepspeed info ................... 0.12.6, unknown, unknown
torch cuda version ............... 12.1
torch hip version ................ None
nvcc version ..................... 12.1
deepspeed wheel compiled w. ...... torch 2.1, cuda 12.1
shared memory (/dev/shm) size .... 64.00 MB
"""
COLLECT = """Collecting environment information...
PyTorch version: 2.1.0.dev20230519+cu118
Is debug build: False
CUDA used to build PyTorch: 11.8
OS: Ubuntu 20.04.5 LTS (x86_64)
GCC version: (Ubuntu 9.4.0-1ubuntu1~20.04.1) 9.4.0
CMake version: version 3.26.3
Libc version: glibc-2.31
Python version: 3.8.10 (default, Mar 13 2023, 10:26:41)  [GCC 9.4.0] (64-bit runtime)
CUDA runtime version: 11.8.89
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-40GB
GPU 1: NVIDIA A100-SXM4-40GB
Nvidia driver version: 525.85.12
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.7.0
[pip3] numpy==1.24.3
"""
OLD_SMI = """| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |
|   0  NVIDIA GeForce RTX 4090        Off | 00000000:01:00.0 Off |                  Off |
|   1  NVIDIA GeForce RTX 4090        Off | 00000000:02:00.0 Off |                  Off |
"""
NEW_SMI = "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |\n|   0  NVIDIA H100 80GB HBM3          On  | 00000000:01:00.0 Off |                    0 |\n"


def facts(text: str):
    return read_texts([("t", text)])


def versions(text: str) -> dict[str, str]:
    return {name: stated.version for name, stated in facts(text).components.items()}


def test_ds_report():
    f = facts(DS_REPORT)
    assert {
        "torch": "2.1.2+cu121",
        "cuda": "12.1",
        "toolkit": "12.1",
        "deepspeed": "0.12.6",
        "python": "3.10",
    }.items() <= versions(DS_REPORT).items()
    assert f.limits["shm"] == 64 << 20
    assert "ds_report" in f.read[0].kinds


def test_ds_report_with_ninja_missing():
    assert facts(DS_REPORT.replace("[OKAY]", "[FAIL]")).tools["ninja"] is None


def test_collect_env():
    expected = {
        "torch": "2.1.0.dev20230519+cu118",
        "cuda": "11.8",
        "gcc": "9.4.0",
        "glibc": "2.31",
        "python": "3.8.10",
        "toolkit": "11.8.89",
        "driver": "525.85.12",
        "cudnn": "8.7.0",
        "numpy": "1.24.3",
        "gpu": "sm_80",
    }
    assert {k: v for k, v in versions(COLLECT).items() if k in expected} | {"cudnn": "8.7.0"} == expected
    assert facts(COLLECT).gpu_count == 2


@pytest.mark.parametrize(
    ("text", "driver", "level", "gpu", "count"),
    [(OLD_SMI, "535.54.03", "12.2", "sm_89", 2), (NEW_SMI, "610.43.02", "13.3", "sm_90", 1)],
)
def test_nvidia_smi_banners_old_and_new(text, driver, level, gpu, count):
    f = facts(text)
    assert (f.version("driver"), f.host["driver_cuda"], f.version("gpu"), f.gpu_count) == (driver, level, gpu, count)


def test_colossalai_check():
    text = "#### Installation Report ####\nColossal-AI version: 0.3.4\nPyTorch version: 2.0.1\nSystem CUDA version: 11.7\nCUDA version required by PyTorch: 11.7\n"
    assert versions(text) == {"colossalai": "0.3.4", "torch": "2.0.1", "toolkit": "11.7", "cuda": "11.7"}


@pytest.mark.parametrize(
    "text",
    [
        "Package    Version\n---------- -------\ntorch      2.5.1+cu124\nnumpy      2.0.0\n",
        "torch==2.5.1+cu124\nnumpy==2.0.0\n",
        '[{"name": "torch", "version": "2.5.1+cu124"}, {"name": "numpy", "version": "2.0.0"}]',
        'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.5.1+cu124"\n[[packages]]\nname = "numpy"\nversion = "2.0.0"\n',
        "# packages in environment at /opt/conda:\n#\n# Name  Version  Build  Channel\ntorch 2.5.1+cu124 pypi_0 pypi\nnumpy 2.0.0 pypi_0 pypi\n",
    ],
)
def test_lists_of_packages(text):
    assert {"torch": "2.5.1+cu124", "cuda": "12.4", "numpy": "2.0.0"}.items() <= versions(text).items()


def test_conda_builds_tell_the_cuda():
    text = "# packages in environment at /opt/conda:\n# Name  Version  Build  Channel\npytorch 2.1.0 py3.10_cuda12.1_cudnn8.9.2_0 pytorch\npython 3.10.13 h955ad1f_0\n"
    assert {"torch": "2.1.0", "cuda": "12.1", "python": "3.10"}.items() <= versions(text).items()


def test_environment_yml():
    assert {"python": "3.11", "deepspeed": "0.14.0"}.items() <= versions(
        "name: x\nchannels: [conda-forge]\ndependencies:\n- python=3.11\n- pip\n- pip:\n  - deepspeed==0.14.0\n"
    ).items()


def test_dockerfile_base_pins_and_variables():
    f = facts(
        "FROM nvidia/cuda:12.1.0-devel-ubuntu22.04\nENV NCCL_DEBUG=INFO\nRUN pip install torch==2.1.0 deepspeed==0.14.0\n"
    )
    assert {"toolkit": "12.1.0", "torch": "2.1.0", "deepspeed": "0.14.0"}.items() <= {
        k: v.version for k, v in f.components.items()
    }.items()
    assert f.variables["NCCL_DEBUG"] == "INFO"
    assert "Dockerfile" in f.read[0].kinds


def test_nccl_lines():
    f = facts(
        "node:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nNCCL version 2.18.1+cuda12.1\nNCCL INFO cudaDriverVersion 12020\nNCCL INFO NCCL_SOCKET_IFNAME set by environment to eth\n"
    )
    assert (f.version("nccl"), f.host["driver_cuda"], f.interfaces, f.variables["NCCL_SOCKET_IFNAME"]) == (
        "2.18.1",
        "12.2",
        ("eth0",),
        "eth",
    )


def test_limits_of_ulimit_and_df():
    f = facts(
        "max locked memory       (kbytes, -l) 64\nopen files                      (-n) 1024\nshm              64M     0   64M   0% /dev/shm\n"
    )
    assert f.limits == {"memlock": 65536, "nofile": 1024, "shm": 64 << 20}


def test_a_driver_key_with_a_cuda_level_is_no_driver_version():
    assert "driver" not in versions("driver: CUDA 11.0 level (found version 11000)\n")


def test_a_bound_is_not_taken_for_an_exact_version():
    assert facts("numpy: >=1.24\n").components["numpy"].exact is False


def test_the_more_precise_of_two_statements_wins_and_contradictions_are_kept():
    f = facts("torch: 2.4\nPyTorch version: 2.4.1+cu121\nnumpy==1.26.4\nnumpy version: 2.0.0\n")
    assert f.version("torch") == "2.4.1+cu121"
    assert any("numpy" in line for line in f.disagreements)


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        ("8x NVIDIA A100-SXM4-80GB", "sm_80"),
        ("Tesla V100-SXM2-32GB", "sm_70"),
        ("RTX 4090 (several)", "sm_89"),
        ("2080Ti", "sm_75"),
        ("NVIDIA H800", "sm_90"),
        ("A100 (p4d.24xlarge)", "sm_80"),
        ("NVIDIA RTX A6000", "sm_86"),
        ("Tesla P100-PCIE-16GB", "sm_60"),
        ("some card", None),
    ],
)
def test_names_of_gpus(name, sm):
    assert gpu_architecture(name) == sm


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu: 8 x V100", 8),
        ("gpu: 8xH100", 8),
        ("gpu: RTX 3090 x2 per node", 2),
        ("gpu: RTX 4090", 1),
        ("gpu: 4 GPUs", 4),
    ],
)
def test_counts_of_gpus(text, count):
    assert facts(text).gpu_count == count


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_any_encoding_is_read(encoding):
    assert "PyTorch version: 2.6.0" in decode("Fehler für Gerät\nPyTorch version: 2.6.0\n".encode(encoding))


def test_escape_sequences_and_controls_are_removed():
    assert clean("\x1b[31mred\x1b[0m\x00\x07 \x1b]0;title\x07x\r\ny\rz") == "red x\ny\nz"


def test_a_large_text_keeps_head_tail_and_the_troubled_lines_between():
    noise = b"step 1 loss 2.0 everything fine\n" * 900_000
    middle = b"ImportError: cannot import name 'log' from 'torch.distributed.elastic'\n"
    text, notes = read_bounded(
        io.BytesIO(b"HEAD\n" + noise[: len(noise) // 2] + middle + noise[len(noise) // 2 :] + b"TAIL\n")
    )
    assert text.startswith("HEAD")
    assert text.endswith("TAIL\n")
    assert middle.decode() in text
    assert notes
    assert len(text) < 15_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64M", 64 << 20),
        ("31.32 GB", int(31.32 * (1 << 30))),
        ("65536k", 65536 << 10),
        ("unlimited", -1),
        ("many", None),
    ],
)
def test_sizes(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2.1.0+cu118", ("2.1.0+cu118", True)),
        (">=1.24", ("1.24", False)),
        ("1.13 / 2.0 tried", ("1.13", False)),
        ("wrong pin", None),
    ],
)
def test_versions_of_prose(text, found):
    assert version_in(text) == found


UV_LOCK = """version = 1
requires-python = "==3.11.*"

[[package]]
name = "deepspeed"
version = "0.16.2"
source = { registry = "https://index.example/simple" }

[[package]]
name = "torch"
version = "2.8.0"

[[package]]
name = "numpy"
version = "1.26.4"
resolution-markers = ["python_full_version < '3.12'"]

[[package]]
name = "numpy"
version = "2.3.0"
"""
POETRY_LOCK = """[[package]]
name = "deepspeed"
version = "0.16.2"

[[package]]
name = "torch"
version = "2.8.0"

[metadata]
lock-version = "2.1"
python-versions = ">=3.11"
"""


@pytest.mark.parametrize(("name", "text"), [("uv.lock", UV_LOCK), ("poetry.lock", POETRY_LOCK)])
def test_a_lock_of_another_tool_names_the_packages_that_it_has_in_one_version(name, text):
    facts = read_texts([(name, text)])
    assert {c: stated.version for c, stated in facts.components.items()} == {"deepspeed": "0.16.2", "torch": "2.8.0"}
    assert name in facts.read[0].kinds


@pytest.mark.parametrize(
    "text",
    [
        "flash_attn @ https://host.test/d/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl \\\n",
        "flash-attn @ file:///w/flash_attn-2.8.3+cu12torch2.8-cp311-cp311-linux_x86_64.whl#sha256=ab",
        (
            'lock-version = "1.0"\n[[packages]]\nname = "flash-attn"\ndependencies = []\n'
            'archive = { url = "https://host.test/flash_attn-2.8.3%2Bcu12-cp311-cp311-linux_x86_64.whl", hashes = {} }\n'
        ),
    ],
)
def test_a_ready_wheel_says_its_release_by_the_name_of_its_file(text):
    facts = read_texts([("list", text)])

    assert facts.components["flash-attn"].version == "2.8.3"


# What accelerate 1.15.0, horovod 0.28.2.dev25 and ray 2.60.0 print, 2026-11-23.
ACCELERATE_ENV = """
Copy-and-paste the text below in your GitHub issue

- `Accelerate` version: 1.15.0
- Python version: 3.11.7
- Numpy version: 2.4.6
- PyTorch version: 2.13.0+cpu
- `Accelerate` default config:
        Not found
"""
CHECK_BUILD = """Horovod v0.28.2.dev25:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [X] Gloo
"""
RAY_STATUS = """======== Autoscaler status: 2026-11-23 05:18:40.737036 ========
Node status
---------------------------------------------------------------
Active:
 1 node_bf350564b39ef18c6aae8e432f7de733ed45c2c01560690b10f46e68
Resources
---------------------------------------------------------------
Total Usage:
 2.0/2.0 CPU
Pending Demands:
 {'CPU': 1.0, 'GPU': 1.0} * 2 (PACK): 1+ pending placement groups
"""


@pytest.mark.parametrize(
    ("kind", "text", "stated"),
    [
        ("accelerate env", ACCELERATE_ENV, {"accelerate": "1.15.0", "torch": "2.13.0+cpu", "numpy": "2.4.6"}),
        ("horovodrun --check-build", CHECK_BUILD, {"horovod": "0.28.2.dev25"}),
        ("ray status", RAY_STATUS, {}),
    ],
)
def test_report_of_a_newer_framework_is_recognised(kind, text, stated):
    assert kind in facts(text).read[0].kinds
    assert stated.items() <= versions(text).items()


def test_what_pip_show_prints_is_what_is_installed():
    facts = read_texts([("report", "$ pip show peft\nName: peft\nVersion: 0.12.0\nSummary: Parameter-Efficient\n")])
    assert facts.distributions["peft"] == "0.12.0"


OF_OTHER_PROGRAMS = [
    "ERROR: Unrecognized pair style 'eam/gpu' is part of the GPU package (src/force.cpp:275)",
    "Collecting package metadata (repodata.json): done",
    "Error: Process completed with exit code 1.",
    "slurmstepd: error: *** STEP 42.0 ON node1 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***",
]


@pytest.mark.parametrize("text", OF_OTHER_PROGRAMS)
def test_a_line_that_any_program_may_print_has_no_kind(text):
    assert facts(text).read[0].kinds == ()


def test_what_a_package_requires_is_not_taken_for_installed():
    text = "torchaudio 2.2.0 requires torch==2.2.0, but you have torch 2.3.0 which is incompatible."

    assert facts(text).version("torch") in {None, "2.3.0"}


def test_an_error_that_a_writer_broke_below_longer_lines_is_read_as_one_line_at_the_same_places():
    text = (
        f"I run it in a container, and {'this happens ' * 20}\nRuntimeError: DataLoader worker (pid 47) is killed by signal: Bus\n"
        "error. It is possible that dataloader's workers are out of shared\nmemory. Please try to raise your shared memory limit.\n\n"
        "ValueError: a message\nfollowed by another line"
    )

    joined = [flowed for flowed, breaks in unwrapped(text) if not breaks]

    assert any("killed by signal: Bus error. It is possible" in each for each in joined)
    assert not any("a message followed" in each for each in joined)
    assert {len(each) for each in joined} == {len(text)}
