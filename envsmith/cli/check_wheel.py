"""``check --wheel``: a compiled wheel as part of what is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envsmith.doctor.facts import Facts
from envsmith.graph.location import find_matrix
from envsmith.http import HttpClient
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.python.compiled import read_needs
from envsmith.symbols.judge_wheel import judge_wheel, stated_version
from envsmith.symbols.system_libraries import system_libraries
from envsmith.symbols.table import SymbolTable


def judge_linking(
    source: str, versions: Mapping[str, str], facts: Facts, platform: Platform, judgement: Judgement
) -> Judgement:
    """Return a judgement of versions with what the compiled files of a wheel need, and they or the host lack."""
    needs = read_needs(source, HttpClient())
    glibc = stated_version(versions.get("glibc")) or facts.version("glibc")
    host = system_libraries().host(facts.host.get("os", ""), glibc=glibc, glibcxx=facts.host.get("glibcxx"))
    answer = judge_wheel(needs, versions, platform, SymbolTable(find_matrix() / "symbols"), host)
    unknown = (*judgement.unknown, *answer.unknown)
    status = "bad" if answer.is_bad else "unknown" if answer.unknown and judgement.status == "ok" else judgement.status
    return replace(judgement, status=status, findings=(*judgement.findings, *answer.findings), unknown=unknown)
