"""What is stated beside versions, by `--fact`, `--env` or as JSON: understood, judged, or refused with a hint."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.cli.check import check as check_command
from envsmith.doctor.facts import Draft
from envsmith.doctor.rules import rule_book
from envsmith.doctor.stated_environment import check_environment, read_environment, read_fact, read_variable
from envsmith.doctor.vocabulary import words
from envsmith.errors import EnvsmithError, UsageError
from envsmith.knowledge.graph.load import knowledge


def judged(given, *, facts=(), env=()):
    draft = Draft()
    for text in facts:
        key, _, value = text.partition("=")
        read_fact(draft, key, value)
    for text in env:
        read_variable(draft, text)
    return check_environment(given, draft)


def graves(judgement):
    return {f.rule: f.severity.value for f in judgement.findings if f.severity.value != "note"}


@pytest.mark.parametrize(
    ("given", "facts", "env", "rules"),
    [
        ({"deepspeed": "*"}, (), ("RANK", "WORLD_SIZE"), {"rank-variables-unset": "warning"}),
        ({"deepspeed": "*", "mpi4py": "none"}, (), ("RANK",), {"rank-variables-unset": "error"}),
        ({"deepspeed": "0.16.0", "mpi4py": "4.0.0"}, (), ("RANK",), {}),
        ({"deepspeed": "*"}, (), ("RANK=0", "WORLD_SIZE=1"), {}),
        ({}, ("ssh=refused",), (), {"ssh-refused": "warning"}),
        ({}, ("ssh=refused", "launcher=pdsh"), (), {"ssh-refused": "error"}),
        ({}, ("ssh=ok",), (), {}),
        ({}, ("hostname=loopback",), (), {"hostname-unresolved": "warning"}),
        ({}, ("nodes=2",), ("GLOO_SOCKET_IFNAME",), {"interface-not-chosen": "warning"}),
        ({}, ("nodes=1",), ("GLOO_SOCKET_IFNAME",), {}),
        ({}, ("nodes=2",), ("GLOO_SOCKET_IFNAME=eth0",), {}),
        ({"megatron-core": "*"}, (), ("CUDA_DEVICE_MAX_CONNECTIONS",), {"max-connections-unset": "warning"}),
        ({"deepspeed": "*"}, ("extensions_cache=stale",), (), {"extensions-cache-stale": "warning"}),
        ({"gcc": "11.4.0"}, ("glibcxx=3.4.28",), (), {"libstdcxx-too-old": "warning"}),
        ({"gcc": "9.4.0"}, ("glibcxx=3.4.28",), (), {}),
        ({"deepspeed": "0.14.3"}, ("library.libcurand=none",), (), {"curand-not-on-link-path": "warning"}),
        ({"deepspeed": "0.15.0"}, ("cuda_home.lib64=no",), (), {}),
        ({"deepspeed": "0.5.1"}, ("library.libcurand=none",), (), {}),
        ({"transformer-engine": "2.4.0"}, ("library.cudnn=none",), (), {"cudnn-not-on-link-path": "warning"}),
        ({"transformer-engine": "2.4.0"}, ("library.libcudnn=/usr/lib/libcudnn.so.9",), (), {}),
        ({"torch": "2.4.1"}, ("tool.which=none",), (), {"tool-absent": "warning"}),
        ({"torch": "2.5.1"}, ("tool.which=none",), (), {}),
        ({"deepspeed": "0.15.1", "torch": "none"}, ("os=Windows",), (), {"torch-absent": "error"}),
        ({"apex": "*"}, ("module.amp_C=none",), (), {"apex-python-only": "warning"}),
        ({"torch": "2.1.1", "flash-attn": "*"}, ("built_for.flash-attn=2.0",), (), {"built-for-other-torch": "error"}),
        ({"torch": "2.1.1", "flash-attn": "*"}, ("built_for.flash-attn=2.1.2",), (), {}),
        ({"colossalai": "0.2.8"}, ("checkout.colossalai=0.3.0",), (), {"checkout-differs": "warning"}),
        ({"colossalai": "0.3.0"}, ("checkout.colossalai=0.3.0",), (), {}),
        ({"toolkit": "11.7"}, (), ("TORCH_CUDA_ARCH_LIST=8.0;9.0",), {"arch-list-toolkit": "error"}),
        ({"toolkit": "11.8"}, (), ("TORCH_CUDA_ARCH_LIST=8.0;9.0",), {}),
        ({"accelerate": "0.12.0"}, (), ("CUDA_VISIBLE_DEVICES=2,4",), {"visible-devices-and-accelerate": "warning"}),
        ({"accelerate": "0.13.0", "torch": "1.13.1"}, (), ("CUDA_VISIBLE_DEVICES=2,4",), {}),
        ({}, ("ranks=4", "gpu_count=2"), (), {"more-ranks-than-gpus": "error"}),
        ({}, ("gpus=8 x H100", "ranks=8"), (), {}),
        ({"gpu": "sm_70"}, ("config.bf16.enabled=true",), (), {"bf16-on-old-gpu": "error"}),
        (
            {"deepspeed": "0.18.4"},
            ("config.fp16.enabled=1", "config.bf16.enabled=1"),
            (),
            {"mixed-precision-options": "error"},
        ),
        ({}, ("toolkit_vendor=nvhpc",), (), {"nvhpc-on-path": "warning"}),
        ({}, ("limit.shm=64M", "limit.memlock=unlimited", "limit.nofile=65536"), (), {"shm-small": "warning"}),
        (
            {"triton": "3.5.0", "megatron-core": "0.15.0"},
            (),
            ("TRITON_CACHE_MANAGER=megatron.core.ssm.triton_cache_manager:ParallelFileCacheManager",),
            {"triton-cache-manager": "error"},
        ),
    ],
)
def test_stated_fact_is_judged(given, facts, env, rules):
    found = judged(given, facts=facts, env=env)
    assert graves(found) == rules
    assert found.status == ("bad" if "error" in rules.values() else found.status)


def test_programs_with_one_purpose_are_one_finding_that_names_them_all():
    found = judged({"megatron-core": "0.15.0", "pybind11": "none"}, facts=("tool.python3-config=none",))
    (finding,) = [f for f in found.findings if f.rule == "tool-absent"]
    assert set(finding.components) == {"pybind11", "tool.python3-config", "megatron-core"}


def test_build_tag_of_a_wheel_says_for_which_torch_it_is():
    found = judged({"torch": "2.1.1", "flash-attn": "2.5.8+cu122torch2.0cxx11abiFALSE"})
    assert "built-for-other-torch" in graves(found)
    assert found.status == "bad"


def test_judging_leaves_the_draft_as_it_was():
    draft = Draft()
    read_fact(draft, "tool.ninja", "none")
    check_environment({"deepspeed": "0.15.0"}, draft)
    assert draft.done().components == {}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("bogus", "1", "no fact has this form"),
        ("ssh", "maybe", "none of ok, refused"),
        ("nodes", "0", "not a number above zero"),
        ("limit.shm", "much", "no fact has this form"),
        ("limit.stack", "8M", "no fact has this form"),
        ("built_for.unheard-of", "2.0", "no fact has this form"),
        ("glibcxx", "six", "no fact has this form"),
        ("tool.", "none", "no fact has this form"),
        ("tool.a b", "none", "no fact has this form"),
        ("gpus", "", "no value"),
    ],
)
def test_fact_that_is_not_understood_is_a_usage_error_with_a_hint(key, value, told):
    with pytest.raises(UsageError, match=told):
        read_fact(Draft(), key, value)


def test_variable_without_a_name_is_refused():
    with pytest.raises(UsageError, match="not NAME=VALUE"):
        read_variable(Draft(), "1X=2")


def test_environment_as_json_is_the_same_as_the_options():
    draft = Draft()
    text = json.dumps(
        {
            "components": {"megatron-lm": "0.7.0", "apex": "none", "torch": "*"},
            "variables": {"NCCL_DEBUG": "INFO", "RANK": None},
            "facts": {"nodes": 2, "tool.which": None, "limit.shm": "64M"},
        }
    )
    assert read_environment(text, draft, "f") == {"megatron-core": "0.7.0", "apex": "none", "torch": "*"}
    facts = draft.done()
    assert dict(facts.variables) == {"NCCL_DEBUG": "INFO"}
    assert (facts.host["unset"], facts.host["nodes"], facts.tools, facts.limits) == (
        "RANK",
        "2",
        {"which": None},
        {"shm": 64 << 20},
    )


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "{broken", '{"kind": "x"}', '{"components": {}, "more": 1}', "torch==2.6.0"]
)
def test_other_texts_are_left_to_the_other_readers(text):
    assert read_environment(text, Draft(), "f") is None


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"components": []}, "Cannot read components of f: it is not an object"),
        ({"components": {"torch": 2.6}}, "components.torch"),
        ({"variables": {"A": 1}}, "variables.A"),
        ({"facts": {"nodes": True}}, "facts.nodes"),
        ({"facts": {"ssh": "maybe"}}, "facts. ssh"),
    ],
)
def test_wrong_json_is_told_with_its_key(data, path):
    with pytest.raises(UsageError) as told:
        read_environment(json.dumps(data), Draft(), "f")
    assert path in told.value.message


def test_command_takes_facts_and_lists_their_keys(tmp_path):
    shown = CliRunner().invoke(check_command, ["--fact", "help"], standalone_mode=False)
    assert all(key in shown.output for key in words().facts)
    file = tmp_path / "env.json"
    file.write_text('{"components": {"deepspeed": "*"}, "variables": {"CUDA_HOME": "/a:/b"}}')
    told = CliRunner().invoke(
        check_command, ["--from", str(file), "--fact", "limit.shm=64M", "--json"], standalone_mode=False
    )
    assert told.return_value == 1
    data = json.loads(told.stdout)
    assert {f["rule"] for f in data["findings"]} == {"cuda-home-list", "shm-small"}


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_whatever_is_stated_is_a_fact_or_a_usage_error(key, value):
    draft = Draft()
    try:
        read_fact(draft, key, value)
        read_variable(draft, f"{key}={value}")
        check_environment({}, draft)
    except EnvsmithError:
        pass


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("container: nvcr.io/nvidia/pytorch:25.09-py3", "25.09"),
        ("container: pytorch-25.11-py3", "25.11"),
        ("FROM nvcr.io/nvidia/pytorch:24.01-py3\nRUN pip install deepspeed\n", "24.01"),
        ("container: pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", None),
        ("container: nvcr.io/nvidia/cuda-dl-base:25.05-cuda12.9-devel-ubuntu24.04", None),
    ],
)
def test_release_of_nvidias_image_is_read_from_its_name(text, version):
    from envsmith.doctor.read import read_texts

    assert read_texts([("t", text)]).version("ngc-pytorch") == version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("container: nvcr.io/nvidia/nemo:25.09", "25.09"),
        ("FROM nvcr.io/nvidia/nemo:24.07.framework\nRUN pip list\n", "24.07"),
        ("container: example.org/nemo:25.09", None),
    ],
)
def test_release_of_nvidias_nemo_image_is_read_from_its_name(text, version):
    from envsmith.doctor.read import read_texts

    assert read_texts([("t", text)]).version("ngc-nemo") == version


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({"ngc-pytorch": "25.12", "torch": "2.10.0a0+b4e4ee81d3.nv25.12"}, {}),
        ({"ngc-pytorch": "25.12", "torch": "2.9.1"}, {"ngc-pytorch-torch": "warning"}),
        ({"ngc-nemo": "25.09", "megatron-core": "0.14.0", "transformer-engine": "2.7.0"}, {}),
        ({"ngc-nemo": "25.09", "megatron-core": "0.13.0"}, {"ngc-nemo-carries": "note"}),
        ({"ngc-nemo": "24.09", "torch": "2.5.1"}, {"ngc-nemo-torch": "warning"}),
    ],
)
def test_what_an_image_carries_is_held_against_the_set(given, rules):
    findings = {f.rule: f.severity.value for f in judged(given).findings}
    assert {rule: found for rule, found in findings.items() if rule.startswith("ngc-")} == rules


@pytest.mark.parametrize(("given", "facts"), [({"toolkit": "none"}, ()), ({}, ("tool.nvcc=none",))])
def test_absent_toolkit_and_absent_nvcc_are_one_thing(given, facts):
    on_gpu = judged({"torch": "2.5.1", "deepspeed": "0.16.4", "gpu": "sm_90", **given}, facts=facts)
    on_any = judged({"torch": "2.5.1", "deepspeed": "0.16.4", **given}, facts=facts)
    on_cpu = judged({"torch": "2.5.1", "deepspeed": "0.16.4", "gpu": "none", **given}, facts=facts)

    assert (on_gpu.status, graves(on_gpu)) == ("bad", {"deepspeed-needs-nvcc-at-import": "error"})
    assert (on_any.status, [f.rule for f in on_any.findings]) == ("ok", ["nvcc-absent"])
    assert (on_cpu.status, on_cpu.findings) == ("ok", ())


DEEPCOMPILE, STAGE_3 = "config.compile.deepcompile=true", "config.zero_optimization.stage=3"
OF_DEEPCOMPILE = {"deepspeed-deepcompile": "error"}


@pytest.mark.parametrize(
    ("given", "facts", "rules", "repaired"),
    [
        ({"torch": "2.8.0", "deepspeed": "0.17.2"}, (DEEPCOMPILE,), OF_DEEPCOMPILE, {"deepspeed"}),
        ({"torch": "2.5.1", "deepspeed": "0.18.4"}, (DEEPCOMPILE,), OF_DEEPCOMPILE, {"torch"}),
        ({"torch": "2.9.1", "deepspeed": "0.18.4"}, (DEEPCOMPILE, STAGE_3), OF_DEEPCOMPILE, {"deepspeed"}),
        ({"torch": "2.3.0", "python": "3.12"}, (DEEPCOMPILE,), {"torch-compile-python": "error"}, {"torch"}),
        ({"torch": "2.9.1", "deepspeed": "0.18.4"}, (DEEPCOMPILE,), {}, None),
        ({"torch": "2.8.0", "deepspeed": "0.17.2"}, ("config.compile.deepcompile=false",), {}, None),
        ({"torch": "2.8.0", "deepspeed": "0.17.2"}, (), {}, None),
    ],
)
def test_stated_feature_makes_an_error_of_what_only_concerns_that_feature(given, facts, rules, repaired):
    judgement = judged(given, facts=facts)

    changes = {change.component for change in judgement.repair.changes} if judgement.repair else None
    assert (graves(judgement), changes) == (rules, repaired)


def test_every_feature_of_a_rule_has_facts_that_show_it():
    named = {row.feature for rule in knowledge().rules for row in rule.rows if row.feature}

    assert named == set(rule_book().features)


@pytest.mark.parametrize("others", [(), ("--fact", "tool.nvcc=none")])
def test_unknown_name_on_the_command_line_is_listed_and_the_rest_judged(others):
    arguments = ["torch==2.9.1", "triton==3.2.0", "foo==1", "--json", "--offline", *others]

    result = CliRunner().invoke(check_command, arguments, standalone_mode=False)

    report = json.loads(result.output)
    assert (result.return_value, report["status"]) == (1, "bad")
    assert report["unknown"] == ["foo 1: envsmith knows no such component"]


def test_unknown_name_alone_is_unknown():
    result = CliRunner().invoke(check_command, ["foo==1", "--json", "--offline"], standalone_mode=False)

    assert (result.return_value, json.loads(result.output)["status"]) == (0, "unknown")


def test_unknown_name_in_an_environment_as_json_is_listed(tmp_path):
    place = tmp_path / "environment.json"
    place.write_text(json.dumps({"components": {"unheard-of": "1", "torch": "2.9.1"}}))

    result = CliRunner().invoke(check_command, ["--from", str(place), "--json", "--offline"], standalone_mode=False)

    report = json.loads(result.stdout)
    assert (report["status"], report["unknown"]) == ("unknown", ["unheard-of 1: envsmith knows no such component"])


@pytest.mark.parametrize(
    ("given", "facts"),
    [({"gpu": "none"}, ()), ({"gpu": "absent"}, ()), ({}, ("gpus=none",)), ({"gpu": "missing"}, ("gpus=none",))],
)
def test_absent_gpu_is_one_fact_however_it_is_stated(given, facts):
    of_import = {"deepspeed": "0.19.4", "torch": "2.9.1", "toolkit": "none"}

    with_gpu = judged({**of_import, "gpu": "sm_90"})
    without = judged({**of_import, **given}, facts=facts)

    assert "deepspeed-needs-nvcc-at-import" in graves(with_gpu)
    assert (graves(without), without) == ({}, judged({**of_import, "gpu": "none"}))


def test_component_that_a_fact_states_is_judged_like_one_that_is_given():
    stated = judged({"torch": "2.9.1+cu128"}, facts=("gpus=8 x V100", "os=Ubuntu 22.04"))
    given_too = judged({"torch": "2.9.1+cu128", "gpu": "sm_70", "glibc": "2.35"})
    assert graves(stated) == graves(given_too)
    assert "torch-runs-on-gpu" in graves(judged({"torch": "2.9.1+cu130"}, facts=("gpus=8 x V100",)))


_FEATURES = {
    "deepcompile": (
        "deepspeed-deepcompile",
        {"deepspeed": "0.18.2", "torch": "2.8.0"},
        ["config.compile.deepcompile=true"],
    ),
    "deepcompile-zero-3": (
        "deepspeed-deepcompile",
        {"deepspeed": "0.18.2", "torch": "2.9.1"},
        ["config.compile.deepcompile=true", "config.zero_optimization.stage=3"],
    ),
    "deepspeed-autosp": (
        "deepspeed-torch-features",
        {"deepspeed": "0.18.9", "torch": "2.8.0"},
        ["config.compile.passes=autosp"],
    ),
    "deepspeed-elastic": (
        "deepspeed-elastic-torch2",
        {"deepspeed": "0.10.0", "torch": "2.0.1"},
        ["option.elastic-training=true"],
    ),
    "deepspeed-symmetric-memory": (
        "deepspeed-torch-features",
        {"deepspeed": "0.18.2", "torch": "2.4.1"},
        ["config.compile.symmetric_memory=true"],
    ),
    "fp8": (
        "transformer-engine-fp8-gpu",
        {"transformer-engine": "2.0.0", "gpu": "sm_80"},
        ["option.fp8-format=hybrid"],
    ),
    "fsdp-2": ("accelerate-torch-features", {"accelerate": "1.6.0", "torch": "2.5.1"}, ["option.fsdp-version=2"]),
    "inductor": ("torch-compile-python", {"torch": "2.2.2", "python": "3.12"}, ["option.dynamo-backend=inductor"]),
    "megatron-torch-fsdp-2": (
        "megatron-core-torch-features",
        {"megatron-core": "0.10.0", "torch": "2.3.1"},
        ["option.use-torch-fsdp2=true"],
    ),
}


@pytest.mark.parametrize("feature", rule_book().features)
def test_feature_that_is_stated_makes_what_depends_on_it_an_error(feature):
    rule, given, facts = _FEATURES[feature]

    without = {f.rule: f.severity.value for f in judged(given).findings}
    stated = {f.rule: f.severity.value for f in judged(given, facts=facts).findings}

    assert (without.get(rule, "note"), stated.get(rule)) == ("note", "error")


@pytest.mark.parametrize(
    ("feature", "variable"), [("fsdp-2", "FSDP_VERSION=2"), ("inductor", "ACCELERATE_DYNAMO_BACKEND=INDUCTOR")]
)
def test_variable_of_the_job_states_a_feature_as_an_option_does(feature, variable):
    rule, given, facts = _FEATURES[feature]

    assert judged(given, env=[variable]).findings == judged(given, facts=facts).findings
    assert rule in graves(judged(given, env=[variable]))
