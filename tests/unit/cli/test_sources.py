"""``--source`` and ``--compile`` on the command line."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from envsmith.cli.app import run
from envsmith.cli.flags import LockFlags, RequestFlags
from envsmith.cli.sources import SourceFlags, lock_options
from envsmith.errors import UsageError
from envsmith.model.cell import DEVEL, RUNTIME, Request
from envsmith.model.version import Spec


@pytest.fixture
def apex(tmp_path):
    """An archive of something called apex, as the flag names it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        info = tarfile.TarInfo("apex/setup.py")
        text = b"from setuptools import setup\nsetup(name='apex', version='0.1')\n"
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    path = tmp_path / "apex.tar.gz"
    path.write_bytes(data.getvalue())
    return f"apex@{path}#sha256={hashlib.sha256(data.getvalue()).hexdigest()}"


def test_an_archive_of_a_component_puts_its_release_into_the_request(apex):
    flags = SourceFlags(source=(apex,), compile_=("Apex:APEX_CUDA_EXT=0", "apex:APEX_CPP_EXT=1")).parse()
    request, compiled = flags.read(Request(frameworks=["megatron-core"]), offline=True)
    assert str(request.constraints["apex"]) == "==0.1"
    assert [a.name for a in compiled.archives] == ["apex"]
    assert compiled.variables == {"apex": (("APEX_CPP_EXT", "1"), ("APEX_CUDA_EXT", "0"))}
    digest = apex.rpartition("=")[2]
    assert flags.text == f"--source apex@sha256:{digest} --compile apex:APEX_CPP_EXT=1 --compile apex:APEX_CUDA_EXT=0"


def test_the_flavour_devel_asks_for_a_cuda_whose_nvcc_the_index_has():
    def cuda(flavour):
        flags = RequestFlags(framework=("deepspeed",), machine="none")
        options = lock_options(flags, SourceFlags(), LockFlags(), flavour=flavour, conda=False, output=Path("cells"))
        return options.request.narrowed.get("cuda")

    assert cuda(RUNTIME) is None
    spec, reason = cuda(DEVEL)
    assert (spec.contains("13.0"), spec.contains("12.8")) == (True, False)
    assert reason.startswith("an image of the flavour devel has nvcc")


def test_another_release_than_the_archive_s_cannot_be_asked_for(apex):
    flags = SourceFlags(source=(apex,)).parse()
    with pytest.raises(UsageError, match=r"is 0\.1, and the request asks for apex >=1"):
        flags.read(Request(constraints={"apex": Spec.parse(">=1")}), offline=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--source", "apex@apex.tar.gz"], "no #sha256=HEX"),
        (["--source", "apex@none.tar.gz#sha256=" + "0" * 64], "Cannot read"),
        (["--compile", "deepspeed"], "not NAME:VARIABLE=VALUE"),
        (["--compile", "deepspeed:DS=$(id)"], "is not a plain value"),
        (["--compile", "deepspeed:DS=1", "--compile", "deepspeed:DS=0"], "DS is given twice"),
        (["--source", "a@x#sha256=" + "0" * 64, "--source", "A@y#sha256=" + "0" * 64], "given twice"),
    ],
)
def test_what_does_not_parse_is_a_usage_error_before_anything_is_solved(capsys, words, told):
    assert run(["lock", "--framework", "deepspeed", *words]) == 2
    assert told in capsys.readouterr().err


def test_another_file_than_the_hash_says_is_refused_with_its_own_code(capsys, apex):
    place = apex.rpartition("#")[0]
    assert run(["lock", "--framework", "deepspeed", "--source", f"{place}#sha256={'0' * 64}"]) == 8
    assert "Cannot use --source apex" in capsys.readouterr().err
