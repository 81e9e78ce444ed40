"""Versions that stand in the names of files and folders: wheels, source archives, metadata folders, packages of Conda, toolkits."""

from __future__ import annotations

import re

from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.names import is_distribution, note_distribution
from envsmith.sources.reports.words import fold, local_cuda, version_in

__all__ = ["read_files"]

_VERSION = r"(\d[\w.]{0,30}(?:\+[\w.]{1,60})?)"
_NAME = r"([A-Za-z][\w.]{0,60})"
# What is installed: its folder of metadata, what pip says that it found or put there. What is only offered or fetched is weaker.
_INSTALLED = re.compile(rf"(?<=packages[/\\]){_NAME}-{_VERSION}\.(?:dist|egg)-info\b")
_SATISFIED = re.compile(
    r"Requirement already satisfied: ([\w.-]{1,60})\S{0,80} in \S{1,300} (?:\([^)\n]{1,120}\) )?\((\d[\w.+]{0,40})\)"
)
_PUT = re.compile(r"^Successfully installed ([\w.+ -]{3,4000})$", re.MULTILINE)
_CONDA = re.compile(r"(?<![\w.])(pytorch)-(\d{1,2}\.\d{1,3}\.\d{1,3})-py3\.\d{1,2}_cuda(\d{1,2}\.\d{1,2})_cudnn")
_WHEEL = re.compile(
    rf"(?<![\w.-]){_NAME}-{_VERSION}(?:-\d\w{{0,20}})?-(?:cp|py|pp)\d[\w.]{{0,40}}-[\w.]{{1,40}}-[\w.]{{1,80}}\.whl\b"
)
_ARCHIVE = re.compile(rf"(?:Using cached|Downloading) (?:\S{{0,300}}/)?{_NAME}-{_VERSION}\.(?:tar\.gz|zip)\b")
_NVCC = re.compile(r"/cuda-(\d{1,2}\.\d{1,2})(?:\.\d{1,2})?/bin/nvcc\b")
_MUCH = 400_000
_MOST = 400


def read_files(text: str, draft: Draft, source: str) -> None:
    """Every version that a file's name tells; each pattern is bounded, and of a long text the beginning is read."""
    text = text[:_MUCH]
    if "packages" in text or "already satisfied" in text:
        for pattern in (_INSTALLED, _SATISFIED):
            for name, version in pattern.findall(text)[:_MOST]:
                note_distribution(draft, name, version, source, 2)
    if "Successfully installed" in text:
        for line in _PUT.findall(text)[:20]:
            for name, version in re.findall(r"([\w.-]{1,60})-(\d[\w.+]{0,40})(?:\s|$)", line)[:_MOST]:
                note_distribution(draft, name, version, source, 2)
    for _, version, cuda in _CONDA.findall(text)[:1]:
        draft.component("torch", version, f"{source}: package of Conda", 2)
        draft.component("cuda", cuda, f"{source}: package of Conda", 2)
    for pattern in (_WHEEL, _ARCHIVE):
        for name, version in pattern.findall(text)[:_MOST] if ".whl" in text or ".tar.gz" in text else ():
            _offered(draft, name, version, source)
    if match := _NVCC.search(text):
        draft.component("toolkit", match[1], f"{source}: path of nvcc", 1)


def _offered(draft: Draft, name: str, version: str, source: str) -> None:
    """A file that is fetched may be installed or not: its version is the weakest kind of fact."""
    component, parsed = is_distribution(fold(name)), version_in(version)
    if component is None or parsed is None:
        return
    draft.component(component, parsed[0], f"{source}: {name}-{version[:60]}", 1)
    if component == "torch" and (cuda := local_cuda(parsed[0])):
        draft.component("cuda", cuda, f"{source}: {name}-{version[:60]}", 1)
