"""Whose fault it is that a smoke test did not pass: the cell's, the machine's, or unknown. Decided here alone.

A run speaks against its cell only where nothing of the machine explains it. What the operating system refused, what
was ended from outside and what had no processor to run on says nothing about the versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsmith.agent.compiler_words import refusal_of
from envsmith.agent.protocol import Exit
from envsmith.base.os_packages import NAMES
from envsmith.errors import of_the_system
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.record import Fault
from envsmith.smoke.events import Events

# What a host without a GPU, or without what a rung needs, says whatever the versions: it will say so at the next run.
_LACKS = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "is only supported with GPUs",
    "in Gloo process group",
    "`import torch` did not end within",
    "0 active drivers",  # triton 3.2 and newer at import (rule deepspeed-triton-import)
    "CUDA is not usable here",
    # torch.utils.cpp_extension asks the GPU what to compile for: a host with a toolkit and no GPU (rule
    # megatron-unified-memory-no-gpu).
    "in _get_cuda_arch_flags",
)
# A framework that takes a GPU for granted, in a step that was forked from the shared import.
_CUDA_ON_CPU = "Cannot re-initialize CUDA in forked subprocess"
# Who sends them is not the program: an operator, a limit, the kernel when memory is short, a launcher.
_FROM_OUTSIDE = re.compile(r"killed by (SIG(?:KILL|TERM|INT|HUP|XCPU|XFSZ))\b|ended without a word, as after (SIGKILL)")
# With more ranks than this for a processor, slow ranks look like ranks that hang.
_CROWD = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Whose fault it is, and what of the machine. ``lasting`` is what the machine lacks, which is worth a record."""

    fault: Fault
    sentence: str = ""
    lasting: bool = False


def cause_of(log: Events, code: Exit, text: str, *, backend: str, ranks: int) -> Cause:
    """Return the cause of a run that did not pass, by its events and by the ``text`` of its first problem."""
    if word := lacking(text, backend):
        return Cause(fault=Fault.HOST, sentence=f"this machine lacks what the run needs ({word})", lasting=True)
    if sentence := of_the_system(text):
        return Cause(fault=Fault.HOST, sentence=sentence)
    slow = next((f.title for f in FRAMEWORKS.values() if any(words in text for words in f.slow_host)), "")
    if slow:
        return Cause(fault=Fault.HOST, sentence=f"the machine was too slow to start {slow}")
    if code is Exit.MEMORY:
        return Cause(fault=Fault.HOST, sentence="memory is short")
    processors = log.single.get("host", {}).get("cpus")
    if code is Exit.HANG and isinstance(processors, int) and ranks > _CROWD * processors:
        return Cause(fault=Fault.HOST, sentence=f"{ranks} ranks share {processors} processors (fewer with --ranks)")
    return _unknown(log, code, text)


def lacking(text: str, backend: str) -> str:
    """Return the words in a text with which a machine says that it lacks what the run needs, or an empty text."""
    words = _LACKS if backend.startswith("nccl") else (*_LACKS, _CUDA_ON_CPU)
    refusal = refusal_of(text)
    program = NAMES[refusal.missing] if refusal and refusal.missing else ""
    return next((word for word in words if word in text), program)


def _unknown(log: Events, code: Exit, text: str) -> Cause:
    """Return the cause where somebody else had a hand in it, or where what was heard is not all: not the cell's."""
    reason = ""
    stopped = any(
        row.get("state") == "T" for halt in log.halts for row in (*halt.get("where", ()), halt.get("owner", {}))
    )
    if any(halt.get("reason") == "interrupted" for halt in log.halts):
        reason = "the run was interrupted"
    elif "bye" not in log.single and not log.unsupervised:
        reason = "the agent ended without a verdict"
    elif stopped and code is Exit.HANG:
        reason = "a rank was stopped from outside"
    elif ended := _FROM_OUTSIDE.search(text):
        reason = f"a process of the run was ended from outside ({ended[1] or ended[2]})"
    elif code is Exit.MISMATCH:
        reason = "the ranks' machines differ"
    elif re.search(r"results of rank \d+.* are missing", text):
        reason = "not every rank was heard"
    return Cause(fault=Fault.UNKNOWN if reason else Fault.CELL, sentence=reason)
