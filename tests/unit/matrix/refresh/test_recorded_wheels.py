"""``releases/torch.yaml`` says what the wheels say: every default build, against METADATA recorded from the published files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from envsmith.base.schema import parse_value
from envsmith.lock.index.torch_wheel import TorchFacts
from envsmith.matrix.refresh.torch_releases import record_facts, torch_record

ROOT = Path(__file__).parents[4]
RECORD = ROOT / "tests" / "cases" / "wheels" / "torch.json"
WHEELS = [parse_value(TorchFacts, w) for w in json.loads(RECORD.read_text(encoding="utf-8"))["wheels"]]
BUILDS = yaml.load((ROOT / "matrix/releases/torch.yaml").read_text(encoding="utf-8"), yaml.BaseLoader)["builds"]
TRITON = [
    r["version"] for r in yaml.safe_load((ROOT / "matrix/releases/triton.yaml").read_text(encoding="utf-8"))["releases"]
]
DEFAULT = {b["sha256"]: b for b in BUILDS if b["index"] == "default"}


def _plain(value):
    """Booleans as YAML's BaseLoader gives them: text."""
    return str(value).lower() if isinstance(value, bool) else value


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda w: f"{w.version}-{w.platform}")
def test_the_line_of_a_build_equals_what_its_wheel_says(wheel):
    line = {k: v for k, v in DEFAULT[wheel.sha256].items() if k not in {"evidence", "evidence_of", "yanked"}}
    assert line == {k: _plain(v) for k, v in torch_record(wheel, triton=TRITON).items()}


def test_every_default_build_from_1_13_on_was_measured():
    assert sorted(DEFAULT) == sorted(w.sha256 for w in WHEELS)
    assert len(DEFAULT) == len([b for b in BUILDS if b["index"] == "default"]) >= 60
    assert {w.version for w in WHEELS} >= {"1.13.0", "2.0.1", "2.6.0", "2.10.0", "2.15.0"}


def test_the_record_is_spelt_as_the_updater_writes_it():
    assert record_facts(WHEELS) == RECORD.read_text(encoding="utf-8")


def test_a_changed_fact_would_be_noticed():
    wheel = next(w for w in WHEELS if w.version == "2.9.1" and w.platform == "linux-64")
    line = torch_record(wheel, triton=TRITON)
    assert (line["nccl"], line["gpu"][0], line["cuda"]) == ("2.27.5", "sm_70", "12.8")
    from dataclasses import replace

    other = torch_record(replace(wheel, arch_flags=("sm_80", "compute_90")), triton=TRITON)
    assert (other["gpu"], other["ptx"]) == (["sm_80"], ["compute_90"])
