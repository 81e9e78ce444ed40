"""What of an environment's folder belongs to its packages. The rest is the user's, and stays where it is.

Only ``site-packages`` and the files that a package has noted in its ``RECORD`` ever change places. What somebody else
put among them is carried along, and a process that works there keeps the environment from being changed at all.
"""

from __future__ import annotations

import csv
import os
import pwd
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from envsmith.agent.processes import read_text as read_process
from envsmith.base.files import read_text
from envsmith.base.text import clean
from envsmith.errors import EnvsmithError, UsageError

_SITE = "lib*/python3.*/site-packages"
_INFO = (".dist-info", ".egg-info", ".egg")
# What names the files of a distribution, and where these names begin.
_RECORDS = (("RECORD", ".."), ("installed-files.txt", "."))
_MOST = 64 << 20
_SHOWN = 8
# Who has written nothing for so long is not writing.
_QUIET_SECONDS = 10.0


def packages_folders(root: Path) -> tuple[str, ...]:
    """Return the folders of packages of an environment, by their path in it.

    ``UsageError`` where one of them, or the folder of its programs, lies elsewhere: another environment may own that.
    """
    folders = {folder.resolve() for folder in root.glob(_SITE)}
    inside = root.resolve()
    away = sorted(str(path) for path in {*folders, (root / "bin").resolve()} if not path.is_relative_to(inside))
    if away:
        raise UsageError(
            f"Cannot change {root}: a link leads to {away[0]}, which lies outside it.",
            hint=f"Give the environment that {away[0]} belongs to.",
        )
    return tuple(sorted(str(folder.relative_to(inside)) for folder in folders))


def recorded(root: Path) -> dict[str, tuple[int, int]]:
    """Return what says which packages are there, by its path, and when each was written."""
    stats = {}
    for site in packages_folders(root):
        for entry in os.scandir(root / site):
            if entry.name.endswith(_INFO):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    stats[f"{site}/{entry.name}"] = (status.st_ino, status.st_mtime_ns)
    return stats


def owned_files(root: Path, records: Collection[str]) -> frozenset[str]:
    """Return the files that these packages have noted as theirs, by their path in the environment."""
    names: set[str] = set()
    for record in records:
        for name, begin in _RECORDS:
            with suppress(EnvsmithError, csv.Error):
                text = read_text(root / record / name, _MOST, errors="surrogateescape")
                start = record.rpartition("/")[0] if begin == ".." else record
                rows = csv.reader(text.splitlines())
                names.update(os.path.normpath(f"{start}/{row[0]}") for row in rows if row and row[0])
    return frozenset(name for name in names if not name.startswith(("../", "/")))


def refuse_links(root: Path, files: Collection[str]) -> None:
    """Refuse packages whose files lie behind a link that leaves the environment: an uninstaller would follow it."""
    inside = root.resolve()
    parents = {os.path.dirname(name) for name in files}  # noqa: PTH120 - thousands of names
    away = sorted(name for name in parents if not (root / name).resolve().is_relative_to(inside))
    if away:
        raise UsageError(
            f"Cannot change {root}: files of its packages lie outside it.",
            details=[f"{root / name} leads to {(root / name).resolve()}" for name in away[:_SHOWN]],
            hint="Install these packages anew, or change them by hand.",
        )


def refuse_owners(root: Path, folders: Collection[str]) -> None:
    """Refuse an environment of another user, who could not change it any more: what is written belongs to this one."""
    owners = {(root / folder).stat().st_uid for folder in ("", *folders)} - {os.geteuid()}
    if owners:
        name = _user(owners.pop())
        raise UsageError(
            f"Cannot change {root}: it belongs to {name}, and what is written would not.",
            hint=f"Run the same command as {name}.",
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def refuse_residents(root: Path, folders: Collection[str]) -> None:
    """Refuse an environment in whose packages another process works, with the list of such processes."""
    places = tuple(f"{(root / folder).resolve()}/" for folder in folders)
    residents = list(_residents(places))
    if residents:
        raise UsageError(
            f"Cannot change {root}: other processes work in it.",
            details=residents[:_SHOWN],
            hint="End them, or wait until they have ended, and run the same command again. Nothing was changed.",
        )


def _residents(places: tuple[str, ...]) -> Iterator[str]:
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        if int(process.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            if use := _use(process, places):
                command = read_process(f"{process}/cmdline", 300).replace("\0", " ").strip()
                yield f"process {process.name} {use}: {clean(command)[:120]}"


def _use(process: Path, places: tuple[str, ...]) -> str:
    """Return what a process does in folders, or nothing. What it only reads may go on."""
    if f"{(process / 'cwd').readlink()}/".startswith(places):
        return "stands in it"
    for handle in os.listdir(process / "fd"):  # noqa: PTH208 - a name is enough
        with suppress(OSError):
            target = (process / "fd" / handle).readlink()
            if f"{target}/".startswith(places):
                flags = read_process(f"{process}/fdinfo/{handle}").partition("flags:")[2].split()
                if flags and int(flags[0], 8) & (os.O_ACCMODE | os.O_DIRECTORY):
                    return f"has {target} open"
    with (process / "maps").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").split(maxsplit=5)[5:]
            if path and path[0].startswith(places):
                return f"has loaded {path[0]}"
    return ""


def refuse_writers(old: Path, new: Path, records: Collection[str]) -> None:
    """Refuse an environment among whose packages somebody writes: a file could come between the exchange and its end."""
    begin = time.time() - _QUIET_SECONDS
    busy = [name for name in _differing(old, new, records) if _changed(old / name) > begin]
    if busy:
        raise UsageError(
            f"Cannot change {old}: another program writes among its packages.",
            details=[str(old / name) for name in busy[:_SHOWN]],
            hint="End it, or wait until it has ended, and run the same command again. Nothing was changed.",
        )


def carry_over(old: Path, new: Path, records: Collection[str], *, in_use: bool = True, since: float = 0.0) -> None:
    """Link what is not of these packages from the old folders of packages into the new ones.

    Where the new ones are in use already, what was written later stays there, and what was not written after ``since``
    is left out: the user may have removed it.
    """
    for name in _differing(old, new, records):
        with suppress(FileNotFoundError):
            if in_use and (_changed(new / name) > _changed(old / name) or (old / name).lstat().st_mtime < since):
                continue
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            _put(old / name, new / name)


def _differing(old: Path, new: Path, records: Collection[str]) -> Iterator[str]:
    """Yield what is among packages, of none of them, and other than in the new folders or missing there."""
    owned = owned_files(old, records) | owned_files(new, recorded(new))
    for site in packages_folders(old):
        for name in _foreign(old, site, frozenset(records)):
            if name not in owned and not is_same(old / name, new / name):
                yield name


def _foreign(root: Path, site: str, records: frozenset[str]) -> Iterator[str]:
    """Yield the files of a folder of packages that neither describe one of these nor are byte-code."""
    for folder, names, files in os.walk(root / site):
        place = PurePosixPath(folder).relative_to(root)
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        names[:] = [n for n in names if n not in links and n != "__pycache__" and f"{place}/{n}" not in records]
        yield from (f"{place}/{name}" for name in (*files, *links) if f"{place}/{name}" not in records)


def _changed(path: Path) -> float:
    """Return when a file was made, written, renamed or linked, which no program can set."""
    return path.lstat().st_ctime if os.path.lexists(path) else 0.0


def is_same(first: Path, second: Path) -> bool:
    """Return whether two files are one, or a copy of each other, or both are not there."""
    stats = [path.lstat() if os.path.lexists(path) else None for path in (first, second)]
    facts = [(s.st_ino, s.st_size, s.st_mtime_ns) for s in stats if s]
    if len(facts) < len(stats):
        return not facts
    return facts[0][0] == facts[1][0] or facts[0][1:] == facts[1][1:]


def _put(source: Path, target: Path) -> None:
    aside = target.with_name(f".envsmith-{os.urandom(6).hex()}")
    link(source, aside)
    aside.replace(target)


def link(source: str | Path, target: str | Path) -> None:
    """Link a file, or copy it where the system allows no link. What has gone in the meantime is left out."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def changed_meanwhile(before: Mapping[str, tuple[int, int]], root: Path) -> list[str]:
    """Return which packages another program has installed, changed or removed."""
    after = recorded(root)
    names = sorted({*before, *after})
    return [PurePosixPath(name).stem for name in names if before.get(name) != after.get(name)]
