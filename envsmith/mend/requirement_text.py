"""Requirements in a text changed in place: pip's lines, strings of TOML and YAML, Poetry's tables. The rest stays."""

from __future__ import annotations

import re

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

# Lines after the first of a requirement in which its specifier may stand.
_REACH = 4
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;\"'\\)\]#]+"


def spec_for(old: SpecifierSet, version: str) -> str:
    """Return a specifier that admits a release: the clauses of the old one that admit it, and a bound in its place.

    One exact release stays one exact release.
    """
    new = Version(version)
    dropped = [clause for clause in old if not clause.contains(new, prereleases=True)]
    if any(clause.operator in {"==", "==="} for clause in dropped) or not dropped:
        return f"=={version}"
    bound = ">=" if all(_is_below(clause, new) for clause in dropped) else "<="
    remaining = sorted(str(c) for c in old if c not in dropped and c.operator not in {bound, bound[0]})
    return ",".join([f"{bound}{version}", *remaining])


def _is_below(clause: Specifier, version: Version) -> bool:
    try:
        return Version(clause.version.removesuffix(".*")) <= version
    except InvalidVersion:
        return True


def with_requirement(text: str, line: int, name: str, spec: str) -> str | None:
    """Return a text whose requirement of a distribution, at or after a line, has another specifier.

    ``None`` where no such requirement stands there.
    """
    lines = text.splitlines(keepends=True)
    plain, table = _plain(name), _table(name)
    for number in range(line - 1, min(line - 1 + _REACH, len(lines))):
        code, comment = _without_comment(lines[number])
        changed, count = table.subn(lambda m: f"{m['before']}{spec}{m['after']}", code, count=1)
        if not count:
            changed, count = plain.subn(lambda m: f"{m['name']}{spec}", code, count=1)
        if count:
            lines[number] = changed + comment
            return "".join(lines)
    return None


def _without_comment(line: str) -> tuple[str, str]:
    match = re.search(r"(?:^|\s)#", line)
    return (line[: match.start()], line[match.start() :]) if match else (line, "")


def _spelt(name: str) -> str:
    return r"[-_.]+".join(map(re.escape, name.split("-")))


def _plain(name: str) -> re.Pattern[str]:
    """Return the pattern of ``name[extras]`` with its clauses, if any, where no other name goes on."""
    return re.compile(
        rf"(?P<name>(?<![\w.-]){_spelt(name)}(?![\w.-]*\w)(?:\[[^\]]*\])?)(?:\s*\(?{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\)?)?",
        re.IGNORECASE,
    )


def _table(name: str) -> re.Pattern[str]:
    """Return the pattern of Poetry's ``name = "^1.2"`` and ``name = {version = "^1.2"}``."""
    return re.compile(
        rf"(?P<before>^\s*[\"']?{_spelt(name)}[\"']?\s*=\s*(?:\{{.*?\bversion\s*=\s*)?[\"'])[^\"']*(?P<after>[\"'])",
        re.IGNORECASE,
    )
