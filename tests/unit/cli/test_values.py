"""What is typed after a flag becomes a value, or is refused."""

from __future__ import annotations

from envsmith.cli.app import run


def test_an_unknown_platform_of_explain_is_a_usage_error(capsys):
    assert run(["explain", "deepspeed-elastic-log", "--platform", "bogus"]) == 2
    assert "--platform: unknown platform 'bogus'" in capsys.readouterr().err


def test_component_that_the_index_does_not_have_is_refused_with_what_to_do(capsys):
    assert run(["solve", "-f", "megatron-core", "--with", "apex"]) == 2
    err = capsys.readouterr().err
    assert "Cannot put apex into a cell: the package index does not have it." in err
    assert "Leave --with apex out and build it from its repository inside the finished environment." in err
