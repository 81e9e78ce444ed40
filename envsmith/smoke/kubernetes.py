"""The smoke test as a Kubernetes job: YAML for a JobSet or for a Kubeflow TrainJob (v2), printed and never submitted. Pure.

Both run the same command in every pod: unpack agent and plan from two variables and become torchrun, which reads PET_* variables. The Trainer sets
those itself; for a JobSet they stand in the pod. Field names follow jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

from envsmith.errors import UsageError
from envsmith.smoke.bundle import bundle
from envsmith.smoke.plan import Plan

KINDS = ("jobset", "trainjob")
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:-]{0,250}(@sha256:[0-9a-f]{64})?")
_PORT = 29500
# A variable must fit into one argument of execve: 128 KiB on Linux (MAX_ARG_STRLEN).
_MAX_VARIABLE = 131072 - 64
_UNPACK = (
    "import base64,os,sys,tempfile,zlib\n"
    "d=tempfile.mkdtemp(prefix='envsmith-')\n"
    "for n,v in (('agent.py','ENVSMITH_AGENT'),('plan.json','ENVSMITH_PLAN')):\n"
    " open(os.path.join(d,n),'wb').write(zlib.decompress(base64.b64decode(os.environ.pop(v))))\n"
    "a=[sys.executable,'-m','torch.distributed.run','--max-restarts','0',os.path.join(d,'agent.py'),'--plan',os.path.join(d,'plan.json')]\n"
    "os.execv(a[0],a)\n"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the YAML is made of. ``gpus`` and ``ranks`` are per node; ``python`` is the interpreter inside the image."""

    image: str
    nodes: int
    ranks: int
    gpus: int = 0
    name: str = "envsmith-smoke"
    namespace: str | None = None
    runtime: str = "torch-distributed"
    python: str = "python"
    seconds: int = 1800

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("namespace", self.namespace), ("runtime", self.runtime)):
            if value is not None and not _LABEL.fullmatch(value):
                raise UsageError(f"{what} {value[:60]!r}: lower-case letters, digits and hyphens, at most 40")
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(
                f"--image {self.image[:80]!r} is no image reference", hint="REGISTRY/NAME:TAG or …@sha256:…"
            )
        if not re.fullmatch(r"[A-Za-z0-9_./-]{1,200}", self.python):
            raise UsageError(f"--python {self.python[:80]!r} is no path of an interpreter")
        for what, number, least in (("nodes", self.nodes, 1), ("ranks", self.ranks, 1), ("gpus", self.gpus, 0)):
            if not least <= number <= 512:
                raise UsageError(f"{what}: {least} to 512, not {number}")


def manifest(kind: str, job: Job, plan: Plan) -> str:
    """The YAML text. Raises :class:`UsageError` for a kind that is not known or a plan that does not fit into a variable."""
    import yaml

    if kind not in KINDS:
        raise UsageError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    if plan.ranks != job.nodes * job.ranks:
        raise UsageError(f"{job.nodes} nodes with {job.ranks} ranks each are not {plan.ranks} ranks")
    row = {**plan.to_json(), "gather": True, "launcher": f"torchrun in a {kind}"}
    variables = {
        "ENVSMITH_AGENT": _packed(bundle()),
        "ENVSMITH_PLAN": _packed(json.dumps(row, separators=(",", ":")).encode()),
    }
    document = _jobset(job, variables) if kind == "jobset" else _trainjob(job, variables)
    digest = hashlib.sha256(bundle()).hexdigest()
    head = (
        f"# The smoke test of envsmith on {job.nodes} nodes, {job.ranks} ranks each. Cases {plan.digest}.\n"
        f"# ENVSMITH_AGENT is agent.py (sha256 {digest}), ENVSMITH_PLAN its plan: base64 of zlib.\n"
        "# The first pod's log has the events of every rank; the job fails when the test does.\n"
    )
    return head + yaml.safe_dump(document, sort_keys=False, width=120)


def _packed(data: bytes) -> str:
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    if len(text) > _MAX_VARIABLE:
        raise UsageError("the plan is too large for a variable", hint="take a smaller tier")
    return text


def _metadata(job: Job) -> dict[str, Any]:
    return {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})}


def _gpus(job: Job) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": job.gpus}} if job.gpus else {}


def _command(job: Job) -> list[str]:
    return [job.python, "-c", _UNPACK]


def _jobset(job: Job, variables: dict[str, str]) -> dict[str, Any]:
    """One replicated job of N indexed pods. The first pod's name comes from JobSet's naming: JOBSET-JOB-INDEX-POD.SUBDOMAIN."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    torchrun = {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.ranks),
        "PET_MASTER_ADDR": f"{job.name}-node-0-0.{job.name}",
        "PET_MASTER_PORT": str(_PORT),
    }
    env: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in {**torchrun, **variables}.items()]
    env.insert(0, {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    container: dict[str, Any] = {
        "name": "node",
        "image": job.image,
        "command": _command(job),
        "env": env,
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - in the pod, not here
    }
    if job.gpus:
        container["resources"] = _gpus(job)
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    spec = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": job.seconds,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}],
        },
    }


def _trainjob(job: Job, variables: dict[str, str]) -> dict[str, Any]:
    """The Trainer's runtime makes the pods and sets torchrun's variables; it also decides about /dev/shm."""
    trainer: dict[str, Any] = {
        "image": job.image,
        "command": _command(job),
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks,
        "env": [{"name": k, "value": v} for k, v in variables.items()],
    }
    if job.gpus:
        trainer["resourcesPerNode"] = _gpus(job)
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": job.runtime,
            },
            "activeDeadlineSeconds": job.seconds,
            "trainer": trainer,
        },
    }
