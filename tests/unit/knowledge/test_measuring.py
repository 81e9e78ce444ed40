"""The measuring script: how it reads environments, when it counts a record as caught."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CASES = json.loads((Path(__file__).resolve().parents[2] / "cases" / "knowledge" / "environments.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[c["name"].replace(" ", "-") for c in CASES])
def test_environment_is_read_as_people_write_it(bench, case):
    told = bench.read_env(case["env"])
    bench.add_culprit(told, case.get("culprit", {}))
    assert (told.sets() if told.versions else []) == case["sets"]


def record(env, culprit, cause="torch-six-removed"):
    return {"env": env, "culprit": culprit, "cause_key": cause, "framework": "DeepSpeed"}


def test_record_is_caught_by_the_environment_alone_when_it_says_enough(bench):
    env = {"framework": "deepspeed", "framework_version": "0.8.1", "torch": "2.0.1"}
    row = bench.judge(record(env, {"deepspeed": "<=0.8.1", "torch": ">=2.0"}))
    assert (row.env, row.filled, row.error, row.exact) == ("deepspeed-torch-six", "deepspeed-torch-six", True, True)


def test_thin_environment_is_caught_only_with_what_the_culprit_adds(bench):
    row = bench.judge(record({"torch": "2.0.1"}, {"deepspeed": "<=0.8.1", "torch": ">=2.0"}))
    assert (row.env, row.filled) == (None, "deepspeed-torch-six")


def test_finding_that_names_one_of_two_culprits_does_not_count(bench):
    env = {"framework": "deepspeed", "framework_version": "0.8.1", "torch": "2.0.1", "transformers": "4.30.0"}
    assert bench.judge(record(env, {"transformers": "4.30.0", "torch": ">=2.0"})).filled is None


def test_release_that_nobody_told_is_that_of_the_day_or_one_that_the_rule_of_this_cause_knows(bench):
    told = record({"torch": "2.6"}, {"torch": ">=2.6"}, cause="torch26-weights-only-default")
    row = bench.judge(told | {"date": "2024-10-01"})
    assert (row.env, row.filled, row.how) == (None, "deepspeed-weights-only", "newest release of the day")
    row = bench.judge(told | {"date": "2026-10-01"})
    assert row.filled == "deepspeed-weights-only"
    assert row.how.startswith("some release of deepspeed")


def test_release_that_is_tried_counts_only_with_the_cause_of_the_record(bench):
    row = bench.judge(record({"torch": "2.6"}, {"torch": ">=2.6"}, cause="not-known"))
    assert row.filled is None


def test_set_without_a_rule_says_so(bench):
    row = bench.judge(record({"torch": "2.6"}, {"transformers": "4.50.0", "torch": "2.6"}, cause="not-known"))
    assert row.reason == "no rule"


@pytest.mark.parametrize(
    ("env", "culprit", "wanted", "rule"),
    [
        ({"CUDA_HOME": ":/usr/local/cuda"}, "CUDA_HOME environment variable", {"CUDA_HOME"}, "cuda-home-list"),
        ({}, "docker without --shm-size", {"limit.shm"}, "shm-small"),
        ({}, "RLIMIT_MEMLOCK too low", {"limit.memlock"}, "memlock-low"),
        ({}, "no passwordless ssh between the nodes", {"ssh"}, "ssh-refused"),
        ({"framework": "deepspeed"}, "WORLD_SIZE not set", {"WORLD_SIZE"}, "rank-variables-unset"),
        ({"framework": "deepspeed"}, "ninja not installed", {"ninja"}, "ninja-absent"),
        ({"framework": "deepspeed"}, "pdsh missing", {"tool.pdsh"}, "tool-absent"),
        ({"framework": "megatron-lm"}, "python3-config is missing", {"tool.python3-config"}, "tool-absent"),
        ({"gpu": "2 x RTX 4090"}, "NCCL_P2P_DISABLE unset", {"NCCL_P2P_DISABLE"}, "gpu-no-p2p"),
        ({}, "NCCL_SOCKET_IFNAME", {"NCCL_SOCKET_IFNAME"}, "interface-not-chosen"),
        ({"gcc": "12"}, "libstdc++ < GLIBCXX_3.4.30", {"glibcxx"}, "libstdcxx-too-old"),
        ({"system_cuda": "11.7"}, "cuda toolkit 11.7 + compute_90", {"toolkit", "gpu"}, "toolkit-gpu-min"),
        ({"system_cuda": "11.7", "gpu": "A100"}, "toolkit 11.7 + compute_90", {"toolkit", "gpu"}, "arch-list-toolkit"),
    ],
)
def test_culprit_in_prose_is_a_fact_and_the_finding_must_name_it(bench, env, culprit, wanted, rule):
    row = bench.judge(record(env, {"component": culprit}))
    assert (row.wanted, row.filled) == (frozenset(wanted), rule)


def test_culprit_that_names_nothing_is_missed(bench):
    row = bench.judge(record({}, {"component": "examples/requirements.txt"}))
    assert (row.wanted, row.filled, row.reason) == (frozenset(), None, "the culprit names no component and no fact")


def test_torch_and_its_cuda_count_as_one_culprit(bench):
    assert bench.culprits({"culprit": {"component": "nvcc 12.1 vs torch cu117"}}) == {"toolkit", "torch"}


KEYS = [
    "torch",
    "torch_cuda",
    "system_cuda",
    "gpu",
    "gpu_arch",
    "gcc",
    "driver",
    "python",
    "framework",
    "framework_version",
    "numpy",
    "os",
    "odd",
]
TEXTS = st.one_of(
    st.text(max_size=30),
    st.from_regex(
        r"([<>=!~]{0,2}[0-9]{1,3}(\.[0-9x]{1,3}){0,3}[ ,/+-]{0,2}(cu121|nightly|dev|a0|\(conda\))?){1,3}",
        fullmatch=True,
    ),
    st.integers(),
    st.lists(st.text(max_size=5), max_size=2),
    st.none(),
)


# Where nothing is found, every release that could be meant is tried: a second for each example.
@settings(deadline=None, max_examples=int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "6")))
@given(
    env=st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=5),
    culprit=st.dictionaries(
        st.sampled_from(["torch", "deepspeed", "component", "range", "gpu_arch", "else"]), TEXTS, max_size=3
    ),
)
def test_whatever_a_record_says_is_judged_without_a_crash(bench, env, culprit):
    row = bench.judge({"env": env, "culprit": culprit, "cause_key": "any", "framework": "DeepSpeed"})
    assert row.filled is None or row.filled in {f.rule for f in row.findings}
