"""Mistakes of a set-up (start commands, configurations, variables, limits, libraries) are found, and sound ones left in peace."""

from __future__ import annotations

import pytest

from envsmith.doctor.facts import THIS_MACHINE, Draft, Facts, Read, SharedLibrary, StatedVersion
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.rules import judge_setup
from envsmith.doctor.vocabulary import variables


def rules(text: str) -> dict[str, str]:
    d = diagnose(read_texts([("t", text)]), [("t", clean(text))])
    return {x.finding.rule: x.finding.severity.value for x in d.diagnosed}


def known(name: str, version: str) -> dict[str, StatedVersion]:
    return {name: StatedVersion(version=version, source="t", strength=4)}


TORCHRUN = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=h:29500 pretrain_gpt.py --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp}\n"


@pytest.mark.parametrize(
    ("text", "rule", "severity"),
    [
        (
            "GPU 0: NVIDIA A100 (UUID: x)\nGPU 1: NVIDIA A100 (UUID: y)\ntorchrun --nproc_per_node=4 t.py\n",
            "more-ranks-than-gpus",
            "error",
        ),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=4 t.py\n", "more-ranks-than-gpus", "error"),
        (TORCHRUN.format(tp=3, pp=1), "world-size-not-divisible", "error"),
        (TORCHRUN.format(tp=2, pp=1), "max-connections-unset", "warning"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=8 " + TORCHRUN.format(tp=2, pp=1), "max-connections-unset", "error"),
        ("torchrun --nnodes=2 --nproc_per_node=8 t.py\n", "rendezvous-address-missing", "error"),
        ("torchrun --nnodes=2 --nproc_per_node=8 --master_addr=localhost t.py\n", "rendezvous-address-local", "error"),
        (
            "torchrun --nnodes=2 --node_rank=0 --master_addr=a --master_port=1 t.py\ntorchrun --nnodes=2 --node_rank=0 --master_addr=a --master_port=2 t.py\n",
            "launch-commands-differ",
            "error",
        ),
        (
            "torchrun --nnodes=2 --node_rank=0 --master_addr=a t.py\ntorchrun --nnodes=2 --node_rank=0 --master_addr=a t.py\n",
            "launch-node-rank-twice",
            "error",
        ),
        ("deepspeed --include localhost:0,1 --num_gpus 2 t.py\n", "deepspeed-include-and-count", "error"),
        ("docker run -it --gpus all nvcr.io/nvidia/pytorch:24.01-py3\n", "docker-without-shm", "warning"),
        ("podman run --device nvidia.com/gpu=all pytorch:24.01\n", "docker-without-shm", "warning"),
        ("run it: `docker run -it test`\n>>> torch.cuda.is_available()\nFalse\n", "container-without-gpus", "error"),
        ("podman run test\nRuntimeError: No CUDA GPUs are available\n", "container-without-gpus", "error"),
        (
            "singularity run image\nCUDA driver version is insufficient for CUDA runtime version\n",
            "container-without-gpus",
            "error",
        ),
        ("CUDA_VISIBLE_DEVICES: all\nRuntimeError: No CUDA GPUs are available\n", "visible-devices-all", "error"),
        (
            '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 1}',
            "ds-batch-config",
            "error",
        ),
        (
            '{"train_batch_size": 16, "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
            "mixed-precision-options",
            "error",
        ),
        ('gpu: Tesla V100\n{"train_batch_size": 16, "bf16": {"enabled": true}}', "bf16-on-old-gpu", "error"),
        ("worker-1 slots=8\nworker-1 slots=8\n", "hostfile-host-twice", "error"),
        ("#SBATCH --ntasks=1\n#SBATCH --ntasks-per-node=2\n", "slurm-tasks-contradict", "warning"),
        (
            "#SBATCH -N 2\n#SBATCH -n 4\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n",
            "slurm-tasks-contradict",
            "warning",
        ),
        ("# ours\nworker-1 slots=8\nworker-2 slot=8\n", "hostfile-bad-line", "error"),
        ("worker-1 slots=8\nworker-2\n", "hostfile-bad-line", "error"),
        ("localhost slots=8\nworker-1 slots=8\n", "hostfile-localhost", "error"),
        ("plugin = LowLevelZeroPlugin(stage=3)\n", "colossalai-zero-stage", "error"),
        (
            "torchrun --nproc_per_node=6 t.py\nplugin = HybridParallelPlugin(tp_size=4, pp_size=1)\n",
            "world-size-not-divisible",
            "error",
        ),
        ("gpu: RTX 4090 (several)\n", "gpu-no-p2p", "warning"),
        ("export CUDA_HOME=:/usr/local/cuda\n", "cuda-home-list", "error"),
        ("nccl==2.27.5\nNCCL_IB_CUDA_SUPPORT=1\n", "variable-not-read", "warning"),
        ("NCCL_SOCKET_IFNAM=eth0\n", "variable-misspelt", "warning"),
        ("NCCL_SOCKET_IFNAME=lo\n", "interface-loopback", "warning"),
        ("torch==2.14.0+cu130\nnvidia-nccl-cu13==2.30.7\nnvidia-nccl-cu12==2.29.3\n", "two-nccl-wheels", "error"),
        ("CUDA Version: 11.4 Driver NVIDIA-SMI\ntorch==2.6.0+cu124\n", "driver-cuda-level", "error"),
        ("shm 64M 0 64M 0% /dev/shm\n", "shm-small", "warning"),
        ("torch==1.8.0\n", "torch-very-old", "warning"),
    ],
)
def test_a_mistake_of_the_set_up_is_found(text, rule, severity):
    assert rules(text).get(rule) == severity


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0: NVIDIA A100 (UUID: x)\nGPU 1: NVIDIA A100 (UUID: y)\ntorchrun --standalone --nproc_per_node=2 t.py\n",
        "CUDA_DEVICE_MAX_CONNECTIONS=1 " + TORCHRUN.format(tp=2, pp=2),
        "docker run --gpus all --shm-size=16g nvcr.io/nvidia/pytorch:24.01-py3\n",
        "deepspeed --num_gpus 4 t.py\n",
        '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}',
        "worker-1 slots=8\nworker-2 slots=8\n",
        "export CUDA_HOME=/usr/local/cuda-12.4\nexport NCCL_DEBUG=INFO\nexport NCCL_SOCKET_IFNAME=eth0\n",
        "plugin = LowLevelZeroPlugin(stage=2)\n",
        "gpu: RTX 4090 (several)\nNCCL_P2P_DISABLE=1\n",
    ],
)
def test_a_sound_set_up_gives_nothing_but_notes(text):
    assert set(rules(text).values()) <= {"note"}


def test_a_library_put_first_by_ld_library_path_is_found():
    libraries = (
        SharedLibrary(
            name="libnccl", path="/opt/old/libnccl.so.2", version="2.18.1", how="ld_library_path", first=True
        ),
        SharedLibrary(name="libnccl", path="/env/nvidia/nccl/lib/libnccl.so.2", version="2.27.5", how="wheel"),
    )
    found = judge_setup(Facts(libraries=libraries))
    assert [(d.finding.rule, d.finding.severity.value) for d in found] == [("nccl-shadowed", "error")]


def test_no_nvcc_stops_the_deepspeed_releases_that_ask_for_it_at_import():
    for version, severity in (("0.16.0", "error"), ("0.19.8", "note")):
        facts = Facts(
            components={**known("deepspeed", version), **known("cuda", "12.4")},
            tools={"nvcc": None},
            gpus=("NVIDIA A100",),
        )
        assert next(d for d in judge_setup(facts) if d.finding.rule == "nvcc-absent").finding.severity.value == severity


def test_lost_libraries_are_an_error():
    assert judge_setup(Facts(host={"lost_files": "torch/lib/libtorch.so"}))[0].finding.rule == "files-lost"


@pytest.mark.parametrize(("torch", "severity"), [("2.13.0+cpu", "error"), ("2.9.1+cu128", "warning")])
def test_without_ninja_deepspeed_stops_on_the_cpu_only(torch, severity):
    draft = Draft()
    draft.component("deepspeed", "0.18.3", "x")
    draft.component("torch", torch, "x")
    draft.component("cuda", "cpu" if torch.endswith("cpu") else "12.8", "x")
    draft.tools["ninja"] = None
    found = {d.finding.rule: d for d in diagnose(draft.done()).diagnosed}
    assert found["ninja-absent"].finding.severity.value == severity


def test_an_environment_without_torch_is_unknown_and_says_so():
    draft = Draft()
    draft.component("python", "3.12.4", "x")
    draft.host["environment"] = "/x/env"
    draft.read.append(Read(source="host", kinds=(THIS_MACHINE,), lines=0, characters=0))

    diagnosis = diagnose(draft.done())

    (finding,) = (d.finding for d in diagnosis.diagnosed if d.finding.rule == "no-torch-here")
    assert diagnosis.status == "unknown"
    assert not finding.evidence, "what was read a moment ago has no day of its own"


@pytest.mark.parametrize(
    ("host", "gpu", "rules"),
    [
        (
            {"infiniband_active": "mlx5_0:1", "infiniband_devices": "no", "peer_memory": "yes"},
            "sm_90",
            {"rdma-devices-absent"},
        ),
        (
            {"infiniband_active": "mlx5_0:1", "infiniband_devices": "yes", "peer_memory": "no"},
            "sm_90",
            {"peer-memory-absent"},
        ),
        ({"infiniband_active": "mlx5_0:1", "infiniband_devices": "yes", "peer_memory": "no"}, "sm_89", set()),
        ({"infiniband_active": "mlx5_0:1", "infiniband_devices": "yes", "peer_memory": "yes"}, "sm_90", set()),
        ({}, "sm_90", set()),
    ],
)
def test_what_keeps_nccl_from_infiniband_cards_that_are_active_is_found(host, gpu, rules) -> None:
    facts = Facts(host=host, components=known("gpu", gpu))
    assert {diagnosed.finding.rule for diagnosed in judge_setup(facts)} == rules


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --ntasks=8\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n",
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n",
        "##SBATCH --ntasks=1\n#SBATCH --ntasks-per-node=4\n",
        "#SBATCH --ntasks=$N\n#SBATCH --ntasks-per-node=4\n",
    ],
)
def test_a_batch_file_that_asks_for_one_number_of_tasks_is_left_in_peace(text):
    assert "slurm-tasks-contradict" not in rules(text)


EIGHT = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"


@pytest.mark.parametrize(
    "text",
    [
        EIGHT + "srun torchrun \\\n  --nnodes=$SLURM_NNODES \\\n  --nproc_per_node=$SLURM_NTASKS_PER_NODE t.py\n",
        EIGHT + "srun python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 t.py\n",
        EIGHT + "#SBATCH --gres=gpu:a100:8\nsrun torchrun --nnodes 2 --nproc-per-node=gpu t.py\n",
        "srun --nodes=2 --ntasks-per-node=8 torchrun --nproc_per_node=8 t.py\n",
    ],
)
def test_a_launcher_that_slurm_starts_once_for_each_gpu_is_found(text):
    assert rules(text).get("launcher-for-each-task") == "error"


@pytest.mark.parametrize(
    "text",
    [
        EIGHT.replace("=8", "=1") + "srun torchrun --nproc_per_node=8 t.py\n",
        EIGHT + "srun torchrun --nproc_per_node=1 t.py\n",
        EIGHT + "srun --ntasks-per-node=1 torchrun --nproc_per_node=8 t.py\n",
        EIGHT + "srun -n 2 torchrun --nproc_per_node=8 t.py\n",
        EIGHT + "srun hostname; torchrun --nproc_per_node=8 t.py\n",
        EIGHT + "torchrun --nproc_per_node=8 t.py\n",
        EIGHT + "srun python t.py\n",
        EIGHT.replace("=8", "=2") + "srun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=2 t.py\n",
    ],
)
def test_a_launcher_that_slurm_starts_once_on_each_node_is_left_in_peace(text):
    assert "launcher-for-each-task" not in rules(text)


def test_the_tasks_of_a_batch_file_are_not_the_ranks_that_its_launcher_starts():
    batch = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"

    assert "world-size-not-divisible" not in rules(batch + TORCHRUN.format(tp=8, pp=2))


def test_a_variable_is_judged_on_the_day_its_source_was_read():
    draft = Draft()
    draft.variables["NCCL_SOCKET_IFNAM"] = "eth0"

    diagnosis = diagnose(draft.done())

    (finding,) = (d.finding for d in diagnosis.diagnosed if d.finding.rule == "variable-misspelt")
    assert finding.evidence == variables()["NCCL_SOCKET_IFNAME"].evidence[:1]


def test_a_variable_of_the_plugin_for_infiniband_is_not_misspelt():
    assert "variable-misspelt" not in rules("NCCL_IBEXT_DISABLE=1\n")
