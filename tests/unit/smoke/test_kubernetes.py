"""The YAML of a JobSet and a TrainJob: its fields against the CRDs, hostile values, and that the command in it really runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsmith.errors import UsageError
from envsmith.smoke.bundle import bundle
from envsmith.smoke.kubernetes import KINDS, KubernetesJob, manifest
from envsmith.smoke.plan import Plan

CASES = Path(__file__).parents[2] / "cases" / "kubernetes"
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def _problems(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """A small reader of openAPIV3Schema that, unlike the API server, takes an unknown field for an error."""
    kind = schema.get("type", "any")
    if schema.get("x-kubernetes-int-or-string"):
        return [] if isinstance(value, (int, str)) else [f"{where}: integer or string"]
    if kind in TYPES and (not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        return [f"{where}: {kind} is due, not {value!r}"]
    found = []
    if isinstance(value, dict):
        found += [f"{where}.{key} is missing" for key in schema.get("required", ()) if key not in value]
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        for key, item in value.items():
            if properties and key in properties:
                found += _problems(item, properties[key], f"{where}.{key}")
            elif isinstance(more, dict):
                found += _problems(item, more, f"{where}.{key}")
            elif properties is not None and not more:
                found.append(f"{where}.{key} is not a field")
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            found.append(f"{where}: more than {schema['maxItems']} items")
        for number, item in enumerate(value):
            found += _problems(item, schema.get("items", {}), f"{where}[{number}]")
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        found.append(f"{where}: longer than {schema['maxLength']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: not one of {schema['enum']}")
    return found


def _plan(ranks: int = 16) -> Plan:
    return Plan.build({}, ranks=ranks, steps=False).with_(nodes=2)


def _job(**changes: Any) -> KubernetesJob:
    return KubernetesJob(**{"image": "registry.example/cell:1", "nodes": 2, "ranks": 8, "gpus": 8, **changes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"gpus": 0}, {"namespace": "training"}, {"rdma": "rdma/hca_shared_devices_a"}])
def test_every_field_is_one_of_the_custom_resource(kind: str, changes: dict[str, Any]) -> None:
    case = json.loads((CASES / f"{kind}.json").read_text())
    document = yaml.safe_load(manifest(kind, _job(**changes), _plan()))
    assert document["apiVersion"] == f"{case['group']}/{case['version']}"
    assert document["kind"] == case["kind"]
    assert _problems(document, case["schema"], kind) == []


def test_the_reader_of_schemas_sees_what_is_wrong() -> None:
    schema = json.loads((CASES / "jobset.json").read_text())["schema"]
    document = yaml.safe_load(manifest("jobset", _job(), _plan()))
    document["spec"]["replicatedJobs"][0]["template"]["spec"]["completionsMode"] = "Indexed"
    document["spec"]["replicatedJobs"][0]["replicas"] = "one"
    del document["spec"]["replicatedJobs"][0]["name"]
    assert len(_problems(document, schema, "jobset")) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "x; rm -rf /"},
        {"image": "x\ny"},
        {"image": ""},
        {"image": "a" * 300},
        {"name": "Bad_Name"},
        {"name": "a" * 41},
        {"namespace": "a\nkind: Secret"},
        {"runtime": "../x"},
        {"python": "python; id"},
        {"nodes": 0},
        {"gpus": -1},
        {"ranks": 1000},
    ],
)
def test_hostile_values_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _job(**changes)


def test_ranks_must_fit_and_the_kind_must_be_known() -> None:
    with pytest.raises(UsageError):
        manifest("jobset", _job(), _plan(4))
    with pytest.raises(UsageError):
        manifest("pod", _job(), _plan())


def _container(kind: str) -> dict[str, Any]:
    spec = yaml.safe_load(manifest(kind, _job(), _plan()))["spec"]
    if kind == "trainjob":
        return dict(spec["trainer"])
    return dict(spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_command_unpacks_agent_and_plan_and_becomes_torchrun(kind: str, tmp_path: Path) -> None:
    """With a stand-in for torch that prints what it was started with."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "run.py").write_text(
        "import json,os,sys\n"
        "print(json.dumps({'argv': sys.argv[1:], 'agent': open(sys.argv[3]).read(), 'plan': json.load(open(sys.argv[5])),"
        " 'left': [k for k in os.environ if k.startswith('ENVSMITH_')]}))\n"
    )
    container = _container(kind)
    env = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    assert all(len(f"{k}={v}") < 131072 for k, v in env.items())
    done = subprocess.run(
        [sys.executable, *container["command"][1:]],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**env, "PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
    )
    seen = json.loads(done.stdout)
    assert seen["agent"] == bundle().decode()
    assert seen["plan"]["digest"] == _plan().digest
    assert seen["plan"]["gather"] is True
    assert seen["left"] == []
    assert seen["argv"][:2] == ["--max-restarts", "0"]


def test_jobset_tells_torchrun_who_is_who() -> None:
    env = {e["name"]: e for e in _container("jobset")["env"]}
    assert env["PET_MASTER_ADDR"]["value"] == "envsmith-smoke-node-0-0.envsmith-smoke"
    assert (
        env["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
        == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    )
    assert (env["PET_NNODES"]["value"], env["PET_NPROC_PER_NODE"]["value"]) == ("2", "8")


def test_head_names_the_agent_by_its_hash() -> None:
    assert re.search(r"agent\.py \(sha256 [0-9a-f]{64}\)", manifest("jobset", _job(), _plan()))


def test_pods_get_infiniband_cards_and_may_lock_their_buffers() -> None:
    document = yaml.safe_load(manifest("jobset", _job(rdma="nvidia.com/hostdev=8"), _plan()))
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8, "nvidia.com/hostdev": 8}}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


def test_a_trainjob_asks_for_the_cards_and_says_where_the_capability_goes() -> None:
    text = manifest("trainjob", _job(rdma="rdma/hca_shared_devices_a"), _plan())
    trainer = yaml.safe_load(text)["spec"]["trainer"]
    assert trainer["resourcesPerNode"]["limits"]["rdma/hca_shared_devices_a"] == 1
    assert "IPC_LOCK: give it to the container in the runtime torch-distributed" in text


@pytest.mark.parametrize("rdma", ["hca", "a/b=0", "a/b: 1\n", "a/b=1=2", "-/b", "a/" + "b" * 80])
def test_a_resource_that_is_none_is_refused(rdma: str) -> None:
    with pytest.raises(UsageError, match="Cannot ask for the resource"):
        _job(rdma=rdma)
