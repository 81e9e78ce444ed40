"""Sets that the frameworks' own CI runs, their images ship or their locks hold: nothing in them may be called bad."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.doctor.read.lines import component_of
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.finding import Finding, Judgement
from envsmith.model.version import local_cuda
from envsmith.solver import check, default_solver
from measuring.environments import is_version, versions_in
from measuring.judging import grave

# What a run of this kind never reaches, by its `kind`: inference trains nothing, a compile job does not even import.
NOT_REACHED = {
    "inference": {"train", "checkpoint"},
    "build": {"import", "init", "train", "checkpoint", "communication"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthyCell:
    """A set that a framework's own CI runs, its images ship or its lock holds. ``declared`` is false when its own metadata forbids it."""

    given: Mapping[str, str]
    kind: str
    judgement: Judgement

    @property
    def alarms(self) -> list[Finding]:
        """Errors of the stages that such a run reaches."""
        skipped = NOT_REACHED.get(self.kind, set())
        return [f for f in grave([self.judgement], worst=True) if f.stage not in skipped]

    @property
    def declared(self) -> bool:
        return not any("-declares-" in f.rule for f in self.judgement.findings)


@one_state()
def healthy(path: Path | None) -> list[HealthyCell]:
    """Of a file of such cells, or of ``matrix/tested``.

    Left out of a file: workflows that are switched off, other accelerators, images with a torch of the vendor's own, and torch releases that
    no line names. ``cuda`` is the CUDA of the torch build only where it is spelt ``cu121`` or as ``torch_cuda``; otherwise it is that of the image,
    which is a toolkit.
    """
    found: dict[tuple[tuple[tuple[str, str], ...], str], HealthyCell] = {}
    for fields in _tested_lines(path):
        framework = component_of(str(fields.get("framework", "")))
        torch = versions_in("torch", str(fields.get("torch", "")))
        role = default_solver().compiled.roles.get(framework or "")
        if framework is None or not torch or role is None or role.value != "framework" or _elsewhere(fields):
            continue
        given = {framework: str(fields["version"]), "torch": torch[0]}
        for name, text in _hosts(fields):
            if versions := versions_in(name, text):
                given.setdefault(name, versions[0])
        kind = str(fields.get("kind", ""))
        if re.search(r"nv-(inference|sd|mii|a6000)|inference", str(fields.get("evidence", ""))):
            kind = "inference"
        elif "ext_build" in kind or "pre-compile" in str(fields.get("evidence", "")):
            kind = "build"
        key = (tuple(given.items()), kind)
        if key not in found and all(is_version(v) for v in given.values()):
            found[key] = HealthyCell(given=given, kind=kind, judgement=check(given))
    return list(found.values())


def _elsewhere(fields: Mapping[str, Any]) -> bool:
    told = " ".join(str(fields.get(k, "")) for k in ("cuda", "base_image", "runner", "torch"))
    return bool(re.search(r"rocm|xpu|intel|hpu|nvcr\.io|amd", told)) or fields.get("triggers") == ["none"]


def _hosts(fields: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    cuda, python = str(fields.get("cuda") or ""), str(fields.get("python") or "")
    for text in (str(fields.get("torch_cuda") or ""), cuda):
        if build := re.search(r"\bcu(\d{2})(\d)\b", text):
            yield "cuda", f"{build[1]}.{build[2]}"
    if fields.get("cuda_spec"):
        yield "cuda", str(fields["cuda_spec"])
    elif re.fullmatch(r"\d+\.\d+(\.\d+)?", cuda):
        yield "toolkit", cuda
    yield "toolkit", str(fields.get("cuda_toolkit") or "")
    if re.fullmatch(r"(==)?3\.\d+(\.\d+|\.\*)?", python):
        yield "python", python.removeprefix("==").removesuffix(".*")


def _tested_lines(path: Path | None) -> Iterable[Mapping[str, Any]]:
    if path is not None:
        import yaml

        yield from yaml.safe_load(path.read_text())["cells"]
        return
    for t in default_solver().knowledge().tested:
        torch = [v for v in default_solver().compiled.versions["torch"] if t.torch.contains(v.split("+")[0])]
        if torch:
            builds = [c for v in torch if (c := local_cuda(v)) and t.cuda is not None and t.cuda.contains(c)]
            yield {
                "framework": t.framework,
                "version": re.sub(r"^==", "", str(t.version)),
                "torch": torch[-1].split("+")[0],
                "cuda_spec": builds[-1] if builds else str(t.cuda or ""),
                "python": str(t.python or ""),
                "kind": t.kind,
            }
