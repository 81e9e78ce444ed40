"""What is really installed: a script that runs inside the cell, and the parser of its answer.

The script imports nothing of what it reports: a torch that cannot be loaded is still reported by its own ``version.py``.
"""

from __future__ import annotations

import json
import re

from envsmith.errors import ContentError

__all__ = ["INSPECT_SCRIPT", "parse_inspection"]

_MARK = "ENVSMITH-CONTENT "

# Python 3.8 and later. Prints one line of JSON behind a mark, because an interpreter may print warnings of its own.
INSPECT_SCRIPT = r"""
import importlib.metadata, importlib.util, json, os, platform, re
found = {}
for dist in importlib.metadata.distributions():
    name = dist.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), dist.version)
found["python"] = platform.python_version()
spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    told = {}
    try:
        with open(os.path.join(list(spec.submodule_search_locations)[0], "version.py")) as file:
            exec(compile(file.read(), "version.py", "exec"), told)
        found["torch.version"] = str(told.get("__version__"))
        found["cuda.version"] = str(told.get("cuda") or "cpu")
    except Exception as error:
        found["torch.version"] = "unreadable: %r" % (error,)
print("ENVSMITH-CONTENT " + json.dumps(found, sort_keys=True))
"""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,120}[a-z0-9])?")
_MAX = 4_000_000


def parse_inspection(output: str) -> dict[str, str]:
    """The mapping of :meth:`envsmith.engine.base.Engine.inspect` from the script's output; ``ContentError`` when it is not one."""
    line = next((line for line in reversed(output[-_MAX:].splitlines()) if line.startswith(_MARK)), None)
    try:
        data = json.loads(line.removeprefix(_MARK)) if line else None
    except ValueError:
        data = None
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()) or "python" not in data:
        raise ContentError(
            "the built environment could not say what it holds",
            details=output.splitlines()[-10:],
            hint="its interpreter does not start; rebuild, and look at the lines above",
        )
    return {name: version[:128] for name, version in data.items() if _NAME.fullmatch(name)}
