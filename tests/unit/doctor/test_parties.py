"""Whose symbol, class or module it is that is missing, and who asks for it."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.parties import symbol_in
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.read.tracebacks import completed, frames_before, package_of


def judged(text: str):
    return diagnose(read_texts([("log", text)]), [("log", clean(text))])


def first(text: str):
    diagnosis = judged(text)
    return diagnosis.root or next(iter(diagnosis.diagnosed), None)


@pytest.mark.parametrize(
    ("symbol", "readable", "component"),
    [
        ("_ZN3c104cuda9SetDeviceEa", "c10::cuda::SetDevice", "torch"),
        ("_ZNK3c1010TensorImpl4sizeEl", "c10::TensorImpl::size", "torch"),
        ("_ZTIN3c105ErrorE", "c10::Error", "torch"),
        ("THPVariableClass", "THPVariableClass", "torch"),
        ("cublasLtGroupedMatrixLayoutInit_internal", "cublasLtGroupedMatrixLayoutInit_internal", "cuda"),
        ("ncclCommWindowRegister", "ncclCommWindowRegister", "nccl"),
        ("_ZNSt7__cxx1112basic_stringIcE", "std::__cxx11::basic_string", "gcc"),
    ],
)
def test_a_symbol_has_an_owner_and_a_readable_name(symbol, readable, component):
    found = symbol_in(f"x.so: undefined symbol: {symbol}")
    assert found is not None
    assert (found.readable, found.component) == (readable, component)


@pytest.mark.parametrize(
    "symbol", ["_ZN18transformer_engine9to_stringERK15NVTEScalingMode", "my_own_function", "_Z3foov"]
)
def test_a_symbol_of_nobody_known_has_no_owner(symbol):
    assert symbol_in(f"x.so: undefined symbol: {symbol}") is None


@pytest.mark.parametrize(
    ("line", "wheel"),
    [
        ("undefined symbol: cublasLtInit, version libcublasLt.so.13", "nvidia-cublas"),
        ("undefined symbol: cublasLtInit, version libcublasLt.so.12", "nvidia-cublas-cu12"),
        ("undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12", "nvidia-nvjitlink-cu12"),
    ],
)
def test_the_wheel_that_brings_the_library_is_named(line, wheel):
    assert symbol_in(line).wheel == wheel


def test_a_symbol_of_cuda_in_transformer_engine_is_no_matter_of_torch():
    found = judged("libtransformer_engine.so: undefined symbol: cublasLtInit, version libcublasLt.so.13")
    assert [d.taxonomy.cause for d in found.diagnosed] == ["wrong-cuda-library-loaded"]
    assert "nvidia-cublas" in found.diagnosed[0].finding.fix


TRACEBACK = """Traceback (most recent call last):
  File "/x/train.py", line 3, in <module>
    import deepspeed
  File "/x/lib/python3.11/site-packages/apex/amp/_amp_state.py", line 14, in <module>
    from torch._six import container_abcs
ModuleNotFoundError: No module named 'torch._six'
"""


def test_who_imports_what_was_removed_is_named_in_the_fix():
    fix = first(TRACEBACK).finding.fix
    assert "a newer release of apex" in fix
    assert "deepspeed" not in fix
    assert "pip install -U" not in fix


def test_of_ranks_that_write_in_turn_the_one_that_fails_names_its_caller():
    lines = TRACEBACK.rstrip("\n").split("\n")
    other = [line.replace("apex", "frobber") for line in lines]
    text = "\n".join(f"[rank{r}]: {rank[n]}" for n in range(len(lines)) for r, rank in enumerate((lines, other)))
    hit = first(text + "\n").finding
    assert "a newer release of apex" in hit.fix


def test_frames_and_packages():
    frames = frames_before(TRACEBACK, len(TRACEBACK))
    assert [(f.package, f.function) for f in frames] == [(None, "<module>"), ("apex", "<module>")]
    assert frames[1].source == "from torch._six import container_abcs"
    assert package_of(r"C:\Python312\Lib\site-packages\flash_attn\x.py") == "flash-attn"
    assert package_of("/home/u/train.py") is None


@pytest.mark.parametrize(
    ("message", "cause", "words"),
    [
        ("AttributeError: 'DeepSpeedEngine' object has no attribute 'frob'", "deepspeed-version-pair", "deepspeed"),
        ("AttributeError: 'Linear' object has no attribute 'ds_frob'", "deepspeed-version-pair", "deepspeed"),
        ("AttributeError: type object 'CompiledKernel' has no attribute 'frob'", "triton-version-mismatch", "triton"),
        ("AttributeError: module 'ml_dtypes' has no attribute 'float4'", "package-version-pair", "ml_dtypes"),
        (
            "    with deepspeed.zero.Init(frob=1):\nTypeError: __init__() got an unexpected keyword argument 'frob'",
            "name-in-no-release",
            "deepspeed",
        ),
    ],
)
def test_an_interface_that_is_not_there_names_its_owner(message, cause, words):
    found = first(message)
    assert found.taxonomy.cause == cause
    assert found.finding.severity.value == "warning"
    assert words in found.finding.fix


def test_the_line_of_code_names_what_is_called():
    text = """Traceback (most recent call last):
  File "/w/pretrain.py", line 39, in model_provider
    with deepspeed.zero.Init(frob=group(),
TypeError: __init__() got an unexpected keyword argument 'frob'
"""
    found = first(text)
    assert found.taxonomy.cause == "name-in-no-release"
    assert "the argument frob of deepspeed.zero.Init" in found.finding.message


@pytest.mark.parametrize(
    "message",
    [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "AttributeError: 'MyModel' object has no attribute 'frob'",
        "AttributeError: 'Tensor' object has no attribute 'frobnicate'",
    ],
)
def test_an_object_of_ones_own_code_is_no_finding(message):
    assert first(message) is None


def test_no_release_is_recommended_that_is_not_known_to_have_the_name():
    fix = first("galore-torch: 1.0\nModuleNotFoundError: No module named 'galore_torch.frob'").finding.fix
    assert "galore-torch 1.0 does not have it, and which release does is not known here" in fix
    assert "pip install" not in fix


def test_a_part_of_python_is_not_looked_for_on_the_index():
    fix = first("ImportError: cannot import name 'frob' from 'typing' (/usr/lib/python3.9/typing.py)").finding.fix
    assert fix == "typing is a part of Python: use a Python that its caller was written for."


def test_an_import_error_without_its_module_takes_it_from_the_code_above():
    cut = "        from megatron.data import helpers\n    ImportError: cannot import name 'helpers' from\n"
    assert "cannot import name 'helpers' from 'megatron.data'" in completed(cut)
    old = "    from contextlib import nullcontext\nImportError: cannot import name nullcontext\n"
    assert "cannot import name 'nullcontext' from 'contextlib'" in completed(old)
    whole = "from a import b\nImportError: cannot import name 'b' from 'a' (/x/a.py)\n"
    assert completed(whole) == whole
    assert first(cut).taxonomy.cause == "dataset-helpers-toolchain"


@pytest.mark.parametrize(
    ("text", "component", "version"),
    [
        ("/x/lib/python3.11/site-packages/torch-2.1.0+cu121.dist-info/METADATA", "torch", "2.1.0+cu121"),
        ("Requirement already satisfied: torch in /x/site-packages (from flash-attn) (2.1.0)", "torch", "2.1.0"),
        ("Successfully installed deepspeed-0.15.4 hjson-3.1.0 ninja-1.11.1.3", "deepspeed", "0.15.4"),
        ("Using cached deepspeed-0.12.0.tar.gz (1.2 MB)", "deepspeed", "0.12.0"),
        ("pytorch-2.1.0-py3.10_cuda12.1_cudnn8.9.2_0", "torch", "2.1.0"),
        ("pytorch-2.1.0-py3.10_cuda12.1_cudnn8.9.2_0", "cuda", "12.1"),
        ("[1/3] /usr/local/cuda-12.4/bin/nvcc -c x.cu", "toolkit", "12.4"),
        (
            "flash_attn-2.5.4+cu118torch2.1cxx11abiFALSE-cp310-cp310-linux_x86_64.whl",
            "flash-attn",
            "2.5.4+cu118torch2.1cxx11abiFALSE",
        ),
        ("NCCL Error 1 with NVIDIA GeForce RTX 5090", "gpu", "sm_120"),
    ],
)
def test_names_of_files_and_titles_tell_versions(text, component, version):
    assert read_texts([("t", text)]).version(component) == version


def test_a_gpu_that_is_asked_for_is_not_there():
    assert read_texts([("t", "This needs an NVIDIA A100 or newer")]).version("gpu") is None
