"""One text of the agent's package: what is sent into a cell, and runs there without any file of envsmith."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Further framework steps, by name: source that registers itself (see envsmith.agent.steps).
EXTRA: dict[str, str] = {}

_AGENT = Path(__file__).parents[1] / "agent"
_PACKAGE = "envsmith.agent"
# Runs in the cell after SOURCES, a dict from a module's name to its file and its text. A traceback shows that file and
# the right line.
_IMPORTER = '''
import importlib.machinery, linecache, sys

class Bundle:
    """Import the modules of SOURCES; an envsmith that the cell may have is out of reach."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in SOURCES:
            return None
        file = SOURCES[name][0]
        spec = importlib.machinery.ModuleSpec(name, Bundle, origin=file, is_package=file.endswith("__init__.py"))
        spec.has_location = True
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        file, text = SOURCES[module.__name__]
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), module.__dict__)

sys.meta_path.insert(0, Bundle)
if __name__ == "__main__":
    for extra in EXTRA:
        importlib.import_module(extra)
    from envsmith.agent.main import main
    sys.exit(main(sys.argv[1:]))
'''


def bundle(extra: Mapping[str, str] | None = None) -> bytes:
    """Return the agent as one Python text. ``extra`` are further modules of steps, :data:`EXTRA` unless given."""
    extra = EXTRA if extra is None else extra
    sources = {"envsmith": ("envsmith/__init__.py", "")}
    for path in sorted(_AGENT.rglob("*.py")):
        parts = path.relative_to(_AGENT).with_suffix("").parts
        name = ".".join([_PACKAGE, *(part for part in parts if part != "__init__")])
        sources[name] = (path.relative_to(_AGENT.parents[1]).as_posix(), path.read_text(encoding="utf-8"))
    names = []
    for step, text in extra.items():
        names.append(f"{_PACKAGE}.steps.{step}")
        sources[names[-1]] = (f"envsmith/agent/steps/{step}.py", text)
    rows = "".join(f"    {name!r}: {row!r},\n" for name, row in sources.items())
    return f"SOURCES = {{\n{rows}}}\nEXTRA = {names!r}\n{_IMPORTER}".encode()
