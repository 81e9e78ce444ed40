"""``matrix/environment.yaml``: environment variables with the releases that read them; judged against what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from envsmith.errors import DataError
from envsmith.graph.cache import read_cache, write_cache
from envsmith.graph.data import DataFiles, find_matrix
from envsmith.model.evidence import Evidence, EvidenceKind
from envsmith.model.version import version_key

__all__ = ["Variable", "is_read", "variables"]

_FILE = "environment.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """``reads`` is the component that reads it, from ``since`` up to but not including ``until``."""

    name: str
    reads: str
    since: str | None = None
    until: str | None = None
    renamed: str | None = None
    note: str | None = None
    evidence: Evidence


def variables() -> Mapping[str, Variable]:
    """Every known variable by name; :class:`DataError` when the file is broken."""
    data = DataFiles(find_matrix(), (_FILE,))
    return _variables(data, data.stamp())


@lru_cache(maxsize=2)
def _variables(data: DataFiles, stamp: str) -> Mapping[str, Variable]:
    kept = read_cache("environment", stamp)
    if not isinstance(kept, dict):
        import yaml

        try:
            kept = yaml.load(data.read(_FILE).decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
        except yaml.YAMLError as error:
            raise DataError(f"{_FILE}: not YAML: {error}") from error
        for base in kept["evidence"].values():
            base["date"] = str(base["date"])
        write_cache("environment", stamp, kept)
    try:
        named = {
            key: Evidence(kind=EvidenceKind(e["kind"]), source=e["source"], date=e["date"])
            for key, e in kept["evidence"].items()
        }
        rows = [Variable(**{**row, "evidence": named[row["evidence"]]}) for row in kept["variables"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{_FILE}: a row is malformed: {error}", hint="the head of the file describes its fields"
        ) from error
    return {row.name: row for row in rows}


def is_read(variable: Variable, version: str) -> str | None:
    """Why ``version`` of the component does not read the variable, or ``None`` when it does (or nobody knows)."""
    try:
        key = version_key(version)
        if key is None:
            return None
        if variable.since and (since := version_key(variable.since)) and key < since:
            return f"read from {variable.reads} {variable.since} on, here is {version}"
        if variable.until and (until := version_key(variable.until)) and key >= until:
            return f"no longer read from {variable.reads} {variable.until} on, here is {version}"
    except ValueError:
        return None
    return None
