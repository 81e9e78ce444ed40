"""Which of several findings is the root cause, which follows from it, and how sure the doctor is."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.repaired_set import repaired, request_of
from envsmith.doctor.report import commands_of

REPORT = "PyTorch version: 2.6.0+cu124\nPython version: 3.11.7\ndeepspeed version: 0.14.0\n"


def judged(*texts: str):
    named = [(f"t{i}", t) for i, t in enumerate(texts)]
    return diagnose(read_texts(named), [(s, clean(t)) for s, t in named])


def test_a_version_rule_that_the_log_shows_comes_first_with_high_confidence():
    d = judged(
        REPORT, "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/x/api.py)"
    )
    assert d.status == "bad"
    assert (d.root.finding.rule, d.root.confidence, d.root.confirmed) == ("deepspeed-elastic-log", "high", True)
    assert d.root.where == "t1:1"


def test_the_rule_absorbs_the_signature_of_the_same_line():
    d = judged(REPORT, "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'")
    assert "elastic-log" not in [x.finding.rule for x in d.diagnosed]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("ModuleNotFoundError: No module named 'pyaudioop'", "gradio-audioop"),
        (
            "TypeError: canonicalize_version() got an unexpected keyword argument 'strip_trailing_zero'",
            "setuptools-packaging-strip-zero",
        ),
    ],
)
def test_the_message_of_a_rule_alone_says_more_than_a_general_one_and_than_a_guess(message, rule):
    assert [each.finding.rule for each in judged(message).diagnosed] == [rule]


def test_a_rule_that_the_stated_versions_contradict_leaves_the_general_message():
    d = judged("gradio==5.9.0\nPython version: 3.12.3\n", "ModuleNotFoundError: No module named 'pyaudioop'")

    assert d.root.finding.rule == "module-missing"


_NO_NUMPY = "RuntimeError: Numpy is not available"


@pytest.mark.parametrize(
    ("log", "root"),
    [
        (_NO_NUMPY, "torch-without-numpy"),
        (f"UserWarning: Failed to initialize NumPy: No module named 'numpy'\n{_NO_NUMPY}", "torch-finds-no-numpy"),
        (f"UserWarning: Failed to initialize NumPy: _ARRAY_API not found\n{_NO_NUMPY}", "numpy2-abi"),
        (f"torch==2.2.0\nnumpy==2.0.1\n{_NO_NUMPY}", "torch-numpy2"),
        (f"torch==2.2.0\nnumpy==1.26.4\n{_NO_NUMPY}", "torch-without-numpy"),
        ("RuntimeError: PyTorch was compiled without NumPy support", "torch-built-without-numpy"),
    ],
)
def test_why_torch_has_no_numpy_is_read_from_what_else_the_text_says(log, root):
    assert judged(log).root.finding.rule == root


def test_a_version_error_alone_is_found_without_a_log():
    d = judged(REPORT)
    assert d.root.finding.rule.startswith("deepspeed-elastic")
    assert not d.root.confirmed


def test_a_message_of_another_cause_comes_before_versions_that_could_fail():
    d = judged(REPORT, "ModuleNotFoundError: No module named 'apex'")
    assert d.root.finding.rule == "apex-missing"
    assert "also" in {x.role for x in d.diagnosed if x.finding.rule.startswith("deepspeed-elastic")}


def test_a_consequence_gives_way_to_its_cause_wherever_it_stands():
    log = "RuntimeError: Error building extension 'cpu_adam'\nAttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    assert judged(log + "/usr/bin/ld: cannot find -lcurand\n").root.finding.rule == "link-library-missing"
    assert judged("/usr/bin/ld: cannot find -lcurand\n" + log).root.finding.rule == "link-library-missing"
    roles = {x.finding.rule: x.role for x in judged(log + "/usr/bin/ld: cannot find -lcurand\n").diagnosed}
    assert roles["ds-op-build-failed"] == "consequence"


def test_an_unhandled_system_error_is_explained_by_small_shared_memory():
    d = judged(
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)\nNCCL error in: x.cpp:1, unhandled system error, NCCL version 2.18.1\n"
    )
    assert d.root.finding.rule == "shm-too-small"
    assert d.facts.version("nccl") == "2.18.1"


def test_running_out_of_memory_is_no_fault_of_the_environment():
    d = judged("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert d.status != "bad"
    assert d.root is None
    assert d.diagnosed[0].finding.severity.value == "note"


def test_versions_in_a_message_are_judged_and_named_in_the_fix():
    d = judged(
        "CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 12.2 does not match the version torch was compiled with 11.7, unable to compile"
    )
    assert (d.facts.version("toolkit"), d.facts.version("cuda")) == ("12.2", "11.7")
    assert "11.7" in d.root.finding.fix
    assert "cu126" in d.root.finding.fix


def test_nothing_understood_is_unknown_and_said():
    d = judged("it does not work please help")
    assert d.status == "unknown"
    assert not d.diagnosed
    assert d.not_checked


def test_what_was_checked_is_listed():
    d = judged(REPORT)
    assert any("torch 2.6.0+cu124" in sentence for sentence in d.checked)
    assert any("log" in sentence or "text" in sentence for sentence in (*d.checked, *d.not_checked))


def test_a_repair_is_given_as_commands_and_is_valid_when_judged_again():
    from envsmith import solver

    d = judged(REPORT)
    assert {"pip", "uv", "conda"} <= set(d.commands)
    again = solver.check(repaired(d.facts, d.repair))
    assert not [f for f in again.findings if f.severity.value == "error"]
    assert commands_of(d.repair) == d.commands


def test_the_repair_can_be_asked_of_the_solver_again():
    d = judged(REPORT)
    request, text = request_of(d.repair)
    assert "deepspeed" in request.frameworks
    assert "--framework deepspeed==" in text


def test_a_rule_that_may_apply_is_told_as_a_note_of_low_confidence():
    d = judged("framework: megatron-lm\ntransformer-engine: 1.13\ntorch: 2.5\n")
    assert (d.diagnosed[0].finding.rule, d.diagnosed[0].confidence, d.diagnosed[0].role) == (
        "megatron-core-te-1.13",
        "low",
        "note",
    )


def test_pip_conflicts_name_the_requirement_in_the_fix():
    d = judged(
        "transformer-engine 1.0.0+66d91d5 requires flash-attn<=2.0.4,>=1.0.6, but you have flash-attn 2.3.6 which is incompatible."
    )
    assert "flash-attn<=2.0.4,>=1.0.6" in d.root.finding.fix


def test_a_nvcc_message_names_the_toolkit_that_is_needed():
    finding = judged("nvcc fatal   : Unsupported gpu architecture 'compute_89'").root.finding

    assert (dict(finding.needs), "With toolkit >=11.8 this does not happen." in finding.fix) == (
        {"toolkit": ">=11.8"},
        True,
    )


def test_the_json_has_the_shape_of_check():
    value = judged(
        REPORT, "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'"
    ).to_json()
    assert {"status", "findings", "repair", "understood"} <= set(value)
    first = value["findings"][0]
    assert {"rule", "severity", "components", "message", "evidence", "fix", "role", "confidence", "taxonomy"} <= set(
        first
    )
    assert set(first["taxonomy"]) == {"stage", "cause_group", "cause_key", "fix_pattern"}


HEALTHY = "PyTorch version: 2.10.0+cu128\nPython version: 3.12.3\n"


@pytest.mark.parametrize(
    "failure",
    [
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nNobody.Saw: this before\n',
        "[rank3]: ValueError: the moon is full\n",
        "ERROR: the frobber does not frob\n",
        "NameError\n",
        "line 4: 4711 Aborted (core dumped) ./frob\n",
    ],
)
def test_a_report_of_a_failure_that_nothing_explains_is_unknown(failure):
    d = judged(HEALTHY + failure)
    assert (judged(HEALTHY).status, d.status) == ("ok", "unknown")
    assert d.unknown[0].startswith("why this fails: t0:")


def test_a_failure_that_a_note_explains_is_not_called_unexplained():
    d = judged(HEALTHY + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert d.status == "unknown"
    assert not [line for line in d.unknown if "why this fails" in line]


def test_the_exception_that_python_calls_the_cause_comes_before_the_one_that_follows():
    log = (
        "ImportError: cannot import name 'frob' from 'apex' (/x/apex/__init__.py)\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nImportError: FlashAttention is not installed\n"
    )
    d = judged(log)
    assert (d.root.finding.rule, d.diagnosed[1].role) == ("name-missing", "consequence")


def test_what_the_text_names_as_the_cause_comes_first():
    log = (
        "ImportError: FlashAttention is not installed\n"
        "RuntimeError: Failed to import m because of the following error (look up to see its traceback):\n"
        "cannot import name 'frob' from 'apex' (/x/apex/__init__.py)\n"
    )
    assert judged(log).root.finding.rule == "name-missing"


@pytest.mark.parametrize(
    ("versions", "text", "rule"),
    [
        (
            "PyTorch version: 2.8.0+cu128\ndeepspeed version: 0.17.2\n",
            '{"train_batch_size": 8, "compile": {"deepcompile": true}}',
            "deepspeed-deepcompile",
        ),
        (
            "PyTorch version: 2.4.1+cu121\ndeepspeed version: 0.11.1\n",
            "deepspeed --elastic_training --min_elastic_nodes 1 train.py",
            "deepspeed-elastic-torch2",
        ),
        (
            "PyTorch version: 2.4.1+cu121\naccelerate version: 1.7.0\n",
            "accelerate launch --use_fsdp --fsdp_version 2 train.py",
            "accelerate-torch-features",
        ),
        (
            "transformer-engine: 2.4.0\ngpu: sm_80\n",
            "torchrun --nproc_per_node 8 pretrain_gpt.py --fp8-format hybrid",
            "transformer-engine-fp8-gpu",
        ),
    ],
)
def test_feature_in_a_configuration_or_command_makes_an_error_of_what_only_concerns_it(versions, text, rule):
    severity = {False: "note", True: "error"}

    for states_feature in (False, True):
        d = judged(versions, *([text] if states_feature else []))
        (finding,) = [x.finding for x in d.diagnosed if x.finding.rule == rule]
        assert finding.severity.value == severity[states_feature]


def test_the_cuda_that_a_container_demands_gives_the_driver_that_ends_it():
    text = "Driver Version: 550.144.03\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8"

    finding = judged(text).root.finding

    assert (finding.rule, dict(finding.needs)) == ("container-cuda-floor", {"driver": ">=570.26"})


def test_what_rules_leave_of_a_release_that_nobody_stated_is_not_called_the_end_of_a_fault():
    finding = judged(
        "gpu: NVIDIA Titan Xp\nCUDA error: no kernel image is available for execution on the device"
    ).root.finding

    assert "this does not happen" not in finding.fix


@pytest.mark.parametrize("text", ["Weights only load failed", "Failed to initialize NVML: Unknown Error"])
def test_a_failure_that_was_pasted_is_never_ok(text):
    assert judged(f"{text}\nPyTorch version: 2.9.1+cu128\n").status != "ok"


def test_a_package_that_runs_is_not_said_to_be_one_that_cannot_be_installed():
    frame = 'File "/usr/lib/python3.11/site-packages/megatron/core/optimizer.py", line 3, in step'
    assert "megatron-core-sdist-requirements" not in {d.finding.rule for d in judged(frame).diagnosed}
