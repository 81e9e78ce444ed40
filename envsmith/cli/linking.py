"""``check --wheel``: a compiled wheel as part of what is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envsmith.graph.location import find_matrix
from envsmith.http import HttpClient
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.python.compiled import read_needs
from envsmith.symbols.judge import judge_wheel
from envsmith.symbols.table import SymbolTable


def judge_linking(source: str, versions: Mapping[str, str], platform: Platform, judgement: Judgement) -> Judgement:
    """Return a judgement of versions with what the compiled files of a wheel need and they lack."""
    needs = read_needs(source, HttpClient())
    answer = judge_wheel(needs, versions, platform, SymbolTable(find_matrix() / "symbols"))
    unknown = (*judgement.unknown, *answer.unknown)
    status = "bad" if answer.is_bad else "unknown" if answer.unknown and judgement.status == "ok" else judgement.status
    return replace(judgement, status=status, findings=(*judgement.findings, *answer.findings), unknown=unknown)
