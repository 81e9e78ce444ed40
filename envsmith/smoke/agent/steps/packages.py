"""The packages that a person asked for beside the framework: every module that they install is imported."""

from __future__ import annotations

import importlib
import re
from typing import Any

from envsmith.smoke.agent.protocol import Wrong, one_line
from envsmith.smoke.agent.steps.stage import Stage

# Folders that some distributions leave beside their modules by mistake.
_NOT_MODULES = {"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "tools", "bin", "share"}
# What a package says that wants a GPU while it is imported. On a machine without one it is not shown.
_NEEDS_GPU = re.compile(r"libcuda\.so|libnvidia-ml|NVIDIA driver|no CUDA-capable|CUDA (?:driver|device)|No CUDA GPUs")


def modules_of(name: str) -> list[str]:
    """Return the top modules that a distribution installs."""
    from importlib.metadata import distribution

    tops = set()
    for file in distribution(name).files or ():
        parts = file.parts
        top = parts[0].partition(".")[0]
        is_module = len(parts) == 1 and parts[0].endswith((".py", ".so"))
        is_package = len(parts) > 1 and parts[1] in ("__init__.py", "__init__.so")
        if (is_module or is_package) and top.isidentifier() and not top.startswith("_") and top not in _NOT_MODULES:
            tops.add(top)
    return sorted(tops)


def step_imports(s: Stage) -> dict[str, Any]:
    """Import what the distributions of the step install. One that cannot be is wrong, unless it is for want of a GPU."""
    from importlib.metadata import PackageNotFoundError

    imported: list[str] = []
    unseen: list[str] = []
    failures: list[str] = []
    for name in s.step["distributions"]:
        s.enter(f"import {name}")
        try:
            for module in modules_of(name):
                importlib.import_module(module)
                imported.append(module)
        except PackageNotFoundError:
            failures.append(f"{name} is not installed")
        except Exception as error:
            text = one_line(error)
            (unseen if _NEEDS_GPU.search(text) and not s.cuda else failures).append(f"{name}: {text}")
    if failures:
        raise Wrong("; ".join(failures))
    return {"losses": [], "facts": {"imported": imported, "not shown without a GPU": unseen}}


STEPS = {"imports": step_imports}
