"""The smoke test as a Kubernetes job: YAML for a JobSet or for a Kubeflow TrainJob (v2), printed and never submitted.

Pure. Both run the same command in every pod: unpack agent and plan from two variables and become torchrun, which reads
PET_* variables. The Trainer sets those itself; for a JobSet they stand in the pod. Field names follow
jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1.
"""

from __future__ import annotations

import base64
import bz2
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from envsmith.base.json_types import JsonDict
from envsmith.errors import DataError, UsageError
from envsmith.smoke.bundle import bundle
from envsmith.smoke.events import Events
from envsmith.smoke.nodes import with_nodes
from envsmith.smoke.parse_events import parse_events
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge_events

# An object of Kubernetes as YAML writes it.
Manifest: TypeAlias = JsonDict
KINDS = ("jobset", "trainjob")
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:-]{0,250}(@sha256:[0-9a-f]{64})?")
_RESOURCE = re.compile(r"([a-z0-9]([a-z0-9.-]{0,100}[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9_.-]{0,62})(?:=([1-9]\d?))?")
_PORT = 29500
# A variable must fit into one argument of execve: 128 KiB on Linux (MAX_ARG_STRLEN).
_MAX_VARIABLE = 131072 - 64
_UNPACK = (
    "import base64,bz2,os,sys,tempfile\n"
    "d=tempfile.mkdtemp(prefix='envsmith-')\n"
    "for n,v in (('agent.py','ENVSMITH_AGENT'),('plan.json','ENVSMITH_PLAN')):\n"
    " open(os.path.join(d,n),'wb').write(bz2.decompress(base64.b64decode(os.environ.pop(v))))\n"
    "a=[sys.executable,'-m','torch.distributed.run','--max-restarts','0',os.path.join(d,'agent.py'),"
    "'--plan',os.path.join(d,'plan.json')]\n"
    "os.execv(a[0],a)\n"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesJob:
    """What the YAML is made of. ``gpus`` and ``ranks`` are per node; ``python`` is the interpreter inside the image.

    ``rdma`` is the resource by which the cluster hands out InfiniBand cards, ``NAME`` or ``NAME=COUNT``.
    """

    image: str
    nodes: int
    ranks: int
    gpus: int = 0
    name: str = "envsmith-smoke"
    namespace: str | None = None
    runtime: str = "torch-distributed"
    python: str = "python"
    seconds: int = 1800
    rdma: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("namespace", self.namespace), ("runtime", self.runtime)):
            if value is not None and not _LABEL.fullmatch(value):
                raise UsageError(
                    f"Cannot use the {what} {value[:60]!r}: Kubernetes allows lower-case letters, digits and "
                    "hyphens, at most 40."
                )
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(
                f"Cannot use --image {self.image[:80]!r}: it is not an image reference.",
                hint="Write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:….",
            )
        if self.rdma is not None and not _RESOURCE.fullmatch(self.rdma):
            raise UsageError(
                f"Cannot ask for the resource {self.rdma[:80]!r}: it is not a resource of Kubernetes.",
                hint="Write DOMAIN/NAME or DOMAIN/NAME=COUNT, as in rdma/hca_shared_devices_a=1. List those of a "
                "node with: kubectl describe node.",
            )
        if not re.fullmatch(r"[A-Za-z0-9_./-]{1,200}", self.python):
            raise UsageError(f"Cannot use --python {self.python[:80]!r}: it is not the path of an interpreter.")
        for what, number, least in (("nodes", self.nodes, 1), ("ranks", self.ranks, 1), ("gpus", self.gpus, 0)):
            if not least <= number <= 512:
                raise UsageError(f"Cannot use {number} {what}: {least} to 512 are possible.")


def manifest(kind: str, job: KubernetesJob, plan: Plan) -> str:
    """Return the YAML text.

    Raises :class:`UsageError` for a kind that is not known or a plan that does not fit into a variable.
    """
    import yaml

    if kind not in KINDS:
        raise UsageError(
            f"Cannot write a job of kind {kind!r}: envsmith does not know it.", hint=f"Use one of: {', '.join(KINDS)}."
        )
    if plan.ranks != job.nodes * job.ranks:
        raise UsageError(
            f"Cannot write the job: {job.nodes} nodes with {job.ranks} ranks each are not {plan.ranks} ranks."
        )
    row = {**plan.to_json(), "gather": True, "launcher": f"torchrun in a {kind}"}
    variables = {
        "ENVSMITH_AGENT": _packed(bundle()),
        "ENVSMITH_PLAN": _packed(json.dumps(row, separators=(",", ":")).encode()),
    }
    document = _jobset(job, variables) if kind == "jobset" else _trainjob(job, variables)
    digest = hashlib.sha256(bundle()).hexdigest()
    head = (
        f"# The smoke test of envsmith on {job.nodes} nodes, {job.ranks} ranks each. Cases {plan.digest}.\n"
        f"# ENVSMITH_AGENT is agent.py (sha256 {digest}), ENVSMITH_PLAN its plan: base64 of bzip2.\n"
        "# The first pod's log has the events of every rank; the job fails when the test does.\n"
    )
    if job.rdma and kind == "trainjob":
        head += f"# InfiniBand needs the capability IPC_LOCK: give it to the container in the runtime {job.runtime}.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120)


def _packed(data: bytes) -> str:
    text = base64.b64encode(bz2.compress(data)).decode()
    if len(text) > _MAX_VARIABLE:
        raise UsageError("Cannot write the job: its plan is too large for a variable.", hint="Use a smaller tier.")
    return text


def _metadata(job: KubernetesJob) -> Manifest:
    return {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})}


def _resources(job: KubernetesJob) -> Manifest:
    limits: dict[str, int] = {"nvidia.com/gpu": job.gpus} if job.gpus else {}
    if job.rdma and (resource := _RESOURCE.fullmatch(job.rdma)):
        limits[resource[1]] = int(resource[3] or 1)
    return {"limits": limits} if limits else {}


def _command(job: KubernetesJob) -> list[str]:
    return [job.python, "-c", _UNPACK]


def _jobset(job: KubernetesJob, variables: dict[str, str]) -> Manifest:
    """Return one replicated job of N indexed pods.

    The first pod's name comes from JobSet's naming: JOBSET-JOB-INDEX-POD.SUBDOMAIN.
    """
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    torchrun = {
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.ranks),
        "PET_MASTER_ADDR": f"{job.name}-node-0-0.{job.name}",
        "PET_MASTER_PORT": str(_PORT),
    }
    env: list[Manifest] = [{"name": k, "value": v} for k, v in {**torchrun, **variables}.items()]
    env.insert(0, {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}})
    container: Manifest = {
        "name": "node",
        "image": job.image,
        "command": _command(job),
        "env": env,
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - in the pod, not here
    }
    if resources := _resources(job):
        container["resources"] = resources
    if job.rdma:
        # The cards' buffers are locked in memory, which a container may not do beyond its limit.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    pod: JsonDict = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    spec: JsonDict = {
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


def _trainjob(job: KubernetesJob, variables: dict[str, str]) -> Manifest:
    """Return a job for the Trainer. Its runtime makes the pods, sets torchrun's variables and sizes /dev/shm."""
    trainer: Manifest = {
        "image": job.image,
        "command": _command(job),
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks,
        "env": [{"name": k, "value": v} for k, v in variables.items()],
    }
    if resources := _resources(job):
        trainer["resourcesPerNode"] = resources
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": job.runtime},
            "activeDeadlineSeconds": job.seconds,
            "trainer": trainer,
        },
    }


# The verdict of a run from the logs of its pods: what `kubectl logs` prints, or any file that the lines of the agent
# are in. The pods exchange their events, so that a single log may be enough.


def plan_of(log: Events) -> Plan:
    """Make the plan that the ranks ran again from what rank 0 said of it. Its cases must be those that the ranks ran.

    Raises :class:`DataError` when the logs hold no such run, or one that this envsmith does not know.
    """
    summary = log.hello.plan if log.hello else None
    if summary is None:
        raise DataError(
            "Cannot read the logs: they do not say of which run they are.",
            hint='Give the logs of all pods from their beginning: the line of rank 0 that begins with {"event":"hello" is missing.',
        )
    loaded = log.loaded
    versions = {"torch": loaded.torch, "python": loaded.python, "cuda": loaded.cuda, "nccl": loaded.nccl}
    versions = {name: version for name, version in versions.items() if version}
    try:
        plan = Plan.build(
            versions, tier=summary.tier, ranks=summary.ranks, backend=summary.backend, engine=summary.engine,
            steps=False,
        ).with_(nodes=summary.nodes)  # fmt: skip
    except UsageError as error:
        raise DataError(f"Cannot read the logs: their run is not possible ({error.message.rstrip('.')}).") from None
    if plan.digest != summary.digest:
        raise DataError(
            f"Cannot read the logs: their cases ({summary.digest[:26]}…) are not those of the "
            f"{plan.tier.value} tier of this envsmith.",
            hint="Read them with the envsmith that made the job.",
        )
    return plan


def result_of(events: Iterable[object]) -> SmokeResult:
    """Return the verdict, with the node beside the rank that is blamed. Raises as :func:`plan_of`."""
    log = parse_events(events)
    return with_nodes(judge_events(plan_of(log), log), log)
