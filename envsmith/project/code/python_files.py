"""The Python sources of a project: a folder, a git checkout, one file, or the code cells of a notebook."""

from __future__ import annotations

import ast
import datetime as dt
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.base.files import open_regular
from envsmith.base.git import git
from envsmith.base.schema import UnreadableError, parse_json
from envsmith.errors import DataError, os_errors

_SUFFIXES = (".py", ".ipynb")
_MOST_FILES = 20_000
_MOST_BYTES = 4 << 20
# Folders that hold environments and what tools leave, where no git says what belongs to the project.
_NOT_CODE = frozenset({"node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env"})
# IPython's own lines: %magic, !command, name?, and the same on the right of an assignment.
_MAGIC = re.compile(r"(\s*)(?:[\w, ]{1,200}=\s*)?(?:%%?[A-Za-z]|!).*|(\s*)\??\??[\w.]{1,200}\?{1,2}\s*")
_TIMED = re.compile(r"%%(?:time|timeit|capture|prun)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceText:
    """One text of Python. ``path`` is relative to the project, with slashes.

    ``cells`` are the first lines of a notebook's code cells in ``text``, by number of the cell.
    """

    path: str
    text: bytes
    cells: Mapping[int, int] = field(default_factory=dict)

    def where(self, line: int) -> str:
        """Return ``file:line``, for a notebook the cell and the line in it."""
        starts = [(start, number) for number, start in self.cells.items() if start <= line]
        if not starts:
            return f"{self.path}:{line}"
        start, number = max(starts)
        return f"{self.path}: cell {number} line {line - start + 1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectSources:
    """Sources, what could not be read and why, and the day on which they were written.

    ``files`` are all paths of the project. ``day_of`` says what the day is that of.
    """

    root: Path
    sources: tuple[SourceText, ...]
    unreadable: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    day: str | None = None
    day_of: str = ""


def read_project(path: Path) -> ProjectSources:
    """Read what stands below a folder, or one file. ``DataError`` where that has no Python.

    In a git checkout those files are read that git knows or does not ignore.
    """
    with os_errors(f"read {path}", DataError):
        is_folder = path.is_dir()
        root = path.resolve() if is_folder else path.resolve().parent
        if not is_folder and not path.is_file():
            raise DataError(f"Cannot read {path}: the file or folder does not exist.", hint="Name a folder or a file.")
    names = _git_files(root) if is_folder else [path.name]
    day, day_of = _commit_day(root, path), "its last commit"
    if names is None:
        names = sorted(_walk(root))
    sources: list[SourceText] = []
    unreadable: list[str] = []
    for name in [n for n in names if n.endswith(_SUFFIXES) or not is_folder][:_MOST_FILES]:
        try:
            source, cells = _source(root / name, name)
            sources.append(source)
            unreadable += cells
        except OSError as error:  # noqa: PERF203 - a file that cannot be read is left out, and said
            unreadable.append(f"{name}: {error.strerror or error}")
        except ValueError as error:
            unreadable.append(f"{name}: {error}")
    if not sources:
        raise DataError(
            f"Cannot read {path}: it holds no Python that can be read.",
            details=unreadable[:10],
            hint="Name a folder with .py files, one such file, or a notebook.",
        )
    if day is None:
        day, day_of = _newest_change(root, [s.path for s in sources]), "its newest file"
    return ProjectSources(
        root=root, sources=tuple(sources), unreadable=tuple(unreadable), files=frozenset(names), day=day, day_of=day_of
    )


def _source(path: Path, name: str) -> tuple[SourceText, list[str]]:
    """Read one file, and say which of its cells are left out.

    ``OSError`` or ``ValueError`` for what is not a text of Python.
    """
    with open_regular(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB")
    if not name.endswith(".ipynb"):
        return SourceText(path=name, text=content), []
    try:
        text, cells, broken = notebook_code(content)
    except UnreadableError as error:
        raise ValueError(f"not a notebook: {error}") from None
    return SourceText(path=name, text=text.encode(), cells=cells), [f"{name}: cell {n}: not Python" for n in broken]


def notebook_code(content: bytes) -> tuple[str, dict[int, int], list[int]]:
    """Return a notebook's code, the first line of each code cell by its number, and the cells that are not Python.

    IPython's own lines do nothing in it. ``UnreadableError`` for what is not a notebook.
    """
    document = parse_json(content)
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise UnreadableError("it has no cells")
    lines: list[str] = []
    starts: dict[int, int] = {}
    broken: list[int] = []
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        text = "".join(s for s in source if isinstance(s, str)) if isinstance(source, list) else source
        if isinstance(text, str):
            starts[number] = len(lines) + 1
            code = _cell_lines(text)
            if not _is_python("\n".join(code)):
                broken.append(number)
                code = [""] * len(code)
            lines += code
    return "\n".join(lines) + "\n", starts, broken


def _cell_lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\0", "").split("\n")
    if lines[0].lstrip().startswith("%%") and not _TIMED.match(lines[0].lstrip()):
        return [""] * len(lines)
    return [f"{magic[1] or magic[2] or ''}pass" if (magic := _MAGIC.fullmatch(line)) else line for line in lines]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _walk(root: Path) -> Iterator[str]:
    """Yield relative paths of files. Links to folders are not followed."""
    count = 0
    for folder, names, files in os.walk(root, followlinks=False):
        names[:] = sorted(
            n
            for n in names
            if not n.startswith(".") and n not in _NOT_CODE and not (Path(folder, n) / "pyvenv.cfg").exists()
        )
        for name in files:
            yield Path(folder, name).relative_to(root).as_posix()
            count += 1
            if count >= _MOST_FILES:
                return


def _git_files(root: Path) -> list[str] | None:
    """Return the files of a checkout that git does not ignore. ``None`` without git, or where git ignores the folder."""
    output = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    return sorted(filter(None, output.split("\0"))) if output else None


def _commit_day(root: Path, path: Path) -> str | None:
    place = "." if path.is_dir() else path.name
    day = (_git(root, "log", "-1", "--format=%cs", "--", place) or "").strip()
    return day if re.fullmatch(r"\d{4}-\d\d-\d\d", day) else None


def _git(root: Path, command: str, *arguments: str) -> str | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        run = git(root, command, *arguments)
        if run.returncode == 0:
            return run.stdout
    return None


def _newest_change(root: Path, names: Sequence[str]) -> str | None:
    times = []
    for name in names:
        with suppress(OSError):
            times.append((root / name).stat().st_mtime)
    return dt.datetime.fromtimestamp(max(times), tz=dt.timezone.utc).date().isoformat() if times else None
