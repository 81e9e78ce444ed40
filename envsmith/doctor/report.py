"""A diagnosis as text for a terminal and as a Markdown block for a bug report. Pure: values -> text."""

from __future__ import annotations

import re

from envsmith.doctor.diagnosis import Diagnosed, Diagnosis
from envsmith.model.rule import Severity
from envsmith.redact import redact

__all__ = ["as_markdown", "as_text"]

_HEAD = {"root": "root cause", "also": "also", "consequence": "follows from it", "note": "note"}
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_PATHS = (
    "torch",
    "cuda",
    "nccl",
    "cudnn",
    "triton",
    "python",
    "deepspeed",
    "megatron-core",
    "colossalai",
    "transformer-engine",
    "flash-attn",
    "driver",
    "gpu",
    "toolkit",
    "gcc",
    "glibc",
    "numpy",
)


def _plain(text: str) -> str:
    return _TERMINAL.sub("", text)


def _title(d: Diagnosed) -> str:
    """A root that no message proves and that is no error is only the first thing to look at."""
    if d.role == "root" and not d.confirmed and d.finding.severity is not Severity.ERROR:
        return "first to look at"
    return _HEAD[d.role]


def _block(d: Diagnosed) -> list[str]:
    severity = d.finding.severity.value
    lines = [f"{_title(d)} ({severity}, confidence {d.confidence}): {_plain(d.finding.message)} [{d.finding.rule}]"]
    if d.where:
        lines.append(f"  seen:  {_plain(d.where)}" + (f": {_plain(d.quote)[:200]}" if d.quote else ""))
    if d.finding.inferred:
        lines.append("  inferred: " + ", ".join(f"{k} {v}" for k, v in d.finding.inferred.items()))
    if d.finding.fix:
        lines.append(f"  fix:   {_plain(d.finding.fix)}")
    lines += [f"         $ {_plain(line)}" for line in d.lines]
    lines += [f"  evidence: {e}" for e in d.finding.evidence[:2]]
    return lines


def as_text(diagnosis: Diagnosis, *, notes: bool = False) -> str:
    """Root cause first, then what follows, other findings, the repair, and plainly what was and was not looked at."""
    lines = [f"status: {diagnosis.status}"]
    shown = [d for d in diagnosis.found if d.role != "note" or notes or d.where or d.score >= 20]
    for role in ("root", "also", "consequence", "note"):
        for d in shown:
            if d.role == role:
                lines += _block(d)
    hidden = len(diagnosis.found) - len(shown)
    if not diagnosis.found:
        lines.append("nothing was found that speaks against this environment")
    elif diagnosis.root is None:
        lines.append("nothing but notes was found")
    if hidden:
        lines.append(f"{hidden} more note{'s' * (hidden > 1)} about what is merely worth knowing (--all shows them)")
    lines += [f"two sources disagree: {_plain(text)}" for text in diagnosis.facts.disagreements[:8]]
    lines += _repair(diagnosis)
    lines += ["", *_understood(diagnosis)]
    lines += [f"checked: {_plain(text)}" for text in diagnosis.checked]
    lines += [f"not checked: {_plain(text)}" for text in diagnosis.not_checked]
    lines += [f"not known: {_plain(text)}" for text in diagnosis.unknown[:8]]
    return "\n".join(lines)


def _repair(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.repair is None:
        return []
    lines = ["repair (nearest valid set, fewest components changed):"]
    lines += [f"  {c.component}: {c.old or '(not given)'} -> {c.new or '(left out)'}" for c in diagnosis.repair.changes]
    lines += [f"  {name + ':':<7} {command}" for name, command in diagnosis.commands.items()]
    return lines


def _understood(diagnosis: Diagnosis) -> list[str]:
    lines = []
    for read in diagnosis.facts.read:
        kinds = ", ".join(read.kinds) or "nothing that is known"
        size = f", {read.lines} lines" if read.lines else ""
        lines.append(
            f"understood: {_plain(read.source)}: {kinds} ({read.facts} facts{size})"
            + "".join(f"; {_plain(n)}" for n in read.notes)
        )
    return lines


def as_markdown(diagnosis: Diagnosis) -> str:
    """A block for a bug report: versions, findings, what was not looked at; without names and secrets."""
    facts = diagnosis.facts
    lines = ["### Environment (envsmith doctor)", "", "| component | version | read from |", "|---|---|---|"]
    names = [n for n in _PATHS if n in facts.components] + sorted(set(facts.components) - set(_PATHS))
    for name in names:
        stated = facts.components[name]
        lines.append(f"| {name} | {stated.version} | {_cell(stated.source)} |")
    if facts.gpus:
        lines.append(f"| GPUs | {len(facts.gpus)} x {_cell(facts.gpus[0])} | |")
    lines += [
        f"| {k} | {_cell(v)} | |"
        for k, v in sorted(facts.host.items())
        if k in {"os", "kernel", "machine", "in_container", "container", "infiniband", "driver_cuda"}
    ]
    variables = {k: v for k, v in facts.variables.items() if k.startswith(("NCCL_", "TORCH_", "CUDA_", "GLOO_", "LD_"))}
    if variables:
        lines += ["", "Variables: " + ", ".join(f"`{k}={_cell(v)[:80]}`" for k, v in sorted(variables.items())[:40])]
    if facts.limits:
        lines += [
            "",
            "Limits: " + ", ".join(f"{k} {'unlimited' if v < 0 else v}" for k, v in sorted(facts.limits.items())),
        ]
    lines += ["", f"### Findings: {diagnosis.status}", ""]
    for d in diagnosis.found:
        lines += _item(d) if d.role != "note" or d.where else []
    if not diagnosis.found:
        lines.append("- nothing was found")
    lines += ["", *(f"Not checked: {_cell(text)}" for text in diagnosis.not_checked)]
    return "\n".join(lines)


def _item(d: Diagnosed) -> list[str]:
    """A finding as an item of a Markdown list."""
    title = f"{_title(d)}** ({d.finding.severity.value}, confidence {d.confidence})"
    lines = [f"- **{title} `{d.finding.rule}`: {_cell(d.finding.message)}"]
    if d.where:
        quote = f": `{_cell(d.quote)[:200].replace('`', chr(39))}`" if d.quote else ""
        lines.append(f"  - seen at {_cell(d.where)}{quote}")
    if d.finding.fix:
        lines.append(f"  - fix: {_cell(d.finding.fix)}")
    return lines


def _cell(text: str) -> str:
    return redact(_plain(text)).replace("|", "\\|").replace("\n", " ")
