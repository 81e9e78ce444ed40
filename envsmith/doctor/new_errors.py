"""An exception that a package has only from some release on: what it refuses was not refused before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.lines import fold
from envsmith.doctor.read.tracebacks import frames_before
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

# The class of an exception that has a name of its own: `AmbiguousGlobalPerLayerAttributeError`.
_ERROR = re.compile(
    r"^[ \t]{0,8}(?:(?P<module>[a-z_][\w.]{1,120})\.)?(?P<kind>[A-Z][a-z0-9]+[A-Z][a-z]\w{6,80}(?:Error|Exception))\b.{0,400}$",
    re.MULTILINE,
)
# It is new where not more than this part of the releases has it.
_NEW = 4


def judge_new_errors(texts: Sequence[tuple[str, str]], index: NameIndex) -> list[Diagnosed]:
    """Return which releases do not have the exception that ends the texts, where a package made it of late."""
    for source, text in reversed(texts):
        for error in [*_ERROR.finditer(text)][-1:]:
            presence = next(_introduced(error, text, index), None)
            if presence:
                where = f"{source}:{text.count(chr(10), 0, error.start()) + 1}"
                return [_diagnosed(error, presence, where)]
    return []


def _introduced(error: re.Match[str], text: str, index: NameIndex) -> Iterator[Presence]:
    """Yield the exception as packages of the text have it that made it of late, the likeliest first."""
    of_frames = [fold(f.package) for f in reversed(frames_before(text, error.start())) if f.package]
    of_module = index.distribution_of(error["module"]) if error["module"] else None
    spoken = [] if of_module or of_frames else [name for name in index.distributions() if name in text.lower()]
    for distribution in dict.fromkeys([*([of_module] if of_module else []), *of_frames, *spoken]):
        for path in index.definitions(error["kind"], distribution):
            presence = index.ask(path)
            if presence and presence.releases[-1] in presence.present and _is_new(presence):
                yield presence


def _is_new(presence: Presence) -> bool:
    return bool(presence.absent) and len(presence.present) * _NEW <= len(presence.releases)


def _diagnosed(error: re.Match[str], presence: Presence, where: str) -> Diagnosed:
    name, spec = presence.distribution, presence.short_spec()
    before = short_spec_of(presence.releases, presence.absent)
    finding = Finding(
        rule="error-since-release",
        severity=Severity.WARNING,
        components={name: "*"},
        needs={name: before},
        message=f"{name} has {error['kind']} in {name}{spec} alone: what it refuses was not refused before.",
        fix=f"Do what its message asks. Code that was written for an older {name} runs with {name}{before}.",
        symptom=error[0].strip()[:300],
    )
    return Diagnosed(
        finding=finding,
        confidence="low",
        score=Weight.POSSIBLE,
        taxonomy=Taxonomy(
            group="python-version-pair", cause="package-version-pair", pattern="version-and-dependency-management"
        ),
        where=where,
        quote=error[0].strip(),
        lines=(f"pip install '{name}{before}'",),
        position=error.start(),
    )
