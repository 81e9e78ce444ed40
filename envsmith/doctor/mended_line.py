"""The line of a package at which a program failed, where a newer release no longer has it: the fault may be mended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import installed_version
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.read.tracebacks import callers, frames_before
from envsmith.doctor.traced_releases import line_of
from envsmith.model.code_line import CodeLine
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

# Gives the release that has a line of a project, for a version, and the first after it that has not.
FindMending = Callable[[str, CodeLine, str], "tuple[str, str] | None"]
_ERROR = re.compile(
    r"^(?:\[\w{1,12}\]: )?(?:[\w.]{1,120}\.)?(?P<kind>[A-Z]\w{1,60}(?:Error|Exception))\b.{0,400}$", re.MULTILINE
)
# Errors of Python's own, which a slip in the code raises and no check of what a user gave.
_SLIPS = frozenset(
    {"KeyError", "AttributeError", "TypeError", "IndexError", "UnboundLocalError", "NameError", "ZeroDivisionError"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MendedLine:
    """A line at which ``project`` in ``release`` failed and that ``since`` no longer has, with the error in the text."""

    project: str
    release: str
    since: str
    line: CodeLine
    error: str
    where: str
    position: int

    def diagnosed(self) -> Diagnosed:
        """Return what is said of it."""
        name = component_of(self.project) or self.project
        needs = f"{self.project}>={self.since}"
        finding = Finding(
            rule="line-changed-since",
            severity=Severity.WARNING,
            components={name: self.release},
            needs={name: f">={self.since}"},
            message=f"{self.project} {self.release} fails in its own code, at `{self.line.text}` ({self.line.path}:{self.line.number})."
            f" {self.since} is the first release without that line (read on the package index): it may be mended there.",
            fix=f"Try {needs}.",
            symptom=self.error[:300],
        )
        return Diagnosed(
            finding=finding,
            confidence="low",
            score=Weight.POSSIBLE,
            taxonomy=Taxonomy(group="python-version-pair", pattern="version-and-dependency-management"),
            where=self.where,
            quote=self.error,
            lines=(f"pip install '{needs}'",),
            position=self.position,
        )


def find_mended_line(facts: Facts, texts: Sequence[tuple[str, str]], find: FindMending) -> MendedLine | None:
    """Return the line at which the last traceback of a text failed, where a newer release has it no longer."""
    for source, text in texts:
        if (slip := _last_slip(text)) is None:
            continue
        error, project, line = slip
        version = installed_version(project, facts)
        if version and (answer := find(project, line, version)):
            release, since = answer
            where = f"{source}:{text.count(chr(10), 0, error.start()) + 1}"
            return MendedLine(
                project=project,
                release=release,
                since=since,
                line=line,
                error=error[0],
                where=where,
                position=error.start(),
            )
    return None


def _last_slip(text: str) -> tuple[re.Match[str], str, CodeLine] | None:
    """Return the last error with the project and the line of its code, where it is a slip that a package made itself."""
    errors = [*_ERROR.finditer(text)]
    if not errors or errors[-1]["kind"] not in _SLIPS:
        return None
    frames = callers(frames_before(text, errors[-1].start()))
    project, line = line_of(frames[-1]) if frames else ("", None)
    return (errors[-1], project, line) if line and not line.text.startswith(("raise ", "assert ")) else None
