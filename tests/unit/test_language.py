"""The language of the code: variables are nouns, and a failure reads "Cannot <verb> <object>: <reason>."."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def _bound(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_no_further_variable_has_a_name_that_is_not_a_noun():
    package = Path(envsmith.__file__).parent
    names = [
        f"{path.relative_to(package)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in _bound(ast.parse(path.read_text(encoding="utf-8")))
        if name in _NO_NAMES
    ]
    assert len(names) <= _LEFT_TO_RENAME, names


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


def _trees() -> Iterator[tuple[str, ast.Module]]:
    package = Path(envsmith.__file__).parent
    for path in sorted(package.rglob("*.py")):
        yield str(path.relative_to(package)), ast.parse(path.read_text(encoding="utf-8"))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _failure_classes(trees: list[tuple[str, ast.Module]]) -> set[str]:
    names, before = {"EnvsmithError"}, 0
    classes = [node for _, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while len(names) > before:
        before = len(names)
        names |= {node.name for node in classes if any(_name(base) in names for base in node.bases)}
    return names


def _texts(node: ast.expr) -> list[str]:
    """Return what an expression may say, with ``{}`` for each value. A name or a call says nothing here."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    return []


def _failures() -> Iterator[tuple[str, list[str], list[str]]]:
    trees = list(_trees())
    classes = _failure_classes(trees)
    for place, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes | _CHOSEN:
                hints = [text for word in node.keywords if word.arg == "hint" for text in _texts(word.value)]
                yield f"{place}:{node.lineno}", _texts(node.args[0]) if node.args else [], hints


def test_a_message_says_what_cannot_be_done_and_why():
    wrong = [f"{at}: {text}" for at, messages, _ in _failures() for text in messages if not _FORM.fullmatch(text)]
    assert not wrong, "\n".join(wrong)


def test_a_hint_begins_with_an_imperative_and_ends_as_a_sentence():
    wrong = [f"{at}: {text}" for at, _, hints in _failures() for text in hints if not _IMPERATIVE.fullmatch(text)]
    assert not wrong, "\n".join(wrong)
