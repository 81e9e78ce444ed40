"""Which packages a treatment changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from lock_helpers import uv_for
from mended import environment
from tiny_index import TinyIndex, wheel

from envsmith.doctor.mend.environment import read_environment
from envsmith.doctor.mend.resolution import ResolvedTreatment, difference
from envsmith.doctor.mend.treatment import Treatment
from envsmith.errors import LockError

NUMPY = Treatment(install={"numpy": "numpy==1.26.4"}, reasons={"numpy": "numpy-2-abi"})


def changes(folder: Path, index: TinyIndex, *packages: str, treatment: Treatment = NUMPY, **options: object) -> dict:
    root = environment(folder, index, *packages)
    uv = uv_for(index.url, folder / "uv-cache")
    answer: ResolvedTreatment = difference(read_environment(root), treatment, uv=uv, **options)  # type: ignore[arg-type]
    return {change.name: (change.old, change.new) for change in answer.changes}


def test_a_newer_release_of_what_stays_is_not_taken(numpy_index: TinyIndex, tmp_path: Path) -> None:
    assert changes(tmp_path, numpy_index, "numpy==2.0.2", "click==8.0") == {"numpy": ("2.0.2", "1.26.4")}


def test_what_does_not_go_with_the_change_moves_with_it(numpy_index: TinyIndex, tmp_path: Path) -> None:
    moved = changes(tmp_path, numpy_index, "numpy==2.0.2", "scipy==1.14.0", "click==8.0")

    assert moved == {"numpy": ("2.0.2", "1.26.4"), "scipy": ("1.14.0", "1.13.0")}


def test_what_contradicts_itself_already_is_no_reason_for_a_change(numpy_index: TinyIndex, tmp_path: Path) -> None:
    assert list(changes(tmp_path, numpy_index, "numpy==2.0.2", "old==1.0", "click==8.0")) == ["numpy"]


def test_what_is_on_no_index_stays(numpy_index: TinyIndex, tmp_path: Path) -> None:
    name, data = wheel("own", "0.1+local", ["numpy"])
    (tmp_path / name).write_bytes(data)

    assert list(changes(tmp_path, numpy_index, "numpy==2.0.2", str(tmp_path / name))) == ["numpy"]


def test_what_is_kept_is_not_changed(numpy_index: TinyIndex, tmp_path: Path) -> None:
    with pytest.raises(LockError, match="numpy would have to change, and --keep holds it"):
        changes(tmp_path, numpy_index, "numpy==2.0.2", keep=["numpy"])


def test_where_what_is_kept_stands_against_the_change_uv_says_so(numpy_index: TinyIndex, tmp_path: Path) -> None:
    with pytest.raises(LockError, match="contradict each other"):
        changes(tmp_path, numpy_index, "numpy==2.0.2", "scipy==1.14.0", keep=["scipy"])


def test_libraries_of_a_torch_that_goes_go_with_it(tmp_path: Path) -> None:
    index = TinyIndex(tmp_path / "torches")
    index.add(
        "torch", wheel("torch", "2.2.2", ["nvidia-nccl-cu12==2.19.3"]), wheel("torch", "2.13.0", ["nvidia-nccl-cu13"])
    )
    index.add("nvidia-nccl-cu12", wheel("nvidia-nccl-cu12", "2.19.3"))
    index.add("nvidia-nccl-cu13", wheel("nvidia-nccl-cu13", "2.29.7"))
    index.add("nvidia-ml-py", wheel("nvidia-ml-py", "12.0"))
    treatment = Treatment(install={"torch": "torch==2.13.0"})

    moved = changes(
        tmp_path, index, "torch==2.2.2", "nvidia-nccl-cu12==2.19.3", "nvidia-ml-py==12.0", treatment=treatment
    )

    assert moved == {
        "torch": ("2.2.2", "2.13.0"),
        "nvidia-nccl-cu12": ("2.19.3", None),
        "nvidia-nccl-cu13": (None, "2.29.7"),
    }


def test_a_library_that_torch_pins_otherwise_is_forced(tmp_path: Path) -> None:
    index = TinyIndex(tmp_path / "torches")
    index.add("torch", wheel("torch", "2.2.2", ["nvidia-nccl-cu12==2.19.3"]))
    index.add("nvidia-nccl-cu12", wheel("nvidia-nccl-cu12", "2.19.3"), wheel("nvidia-nccl-cu12", "2.21.5"))
    treatment = Treatment(install={"nvidia-nccl-cu12": "nvidia-nccl-cu12==2.21.5"})

    moved = changes(tmp_path, index, "torch==2.2.2", "nvidia-nccl-cu12==2.19.3", treatment=treatment)

    assert moved == {"nvidia-nccl-cu12": ("2.19.3", "2.21.5")}
