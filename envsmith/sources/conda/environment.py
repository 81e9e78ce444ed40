"""``environment.yml``: what somebody wants, with selectors of conda-build and a section for pip; some of it pinned."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envsmith.errors import DataError
from envsmith.lock.conda.names import clean, fold
from envsmith.sources.conda.parsing import as_list, as_mapping, load_yaml
from envsmith.sources.conda.values import CondaFile

__all__ = ["read_environment"]


def read_environment(text: str, platform: str | None, where: str) -> CondaFile:
    """Exact pins are versions, everything else is wanted. Raises ``DataError``."""
    data = as_mapping(load_yaml(_for_platform(text, platform or "linux-64"), where), where, "the file")
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for i, item in enumerate(as_list(data.get("dependencies"), where, "dependencies")):
        if isinstance(item, str):
            name, version, build, spec = _match_spec(item, where, f"dependencies[{i}]")
            if version:
                conda[name] = version
                builds |= {name: build} if build else {}
            elif spec:
                wanted[name] = spec
            else:
                wanted.setdefault(name, "*")
        elif isinstance(item, Mapping) and "pip" in item:
            for line in as_list(item["pip"] or [], where, f"dependencies[{i}].pip"):
                _requirement(str(line), pip, wanted)
        elif item is not None:
            raise DataError(f"{where}: dependencies[{i}] is neither a spec nor a pip section")
    platforms = data.get("platforms") if isinstance(data.get("platforms"), list) else []
    return CondaFile(
        kind="environment",
        conda=conda,
        pip=pip,
        builds=builds,
        wanted=wanted,
        platforms=tuple(str(p) for p in platforms or []),
    )


def _for_platform(text: str, platform: str) -> str:
    """Without the lines whose conda-build selector (``# [aarch64]``) is another platform's."""
    mine = {"linux-64": {"linux64", "linux", "unix"}, "linux-aarch64": {"aarch64", "linux", "unix"}}.get(
        platform, {"unix"}
    )
    kept = []
    for line in text.splitlines():
        match = re.search(r"#[^\[\]]{0,80}\[([a-z0-9]{1,20})\]\s*$", line)
        if not match or match[1] in mine:
            kept.append(line)
    return "\n".join(kept)


def _match_spec(text: str, where: str, what: str) -> tuple[str, str, str, str]:
    """``(name, exact version or "", build or "", the rest of the spec)`` of ``channel::name=version=build`` and its kin."""
    body = text.strip().rsplit("::", 1)[-1].split("[", maxsplit=1)[0]
    match = re.match(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})\s*(.{0,400})$", body, re.DOTALL)
    if not match:
        raise DataError(f"{where}: {what}: {clean(text, 100)!r} is not a Conda spec")
    name, rest = match[1].lower(), match[2].strip()
    exact = re.fullmatch(r"(?:={1,2}\s*|)([0-9][A-Za-z0-9_.!+-]*)(?:[=\s]+([A-Za-z0-9_.*+]+))?", rest)
    if not exact:
        return name, "", "", rest
    full = rest.startswith("==") or exact[2] is not None or exact[1].count(".") > 1
    build = exact[2] or ""
    if not full and not rest.startswith("="):
        full = True  # "name 1.2" is exactly 1.2 for conda; "name=1.2" is 1.2.*
    return (name, exact[1], build, "") if full else (name, "", build, f"{exact[1]}.*")


def _requirement(line: str, pip: dict[str, str], wanted: dict[str, str]) -> None:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,127})\s*(?:\[[^\]]{0,200}\])?\s*([^;#]{0,400})", line)
    if not match or line.lstrip().startswith("-"):
        return
    exact = re.fullmatch(r"={2,3}\s*([A-Za-z0-9][A-Za-z0-9_.!+-]{0,127})\s*(?:--hash.*)?", match[2].strip())
    if exact:
        pip[fold(match[1])] = exact[1]
    else:
        wanted[fold(match[1])] = match[2].strip() or "*"
