"""The language of the code: variables are nouns, and a failure reads "Cannot <verb> <object>: <reason>."."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import envsmith

_NO_NAMES = frozenset(
    [
        "told",
        "found",
        "said",
        "made",
        "kept",
        "asked",
        "known",
        "there",
        "whole",
        "more",
        "how",
        "given",
        "taken",
        "wanted",
        "left",
        "done",
        "shown",
        "spelt",
        "meant",
        "seen",
        "held",
        "other",
        "others",
        "rest",
    ]
)
# What is still called so. Rename one and take it off; a new one is renamed before it is committed.
_LEFT_TO_RENAME = 27


def test_no_further_variable_has_a_name_that_is_not_a_noun():
    assert len(package().not_nouns) <= _LEFT_TO_RENAME, package().not_nouns


# A form for messages: what cannot be done, to what, and why. Values of an f-string stand as ``{}``, which may hold verb and object.
_FORM = re.compile(r"Cannot (?:[a-z]+ \S.*|\{\}.*): .+[.]", re.DOTALL)
_IMPERATIVE = re.compile(
    r"(?:\{\}|(?:"
    r"Add|Allow|Ask|Build|Call|Change|Check|Choose|Copy|Correct|Create|Declare|Delete|"
    r"Describe|Download|Compare|End|Export|Fetch|Find|Free|Give|Import|Include|Index|Install|Keep|Leave|List|Log|"
    r"Load|Lock|Look|Make|Mend|Move|Name|Open|Pass|Pick|Point|Publish|Pull|Put|Quote|Read|"
    r"Rebuild|Remove|Rename|Repair|Repeat|Replace|Report|Restore|Run|Say|See|Send|Set|Sign|Start|"
    r"Stop|Take|Test|Trust|Try|Type|Unset|Update|Upgrade|Use|Wait|Write"
    r")\b).*[.:…}]",
    re.DOTALL,
)


# Names that a class of failures has where a caller or a table chooses it.
_CHOSEN = frozenset(["failure", "kind"])


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _texts(node: ast.expr) -> list[str]:
    """Return what an expression may say, with ``{}`` for each value. A name or a call says nothing here."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    return []


class _Package:
    """What the sources of the package name and say: read once for all tests, a file at a time, for syntax trees are large."""

    def __init__(self) -> None:
        self.not_nouns: list[str] = []
        self._bases: list[tuple[str, list[str]]] = []
        self._calls: list[tuple[str, str, list[str], list[str]]] = []
        folder = Path(envsmith.__file__).parent
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                self._read(node, str(path.relative_to(folder)))

    def _read(self, node: ast.AST, place: str) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.not_nouns += [f"{place}: {node.id}"] if node.id in _NO_NAMES else []
        elif isinstance(node, ast.arg):
            self.not_nouns += [f"{place}: {node.arg}"] if node.arg in _NO_NAMES else []
        elif isinstance(node, ast.ClassDef):
            self._bases.append((node.name, [_name(base) for base in node.bases]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            hints = [text for word in node.keywords if word.arg == "hint" for text in _texts(word.value)]
            messages = _texts(node.args[0]) if node.args else []
            self._calls.append((node.func.id, f"{place}:{node.lineno}", messages, hints))

    def failures(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield place, messages and hints of whatever makes a failure."""
        names, before = {"EnvsmithError"}, 0
        while len(names) > before:
            before = len(names)
            names |= {name for name, bases in self._bases if not names.isdisjoint(bases)}
        return ((place, messages, hints) for name, place, messages, hints in self._calls if name in names | _CHOSEN)


@cache
def package() -> _Package:
    return _Package()


def test_a_message_says_what_cannot_be_done_and_why():
    wrong = [
        f"{at}: {text}" for at, messages, _ in package().failures() for text in messages if not _FORM.fullmatch(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_hint_begins_with_an_imperative_and_ends_as_a_sentence():
    wrong = [
        f"{at}: {text}" for at, _, hints in package().failures() for text in hints if not _IMPERATIVE.fullmatch(text)
    ]
    assert not wrong, "\n".join(wrong)
