"""A name index by hand: which releases of a package have a name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envsmith.knowledge.names.presence import Presence
from envsmith.model.rule import Evidence, EvidenceKind
from envsmith.project.code.python_files import ProjectSources, SourceText
from envsmith.project.code.reading import ProjectUses, read_project_uses

RELEASES = {"transformers": ("4.40.0", "4.41.0", "4.42.0", "4.43.0"), "accelerate": ("0.1.0", "0.2.0", "1.0.0")}


class HandIndex:
    """``names``: path, or ``path(argument=)``, to the releases that have it. Other paths are in all releases or none."""

    def __init__(self, names: Mapping[str, tuple[str, ...]], successors: Mapping[str, str] | None = None) -> None:
        self.names, self.successors = names, successors or {}

    def distribution_of(self, module: str) -> str | None:
        top = module.partition(".")[0]
        return top if top in RELEASES else None

    def ask(self, path: str, argument: str | None = None, *, distribution: str | None = None) -> Presence | None:
        name = distribution or self.distribution_of(path)
        if name is None:
            return None
        releases = RELEASES[name]
        key = f"{path}({argument}=)" if argument else path
        having = frozenset(self.names.get(key, releases if argument else ()))
        if "." not in path:
            having = frozenset(releases)
        return Presence(
            distribution=name,
            path=path,
            argument=argument,
            releases=releases,
            present=having,
            absent=frozenset(releases) - having,
            unknown=frozenset(),
            successor=self.successors.get(path),
        )

    def ask_module(self, path: str) -> Presence | None:
        return self.ask(path)

    def evidence(self, distribution: str, version: str) -> tuple[Evidence, ...]:
        return (Evidence(kind=EvidenceKind.MEASURED, source=f"{distribution}-{version}.whl", date="2024-06-27"),)


@pytest.fixture
def index() -> HandIndex:
    return HandIndex(
        {
            "transformers.Conversation": ("4.40.0", "4.41.0"),
            "transformers.Cache": ("4.42.0", "4.43.0"),
            "transformers.Trainer": RELEASES["transformers"],
            "transformers.Trainer.old_step": ("4.40.0",),
            "accelerate.Accelerator": RELEASES["accelerate"],
            "accelerate.Accelerator(dispatch_batches=)": ("0.1.0", "0.2.0"),
            "accelerate.back": ("0.1.0", "1.0.0"),
        },
        {"transformers.Conversation": "transformers.pipelines.Chat"},
    )


def uses_of(**files: str) -> ProjectUses:
    """``a__b="…"`` is a/b.py."""
    paths = {name.replace("__", "/") + ".py": text for name, text in files.items()}
    sources = tuple(SourceText(path=p, text=t.encode()) for p, t in paths.items())
    return read_project_uses(ProjectSources(root=Path(), sources=sources, files=frozenset(paths)))
