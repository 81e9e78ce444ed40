"""What the last error of a text itself says to do: a lead where nothing that is known explains it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from envsmith.doctor.diagnosis import Diagnosed, Weight
from envsmith.doctor.read.pasted import unprefixed
from envsmith.doctor.refusals import advice_in
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

# An error and its message, to the next blank line or record of a log. A `TypeError` tells a programmer what it wants.
_ERROR = re.compile(
    r"^[ \t]{0,8}(?:[\w.]{1,120}\.)?(?P<kind>(?!TypeError)[A-Z]\w{1,60}(?:Error|Exception)): (?P<message>.{1,1000}"
    r"(?:\n(?![ \t]{0,8}(?:File \"|Traceback|#|[*_]{0,2}(?:Steps|To [Rr]eproduce|Expected|Environment)\b|[A-Z]\w{1,60}(?:Error|Exception)\b|[\[│╭╰^~=*#-]|\d{4}-|\d\d:))[^\n]{1,600}){0,6})",
    re.MULTILINE,
)
_SENTENCE = re.compile(r"(?<=[.!;])\s+(?=[\"'`(]?[A-Z])|\n")
# A sentence whose first way stands in the next line.
_LIST = re.compile(r":\n[ \t]{0,8}(?:[-*]|\(?\d[.)])[ \t]{1,4}")
# What says how a value has to be, without telling anybody.
_DUTY = re.compile(
    r"\b(?:must|should|needs? to|has to|have to) (?:be|have)\b|\brequired? to be\b|\bby (?:setting|using|passing)\b"
)
# What asks for a report, or shows more of the failure, and mends nothing.
_NO_REMEDY = re.compile(
    r"\b(?:issue|bug|report|debug\w*|stack ?traces?|traceback|verbose|full error|more (?:info|detail)\w*|documentation|docs"
    r"|contact|details|DSA|logs?|warning)\b|https?://",
    re.IGNORECASE,
)
_MOST = 400


def judge_last_words(texts: Sequence[tuple[str, str]], known: Collection[str | None]) -> list[Diagnosed]:
    """Return what the last error of the texts itself says to do, or nothing where it says nothing of the kind.

    ``known`` are the places, ``source:line``, of messages of which something is known.
    """
    for source, text in reversed(texts):
        for error in [*_ERROR.finditer(unprefixed(text))][-1:]:
            first = error[0].strip().partition("\n")[0]
            position = max(text.rfind(first), 0)
            where = f"{source}:{text.count(chr(10), 0, position) + 1}"
            if where not in known and (advice := _advice(error["message"])):
                return [_diagnosed(error["kind"], first, advice, where, position)]
    return []


def _advice(message: str) -> str:
    """Return the sentences of a message that tell somebody to do something."""
    sentences = [each.strip() for each in _SENTENCE.split(_LIST.sub(": ", message)) if not _NO_REMEDY.search(each)]
    advice = dict.fromkeys(each for each in sentences if advice_in(each) or _DUTY.search(each))
    return " ".join(advice)[:_MOST]


def _diagnosed(kind: str, line: str, advice: str, where: str, position: int) -> Diagnosed:
    finding = Finding(
        rule="error-says-itself",
        severity=Severity.WARNING,
        components={},
        message=f"Nothing known explains this {kind}. Its message itself says what to do.",
        fix=advice,
        symptom=line[:300],
    )
    return Diagnosed(
        finding=finding, confidence="low", score=Weight.POSSIBLE, where=where, quote=line, position=position
    )
