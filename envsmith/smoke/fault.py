"""Whose fault it is that a smoke test did not pass: the cell's, the machine's, or unknown. Decided here alone.

A run speaks against its cell only where nothing of the machine explains it. What the operating system refused, what
was ended from outside and what had no processor to run on says nothing about the versions.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from envsmith.agent.compiler_words import refusal_of
from envsmith.agent.protocol import Exit
from envsmith.base.os_packages import NAMES
from envsmith.errors import refusal_of_machine
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.record import Fault
from envsmith.smoke.charge import Charge
from envsmith.smoke.events import Events, HaltReason

# What torch and what stands on it say on a host without a GPU, whatever the versions: it will say so at the next run.
_LACKS = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "is only supported with GPUs",
    "in Gloo process group",
    "0 active drivers",  # triton 3.2 and newer at import (rule deepspeed-triton-import)
    # torch.utils.cpp_extension asks the GPU what to compile for: a host with a toolkit and no GPU (rule
    # megatron-unified-memory-no-gpu).
    "in _get_cuda_arch_flags",
)
# A framework that takes a GPU for granted, in a step that was forked from the shared import.
_CUDA_ON_CPU = "Cannot re-initialize CUDA in forked subprocess"
# Who sends them is not the program: an operator, a limit, the kernel when memory is short, a launcher.
_FROM_OUTSIDE = {
    -number: number.name
    for number in (
        signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU, signal.SIGXFSZ,
    )
} | {Exit.CRASH: signal.SIGKILL.name}  # fmt: skip
# With more ranks than this for a processor, slow ranks look like ranks that hang.
_CROWD = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """Whose fault it is, and what of the machine. ``lasting`` is what the machine lacks, which is worth a record."""

    fault: Fault
    sentence: str = ""
    lasting: bool = False


CELL = Attribution(fault=Fault.CELL)


def cause_of(log: Events, code: Exit, charge: Charge, *, words: str, backend: str, ranks: int) -> Attribution:
    """Return the cause of a run that did not pass.

    It follows from the events and from the first ``charge``, ``words`` are what other programs wrote besides.
    """
    text = f"{charge.quote}\n{words}"
    if word := _lacking_by_event(log) or lacking(text, backend):
        return Attribution(fault=Fault.HOST, sentence=f"this machine lacks what the run needs ({word})", lasting=True)
    if refusal := refusal_of_machine(text):
        return Attribution(fault=Fault.HOST, sentence=refusal.sentence)
    slow = next((f.title for f in FRAMEWORKS.values() if any(words in text for words in f.slow_host)), "")
    if slow:
        return Attribution(fault=Fault.HOST, sentence=f"the machine was too slow to start {slow}")
    if code is Exit.MEMORY:
        return Attribution(fault=Fault.HOST, sentence="memory is short")
    processors = log.host.processors
    if code is Exit.HANG and processors is not None and ranks > _CROWD * processors:
        return Attribution(
            fault=Fault.HOST, sentence=f"{ranks} ranks share {processors} processors (fewer with --ranks)"
        )
    return _unknown(log, code, charge)


def lacking(text: str, backend: str) -> str:
    """Return the words in a text with which a program says that the machine lacks what it needs, or an empty text."""
    words = _LACKS if backend.startswith("nccl") else (*_LACKS, _CUDA_ON_CPU)
    refusal = refusal_of(text)
    program = NAMES[refusal.missing] if refusal and refusal.missing else ""
    return next((word for word in words if word in text), program)


def _lacking_by_event(log: Events) -> str:
    """Return what the agent itself saw that the machine lacks: a GPU, or the speed to import torch."""
    if any(halt.reason is HaltReason.IMPORT and halt.code == Exit.HANG for halt in log.halts):
        return "`import torch` did not end in time"
    return "CUDA is not usable here" if any(halt.lacks_gpu for halt in log.halts) else ""


def _unknown(log: Events, code: Exit, charge: Charge) -> Attribution:
    """Return the cause where somebody else had a hand in it, or where what was heard is not all: not the cell's."""
    reason = ""
    is_stopped = any(state == "T" for h in log.halts for state in (*(w.state for w in h.where), h.owner.state))
    if any(halt.reason is HaltReason.INTERRUPTED for halt in log.halts):
        reason = "the run was interrupted"
    elif log.bye is None and not log.unsupervised:
        reason = "the agent ended without a verdict"
    elif is_stopped and code is Exit.HANG:
        reason = "a rank was stopped from outside"
    elif ended := next((_FROM_OUTSIDE[exit_code] for exit_code in charge.exits if exit_code in _FROM_OUTSIDE), ""):
        reason = f"a process of the run was ended from outside ({ended})"
    elif code is Exit.MISMATCH:
        reason = "the ranks' machines differ"
    elif charge.is_silence:
        reason = "not every rank was heard"
    return Attribution(fault=Fault.UNKNOWN if reason else Fault.CELL, sentence=reason)
