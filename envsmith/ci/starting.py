"""``envsmith init``: a first ``envsmith.yaml`` from what a library declares already."""

from __future__ import annotations

from pathlib import Path

from envsmith.ci.declared import Declaration, read_declared
from envsmith.ci.library import CONFIG, FRAMEWORK_STEP, ranges_of
from envsmith.errors import StorageError, UsageError
from envsmith.model.component import ComponentTable, Role

__all__ = ["draft_config", "write_config"]


def write_config(root: Path, table: ComponentTable, *, force: bool = False) -> tuple[Path, Declaration]:
    """Write ``envsmith.yaml`` into ``root``. ``UsageError`` when one is there and ``force`` is not given, ``StorageError`` when it cannot be written."""
    path = root / CONFIG
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", hint="--force writes it anew")
    declaration = read_declared(root)
    text = draft_config(declaration, table)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path, declaration


def draft_config(declaration: Declaration, table: ComponentTable) -> str:
    """The text of the file: what was found, and every other key as a comment."""
    ranges = ranges_of(declaration, table)
    frameworks = [n for n in ranges if table.by_name[n].role is Role.FRAMEWORK]
    own = table.find(declaration.name)
    axes = ["python", "torch", *(f for f in frameworks if own is None or f != own.name)]
    seen = ", ".join(f"{n} {s}" for n, s in ranges.items()) or "nothing that envsmith knows"
    lines = [
        "# Which environments this library supports, for `envsmith ci`. `envsmith ci schema` prints what may stand here.",
        f"# Read from {', '.join(declaration.files)}: {seen}",
        "schema: 1",
        f"library: {_quoted(declaration.name)}",
    ]
    if "torch" not in ranges and not frameworks:
        lines += ["requires:", '  torch: "*"   # nothing was declared: say which releases you support']
    else:
        lines += ["# requires: {nccl: '>=2.18'}   # what metadata cannot say, or a narrower range than it declares"]
    lines += [
        f"axes: [{', '.join(axes)}]",
        "# values: {torch: ['2.6', '2.9']}   # releases of an axis; default: the newest of each minor series",
        f"smoke: {FRAMEWORK_STEP}   # or a command: pytest -x tests/distributed",
        "runners:",
        "  cpu: ubuntu-24.04",
        "  # gpu: [self-hosted, gpu]",
        "# gpu: h100",
        "# driver: '570.86.15'",
        "limit: 256   # most jobs; what a limit leaves out is told",
        "known_bad: 4   # jobs that must fail, so that you learn when a bound can be lifted",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
