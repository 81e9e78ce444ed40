"""A call that says all that it gives, as a question: ``!2,dim`` for two arguments by position and ``dim`` by name.

The answer is whether the text of a function, as ``signature_text`` writes it, wants anything else.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from envsmith.knowledge.names.signature_text import positional

MARK = "!"
_MARKS = frozenset({"", "/", "*", "|", "**"})


def whole_call(call: ast.Call) -> str:
    """Return the question for a call, ``""`` for one that spreads a list or a dictionary into its arguments."""
    is_open = any(isinstance(argument, ast.Starred) for argument in call.args)
    if is_open or not all(keyword.arg for keyword in call.keywords):
        return ""
    return ",".join([f"{MARK}{len(call.args)}", *sorted(keyword.arg or "" for keyword in call.keywords)])


@dataclass(frozen=True, slots=True)
class WholeCall:
    """What a call gives: how many arguments by position, and those by name."""

    count: int
    names: frozenset[str]

    @classmethod
    def of(cls, question: str) -> WholeCall:
        """Return the call that :func:`whole_call` asks for."""
        count, *names = question.removeprefix(MARK).split(",")
        return cls(int(count), frozenset(names))

    @property
    def total(self) -> int:
        """Return how many arguments it gives."""
        return self.count + len(self.names)

    def lacks(self, words: Sequence[str]) -> tuple[str, ...] | None:
        """Return the parameters without a default that the call leaves out, of a function with those words.

        ``None`` where the function does not take the call for another reason, or may take it: an argument by name that has
        a default and no place may be the old name of one that is left out (``@deprecate_kwarg``).
        """
        by_place = positional(words)
        by_name = words[words.index("/") + 1 :] if "/" in words else words
        named = {word.removesuffix("=") for word in by_name if word not in _MARKS}
        placed = {word.removesuffix("=") for word in by_place[: self.count]}
        is_taken = self.count <= len(by_place) or "*" in words
        if not is_taken or self.names & placed or not ("**" in words or self.names <= named):
            return None
        bound = placed | (self.names & named)
        missing = [word for word in words if word not in _MARKS and not word.endswith("=") and word not in bound]
        spare = sum(f"{name}=" in words and f"{name}=" not in by_place for name in self.names)
        return tuple(missing) if not missing or len(missing) > spare else None
