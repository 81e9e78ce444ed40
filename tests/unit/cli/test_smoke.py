"""What `smoke` prints for other programs."""

from __future__ import annotations

import base64
import bz2
import json
import re

import pytest
from click.testing import CliRunner

from envsmith.cli.app import cli
from envsmith.smoke.bundle import bundle


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("kind", ["jobset", "trainjob"])
def test_the_job_that_is_printed_holds_agent_and_plan_unharmed(kind, as_json):
    words = ["smoke", "--nodes", "4", "--ranks", "8", "--image", "registry.example/cell:1", "--emit", kind]

    result = CliRunner().invoke(cli, [*words, *(["--json"] if as_json else [])], catch_exceptions=False)

    job = json.loads(result.stdout)["manifest"] if as_json else result.stdout
    agent, plan = (bz2.decompress(base64.b64decode(text)) for text in re.findall("[A-Za-z0-9+/]{200,}=*", job))
    assert agent == bundle()
    assert json.loads(plan)["ranks"] == 32
