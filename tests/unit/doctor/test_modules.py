"""``module load`` lines as facts."""

from __future__ import annotations

import pytest

from envsmith.doctor.read import read_texts


def components(text: str) -> dict[str, str]:
    return {name: stated.version for name, stated in read_texts([("job.sbatch", text)]).components.items()}


@pytest.mark.parametrize(
    ("text", "components_of_it"),
    [
        ("module load cuda/12.4 nccl/2.20.5 gcc/12", {"toolkit": "12.4", "nccl": "2.20.5", "gcc": "12"}),
        ("module load CUDA/12.1.1 NCCL/2.18.3-GCCcore-12.3.0-CUDA-12.1.1", {"toolkit": "12.1.1", "nccl": "2.18.3"}),
        ("module load cuda/11.8/11.8.0\nmodule load nccl/2.16/2.16.2-1", {"toolkit": "11.8.0", "nccl": "2.16.2"}),
        ("module load cudnn/cuda-12.1/9.0.0 python/gpu/3.12.5", {"cudnn": "9.0.0", "python": "3.12.5"}),
        ("module load cuda/11.8\nmodule --quiet purge\nmodule load nccl/2.29.2-cu13", {"nccl": "2.29.2"}),
        ("ml nvidia/cuda/12.4.1", {"toolkit": "12.4.1"}),
        ("$ module add Python/3.11.3-GCCcore-12.3.0", {"python": "3.11.3"}),
        ("module load cuda/11.8\nmodule purge\nmodule load gcc/11.4.0", {"gcc": "11.4.0"}),
        ("module load cuda/11.8 gcc/9.3.0\nmodule swap cuda/11.8 cuda/12.4", {"toolkit": "12.4", "gcc": "9.3.0"}),
        ("module load cuda/11.8 gcc/9.3.0\nml -cuda\nmodule unload gcc", {}),
        ("# module load cuda/11.8\nmodule avail cuda/12.4\nmodule use /apps/cuda/12.4", {}),
        ("module load anaconda3/2023.09 my-own/1.0", {}),
        ("the module loads cuda/12.4 at import", {}),
    ],
)
def test_what_is_loaded_at_the_end_is_a_fact(text: str, components_of_it: dict[str, str]) -> None:
    assert components(f"#!/bin/bash\n{text}\n") == components_of_it


def test_the_fact_names_file_line_and_where_it_is_from() -> None:
    facts = read_texts([("job.sbatch", "#!/bin/bash\n#SBATCH -N 2\nmodule load cuda/12.4\n")])

    assert facts.components["toolkit"].source == "job.sbatch:3 (module load)"
    assert facts.read[0].kinds == ("batch file of Slurm", "module load lines")


def test_a_module_without_a_version_is_present() -> None:
    facts = read_texts([("job.sbatch", "module load cuda\n")])

    assert facts.used("toolkit") == "*"


def test_what_the_environment_itself_says_counts_above_a_batch_file() -> None:
    assert components("module load nccl/2.18.3\nNCCL version 2.21.5+cuda12.4\n")["nccl"] == "2.21.5"
