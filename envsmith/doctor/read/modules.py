"""``module load`` lines of batch files and sessions -> the toolkit, the compiler and the libraries that they bring."""

from __future__ import annotations

import re

from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import note_present, version_in
from envsmith.doctor.vocabulary import words

KIND = "module load lines"
# A prompt may stand before it, a comment sign may not.
_LINE = re.compile(r"^\s{0,8}(?:[$>]\s{1,4})?(?:module|ml)[ \t]{1,40}([^#\n;&|]{1,2000})", re.MULTILINE)
_LOADS, _UNLOADS = frozenset({"load", "add", "try-load"}), frozenset({"unload", "rm", "del"})
_SWAPS, _EMPTIES = frozenset({"swap", "switch"}), frozenset({"purge", "reset"})
_VERBS = _LOADS | _UNLOADS | _SWAPS | _EMPTIES
# What only looks, or says where modules lie.
_IDLE = frozenset(
    {"avail", "av", "list", "spider", "use", "unuse", "show", "display", "help", "whatis", "keyword", "save"}
)
_MOST = 500


def read_modules(text: str, draft: Draft, source: str) -> list[str]:
    """Add what is loaded at the end of the text, and return the kind where there is such a line."""
    loaded: dict[str, tuple[str, int]] = {}
    matches = list(_LINE.finditer(text[:2_000_000]))[:_MOST]
    for match in matches:
        _follow(match[1].split(), text.count("\n", 0, match.start(1)) + 1, loaded)
    for component, (version, line) in loaded.items():
        if parsed := version_in(version):
            draft.component(component, parsed[0], f"{source}:{line} (module load)", 2)
        else:
            note_present(draft, component)
    return [KIND] if loaded else []


def _follow(arguments: list[str], line: int, loaded: dict[str, tuple[str, int]]) -> None:
    """Do what one command does. Without a verb, as in ``ml cuda/12.4``, it loads."""
    arguments = [word for word in arguments if not word.startswith("--")]
    verb = arguments[0].lower() if arguments else ""
    if verb in _IDLE or not verb:
        return
    names = arguments[1:] if verb in _VERBS else arguments
    if verb in _EMPTIES:
        loaded.clear()
    if verb in _SWAPS and len(names) > 1:
        _drop(names[0], loaded)
        names = names[1:]
    for name in names[:40]:
        if verb in _UNLOADS or name.startswith("-"):
            _drop(name.removeprefix("-"), loaded)
            continue
        component, version = _parts(name)
        if component:
            loaded[component] = (version, line)


def _drop(name: str, loaded: dict[str, tuple[str, int]]) -> None:
    component, _ = _parts(name)
    if component:
        loaded.pop(component, None)


def _parts(name: str) -> tuple[str | None, str]:
    """Return component and version of ``nvidia/cuda/12.4.1``, ``cuda/11.8/11.8.0`` or ``NCCL/2.18.3-GCCcore-12.3.0``.

    What stands behind the version says what the module was built with.
    """
    *folders, last = name.lower().split("/")
    modules = words().modules
    if not folders:
        return modules.get(last), ""
    component = next((modules[folder] for folder in folders if folder in modules), None)
    return component, re.split(r"[-_](?![0-9])", last, maxsplit=1)[0]
