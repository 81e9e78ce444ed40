"""What every updater of ``matrix/`` shares: index, clock, store of facts, and work done a few at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envsmith.base.cache import read_cache, write_cache
from envsmith.base.schema import parse_value, to_json
from envsmith.errors import ContentError, NetworkError
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.lock.index.index import IndexFile, IndexProject, PackageIndex
from envsmith.lock.index.torch_wheel import TorchFacts
from envsmith.model.component import ComponentTable

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
_Facts = TypeVar("_Facts", ReleaseFacts, TorchFacts)
# Raised when the meaning of stored facts changes, so that old ones are not believed.
_FACTS_VERSION = 2


class Progress(Protocol):
    """Receives progress. The command line draws a bar with it."""

    def __call__(self, what: str, count: int, total: int, /) -> None:
        """Show that ``count`` of ``total`` steps of ``what`` are finished."""
        ...


@dataclass(kw_only=True)
class RefreshRun:
    """One run. ``today`` is the ISO day that new evidence carries; ``again`` reads what was measured already once more.

    ``problems`` collects what could not be read: those lines stay as they are, the others are updated all the same.
    ``left_out`` is what the index lists and cannot be believed.
    ``cache`` is where the facts of an artifact are kept, so that a run that was interrupted does not read it twice, and
    ``read`` holds the facts of the releases that were opened in this run, by component and version.
    """

    index: PackageIndex
    components: ComponentTable
    today: str
    cache: Path
    jobs: int = 4
    again: bool = False
    progress: Progress = field(default=lambda _what, _done, _total: None)
    problems: list[str] = field(default_factory=list)
    read: dict[str, dict[str, ReleaseFacts]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    _projects: dict[str, IndexProject] = field(default_factory=dict)

    def project(self, name: str) -> IndexProject:
        """Return the files of a project, asked for once in a run."""
        if name not in self._projects:
            self._projects[name] = self.index.project(name)
            self.left_out += [f"{name}: left out {line}" for line in self._projects[name].left_out]
        return self._projects[name]

    def read_once(self, shape: type[_Facts], kind: str, file: IndexFile, read: Callable[[], _Facts]) -> _Facts:
        """Return what an artifact says: as it was stored, unless it is to be read again or has another name now."""
        key = f"{_FACTS_VERSION} {file.sha256}"
        if file.sha256 and not self.again:
            with contextlib.suppress(ValueError):
                facts = parse_value(shape, read_cache(kind, key, self.cache / "facts"))
                if facts.filename == file.filename:
                    return facts
        facts = read()
        write_cache(kind, key, to_json(facts), self.cache / "facts")
        return facts


def in_parallel(
    context: RefreshRun, what: str, tasks: Mapping[_Task, str], work: Callable[[_Task], _Answer]
) -> dict[_Task, _Answer]:
    """Return the answer of ``work`` for each task, ``context.jobs`` at a time. Failures become problems.

    Ctrl-C lets the tasks that run finish or fail, starts no more, and is raised again.
    """
    answers: dict[_Task, _Answer] = {}
    if not tasks:
        return answers
    pool = ThreadPoolExecutor(max_workers=max(1, context.jobs))
    try:
        running: dict[Future[_Answer], _Task] = {pool.submit(work, task): task for task in tasks}
        context.progress(what, 0, len(tasks))
        while running:
            ready, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ready:
                task = running.pop(future)
                try:
                    answers[task] = future.result()
                except (NetworkError, ContentError) as error:
                    context.problems.append(f"{tasks[task]}: {error.message}")
                context.progress(what, len(tasks) - len(running), len(tasks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return {task: answers[task] for task in tasks if task in answers}


def same_spec(one: object, another: object) -> bool:
    """Return whether two spec texts say the same, whatever the order of their clauses."""
    if one == another:
        return True
    try:
        return SpecifierSet(str(one)) == SpecifierSet(str(another))
    except InvalidSpecifier:
        return False
