"""What has a symbol of torch, or a version of glibc or libstdc++, that the loader lacks, over the committed tables."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts

NEW_ABI = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
FLASH = "ImportError: /v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: "
AUDIO = "OSError: /v/torchaudio/lib/libtorchaudio.so: undefined symbol: "
SYSTEM = "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
CONDA = "ImportError: /opt/conda/envs/x/lib/libstdc++.so.6: version `CXXABI_1.3.13' not found (required by "
GLIBC = "OSError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by "


def root(text: str):
    """The root of a diagnosis."""
    return diagnose(read_texts([("log", text)]), [("log", text)]).root


def test_a_torch_that_lacks_the_symbol_is_named_with_those_that_have_it():
    diagnosed = root(f"torch: 2.1.2\n{FLASH}{NEW_ABI}")

    assert "torch 2.1.2+cu121 does not export it, torch >=2.7.0 does." in diagnosed.finding.message
    assert (dict(diagnosed.finding.needs), diagnosed.confidence) == ({"torch": ">=2.7.0"}, "high")
    assert diagnosed.lines[-1].endswith("--no-deps flash-attn")


def test_without_a_torch_the_builds_that_export_it_are_named():
    finding = root(f"{FLASH}{NEW_ABI}").finding

    assert finding.message.endswith("torch >=2.7.0 exports it.")


def test_a_torch_that_has_the_symbol_is_not_the_one_that_is_loaded():
    finding = root(f"torch: 2.8.0\n{FLASH}{NEW_ABI}").finding

    assert "so another torch is loaded" in finding.message
    assert not finding.needs


def test_a_symbol_of_no_build_was_made_for_another_torch():
    finding = root(f"torch: 2.1.2\n{FLASH}_ZN3c104frobEv").finding

    assert "No measured build of torch, 1.13.0 to" in finding.message
    assert not finding.needs


@pytest.mark.parametrize(("torch", "line"), [("torch: 1.13.1\n", "torch==1.13.1 torchaudio"), ("", "torch torchaudio")])
def test_a_package_that_goes_with_one_torch_is_installed_together_with_it(torch, line):
    diagnosed = root(f"{torch}{AUDIO}_ZNK3c107SymBool10guard_boolEPKcl")

    assert diagnosed.lines == (f"pip install --force-reinstall {line}",)
    assert "torchaudio" in diagnosed.finding.components


def test_the_compiler_and_the_systems_that_have_a_version_are_named():
    diagnosed = root(f"{SYSTEM}/v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)")

    assert diagnosed.finding.message.endswith("GLIBCXX_3.4.32 comes with GCC 13.2.")
    assert "(Ubuntu 24.04, Debian 13, RHEL 10, Amazon Linux 2023)" in diagnosed.finding.fix
    assert "take an older wheel of flash-attn" in diagnosed.finding.fix
    assert diagnosed.lines[0] == "conda install -c conda-forge 'libstdcxx-ng>=13.2'"


def test_what_the_stated_system_has_is_named():
    finding = root(f"OS: Ubuntu 22.04.4 LTS (x86_64)\n{SYSTEM}/v/torchvision/_C.so)").finding

    assert "Ubuntu 22.04 has 3.4.30." in finding.message


def test_a_library_of_conda_is_not_taken_for_that_of_the_system():
    finding = root(f"OS: Ubuntu 22.04.4 LTS (x86_64)\n{CONDA}/v/torch/lib/libtorch_python.so)").finding

    assert "Ubuntu 22.04 has" not in finding.message
    assert finding.fix.startswith("Load the system's libstdc++ with LD_PRELOAD")


def test_what_was_compiled_on_this_machine_is_compiled_again():
    finding = root(f"{SYSTEM}/home/u/.cache/torch_extensions/py310_cu121/cpu_adam/cpu_adam.so)").finding

    assert "after removing ~/.cache/torch_extensions" in finding.fix


@pytest.mark.parametrize(("system", "sentence"), [("OS: Ubuntu 20.04\n", "Ubuntu 20.04 has 2.31."), ("", "")])
def test_a_glibc_is_never_brought_by_conda(system, sentence):
    diagnosed = root(f"{system}{GLIBC}/v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)")

    assert dict(diagnosed.finding.needs) == {"glibc": ">=2.32"}
    assert sentence in diagnosed.finding.message
    assert diagnosed.finding.fix.startswith("Use a system or image that has glibc 2.32 (Ubuntu 22.04")
    assert "conda install" not in " ".join([diagnosed.finding.fix, *diagnosed.lines])


def test_a_library_of_torch_itself_that_lacks_a_symbol_of_torch_is_of_a_second_torch():
    text = "ImportError: /v/site-packages/torch/lib/libtorch_python.so: undefined symbol: _ZN5torch4cuda4nccl6detail16throw_nccl_errorE12ncclResult_t"

    diagnosed = root(text)

    assert "libraries of two torches are mixed" in diagnosed.finding.message
    assert diagnosed.lines[0] == "pip uninstall -y torch"


def test_the_folder_of_a_compiled_file_says_which_package_it_is_of():
    text = f"ImportError: /v/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: {NEW_ABI}"

    assert root(text).lines == ("pip install --force-reinstall torch vllm",)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/v/site-packages/torch_sparse/_version.so", "torch_sparse"),
        ("/v/MultiScaleDeformableAttention.cpython-36m-x86_64-linux-gnu.so", "MultiScaleDeformableAttention"),
        ("/v/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so", "flash-attn"),
    ],
)
def test_the_extension_that_was_built_for_another_torch_is_named(file, name):
    finding = root(f"OSError: {file}: undefined symbol: {NEW_ABI}").finding

    assert finding.message.startswith(f"{name} was built for another torch than the one installed. (symbol c10::Error")


def test_a_symbol_that_every_torch_exports_is_not_one_of_another_torch():
    finding = root("ImportError: /v/MSDA.cpython-36m-x86_64-linux-gnu.so: undefined symbol: THPVariableClass").finding

    assert "was built for another torch" not in finding.message
    assert finding.fix.startswith("Import torch before the extension.")


def test_a_symbol_of_a_class_of_warnings_is_no_warning():
    symbol = "_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationE"

    finding = root(f"ImportError: /v/causal_conv1d_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: {symbol}")

    assert finding.finding.severity.value == "error"
