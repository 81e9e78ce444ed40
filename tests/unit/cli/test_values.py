"""What is typed after a flag becomes a value, or is refused."""

from __future__ import annotations

import pytest

from envsmith.cli.app import run
from envsmith.cli.values import host_of_gpu
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.cell import Platform


def test_an_unknown_platform_of_explain_is_a_usage_error(capsys):
    assert run(["explain", "deepspeed-elastic-log", "--platform", "bogus"]) == 2
    assert "--platform: unknown platform 'bogus'" in capsys.readouterr().err


def test_component_that_the_index_does_not_have_is_refused_with_what_to_do(capsys):
    assert run(["solve", "-f", "megatron-core", "--with", "apex"]) == 2
    err = capsys.readouterr().err
    assert "Cannot put apex into a cell: the package index does not have it." in err
    assert "Leave --with apex out and build it from its repository inside the finished environment." in err


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("gb200", Platform.LINUX_AARCH64),
        ("NVIDIA GB200", Platform.LINUX_AARCH64),
        ("4xGB200", Platform.LINUX_AARCH64),
        ("NVIDIA GH200 480GB", Platform.LINUX_AARCH64),
        ("dgx-spark", Platform.LINUX_AARCH64),
        ("b200", None),
        ("NVIDIA H200", None),
        ("sm_100", None),
    ],
)
def test_a_gpu_that_comes_with_its_host_says_the_platform(name, platform):
    assert host_of_gpu(name, version_graph().compiled.gpus_on_arm) is platform
