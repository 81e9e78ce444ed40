"""``envsmith run``: what it refuses before a launch."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from envsmith.cli.run import run
from envsmith.errors import UsageError


def test_a_run_without_a_command_is_refused():
    with pytest.raises(UsageError, match="Cannot watch a launch: no command was given"):
        CliRunner().invoke(run, [], catch_exceptions=False, standalone_mode=False)
