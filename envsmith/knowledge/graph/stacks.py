"""Stacks: components that people install together under one word, and the step that proves them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from envsmith.base.files import read_bounded
from envsmith.base.schema import Problems, Text, UnreadableError, exactly, parse_document, strict
from envsmith.errors import UsageError
from envsmith.frameworks.framework import Step
from envsmith.knowledge.graph.fields import ComponentName, Specs, check_file
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.location import MAX_FILE_BYTES, find_matrix
from envsmith.model.component import ComponentTable
from envsmith.model.rule import Evidence
from envsmith.model.version import Spec

_FOLDER = "stacks"
# The imports of a whole stack, on a machine that has other work.
_DEADLINE = 600.0


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What is trained: ``model`` and ``adapter`` of :mod:`envsmith.agent.steps.stack`, by a member.

    ``method`` names one of several that the member has. ``launcher`` is the framework that starts the ranks.
    """

    model: Literal["llama", "denoiser"]
    trainer: ComponentName
    method: Literal["grpo"] | None = None
    adapter: Literal["lora", "qlora"] | None = None
    launcher: Literal["ray"] | None = None
    issues: tuple[Text, ...] = ("all_reduce",)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _StackFile:
    schema: Annotated[int, exactly(1, "this envsmith reads schema: 1")]
    title: Text
    requires: Specs
    training: Training | None = None
    evidence: Mapping[str, Evidence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """``requires`` maps each member to the spec of its releases. Without ``training`` its proof is the imports."""

    name: str
    title: str
    requires: Mapping[str, Spec]
    distributions: tuple[str, ...]
    training: Training | None
    evidence: tuple[Evidence, ...]

    @property
    def step(self) -> Step:
        """Return the step of a smoke test that imports every member, and trains with them."""
        name, imports = f"stack {self.name}", {"distributions": list(self.distributions)}
        if self.training is None:
            return Step(name=name, kind="imports", options=imports, trains=False, tolerance=None, deadline=_DEADLINE)
        trainer = "-".join(filter(None, (self.training.trainer, self.training.method)))
        training = {"model": self.training.model, "trainer": trainer, "adapter": self.training.adapter}
        return Step(
            name=name,
            kind="stack",
            options={**imports, **training},
            issues=self.training.issues,
            native=True,
            launcher=self.training.launcher or "",
            deadline=_DEADLINE,
        )


def load_stacks(root: Path | None = None) -> Mapping[str, Stack]:
    """Return every stack below ``root`` (default: the installed knowledge) by name.

    ``DataError`` lists every problem of their files.
    """
    return _read(root or find_matrix())


def find_stack(name: str) -> Stack:
    """Return a stack. ``UsageError`` names the nearest where there is none of that name."""
    stacks = load_stacks()
    if name in stacks:
        return stacks[name]
    raise UsageError(
        f"Cannot use the stack {name!r}: there is none of that name.", hint=f"Use one of: {', '.join(stacks)}."
    )


def stack_names() -> list[str]:
    """Return the names of the stacks, from the names of their files."""
    return [path.stem for path in _files(find_matrix())]


def stacks_of(names: Iterable[str], stacks: Iterable[Stack] | None = None) -> tuple[Stack, ...]:
    """Return the stacks whose members are all among some components. One that is part of another is left out."""
    present, every = set(names), load_stacks().values() if stacks is None else stacks
    complete = [stack for stack in every if stack.requires.keys() <= present]
    return tuple(s for s in complete if not any(s.requires.keys() < each.requires.keys() for each in complete))


def _files(root: Path) -> list[Path]:
    return sorted((root / _FOLDER).glob("*.yaml"), key=lambda path: path.stem)


@cache
def _read(root: Path) -> dict[str, Stack]:
    problems, table = Problems(), components()
    stacks = {}
    for path in _files(root):
        name = f"{_FOLDER}/{path.name}"
        try:
            document = parse_document(path.name, read_bounded(path, MAX_FILE_BYTES))
        except UnreadableError as error:
            problems.add(name, str(error))
            continue
        file = check_file(_StackFile, name, document, problems, table)
        if file is not None and file.training and file.training.trainer not in file.requires:
            problems.add(f"{name}: training.trainer", "not a member of the stack", "name one that stands in `requires`")
        elif file is not None:
            stacks[path.stem] = _stack(path.stem, file, table)
    problems.refuse("Cannot read the stacks: some of their values are wrong.", hint="See matrix/README.md.")
    return stacks


def _stack(name: str, file: _StackFile, table: ComponentTable) -> Stack:
    return Stack(
        name=name,
        title=file.title,
        requires=file.requires,
        distributions=tuple(d for member in file.requires for d in table.by_name[member].distributions[:1]),
        training=file.training,
        evidence=tuple(file.evidence.values()),
    )
