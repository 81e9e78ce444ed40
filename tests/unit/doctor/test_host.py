"""What doctor finds on a machine whose GPUs are not well."""

from __future__ import annotations

import json

DOCTOR = """
import json
from envsmith.doctor.facts import Draft
from envsmith.doctor.host import gpus
from envsmith.doctor.rules import judge_setup
draft = Draft()
gpus(draft)
print(json.dumps([[d.finding.rule, d.finding.severity.value, d.finding.message, d.finding.fix] for d in judge_setup(draft.done())]))
"""


def test_a_sick_gpu_is_a_finding_with_what_to_type(on_gpus) -> None:
    rows = json.loads(on_gpus("gpus 2\nlinks 0 18\nlinks 1 17\nfield 1 230 1\nfield 0 144 1\n", DOCTOR))
    health = {rule: (severity, message, fix) for rule, severity, message, fix in rows}
    severity, message, fix = health["gpu-needs-recovery"]
    assert (severity, message) == ("error", "GPU 1: asks for a reset.")
    assert "nvidia-smi --gpu-reset -i 1" in fix
    assert health["row-remap-pending"][0] == "warning"
    assert health["nvlink-down"][1] == "GPU 1: 17 of its NVLinks are active, the other GPUs have 18."


def test_healthy_gpus_are_no_finding(on_gpus) -> None:
    rows = json.loads(on_gpus("gpus 2\nlinks 0 18\nlinks 1 18\nfield 1 230 0\nfield 0 144 0\nfield 0 4 0\n", DOCTOR))
    assert rows == []
