"""What is said of the names that a text lacks: of those that its messages tell, and of one that no message tells.

A text that ends before its error has a last line of code, which asks for names of packages. Nobody said that one of them
is missing. So it is a lead: the stated release is known not to have it, or the newest one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from envsmith.doctor.diagnosis import Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, best_answer, installed_version, is_in, is_lack, lack_of, lack_signatures
from envsmith.doctor.missing_names import explain
from envsmith.doctor.name_explanation import MissingNameExplanation
from envsmith.doctor.read.tracebacks import unanswered_line
from envsmith.doctor.signatures import Hit
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.rule import Severity

_IMPORT_OF_NAMES = re.compile(r"from ([A-Za-z_][\w.]{0,120}) import ([\w ,]{1,400})$")
_IMPORT_OF_MODULE = re.compile(r"import ([A-Za-z_]\w{0,60}(?:\.\w{1,60}){1,8})(?: as \w+)?$")
_ATTRIBUTE = re.compile(r"(?<![\w.'\"])([A-Za-z_]\w{0,40})((?:\.\w{1,60}){0,5})\.(\w{1,60})\b")
_CALL = re.compile(r"(?<![\w.'\"])([A-Za-z_]\w{0,60}(?:\.\w{1,60}){0,6})\((.{1,400})$")
_KEYWORD = re.compile(r"(?<![\w.])([a-z_]\w{1,60})\s?=(?!=)")
_ALIAS = re.compile(r"\bimport ([A-Za-z_][\w.]{0,120}) as (\w{1,40})")
_ROOT = re.compile(r"^[ \t>-]{0,12}\d{0,5} {0,4}import (\w{1,60})$", re.MULTILINE)
# Lines that import, below words that say that they fail.
_SPOKEN = re.compile(
    r"\bimport(?:ing|s)?[ -]errors?\b|\b(?:fails?|failed|failing|error|unable|cannot|can't|could not) (?:to |on |at |when |while )?import",
    re.IGNORECASE,
)
_IMPORTS_AT_END = re.compile(r"\n((?:from|import) [^\n]{3,300})\s*$")


def explain_lacks(
    lacks: Iterable[Lack],
    hits: Sequence[Hit],
    facts: Facts,
    names: NameIndex,
    needs: Sequence[Mapping[str, str]],
) -> list[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]]:
    """Return what is said of missing names, but not of those whose message a signature knows better.

    A signature of a pair of versions says less than an index that names the releases, and gives the failure class. One
    of another group (a part that was not compiled) says more, and one that names releases where the index names none.
    A message that names its cause says more than a guess.
    """
    explained = []
    for lack in lacks:
        explanation = explain(lack, facts, names, needs)
        here = [h for h in hits if h.place == lack.hit.place]
        is_rule = any(h.signature.rule for h in here)
        causes = [h for h in here if h.signature.kind == "cause"]
        is_better_known = explanation and explanation.confidence == "low" and causes
        same = [h for h in here if not is_lack(h) and not h.signature.rule and h.signature.kind != "other"]
        better = [
            h
            for h in same
            if h.signature.group != "python-version-pair"
            or (explanation and h.signature.needs and not explanation.needs)
        ]
        if is_better_known:
            continue
        if explanation and not better and (explanation.is_certain or not (same or is_rule)):
            explained.append((lack, explanation, tuple(sorted(same, key=lambda h: h.signature.kind != "cause"))))
    return explained


def explain_unsaid(
    texts: Sequence[tuple[str, str]], facts: Facts, index: NameIndex, needs: Sequence[Mapping[str, str]]
) -> list[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]]:
    """Return what is said of the first name in the last quoted line of a text that releases are known not to have."""
    for source, text in texts:
        for lack in _unsaid_lacks(text, source):
            explanation = explain(lack, facts, index, needs) if _is_missing(lack, facts, index) else None
            if explanation and explanation.rule == "name-not-in-release":
                return [(lack, _as_lead(explanation), ())]
    return []


def _as_lead(explanation: MissingNameExplanation) -> MissingNameExplanation:
    # Without a stated release it is the newest one of which that is known.
    message = explanation.message.replace("The installed ", "The newest ", 1)
    return dataclasses.replace(
        explanation,
        message=f"The text ends before its error, at a line that asks for what not every release has. {message}",
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        confidence="medium" if explanation.confidence == "high" else "low",
    )


def _is_missing(lack: Lack, facts: Facts, index: NameIndex) -> bool:
    """Return whether the stated release is known to lack what is asked for, or where none is stated the newest one."""
    answer = best_answer(lack, facts, index)
    if answer is None or answer[0].is_guess or not (answer[1].present and answer[1].absent):
        return False
    presence = answer[1]
    if version := installed_version(presence.distribution, facts):
        return is_in(version, presence.present, presence.releases) is False
    return presence.releases[-1] in presence.absent


def _unsaid_lacks(text: str, source: str) -> Iterator[Lack]:
    line = unanswered_line(text) or _spoken_import(text)
    if line is None:
        return
    number, code = line
    position = sum(len(each) + 1 for each in text.split("\n")[:number])
    quote = text[position:].partition("\n")[0].strip()
    signatures = {each.message: each for each in lack_signatures()}
    for kind, owner, name in _asked(code, text):
        groups = {"owner": owner, "name": name}
        hit = Hit(
            signature=signatures[kind], source=source, line=number + 1, text=quote, position=position, groups=groups
        )
        yield lack_of(hit, text)


def _spoken_import(text: str) -> tuple[int, str] | None:
    """Return the number and the code of an import at the end of a text that says that importing fails, but no error."""
    match = _IMPORTS_AT_END.search(text[-400:])
    if match is None or not _SPOKEN.search(text) or re.search(words().failure, text, re.MULTILINE):
        return None
    return text.rstrip().count("\n"), match[1].strip()


def _asked(code: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of what a line of code asks for, whom it asks, and the name."""
    code = code.partition("  #")[0].strip()
    if names := _IMPORT_OF_NAMES.match(code):
        yield from (("name", names[1], each.split()[0]) for each in names[2].split(",") if each.strip())
    elif module := _IMPORT_OF_MODULE.match(code):
        yield "module", module[1], ""
    else:
        imported = {**words().aliases, **{alias: path for path, alias in _ALIAS.findall(text)}}
        imported |= {root: root for root in _ROOT.findall(text)}
        for root, middle, name in _ATTRIBUTE.findall(code):
            if root in imported:
                yield "attribute", f"{imported[root]}{middle}", name
        for called, arguments in _CALL.findall(code):
            yield from (("argument", called, keyword) for keyword in _KEYWORD.findall(arguments))
