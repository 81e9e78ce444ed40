"""``envsmith doctor``: judge this machine, or a text that somebody pasted."""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from envsmith.base.files import write_whole
from envsmith.base.interpreter import is_environment, named_python
from envsmith.cli.console import dumps, print_answer, print_out, say
from envsmith.cli.declare import ExistingFile, File, Folder, choice, flag, group, option, several, verb
from envsmith.cli.doctor_sources import gather, read_published, stored_launches
from envsmith.cli.findings import machine_text
from envsmith.cli.flags import exit_code, fail_on_option, say_project
from envsmith.cli.mend import MendFlags, mend_environment, root_of, undo_environment
from envsmith.cli.repair import write_fix
from envsmith.cli.values import parse_platform
from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.host import interpreter_of
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.proved import own_run
from envsmith.doctor.report import as_markdown, as_text
from envsmith.doctor.snapshot import compare, dump, read_snapshot
from envsmith.errors import UsageError
from envsmith.model.rule import Severity

_FORMATS = ("text", "json", "sarif", "github", "markdown")


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorFlags:
    """The options of ``doctor``."""

    sources: tuple[str, ...] = several(
        "--from",
        "FILE|DIR",
        "Judge a pasted text (log, report, list of packages, Dockerfile, snapshot) or a folder of the ranks' logs; "
        "'-' is stdin; repeatable.",
        positional="[FILE|DIR|ENVIRONMENT...]",
    )
    python: str | None = option("PATH", "The interpreter whose environment is judged (default: the active one).")
    deep: bool = flag("Also import what is installed (a few seconds).")
    save: File | None = option("Write all facts to one file, without secrets and user names.")
    compare: tuple[ExistingFile, ExistingFile] | None = option(
        "A.json B.json", "Compare the snapshots of two nodes.", nargs=2
    )
    fix_to: Folder | None = option("DIR", "Write the repair as a lock and a Dockerfile (resolves packages).")
    platform: str | None = option("PLATFORM", "linux-64 or linux-aarch64 (default: what the facts say).")
    offline: bool = flag("Do not ask the package index for names that were not measured.")
    form: str = choice(_FORMATS, "--format", "How findings are written.", default="text")
    everything: bool = flag("--all", "Show every note.")
    fail_on: str = fail_on_option()
    mend: MendFlags = group(MendFlags, section="Mend in place")

    def with_environment(self) -> DoctorFlags:
        """Return the options with an environment that is named among the files as ``--python``."""
        python = next((each for each in self.sources if is_environment(Path(each))), None)
        if python is None or self.python:
            return self
        sources = tuple(each for each in self.sources if each != python)
        return dataclasses.replace(self, python=python, sources=sources)

    def refuse_idle(self) -> None:
        """Refuse options that would silently have no effect."""
        self.mend.refuse_idle(self.python)
        source = "--from" if self.sources else "--compare" if self.compare else None
        beside = "--python" if self.python else "--deep" if self.deep else None
        if source and beside:
            raise UsageError(
                f"Cannot combine {beside} with {source}: {source} judges files and looks at no environment.",
                hint="Run doctor twice. --save writes a snapshot in the first run, and --from reads it in the second.",
            )
        if self.compare and self.sources:
            raise UsageError(
                "Cannot combine --from with --compare: each of them names what is judged.",
                hint="Leave one of them out.",
            )


@verb(DoctorFlags)
def doctor(settings: DoctorFlags) -> int:
    """Find out what is wrong with this machine, or with the machine that produced a log, and what to do.

    Without --from this machine is looked at (torch is not imported). Exit code 0 when nothing of the --fail-on severity
    was found, 1 otherwise.
    """
    settings = settings.with_environment()
    settings.refuse_idle()
    form = settings.form
    if settings.compare:
        return _compare(settings.compare, form, settings.fail_on)
    interpreter = None if settings.python is None else str(named_python(settings.python))
    if settings.mend.undo and interpreter:
        return undo_environment(settings.mend, root_of(interpreter), as_json=form == "json")
    where = None if settings.platform is None else parse_platform(settings.platform)
    if not (settings.sources or interpreter) and interpreter_of(None) == Path(sys.executable):
        say_project(Path.cwd())
    if not settings.sources and _stdin_is_a_pipe():
        say("what comes through the pipe is not read: this machine is looked at (envsmith doctor - reads it)")
    launches = stored_launches(settings.sources)
    facts, texts = gather(settings.sources, interpreter, deep=settings.deep, launches=launches)
    if settings.save:
        write_whole(settings.save, dump(facts, () if settings.sources else tuple(texts)))
        say(f"snapshot written to {settings.save}")
    run = None if settings.sources else own_run(interpreter_of(interpreter), facts)
    runs = [run] if run else []
    diagnosis = diagnose(
        facts,
        texts,
        platform=where,
        keep=settings.mend.components,
        runs=runs,
        launches=launches,
        published=None if settings.offline else read_published,
    )
    if settings.mend.apply and interpreter:
        return mend_environment(settings.mend, diagnosis, root_of(interpreter), as_json=form == "json")
    if settings.fix_to:
        say(write_fix(diagnosis, settings.fix_to))
    _print(diagnosis, form, everything=settings.everything)
    return exit_code((d.finding for d in diagnosis.diagnosed), settings.fail_on)


def _stdin_is_a_pipe() -> bool:
    with suppress(OSError):  # closed
        return stat.S_ISFIFO(os.fstat(0).st_mode)
    return False


_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "bad": "red", "ok": "green", "unknown": "yellow"}


def _emphasised(text: str, word: str) -> str:
    return click.style(text, dim=True) if word == "evidence" else click.style(text, fg=_COLOURS.get(word), bold=True)


def _compare(paths: tuple[Path, Path], form: str, fail_on: str) -> int:
    a, b = (read_snapshot(path) for path in paths)
    differences = compare(a, b, (paths[0].name, paths[1].name))
    bad = any(d.finding.severity is Severity.ERROR for d in differences)
    diagnosis = Diagnosis(
        status="bad" if bad else "ok",
        diagnosed=tuple(differences),
        checked=("versions, distributions, variables, limits, libraries, GPUs and interfaces of two nodes",),
    )
    _print(diagnosis, form, everything=True)
    return exit_code((d.finding for d in differences), fail_on)


def _print(diagnosis: Diagnosis, form: str, *, everything: bool) -> None:
    """Print a report: one for a person in colours."""
    if form == "text":
        print_answer(as_text(diagnosis, notes=everything, emphasis=_emphasised))
    elif form == "json":
        print_out(dumps(diagnosis.to_json()))
    elif form == "markdown":
        print_out(as_markdown(diagnosis))
    else:
        print_out(machine_text((dataclasses.replace(d.finding, where=d.where) for d in diagnosis.diagnosed), form))
