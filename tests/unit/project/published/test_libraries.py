"""The libraries of CUDA that a published release loads, beside what the stated versions bring."""

from __future__ import annotations

import pytest
from release_index import Ranges, wheel

from envsmith.lock.index.cuda_libraries import loaded_libraries
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.project.published.code import PublishedRelease
from envsmith.project.published.libraries import brought_libraries, unmet

_EVIDENCE = Evidence(kind=EvidenceKind.MEASURED, source="nobody_knows.whl", date="2024-01-02")
_RELEASE = PublishedRelease(name="nobody-knows", version="1.2", evidence=_EVIDENCE)
_STUB = {"nobody_knows.libs/libcudnn-463fd6d5.so.8.9.7": "libcudnn.so.8\0libcudnn_ops_infer.so.8"}
_OPENED = {"nobody_knows/core.so": "libcublas.so.12\0"}


def judged(members: dict[str, str], stated: str) -> list[Finding]:
    versions = dict(pair.split("==") for pair in stated.split())
    loaded = loaded_libraries("a.whl", Ranges(files={"a.whl": wheel(members)}))
    return [*unmet(_RELEASE, loaded, brought_libraries(versions, Platform.LINUX_64), Platform.LINUX_64)]


def test_a_part_of_cudnn_that_neither_the_wheel_nor_torch_brings_is_a_warning():
    [finding] = judged(_STUB, "torch==2.5.1")

    assert (finding.severity, finding.needs) == (Severity.WARNING, {"torch": "<=2.3.1"})
    assert finding.message == (
        "nobody-knows 1.2 fails where it uses the GPU: nobody_knows.libs/libcudnn-463fd6d5.so.8.9.7 loads "
        "libcudnn_ops_infer.so.8; torch 2.5.1 brings cuDNN 9"
    )


@pytest.mark.parametrize("stated", ["toolkit==11.7", "torch==2.0.1+cu118", "cuda==11.8 torch==2.0.1"])
def test_a_library_of_another_cuda_than_the_stated_one_is_a_warning(stated):
    assert len(judged(_OPENED, stated)) == 1


@pytest.mark.parametrize(
    ("members", "stated"),
    [
        (_STUB, "torch==2.3.1"),
        (_STUB, "torch==2.5.1 cudnn==8.9.7.29"),  # one of the two is loaded
        (_STUB, "torch==2.5.1+cpu"),
        (_STUB, "torch==1.1.0"),  # nobody read its libraries
        (_STUB | {"nobody_knows/later.so": "libcudnn_ops.so.9\0"}, "torch==2.5.1"),  # it is made for both
        ({"nobody_knows.libs/libcudart-5a077122.so.12.0.107": "libcudart.so.12\0"}, "toolkit==11.7"),  # its own
        (_OPENED, "toolkit==12.4"),
        (_OPENED, "torch==2.0.1"),  # one of its builds has CUDA 11.8, another may be there
        (_OPENED, "toolkit==11.7 torch==2.5.1+cu124"),
        (_OPENED, "toolkit==11.7 nvidia-cublas-cu12==12.4.5.8"),
        (_OPENED, "numpy==2.0.0"),
    ],
)
def test_what_is_brought_or_not_known_is_silent(members, stated):
    assert judged(members, stated) == []
