"""What the sources of a published release cannot do on the stated Python.

Defaults of dataclasses that it refuses, and names of its library that went.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from envsmith.knowledge.names.own_classes import OwnClasses
from envsmith.knowledge.names.python_names import gone_name, may_take_gone
from envsmith.knowledge.names.refused_defaults import FIRST_REFUSING, may_have_refused, refused_defaults
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.project.published.code import PublishedRelease, is_of_package
from envsmith.project.published.refusals import SettledRelease
from envsmith.project.published.stated import stated_python

# setuptools brings distutils, and the others require setuptools (torch from 2.5 on, where Python is 3.12 or later).
_BRING = {"distutils": frozenset({"setuptools", "tensorboard", "tensorflow", "torch"})}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fault:
    """What Python refuses from a minor version on. ``needed`` is what a user may install against it."""

    words: str
    since: int
    severity: Severity = Severity.ERROR
    needed: str = ""


def refused_by_python(
    release: PublishedRelease, settled: SettledRelease, required: Callable[[], Collection[str]]
) -> Iterator[Finding]:
    """Yield what the stated Python refuses in the sources of a release: an error where their import runs it.

    ``required`` returns the distributions that the release requires, which may bring what Python has no more.
    """
    texts, python = settled.texts, stated_python(settled.versions)
    minor = int(python.split(".")[1]) if python else 0
    # Nearly always there are none: what is settled takes much longer to read.
    paths = _refused_paths(texts) if minor >= FIRST_REFUSING else []
    takes_gone = minor and _take_gone(texts, minor)
    faults = list[_Fault]()
    if paths:
        order = [*settled.package.paths_at_import(settled.root)]
        faults += _refused_defaults(paths, order, OwnClasses(texts, settled.sources.parse))
    if takes_gone:
        present = {*map(normal_name, (release.name, *settled.versions)), *required()}
        faults += _gone_names(settled, minor, present)
    for fault in faults:
        yield _finding(release, python or "", fault)


def _take_gone(texts: Mapping[str, bytes], minor: int) -> bool:
    """Return whether a source that another one may import takes what Python has no more."""
    paths = [path for path, text in texts.items() if is_of_package(path) and may_take_gone(text, minor)]
    stems = {path: path.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2].encode() for path in paths}
    return any(
        "/" not in path.removesuffix("/__init__.py")
        or any(stems[path] in text for at, text in texts.items() if at != path)
        for path in paths
    )


def _refused_paths(texts: Mapping[str, bytes]) -> list[str]:
    """Return the sources with a default that Python refuses, whether it runs or not."""
    classes = OwnClasses(texts, lambda _path, text: ast.parse(text))
    paths = (path for path, text in texts.items() if is_of_package(path) and may_have_refused(text))
    return [path for path in paths if any(refused_defaults(path, classes))]


def _refused_defaults(paths: Collection[str], order: Sequence[str], classes: OwnClasses) -> Iterator[_Fault]:
    """Yield the first refused default: the first that the import comes to, else one that it does not."""
    at_import = [path for path in dict.fromkeys(order) if path in paths]
    for path in (*at_import, *(path for path in paths if path not in at_import)):
        for default in refused_defaults(path, classes):
            yield _Fault(
                words=f"{path}:{default.line} gives field {default.name} of {default.owner} the default {default.maker}(), "
                "which has no hash; Python refuses it",
                since=FIRST_REFUSING,
                severity=Severity.ERROR if path in at_import else Severity.WARNING,
            )
            return


def _gone_names(settled: SettledRelease, minor: int, present: Collection[str]) -> Iterator[_Fault]:
    """Yield the first name of Python's library that the import takes, the stated Python lacks and nothing else brings."""
    words = {word for name in present for word in name.split("-")}
    for placed in settled.package.gone_at_import(settled.root):
        name, since = gone_name(placed.use.chain) or ("", minor + 1)
        is_brought = words.intersection({name, f"py{name}"}) or _BRING.get(name, frozenset()).intersection(present)
        if since > minor or is_brought or _is_put(name, settled.texts):
            continue
        needed = "setuptools" if name in _BRING else ""
        yield _Fault(
            words=f"{placed.module} takes {name} in line {placed.use.line}, which Python does not have",
            since=since,
            severity=Severity.WARNING if needed else Severity.ERROR,
            needed=needed,
        )
        return


def _is_put(name: str, texts: Mapping[str, bytes]) -> bool:
    """Return whether a package puts a name there itself: ``inspect.getargspec = inspect.getfullargspec``."""
    put = re.compile(rf"\b{re.escape(name)}[ \t]*=[^=]|modules\[.{re.escape(name)}.\]".encode())
    return any(put.search(text) for text in texts.values())


def _finding(release: PublishedRelease, python: str, fault: _Fault) -> Finding:
    cannot = "cannot be imported" if fault.severity is Severity.ERROR else "fails where this is loaded"
    without = f" without {fault.needed}" if fault.needed else ""
    install = f"Install {fault.needed}, or take" if fault.needed else "Take"
    return Finding(
        rule="release-python",
        severity=fault.severity,
        components={release.name: release.version, "python": python},
        needs={} if fault.needed else {"python": f"<3.{fault.since}"},
        message=f"{release.name} {release.version} {cannot} on Python {python}{without}: "
        f"{fault.words} from 3.{fault.since} on",
        evidence=(release.evidence,),
        fix=f"{install} Python 3.{fault.since - 1} or older, or another release of {release.name}.",
        stage="import",
    )
