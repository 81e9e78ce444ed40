"""``envsmith doctor``: judge this machine, or a text that somebody pasted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith import solver
from envsmith.base.files import write_whole
from envsmith.base.interpreter import named_python
from envsmith.cli.console import dumps, print_answer, print_out, say
from envsmith.cli.declare import EXISTING_FILE, FILE, FOLDER, choice, flag, group, option, verb
from envsmith.cli.findings import machine_text
from envsmith.cli.flags import exit_code, fail_on_option, open_source
from envsmith.cli.mend import MendFlags, mend_environment, root_of, undo_environment
from envsmith.cli.values import parse_platform
from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.facts import Draft
from envsmith.doctor.host import collect, interpreter_of
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.proved import own_run
from envsmith.doctor.read import read_text
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.read.remains import has_texts, read_folder, read_kept
from envsmith.doctor.report import as_markdown, as_text, repaired, request_of
from envsmith.doctor.snapshot import compare, dump, load, looks_like_snapshot, read_snapshot
from envsmith.errors import UsageError
from envsmith.model.rule import Severity

if TYPE_CHECKING:
    from envsmith.doctor.facts import Facts


_FORMATS = ("text", "json", "sarif", "github", "markdown")
Texts = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorFlags:
    """The options of ``doctor``."""

    sources: tuple[str, ...] = option(
        "--from",
        "FILE|DIR",
        "Judge a pasted text (log, report, list of packages, Dockerfile, snapshot) or a folder of the ranks' logs; "
        "'-' is stdin; repeatable.",
        multiple=True,
        positional="[FILE|DIR...]",
    )
    python: str | None = option(
        "--python", "PATH", "The interpreter whose environment is judged (default: the active one)."
    )
    deep: bool = flag("--deep", "Also import what is installed (a few seconds).")
    save: Path | None = option("--save", "Write all facts to one file, without secrets and user names.", type=FILE)
    compare: tuple[Path, Path] | None = option(
        "--compare", "A.json B.json", "Compare the snapshots of two nodes.", nargs=2, type=EXISTING_FILE
    )
    fix_to: Path | None = option(
        "--fix-to", "DIR", "Write the repair as a lock and a Dockerfile (resolves packages).", type=FOLDER
    )
    verify: bool = flag("--verify", "Judge the repaired set again.")
    platform: str | None = option("--platform", "PLATFORM", "linux-64 or linux-aarch64 (default: what the facts say).")
    form: str = choice("--format", _FORMATS, "How findings are written.", default="text")
    everything: bool = flag("--all", "Show every note.")
    fail_on: str = fail_on_option()
    mend: MendFlags = group(MendFlags, section="Mend in place")

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
    settings.refuse_idle()
    form = settings.form
    if settings.compare:
        return _compare(settings.compare, form, settings.fail_on)
    interpreter = None if settings.python is None else str(named_python(settings.python))
    if settings.mend.undo and interpreter:
        return undo_environment(settings.mend, root_of(interpreter), as_json=form == "json")
    where = None if settings.platform is None else parse_platform(settings.platform)
    stored = {name: file for source in settings.sources for name, file in read_kept(source).items()}
    sources = tuple(source for source in settings.sources if _has_texts(source, stored))
    nothing: tuple[Facts, Texts] = (Draft().done(), [])
    facts, texts = nothing if stored and not sources else _gather(sources, interpreter, deep=settings.deep)
    if settings.save:
        write_whole(settings.save, dump(facts, () if settings.sources else tuple(texts)))
        say(f"snapshot written to {settings.save}")
    keep = [name for name in map(component_of, settings.mend.keep) if name]
    run = None if settings.sources else own_run(interpreter_of(interpreter), facts)
    runs = [run] if run else []
    diagnosis = diagnose(facts, texts, platform=where, live=not settings.sources, keep=keep, runs=runs, launches=stored)
    if settings.mend.apply and interpreter:
        return mend_environment(settings.mend, diagnosis, root_of(interpreter), as_json=form == "json")
    if settings.verify:
        say(_verified(diagnosis))
    if settings.fix_to:
        say(_write_fix(diagnosis, settings.fix_to))
    _print(_render(diagnosis, form, everything=settings.everything), form)
    return exit_code((d.finding for d in diagnosis.diagnosed), settings.fail_on)


# The first line of a finding in :func:`envsmith.doctor.report.as_text`, the status, and a line of evidence.
_HEADING = re.compile(r"(?m)^[a-z ]+ \((error|warning|note), confidence [a-z]+\)")
_STATUS = re.compile(r"(?m)(?<=^status: )[a-z]+")
_EVIDENCE = re.compile(r"(?m)^  evidence: .*$")
_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "bad": "red", "ok": "green", "unknown": "yellow"}


def _print(text: str, form: str) -> None:
    """Print a report: one for a person in colours."""
    if form != "text":
        print_out(text)
        return
    text = _HEADING.sub(lambda match: click.style(match[0], fg=_COLOURS[match[1]], bold=True), text)
    text = _STATUS.sub(lambda match: click.style(match[0], fg=_COLOURS.get(match[0]), bold=True), text)
    print_answer(_EVIDENCE.sub(lambda match: click.style(match[0], dim=True), text))


def _opened(source: str) -> list[tuple[str, str, list[str]]]:
    """Read a file, or every text of a folder."""
    if Path(source).is_dir():
        return read_folder(Path(source))
    return [(source, *open_source(source))]


def _has_texts(source: str, stored: Collection[str]) -> bool:
    """Tell whether there is more to read than what `run` stored."""
    place = Path(source)
    return source not in stored and not (stored and place.is_dir() and not has_texts(place))


def _gather(sources: tuple[str, ...], python: str | None, *, deep: bool) -> tuple[Facts, Texts]:
    """Collect facts and texts of this machine, or of every ``--from``."""
    if not sources:
        facts = collect(python, deep=deep)
        imports = facts.host.get("deep")
        return facts, [("imports", imports)] if imports else []
    draft, texts, snapshots = Draft(), [], []
    for source, text, notes in (opened for each in sources for opened in _opened(each)):
        if looks_like_snapshot(text):
            snapshots.append(load(text, source))
            continue
        read_text(text, draft, source, tuple(notes))
        texts.append((source, text))
    facts = draft.done()
    for snapshot, further in snapshots:
        # A snapshot's facts are completed by what the texts beside it say.
        facts = dataclasses.replace(
            snapshot,
            components={**facts.components, **snapshot.components},
            variables={**snapshot.variables, **facts.variables},
            launches=(*snapshot.launches, *facts.launches),
            read=(*snapshot.read, *facts.read),
        )
        texts += list(further)
    return facts, texts


def _compare(paths: tuple[Path, Path], form: str, fail_on: str) -> int:
    a, b = (read_snapshot(path) for path in paths)
    differences = compare(a, b, (paths[0].name, paths[1].name))
    bad = any(d.finding.severity is Severity.ERROR for d in differences)
    diagnosis = Diagnosis(
        status="bad" if bad else "ok",
        diagnosed=tuple(differences),
        checked=("versions, distributions, variables, limits, libraries, GPUs and interfaces of two nodes",),
    )
    _print(_render(diagnosis, form, everything=True), form)
    return exit_code((d.finding for d in differences), fail_on)


def _render(diagnosis: Diagnosis, form: str, *, everything: bool) -> str:
    if form == "json":
        return dumps(diagnosis.to_json())
    if form in {"sarif", "github"}:
        return machine_text((dataclasses.replace(d.finding, where=d.where) for d in diagnosis.diagnosed), form)
    return as_markdown(diagnosis) if form == "markdown" else as_text(diagnosis, notes=everything)


def _verified(diagnosis: Diagnosis) -> str:
    """Judge the set after the repair and say what remains."""
    if diagnosis.repair is None:
        return "--verify: no repair to judge again"
    judgement = solver.check(repaired(diagnosis.facts, diagnosis.repair))
    remaining = [f.rule for f in judgement.findings if f.severity is Severity.ERROR]
    errors = f", left: {', '.join(remaining)}" if remaining else ""
    return f"the repaired set judged again: {judgement.status}{errors}"


def _write_fix(diagnosis: Diagnosis, directory: Path) -> str:
    """Write the repair's cell as lock and Dockerfile into ``directory``."""
    # Resolving is most of the program, and no other option of doctor needs it.
    from envsmith.builder import arrow as build
    from envsmith.builder import options

    if diagnosis.repair is None:
        raise UsageError(
            "Cannot write a repair with --fix-to: no versions contradict a rule.",
            hint="Leave --fix-to out. A repair exists only for versions that contradict a rule.",
        )
    request, text = request_of(diagnosis.repair)
    outcome = build.lock_only(options.Options(request=request, request_text=text, output=directory, conda=None))
    return f"written to {outcome.directory}: {', '.join(outcome.files)}"
