"""Records and jobs for tests: small, complete, and without anything that a machine decides."""

from __future__ import annotations

from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.model.cell import Cell
from envsmith.model.record import CaseOutcome, Cases, Expected, Failure, Record, Rung, StepOutcome, Verdict


def cell(framework="0.16.4", torch="2.6.0+cu124", python="3.12"):
    cuda = f"{torch.rpartition('cu')[2][:2]}.{torch[-1]}"
    parts = {"deepspeed": framework, "torch": torch, "cuda": cuda, "python": python}
    return Cell(components={**parts, "nccl": "2.21.5"}, chosen=tuple(parts))


def job(expected=Expected.GOOD, **parts):
    return CampaignJob(cell=cell(**parts), expected=expected)


def plan(*jobs, name="test"):
    return CampaignPlan(name=name, exclude_newer="2026-11-20", jobs=jobs)


PASSED = tuple(CaseOutcome(case=f"all_reduce[{n}]", verdict=Verdict.PASS) for n in range(90))


def record(*, passed=True, started="2026-11-21T12:00:00+00:00", symptom="ImportError: no", **more):
    made = more.pop("cell", None) or cell()
    failure = None if passed else Failure(rung=Rung.IMPORTED, symptom=symptom, log=("a", "b"))
    rungs = list(Rung)[:6] if passed else list(Rung)[:3]
    values = {
        "cell": str(made.id),
        "components": made.components,
        "lock": "sha256:" + "a" * 64,
        "engine": "venv",
        "environment": "sha256:" + "b" * 64,
        "rungs": tuple(rungs),
        "passed": passed,
        "summary": "all good" if passed else symptom,
        "started": started,
        "seconds": {"lock": 1.23456},
        "host": {"cpus": 2, "memory_bytes": 1, "gpus": [], "hostname": "secret"},
        "loaded": {"torch": "2.6.0", "has_gloo": True},
        "backend": "gloo",
        "ranks": 2,
        "cases": Cases.of(more.pop("cases", PASSED), "sha256:" + "c" * 64),
        "steps": (StepOutcome(name="deepspeed zero-2 fp32", verdict=Verdict.PASS, seconds=1.0, detail="fine"),),
        "failure": failure,
        **more,
    }
    return Record(**values)
