"""Over environments sampled from the real knowledge: a repair leaves nothing behind that is as grave as what it mends."""

from __future__ import annotations

import random

import pytest

from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.rule import Severity
from envsmith.solver import check, default_solver


def some(count, *, few):
    """Return the seeds of ``make slow``, the first ``few`` of them also in ``make test``."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, count))]


SHARES = {
    "torch": 0.9,
    "deepspeed": 0.35,
    "megatron-core": 0.35,
    "colossalai": 0.35,
    "python": 0.4,
    "cuda": 0.2,
    "nccl": 0.15,
    "cudnn": 0.1,
    "triton": 0.15,
    "driver": 0.3,
    "gpu": 0.4,
    "toolkit": 0.4,
    "gcc": 0.1,
    "transformers": 0.2,
    "numpy": 0.15,
}


def environment(seed):
    """A set as people have it: some components, torch with its build or without, one part in ten absent."""
    dice, versions = random.Random(seed), default_solver().compiled.versions
    stated = {}
    for name, share in SHARES.items():
        if dice.random() < share:
            version = dice.choice(versions[name])
            stated[name] = version.partition("+")[0] if name == "torch" and dice.random() < 0.6 else version
            if name in ("gpu", "driver", "toolkit", "nccl") and dice.random() < 0.1:
                stated[name] = "none"
    return stated, dice.choice([*[Platform.LINUX_64] * 5, Platform.LINUX_AARCH64])


def with_companions(seed):
    """A set of torch or a framework, and two to five companions of any age."""
    dice, compiled = random.Random(seed), default_solver().compiled
    companions = [n for n, role in compiled.roles.items() if role is Role.COMPANION and compiled.versions.get(n)]
    names = [*dice.sample(["torch", "deepspeed", "megatron-core"], 2), *dice.sample(companions, dice.randint(2, 5))]
    return {name: dice.choice(compiled.versions[name]) for name in names}


@pytest.mark.parametrize("seed", some(60, few=20))
def test_repair_of_what_companions_declare_leaves_no_error_behind(seed):
    stated = with_companions(seed)
    repair = check(stated).repair
    if repair is None:
        return
    changes = {change.component: change.new for change in repair.changes}
    mended = {name: version for name, version in {**stated, **changes}.items() if version is not None}

    assert check(mended).status != "bad", (stated, changes)


@pytest.mark.parametrize("seed", some(150, few=40))
def test_repair_leaves_no_error_behind(seed):
    stated, platform = environment(seed)
    repair = check(stated, platform).repair
    if repair is None:
        return
    changes = {change.component: change.new for change in repair.changes}
    mended = {name: version for name, version in {**stated, **changes}.items() if version is not None}

    after = check(mended, platform)

    assert not [f.message for f in after.findings if f.severity is Severity.ERROR], (stated, changes)
