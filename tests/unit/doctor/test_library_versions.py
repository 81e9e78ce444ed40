"""What has a version of glibc or libstdc++ that the loader does not find, over the committed table."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts

SYSTEM = "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by "
CONDA = "ImportError: /opt/conda/envs/x/lib/libstdc++.so.6: version `CXXABI_1.3.13' not found (required by "
GLIBC = "OSError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by "


def root(text: str):
    """Return the root of a diagnosis."""
    return diagnose(read_texts([("log", text)]), [("log", text)]).root


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
