"""The catalogue by makers of messages: every message that was read in a source is known, long logs are searched like short ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from envsmith.doctor.facts import Facts
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.doctor.report import fix_of, lines_of, message_of
from envsmith.doctor.signatures import catalogue, find_hits, read_catalogue
from envsmith.errors import DataError
from envsmith.knowledge.graph.location import DataFiles, find_matrix
from envsmith.model.rule import Severity

ROOT = Path(__file__).parents[2]
CASES = json.loads((ROOT / "cases" / "doctor" / "refusals.json").read_text())["cases"]
FIRST = list({case[0]: case for case in CASES}.values())


def judged(text: str):
    return diagnose(read_texts([("log", text)]), [("log", clean(text))])


@pytest.mark.parametrize(("signature", "message", "cause", "severity"), FIRST, ids=[case[0] for case in FIRST])
def test_a_refusal_gives_its_cause_a_fix_and_evidence(signature, message, cause, severity):
    first = judged(f"some line before\n{message}\n").diagnosed[0]
    assert (first.taxonomy.cause, first.finding.severity.value) == (cause, severity), first.finding.rule
    assert first.finding.fix
    assert first.finding.evidence


def test_every_message_of_a_source_is_known_to_its_signature():
    every = catalogue().signatures
    unknown = [
        (signature, message)
        for signature, message, _, _ in CASES
        if signature not in {hit.signature.id for hit in find_hits(f"[rank0]: {message}", "x", every)}
    ]
    assert not unknown


def test_no_place_for_a_word_of_the_message_stays_empty():
    by_id = {signature.id: signature for signature in catalogue().signatures}
    empty = []
    for name, message, _, _ in CASES:
        groups = {group for pattern in by_id[name].match for group in re.compile(pattern).groupindex}
        for hit in find_hits(message, "x", [by_id[name]]):
            text = " ".join([message_of(hit, Facts()), fix_of(hit, Facts()), *lines_of(hit, fix_of(hit, Facts()))])
            empty += [(name, group) for group in groups if f"{{{group}}}" in text]
    assert not empty


def test_every_file_of_makers_has_a_message_that_was_read():
    names = {path.stem for path in (find_matrix() / "signatures").glob("*.yaml")}
    told = {case[0] for case in CASES}
    import yaml

    for name in names - {"words"}:  # what reporters say stands in no source
        rows = yaml.safe_load((find_matrix() / "signatures" / f"{name}.yaml").read_text())["signatures"]
        assert told & {row["id"] for row in rows}, name


def test_a_long_log_is_searched_like_a_short_one():
    every = catalogue().signatures
    filler = "".join(f"[rank0]: iteration {i} / 100000 | loss: {i % 7}.{i} | lr 1e-4\n" for i in range(9000))
    message = "RuntimeError: world_size (12) is not divisible by 8"
    assert len(filler) > 400_000
    short = {hit.signature.id for hit in find_hits(message, "x", every)}
    found = find_hits(filler + message + "\n" + filler, "x", every)
    assert {hit.signature.id for hit in found} == short
    assert {hit.line for hit in found} == {9001}


def test_a_long_text_that_does_not_repeat_itself_is_searched_whole():
    import random

    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghij", k=9)) for _ in range(60_000)]
    text = "\n".join(words[:30_000]) + "\nCUDA_HOME does not exist, unable to compile CUDA op(s)\n" + "\n".join(words)
    assert "cuda-home-missing" in {hit.signature.id for hit in find_hits(text, "x", catalogue().signatures)}


def test_the_same_id_in_two_files_is_refused(tmp_path):
    row = (
        "signatures:\n- {id: twice, kind: cause, stage: s, group: g, cause: c, pattern: p, match: [some words], message: m,"
        " fix: f, evidence: ['https://github.com/a/b/issues/1']}\n"
    )
    (tmp_path / "signatures").mkdir()
    for name in ("one", "two"):
        (tmp_path / "signatures" / f"{name}.yaml").write_text(row)
    with pytest.raises(DataError, match="twice"):
        read_catalogue(DataFiles(tmp_path, ("signatures/one.yaml", "signatures/two.yaml")))


@pytest.mark.parametrize(
    ("message", "cause", "fix"),
    [
        ("AssertionError: torch >= 2.3.0 is required for remove_sharded_tensors", "torch-version-pair", "torch>=2.3.0"),
        (
            "ImportError: DeepSpeed version must be >= 0.9.3. Please update",
            "deepspeed-version-pair",
            "deepspeed>=0.9.3",
        ),
        (
            "Transformer-Engine v2.3.0 must be >= 2.8.0 to support x",
            "te-version-incompatible",
            "transformer-engine>=2.8.0",
        ),
        (
            "Exception: flashinfer with minimum required version 0.2.5 is not installed.",
            "package-version-pair",
            "flashinfer-python>=0.2.5",
        ),
    ],
)
def test_a_release_that_a_message_asks_for_is_the_fix(message, cause, fix):
    first = judged(message).diagnosed[0]
    assert first.taxonomy.cause == cause
    assert fix in (first.finding.fix or "")
    assert f"pip install '{fix}'" in first.lines


def test_a_fallback_is_no_error():
    diagnosis = judged(
        "UserWarning: Apex is not installed. Falling back to Torch Norm\n[NeMo W 2024-01-01 nemo_logging:393] Apex was not found."
    )
    assert diagnosis.worst() is not Severity.ERROR


def test_equal_toolkit_and_torch_are_not_told_to_be_aligned():
    text = "system_cuda: 11.3\ntorch_cuda: 11.3\ntorch: 1.10.1\nColossalai should be built with cuda extension to use the FP16 optimizer"
    first = judged(text).diagnosed[0]
    assert first.taxonomy.cause == "op-not-built"
    assert "beside" not in (first.finding.fix or "")


ASSERTED = """  File "/env/lib/python3.11/site-packages/vllm/model_executor/models/chatglm.py", line 53, in __init__
    assert self.total_num_kv_heads % {divisor} == 0
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""


def test_a_size_that_a_bare_assertion_demands_to_be_divided_is_named_with_its_divisor():
    first = judged(ASSERTED.format(divisor="tp_size")).diagnosed[0]

    assert first.taxonomy.cause == "world-size-mismatch"
    assert "self.total_num_kv_heads can be divided by tp_size" in first.finding.message


def test_a_bare_assertion_about_something_else_than_processes_says_nothing():
    assert not judged(ASSERTED.format(divisor="patch_size")).diagnosed


def test_a_warning_that_a_library_was_not_loaded_explains_an_operator_that_is_not_there():
    text = (
        "WARNING 01-30 20:57:18 _custom_ops.py:14] Failed to import from vllm._C with"
        " ImportError('/env/vllm/_C.abi3.so: undefined symbol: _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv')\n"
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'"
    )
    root, operator = judged(text).diagnosed[:2]

    assert (root.finding.rule, operator.finding.rule) == ("torch-abi-symbol", "op-not-registered")
