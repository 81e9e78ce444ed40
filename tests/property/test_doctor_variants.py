"""The finding belongs to the failure, not to the way its message was printed: other ranks, times, paths, wrapping and colours change nothing."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean

FOLDER = Path(__file__).parents[1] / "cases" / "doctor"
MESSAGES = [(message, cause) for message, cause, _ in json.loads((FOLDER / "messages.json").read_text())["cases"]]
THREADS = [
    ("\n".join(c["text"]), c["cause"], tuple(c.get("also", ())))
    for c in json.loads((FOLDER / "threads.json").read_text())["cases"]
    if not c.get("known_miss")
]
SLOW = settings(
    max_examples=int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def cause_of(text: str) -> str | None:
    diagnosis = diagnose(read_texts([("t", clean(text))]), [("t", clean(text))])
    first = diagnosis.root or next(iter(diagnosis.diagnosed), None)
    return first.taxonomy.cause if first else None


def every(prefix: str):
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def ansi(text: str) -> str:
    """Bold red around every word, as rich and pip print."""
    return "\n".join(
        " ".join(f"\x1b[1;31m{w}\x1b[0m" if w else w for w in line.split(" ")) for line in text.split("\n")
    )


def hard(width: int):
    """As a terminal of that width breaks what is copied from it; filler lines of the same length stand around, as in a real log."""
    filler = ("[2026-01-01 10:00:00,123] [INFO] [engine.py:1:train] " + "step " * 60)[:width]

    def wrap(text: str) -> str:
        lines = [line[i : i + width] for line in text.split("\n") for i in range(0, max(1, len(line)), width)]
        return "\n".join([filler, "", *lines, "", filler])

    return wrap


def soft(width: int):
    """As a writer of logs breaks lines at blanks."""
    return lambda text: "\n".join(
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    )


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def folders(text: str) -> str:
    """Another user, another Python, another place for the environment."""
    text = re.sub(r"/(?:home|root|opt|mnt|share|workspace)/(?=[\w.-]+/)", "/data/home/", text)
    return text.replace("/site-packages/", "/dist-packages/")


VARIANTS = {
    "rank": every("[rank7]: "),
    "default rank": every("[default3]:[rank3]: "),
    "srun label": every(" 12: "),
    "time and rank": every("2026-02-03 04:05:06.789000: [rank2]: "),
    "time of a container": every("2026-02-03T04:05:06.789123456Z "),
    "pdsh host": every("worker-2: "),
    "compose host": every("trainer-1  | "),
    "quoted": every("> "),
    "indented": every("        "),
    "colours": ansi,
    "windows lines": crlf,
    "folders": folders,
    "terminal of 100": hard(100),
    "terminal of 132": hard(132),
    "blanks at 70": soft(70),
    "in a fence": lambda text: f"```shell\n{text}\n```",
    "after a long log": lambda text: "iteration 10/ 100 | loss 2.31\n" * 400 + text,
}


@SLOW
@given(st.sampled_from(MESSAGES), st.sampled_from(sorted(VARIANTS)))
@example(
    (
        'csrc/fused_dense_cuda.cu(415): error: identifier "CUBLASLT_EPILOGUE_GELU_AUX" is undefined',
        "extension-build-failed",
    ),
    "blanks at 70",
)
@example(
    ("ImportError: cannot import name 'Trainer' from 'transformers' (unknown location)", "broken-installation"),
    "blanks at 70",
)
def test_a_message_means_the_same_however_it_was_printed(message, variant):
    text, cause = message
    assert cause_of(VARIANTS[variant](text)) == cause


@SLOW
@given(st.sampled_from(THREADS), st.sampled_from(sorted(VARIANTS)))
def test_a_thread_means_the_same_however_it_was_printed(thread, variant):
    text, cause, also = thread
    assert cause_of(VARIANTS[variant](text)) in {cause, *also}


@SLOW
@given(st.sampled_from(MESSAGES), st.sampled_from(sorted(VARIANTS)), st.sampled_from(sorted(VARIANTS)))
@example(
    ("ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister", "wrong-nccl-loaded"),
    "compose host",
    "blanks at 70",
)
@example(
    (
        "ImportError: cannot import name 'check_set_window_size' from 'transformer_engine.pytorch.attention'",
        "te-version-incompatible",
    ),
    "compose host",
    "terminal of 100",
)
@example(
    (
        "Could not load library libcudnn_cnn_train.so.8. Error: /x/libcudnn_cnn_train.so.8: symbol _ZN10cask_cudnn2kr8isAmpereE, version libcudnn_cnn_infer.so.8 not defined in file libcudnn_cnn_infer.so.8 with link time reference",
        "wrong-cudnn-loaded",
    ),
    "time and rank",
    "terminal of 100",
)
@example(
    ("ImportError: cannot import name 'Trainer' from 'transformers' (unknown location)", "broken-installation"),
    "time and rank",
    "terminal of 100",
)
def test_two_of_these_together_change_nothing_either(message, first, second):
    text, cause = message
    if "terminal" in first or "blanks" in first:  # what is broken into lines and then given prefixes has its own shape
        first, second = second, first
    # Quotes and colours have no width of their own: no terminal breaks a line by counting them.
    unseen = first in ("quoted", "colours") and ("terminal" in second or "blanks" in second)
    if "terminal" in first or "blanks" in first or unseen:
        return
    assert cause_of(VARIANTS[second](VARIANTS[first](text))) == cause
