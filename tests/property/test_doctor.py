"""Whatever is pasted, the doctor answers: no crash, no hang, bounded memory."""

from __future__ import annotations

import io
import json
import os
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean, decode, read_bounded
from envsmith.doctor.report import as_markdown, as_text
from envsmith.doctor.snapshot import dump, load, looks_like_snapshot
from envsmith.errors import DataError

# Pieces of real reports, so that random joins reach deep into every reader.
PIECES = [
    "torch version .................... 2.1.2+cu121", "PyTorch version: ", "CUDA used to build PyTorch: 11.8", "| NVIDIA-SMI 535.54.03 Driver Version: 535.54.03 CUDA Version: 12.2 |",
    "GPU 0: NVIDIA A100", "torch==2.6.0", "Package Version\n------- -------\n", "# packages in environment at x:\n# Name Version Build Channel\n", "dependencies:\n- pip:\n  - ", "@EXPLICIT\n",
    "FROM nvidia/cuda:12.1.0-devel\nRUN pip install ", "NCCL WARN ", "Traceback (most recent call last):\n", "No module named '", "cannot import name 'x' from 'torch", "torchrun --nproc_per_node=8 ", "deepspeed --include ",
    '{"train_batch_size": ', '"zero_optimization": {"stage": 3', "worker-1 slots=8", "NCCL_DEBUG=INFO", "undefined symbol: ", "fatal error: x.h: No such file or directory", "GLIBCXX_3.4.29' not found", "\x1b[31m", "\r", "\x00", "\uff1a", "=" * 50, "9" * 400, "-" * 300, "\\\n",
    "max locked memory (kbytes, -l) 64", "shm 64M 0 64M 0% /dev/shm", "requires x>=1, but you have x 0", '{"kind": "envsmith doctor snapshot"', 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "', "metadata:\n  content_hash:\n", "environments:\nversion: 6\n", "python: ", "driver: ", "gpu: ", "numpy: >=",
]  # fmt: skip
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=60), st.sampled_from(["\n", " ", ": "])), max_size=40
).map("".join)
# `make fuzz` sets it to what fits into an hour.
EXAMPLES = int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "60"))
SLOW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(TEXTS)
def test_any_text_is_judged_and_shown(text):
    cleaned = clean(text)
    d = diagnose(read_texts([("t", text)]), [("t", cleaned)])
    assert d.status in {"ok", "bad", "unknown"}
    json.dumps(d.to_json())
    assert "\x1b" not in as_text(d, notes=True)
    assert as_markdown(d)


@SLOW
@given(st.binary(max_size=3000))
def test_any_bytes_are_decoded_and_read(data):
    text, _ = read_bounded(io.BytesIO(data))
    assert isinstance(decode(data), str)
    read_texts([("t", text)])


@SLOW
@given(TEXTS)
def test_what_was_read_survives_a_snapshot(text):
    facts = read_texts([("t", text)])
    saved = dump(facts)
    assert looks_like_snapshot(saved)
    back, _ = load(saved, "x")
    assert {n: s.version for n, s in back.components.items()} == {n: s.version for n, s in facts.components.items()}


@SLOW
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda c: (
            st.lists(c, max_size=4)
            | st.dictionaries(st.sampled_from(["components", "facts", "host", "version", "a"]), c, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_snapshot_or_a_clear_error(value):
    text = json.dumps({"kind": "envsmith doctor snapshot", "schema": 1, "facts": value})
    try:
        load(text, "x")
    except DataError:
        return


@pytest.mark.slow
def test_a_hundred_megabytes_of_noise_take_bounded_memory():
    class Noise(io.RawIOBase):
        left = 100 << 20

        def read(self, size=-1):
            size = min(size, self.left)
            self.left -= size
            return (b"x7 error \xff\xfe" * (size // 11 + 1))[:size]

    tracemalloc.start()
    text, notes = read_bounded(Noise())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert notes
    assert len(text) < 20 << 20
    assert peak < 220 << 20


SHAPES = {
    "empty lines": "\n" * 400_000,
    "spaces": " " * 400_000,
    "indented lines": "  \n" * 200_000,
    "words": "a " * 200_000,
    "one word a line": "a\n" * 200_000,
    "name version": "torch 1\n" * 50_000,
    "equals": "=" * 400_000,
    "braces": '{"train_batch_size": ' * 20_000,
    "numbers": "1." * 200_000,
    "colons": "a: " * 130_000,
    "hosts": "h slots=1\n" * 40_000,
    "variables": "NCCL_A=" * 50_000,
    "froms": "FROM x\n\n\n\n" * 40_000,
    "commands": "torchrun --a=b \\\n" * 20_000,
    "table": "Package Version\n" * 30_000,
    "conda": "dependencies:\n- " * 20_000,
    "gpus": "GPU 0: NVIDIA A100\n" * 20_000,
    "dots": "torch version " + "." * 400_000,
    "quotes": "No module named '" * 20_000,
    "paths": "/python3.10/site-packages" * 16_000,
}


@pytest.mark.parametrize("part", [16, pytest.param(1, marks=pytest.mark.slow)], ids=["part", "whole"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_of_text_takes_more_than_seconds(shape, part):
    text = SHAPES[shape][: len(SHAPES[shape]) // part]
    diagnose(read_texts([("t", "x")]), [("t", "x")])  # the tables are there
    started = time.process_time()
    diagnose(read_texts([("t", text)]), [("t", clean(text))])
    assert time.process_time() - started < 8
