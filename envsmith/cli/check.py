"""``envsmith check``: judge a set of versions, and what is known beside them, without changing it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith import solver
from envsmith.base.interpreter import is_environment
from envsmith.cli.console import Console, dumps, print_answer, print_out
from envsmith.cli.declare import ExistingPath, choice, flag, group, option, several, verb
from envsmith.cli.findings import FORMATS, judgement_text
from envsmith.cli.mend import FileMendFlags, MendSubject, apply_mend, undo_mend
from envsmith.cli.values import host_of_gpu, misspelt, parse_extras, parse_pairs, parse_platform
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.knowledge.graph.load import components, gpu_names, version_graph
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement

if TYPE_CHECKING:
    from envsmith.doctor.facts import Draft
    from envsmith.project.ranges import Declarations


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckFlags:
    """The options of ``check``."""

    words: tuple[str, ...] = several(
        "--with",
        "NAME==VERSION",
        "The same as an argument (repeatable).",
        hidden=True,
        positional="[NAME==VERSION|FILE...]",
    )
    files: tuple[str, ...] = several(
        "--from",
        "FILE",
        "Take the versions of a file (uv.lock, poetry.lock, pylock.toml, Pipfile.lock, pixi.lock, conda-lock.yml, "
        "'conda list', a freeze), the ranges of one (pyproject.toml, requirements.txt, environment.yml), or all of an "
        "environment as JSON; '-' is stdin; repeatable; a NAME==VERSION beside it wins.",
        old=("-r", "--requirements"),
    )
    facts: tuple[str, ...] = several(
        "--fact",
        "KEY=VALUE",
        "A fact about the host: tool.nvcc=none, limit.shm=64M, ssh=refused, nodes=2 (repeatable; "
        "--fact help lists all).",
    )
    variables: tuple[str, ...] = several(
        "--env",
        "NAME[=VALUE]",
        "An environment variable of the job; NAME alone has the value it has here (repeatable).",
    )
    unset: tuple[str, ...] = several("NAME", "A variable that the job does not have (repeatable).")
    code: ExistingPath | None = option(
        "PATH", "Judge the names that this code takes: a folder, a git checkout, a file or a notebook."
    )
    wheels: tuple[str, ...] = several(
        "--wheel",
        "FILE|URL",
        "Judge whether the compiled files of a wheel load with the torch, Python, GPU and system (repeatable).",
    )
    offline: bool = flag("Do not ask the package index for releases that envsmith does not know.")
    index: bool = flag(
        "Read on the package index what every stated release, and each pin of a file, declares and its code takes: "
        "seconds, of a long file two minutes."
    )
    mend: FileMendFlags = group(FileMendFlags, section="Mend a file")
    platform: str | None = option(
        "PLATFORM", "linux-64 or linux-aarch64. Default: linux-64, or that of a GPU with its host (gb200)."
    )
    form: str = choice(FORMATS, "--format", "How findings are written.", default="text")
    verbose: bool = flag("-v", "Show all evidence.")

    @property
    def pairs(self) -> tuple[str, ...]:
        """Return the arguments that are versions."""
        return tuple(word for word in self.words if not _is_file(word))

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the files that are judged."""
        return (*filter(_is_file, self.words), *self.files)

    @property
    def environment(self) -> tuple[str, ...]:
        """Return the variables of the job as ``NAME=VALUE``. ``NAME`` alone is unset."""
        here = (f"{name}={os.environ[name]}" if name in os.environ else name for name in self.variables)
        return (*here, *self.unset)


# What the name of a file ends with, whether it is there or not.
_SUFFIXES = frozenset({".cfg", ".json", ".lock", ".log", ".toml", ".txt", ".yaml", ".yml"})


def _is_file(word: str) -> bool:
    """Return whether an argument is the name of a file, and no version."""
    path = Path(word)
    return word == "-" or path.is_file() or ("==" not in word and path.suffix in _SUFFIXES)


def _refuse_folder(word: str) -> None:
    path = Path(word)
    if not path.is_dir():
        return
    if is_environment(path):
        raise UsageError(f"Cannot check {word}: it is an environment.", hint=f"Run envsmith doctor --python {word}.")
    raise UsageError(
        f"Cannot check {word}: it is a folder.",
        hint=f"Name a file in it, such as pyproject.toml. For the sources in it: --code {word}.",
    )


@verb(CheckFlags)
@one_state()
def check(settings: CheckFlags) -> int:
    """Judge a given set: any component, e.g. deepspeed==0.14.0 torch==2.6.0 driver==535.54.03 gpu==sm_90 nvcc==12.4.

    A version may be '*' (some release of it is there) or none (it is known to be absent).

    Exit code 0 when nothing speaks against it (status ok or unknown), 1 when it is bad, 2 for a name that looks
    misspelt and that the package index does not have.
    """
    if "help" in settings.facts:
        from envsmith.doctor.vocabulary import words

        print_out("\n".join(f"{key:<20} {what}" for key, what in words().facts.items()))
        return 0
    source = next(iter(settings.sources), "-")
    settings.mend.refuse_idle(None if source == "-" else source)
    if settings.mend.undo:
        if settings.sources[1:] or settings.pairs or settings.facts or settings.environment or settings.wheels:
            raise UsageError(
                f"Cannot undo a change of {source}: more is named beside it.",
                hint=f"Name it alone: envsmith check {source} --undo.",
            )
        return undo_mend(settings.mend, Path(source))
    judgement, declarations = _judged(settings)
    if settings.mend.apply:
        subject = MendSubject(path=Path(settings.sources[0]), judgement=judgement, declarations=declarations)
        return apply_mend(settings.mend, subject, lambda: _judged(settings)[0], as_json=settings.form == "json")
    if settings.form == "json":
        print_out(dumps(judgement.to_json()))
    elif settings.form == "text":
        print_answer(judgement_text(judgement, settings.form, everything=settings.verbose))
    else:
        print_out(judgement_text(judgement, settings.form))
    return 1 if judgement.status == "bad" else 0


def _judged(settings: CheckFlags) -> tuple[Judgement, Declarations | None]:
    """Judge all that the options name. Return the judgement, and what files of a project declare."""
    names, pairs = gpu_names(), settings.pairs
    for word in pairs:
        _refuse_folder(word)
    where = parse_platform(settings.platform) if settings.platform else _host(pairs)
    versions = [f"gpu=={names[v.lower()]}" if (v := p.partition("==")[2]).lower() in names else p for p in pairs]
    is_stated = bool(pairs or settings.sources or settings.facts or settings.environment)
    if not (is_stated or settings.code or settings.wheels):
        raise UsageError(
            "Cannot check an environment: no version is given.",
            hint=f"Run envsmith check {EXAMPLE}==0.14.0 torch==2.6.0, or envsmith check requirements.txt.",
        )
    stated: dict[str, str] = {}
    declarations = draft = None
    if settings.sources or settings.facts or settings.environment or settings.wheels:
        from envsmith.cli import check_sources  # a check of versions alone waits for no reader

        stated, declarations, draft = check_sources.read(settings.sources, settings.facts, settings.environment)
    typed = parse_pairs(versions, components())
    suspects = misspelt(typed, components())
    pins = (
        [str(d.requirement) for d in declarations.always.demands if d.exact] if declarations and settings.index else []
    )
    extras = parse_extras((*pins, *versions), components())
    stated |= typed
    keep = settings.mend.components
    judgement = _judge(stated, draft, where, keep) if stated or _size(draft) else Judgement(status="ok")
    if not settings.offline and (settings.index or suspects or extras or version_graph().unknown_releases(stated)):
        from envsmith.cli.check_index import judge_by_index  # what is known needs no index

        released = check_sources.strangers(draft.done()) | stated if draft and settings.index else stated
        judgement = judge_by_index(judgement, released, suspects, where, reads_measured=settings.index, extras=extras)
    if declarations is not None and judgement.status != "bad":
        judgement = declarations.judge(judgement, stated, where, keep=keep)
    if settings.code is not None:
        from envsmith.project.code.judge_code import judge_code  # only who has code waits for its readers

        judgement = judge_code(settings.code, stated, judgement, where, Console())
    if draft is not None:
        judgement = check_sources.with_strangers(
            judgement, draft.done(), is_read=settings.index and not settings.offline
        )
        for source in settings.wheels:
            judgement = check_sources.judge_linking(source, stated, draft.done(), where, judgement)
    return judgement, declarations


def _host(pairs: Collection[str]) -> Platform:
    """Return the platform of a GPU that comes with its host, else linux-64."""
    on_arm = version_graph().compiled.gpus_on_arm
    gpus = [value for name, _, value in (pair.partition("==") for pair in pairs) if name == "gpu"]
    return next(filter(None, (host_of_gpu(gpu, on_arm) for gpu in gpus)), Platform.LINUX_64)


def _size(draft: Draft | None) -> int:
    return draft.size() if draft else 0


def _judge(versions: dict[str, str], draft: Draft | None, platform: Platform, keep: Collection[str]) -> Judgement:
    """Judge by the rules over versions alone where nothing else was stated: the doctor's need not be loaded then."""
    if _size(draft) or any(v in {"none", "*"} or "torch" in v.partition("+")[2] for v in versions.values()):
        from envsmith.doctor.stated_environment import check_environment

        return check_environment(versions, draft, platform, keep=keep)
    return solver.check(versions, platform=platform, keep=keep)
