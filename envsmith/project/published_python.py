"""What the sources of a published release cannot do on the stated Python: defaults of dataclasses that it refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import OwnClasses
from envsmith.knowledge.names.reach import PackageUses
from envsmith.knowledge.names.refused_defaults import (
    FIRST_REFUSING,
    RefusedDefault,
    may_have_refused,
    refused_defaults,
)
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.project.published_code import PublishedRelease, is_of_package
from envsmith.project.published_refusals import settled_sources
from envsmith.project.published_stated import stated_python


def refused_by_python(
    release: PublishedRelease, root: str, texts: Mapping[str, bytes], versions: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what the stated Python refuses in the sources of a release: an error where the import of ``root`` runs it."""
    python = stated_python(versions)
    if not python or tuple(map(int, python.split("."))) < FIRST_REFUSING:
        return
    paths = [path for path, text in texts.items() if is_of_package(path) and may_have_refused(text)]
    plain = OwnClasses(texts, lambda _path, text: ast.parse(text))
    paths = [path for path in paths if any(refused_defaults(path, plain))]
    if not paths:  # nearly always: what is settled takes much longer to read
        return
    itself = {release.name: release.version}
    sources = settled_sources(root, texts, itself, versions, NameIndex.installed())
    package = PackageUses([root], {path: path for path in texts}, texts.__getitem__, parse=sources.parse)
    order, classes = [*package.paths_at_import(root)], OwnClasses(texts, sources.parse)
    at_import = [path for path in dict.fromkeys(order) if path in paths]
    for path in (*at_import, *(path for path in paths if path not in at_import)):
        for default in refused_defaults(path, classes):
            yield _finding(release, python, default, is_error=path in at_import)
            return


def _finding(release: PublishedRelease, python: str, default: RefusedDefault, *, is_error: bool) -> Finding:
    words = "cannot be imported on" if is_error else "fails where this is loaded on"
    before = f"{FIRST_REFUSING[0]}.{FIRST_REFUSING[1] - 1}"
    first = ".".join(map(str, FIRST_REFUSING))
    return Finding(
        rule="release-python",
        severity=Severity.ERROR if is_error else Severity.WARNING,
        components={release.name: release.version, "python": python},
        needs={"python": f"<{first}"},
        message=f"{release.name} {release.version} {words} Python {python}: {default.path}:{default.line} gives field "
        f"{default.name} of {default.owner} the default {default.maker}(), which has no hash; "
        f"Python refuses it from {first} on",
        evidence=(release.evidence,),
        fix=f"Take Python {before} or older, or another release of {release.name}.",
        stage="import",
    )
