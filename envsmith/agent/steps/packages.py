"""What a person asked for beside the framework: every module that it installs is imported."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import distribution

from envsmith.agent.protocol import Wrong, one_line
from envsmith.agent.steps.stage import Stage, Trained

# Folders beside modules.
_NOT_MODULES = re.compile(r"_|(tests?|docs?|examples|scripts|tools)$")
# On a machine without a GPU it is not shown.
_NEEDS_GPU = re.compile(r"libcuda\.so|libnvidia|NVIDIA driver|CUDA driver|CUDA device|CUDA GPU")


def modules_of(name: str) -> list[str]:
    """Return the top modules that a distribution installs."""
    tops = set()
    for file in distribution(name).files or ():
        top = file.parts[0].partition(".")[0]
        is_module = len(file.parts) == 1 and file.suffix in (".py", ".so")
        if (is_module or file.parts[1:] == ("__init__.py",)) and not _NOT_MODULES.match(top):
            tops.add(top)
    return sorted(tops)


def step_imports(s: Stage) -> Trained:
    """Import them."""
    facts: dict[str, list[str]] = {"imported": [], "not shown without a GPU": [], "failed": []}
    for name in s.step["distributions"]:
        s.enter_import(name)
        try:
            for module in modules_of(name):
                importlib.import_module(module)
                facts["imported"].append(module)
        except Exception as error:
            text = one_line(error)
            unseen = _NEEDS_GPU.search(text) and not s.cuda
            facts["not shown without a GPU" if unseen else "failed"].append(f"{name}: {text}")
    if failed := facts.pop("failed"):
        raise Wrong("; ".join(failed))
    return Trained(losses=[], facts=facts)


STEPS = {"imports": step_imports}
