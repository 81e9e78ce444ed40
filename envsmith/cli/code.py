"""``--code PATH``: a project's own code as part of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement

from envsmith.base.json_types import JsonDict
from envsmith.base.progress import Progress, announced, silent
from envsmith.builder.arrow import python_lock
from envsmith.builder.options import Options
from envsmith.cli.console import say
from envsmith.cli.flags import RequestFlags
from envsmith.cli.values import name_in
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.stacks import find_stack
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.model.lock import Lock
from envsmith.project.code.needs import Inferred, infer, settle, settle_lock
from envsmith.project.code.reading import read_code
from envsmith.project.demand import Demands
from envsmith.project.stated import read_stated

_SHOWN = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeInference:
    """What ``--code`` put into a request, and from what it was inferred.

    ``base`` are the user's own flags. ``wishes`` are specs by distribution, and ``names`` what of them the code needs.
    """

    base: RequestFlags
    wishes: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    not_installed: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()

    @property
    def flags(self) -> RequestFlags:
        """Return the flags that say the same without ``--code``."""
        return self.asking(self.wishes)

    def asking(self, wishes: Mapping[str, str]) -> RequestFlags:
        """Return the flags with other wishes."""
        lines = tuple(f"{name}{'' if spec == '*' else spec}" for name, spec in wishes.items())
        return replace(self.base, package=(*self.base.package, *lines))

    def to_json(self) -> JsonDict:
        """Return the key ``inferred`` of an answer."""
        return {
            "package": list(self.flags.package),
            "date": self.base.date,
            "from": list(self.reasons),
            "not_installed": list(self.not_installed),
            "not_read": list(self.not_read),
        }


def with_code(flags: RequestFlags, files: Demands | None = None) -> CodeInference:
    """Return the flags with what the code of ``--code`` needs. What the user names, in ``files`` too, is the user's.

    Says on stderr what was inferred, and from what.
    """
    if flags.code is None:
        return CodeInference(base=flags)
    index = NameIndex.installed()
    project, uses = read_code(flags.code, index)
    requirements = read_stated(project.root, project.files)
    inferred = infer(uses, requirements, index)
    reasons = list(inferred.reasons)
    date = flags.date
    if date is None and project.day is not None:
        date = project.day
        reasons.append(f"date {date}: the day of {project.day_of}")
    named = _named(flags)
    if flags.python is None and "python" in inferred.components:
        flags = replace(flags, python=inferred.components["python"])
    wishes = {name: spec for name, spec in inferred.components.items() if name not in {*named, "python"}}
    further = {r.name: str(r.specifier) or "*" for r in map(Requirement, inferred.packages)}
    base = replace(flags, code=None, date=date)
    answer = CodeInference(base=base, not_installed=inferred.unnamed, not_read=requirements.problems)

    def all_wishes(some: Mapping[str, str]) -> dict[str, str]:
        return {distribution_of(name): spec for name, spec in some.items()} | further

    wishes, sentences = settle(wishes, inferred.names, lambda some: answer.asking(all_wishes(some)).request(files))
    reasons += sentences
    _say(inferred, reasons, requirements.problems)
    needed = {distribution_of(name) if name in wishes else name: spec for name, spec in inferred.names.items()}
    return replace(answer, wishes=all_wishes(wishes), names=needed, reasons=tuple(reasons))


def lock_plan(
    flags: RequestFlags,
    files: Demands | None,
    options_of: Callable[[RequestFlags], Options],
    progress: Progress,
    lock: Callable[..., Lock] = python_lock,
) -> tuple[Options, JsonDict]:
    """Return what a lock is asked for, and the key ``inferred`` of its answer. What keeps uv from it gives way."""
    answer = with_code(flags, files)

    def lock_of(wishes: Mapping[str, str]) -> Lock:
        return lock(options_of(answer.asking(wishes)), progress=silent)

    with announced(progress, "trial lock"):
        wishes, sentences = settle_lock(answer.wishes, answer.names, lock_of)
    for sentence in sentences:
        say(f"  {sentence}")
    left_out = tuple(name for name in answer.wishes if name not in wishes)
    answer = replace(
        answer,
        wishes=wishes,
        reasons=(*answer.reasons, *sentences),
        not_installed=tuple(sorted({*answer.not_installed, *left_out})),
    )
    return options_of(answer.flags), {"inferred": answer.to_json()}


def distribution_of(name: str) -> str:
    """Return the name of a component on the package index."""
    return components().by_name[name].distributions[0]


def _named(flags: RequestFlags) -> frozenset[str]:
    """Return the components that the user names."""
    stated = {name for name in ("torch", "cuda", "nccl", "python", "driver") if getattr(flags, name) is not None}
    for text in (*flags.framework, *flags.with_):
        component = components().find(name_in(text))
        stated.add(component.name if component else text)
    stated.update(name for stack in map(find_stack, flags.stack) for name in stack.requires)
    return frozenset(stated)


def _say(inferred: Inferred, reasons: Iterable[str], unread: Sequence[str]) -> None:
    say("inferred from the code:")
    for reason in reasons:
        say(f"  {reason}")
    if inferred.unnamed:
        names = ", ".join(inferred.unnamed[:_SHOWN])
        say(f"  not installed: {names}: no file of the project says which package has it (--package NAME)")
    for line in unread[:_SHOWN]:
        say(f"  not read: {line}")
