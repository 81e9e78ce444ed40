"""The page of messages: what a training prints when it fails, what that means and what to do.

`tools/reference.py` writes it. Each entry is a signature of `envsmith doctor`, a rule over versions that names what it
causes, or a rule over the machine. Nothing stands on the page that is not in `matrix/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsmith.doctor.rules import DoctorRule as MachineRule
from envsmith.doctor.rules import rule_book
from envsmith.doctor.signatures import Signature, catalogue
from envsmith.knowledge.graph.load import knowledge
from envsmith.model.rule import Evidence, Row, Rule

STAGES = {
    "install": "While packages are installed",
    "build": "While an extension is compiled",
    "import": "While a package is imported",
    "setup": "Driver, GPU and CUDA",
    "launch": "While the job is started",
    "comm-setup": "While the ranks connect",
    "init": "While the framework starts",
    "load": "While a model is loaded",
    "train": "While it trains",
    "checkpoint": "While a checkpoint is written or read",
    "inference": "While it generates",
}
_ALIASES = {"communication": "comm-setup", "lock": "install", "run": "train"}
_MOST_MESSAGES, _MOST_EVIDENCE, _LONGEST = 4, 3, 140


@dataclass(frozen=True)
class Entry:
    """One failure as the page shows it."""

    id: str
    stage: str
    messages: tuple[str, ...]
    cause: str
    when: str = ""
    fix: str = ""
    lines: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()


def entries() -> list[Entry]:
    """Return every entry: rules over versions, then signatures of messages."""
    rules = {rule.id: rule for rule in knowledge().rules}
    of_versions = [_of_rule(rule) for rule in rules.values() if rule.signature or any(row.symptom for row in rule.rows)]
    return [*of_versions, *(_of_signature(s) for s in catalogue().signatures if s.id not in rules)]


def machine_entries() -> list[Entry]:
    """Return what `doctor` and `check` find without any message: limits, variables, tools, libraries."""
    book = rule_book()
    return [_of_machine(rule) for rule in (*book.setup, *book.launch, *book.stated) if "{" not in rule.message]


def _of_rule(rule: Rule) -> Entry:
    row = rule.rows[0]
    texts = [row.symptom for row in rule.rows if row.symptom]
    if rule.signature and not texts:
        texts = [sample_of(pattern) for pattern in _alternatives(rule.signature)]
    return Entry(
        id=rule.id,
        stage=rule.stage or "train",
        messages=_distinct(texts),
        cause=rule.cause or row.cause or "",
        when="; or ".join(_distinct([_versions(row) for row in rule.rows])[:_MOST_MESSAGES]),
        fix=rule.fix or row.fix or "",
        evidence=row.evidence,
    )


def _of_signature(signature: Signature) -> Entry:
    return Entry(
        id=signature.id,
        stage=signature.stage,
        messages=_distinct([sample_of(pattern) for pattern in signature.match]),
        cause=signature.message,
        fix=re.sub(r"\s*\{\w+\}", "", signature.fix),
        lines=signature.lines,
        evidence=signature.evidence,
    )


def _of_machine(rule: MachineRule) -> Entry:
    return Entry(rule.id, "", (), rule.message, "", rule.fix, rule.lines, rule.evidence)


def _versions(row: Row) -> str:
    """Return the releases of a row: `deepspeed >=0.7.0,<0.14.4 and torch >=2.4`."""
    together = " and ".join(f"{name} {spec}".replace(" *", "") for name, spec in row.when.items())
    needs = " and ".join(f"{name} {spec}".replace(" *", "") for name, spec in row.needs.items())
    return f"{together} without {needs}" if needs else together


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))[:_MOST_MESSAGES]


def _alternatives(signature: str) -> list[str]:
    return [part for part in signature.split("\n") if part]


def sample_of(pattern: str) -> str:
    """Return a readable text that the regular expression stands for, `…` where any text may stand."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # Python 3.10
        import sre_parse as parser  # type: ignore[no-redef,unused-ignore]
    text = re.sub(r"\s*…[\s…]*", " … ", _sample(parser.parse(pattern)))
    return re.sub(r" {2,}", " ", text).strip(" …")


def _sample(parsed: Any) -> str:
    return "".join(_sample_of_node(str(op), argument) for op, argument in parsed)


def _sample_of_node(name: str, argument: Any) -> str:
    if name == "LITERAL":
        return chr(argument)
    if name == "SUBPATTERN":
        return _sample(argument[-1])
    if name == "BRANCH":
        return _sample(argument[1][0])
    if name in {"MAX_REPEAT", "MIN_REPEAT"}:
        least, most, inner = argument
        text = _sample(inner)
        if least == 0 and most == 1:
            return "" if text.startswith("…") else text
        return text if text and "…" not in text and text != "N" and most == 1 else (text[:1] if text == "N" else "…")
    if name == "IN":
        return _sample_of_class(argument)
    return "…" if name in {"ANY", "NOT_LITERAL"} else ""


def _sample_of_class(members: Any) -> str:
    kinds = [str(value) for _, value in members]
    if any("DIGIT" in kind for kind in kinds):
        return "N"
    literals = [chr(value) for op, value in members if str(op) == "LITERAL"]
    if any("SPACE" in kind for kind in kinds):
        return " "
    return literals[0] if literals and len(literals) == len(kinds) else "…"


def page() -> str:
    """Return ``messages.md``."""
    by_stage: dict[str, list[Entry]] = {stage: [] for stage in STAGES}
    for entry in entries():
        by_stage[_ALIASES.get(entry.stage, entry.stage)].append(entry)
    lines = [
        "# Messages and what they mean",
        "",
        "Search this page for a part of your message. Better: give the whole log to `envsmith doctor --from train.log`, which knows the same messages, puts the cause",
        "before its consequences and compares it with your versions. `…` stands for any text, `N` for a number.",
        "",
    ]
    for stage, title in STAGES.items():
        lines += [f"## {title}", "", *(line for entry in sorted(by_stage[stage], key=_first) for line in _lines(entry))]
    lines += [
        "## Without a message",
        "",
        "What `envsmith doctor` finds on the machine itself, or in facts that you state.",
        "",
    ]
    lines += [line for entry in machine_entries() for line in _lines(entry)]
    return "\n".join(lines)


def _first(entry: Entry) -> str:
    return _title(entry).lower().lstrip("'\"`([ ")


def _title(entry: Entry) -> str:
    text = entry.messages[0] if entry.messages else entry.cause
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _lines(entry: Entry) -> Iterator[str]:
    yield from (f"### {_plain(_title(entry))}", "")
    if len(entry.messages) > 1:
        yield from ("Also: " + ", ".join(f"`` {text} ``" for text in entry.messages[1:]), "")
    if entry.messages and entry.cause:
        yield from (_plain(entry.cause), "")
    if entry.when:
        yield from (f"**Versions:** {_plain(entry.when)}", "")
    if entry.fix:
        yield from (f"**Fix:** {_plain(entry.fix)}", "")
    if entry.lines:
        yield from ("```sh", *entry.lines, "```", "")
    sources = "; ".join(f"{e.kind.value} {e.date}: {_source(e.source)}" for e in entry.evidence[:_MOST_EVIDENCE])
    yield from (f"<small>`{entry.id}`. Evidence: {sources}</small>", "")


_ESCAPES: Mapping[str, str] = {
    "<": "&lt;",
    ">": "&gt;",
    "*": "\\*",
    "_": "\\_",
    "[": "\\[",
    "`": "\\`",
    "#": "\\#",
    "|": "\\|",
}


def _plain(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


def _source(text: str) -> str:
    return f"<{text}>" if re.fullmatch(r"https://\S+", text) else _plain(text)
