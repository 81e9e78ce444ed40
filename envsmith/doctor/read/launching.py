"""Launcher commands, hostfiles and framework configurations in a text -> :class:`Launch` facts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from envsmith.base.json_types import JsonDict
from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import note_present, version_in
from envsmith.doctor.vocabulary import words

_OPTION = re.compile(r"(?<!\S)--?([A-Za-z][\w-]{0,60})(?:[ =]([^\s\\-][^\s\\]{0,200}))?")
# What a batch file asks Slurm for. A comment sign before it takes it out of use.
_DIRECTIVE = re.compile(r"^[ \t]{0,8}#SBATCH[ \t]{1,20}(-[^#\n]{1,300})", re.MULTILINE)
_HOST = re.compile(r"^\s{0,4}([A-Za-z0-9][\w.-]{0,100})[ \t]{1,80}slots=(\d{1,4})[ \t]{0,80}(?:#.*)?$", re.MULTILINE)
_HOST_LIKE = re.compile(
    r"[A-Za-z0-9][\w.:-]{0,100}(?:[ \t]{1,40}(?:max[-_])?(?:slots?|gpus?)[ \t]?[=:]?[ \t]?\w{0,8}){0,2}"
    r"(?:[ \t]{0,40}#.*)?"
)
_MAX_JSON = 200_000


def read_launches(text: str, draft: Draft, source: str) -> list[str]:
    """Add every command, hostfile and configuration, and return the kinds that were recognised."""
    kinds = []
    for number, line in _joined(text[:2_000_000]):
        marks = ((tool, re.search(mark, line)) for tool, mark in words().launchers.items())
        tool, mark = next(((tool, mark) for tool, mark in marks if mark), (None, None))
        if tool and mark:
            command = line[mark.start() :].split("`")[1] if mark[0].startswith("`") else line
            excerpt = f"{source}: {command.strip()[:300]}"
            draft.launch(tool, _options(command), excerpt, source=source, places={"": number})
            kinds.append(f"{tool} command")
    if directives := list(_DIRECTIVE.finditer(text[:2_000_000]))[:_MOST]:
        options = {name: value for line in directives for name, value in _options(line[1]).items()}
        lines = "; ".join(line[1].strip()[:60] for line in directives[:6])
        draft.launch(
            "sbatch",
            options,
            f"{source}: {lines}",
            source=source,
            places={"": _line_of(text, directives[0][0].strip())},
        )
        kinds.append("batch file of Slurm")
    hosts = _HOST.findall(text[:500_000])[:2000]
    if hosts:
        names = [name for name, _ in hosts]
        slots = [slot for _, slot in hosts]
        options = {"hosts": ",".join(names), "slots": ",".join(slots)}
        if bad := _bad_host_line(text):
            options["bad"] = bad
        place = _line_of(text, options["bad"]) if "bad" in options else _line_of(text, f"{names[0]} ")
        draft.launch("hostfile", options, source, source=source, places={"": place})
        kinds.append("hostfile")
    configuration, plugins = words().configuration, words().plugins
    for start, end, config in _configs(text, configuration.keys):
        options = dict(_leaves(config, (200, 60, 20)))
        draft.launch(configuration.tool, options, source, source=source, places=_places(text, start, end, options))
        kinds.append(configuration.kind)
    plugin = "|".join(plugins.names)
    if re.search(rf"\b(?:{plugin})Plugin\(", text):
        for name, arguments in re.findall(rf"\b({plugin})Plugin\(([^)]{{0,600}})\)", text)[:20]:
            options = dict(re.findall(r"(\w{1,40})\s*=\s*[\"']?([\w.]{1,40})", arguments))
            draft.launch(plugins.tool, {"plugin": name, **options}, source)
        kinds.append(plugins.kind)
    return list(dict.fromkeys(kinds))


def _bad_host_line(text: str) -> str | None:
    """Return the first line of a hostfile that is not ``HOST slots=N``, of a text that is nothing but a hostfile."""
    lines = [line.strip() for line in text[:50_000].split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not all(_HOST_LIKE.fullmatch(line) for line in lines):
        return None
    return next((line for line in lines if not re.match(r"\S+\s+slots=\d", line)), None)


def _line_of(text: str, part: str) -> int:
    """Return the line (from 1) on which ``part`` stands first."""
    return text.count("\n", 0, max(0, text.find(part))) + 1


def _places(text: str, start: int, end: int, options: Mapping[str, str]) -> dict[str, int]:
    """Return the lines of a configuration and of its keys. A key inside another is looked for after that one."""
    first = text.count("\n", 0, start) + 1
    places = {"": first}
    for name in list(options)[:200]:
        at = start
        for part in name.split("."):
            place = text.find(f'"{part}"', at, end)
            at = place if place >= 0 else at
        places[name] = first + text.count("\n", start, at)
    return places


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Give the lines that could hold a command with their number, joined where a backslash continues them."""
    hints = words().launcher_hints
    pending, begun = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.rstrip()
        begun = begun if pending else number
        if stripped.endswith("\\") and len(pending) < 6000:
            pending += stripped[:-1] + " "
            continue
        command = (pending + stripped)[:6000]
        pending = ""
        if any(hint in command for hint in hints):
            yield begun, command
    if pending:
        yield begun, pending[:6000]


def _options(line: str) -> dict[str, str]:
    options = {}
    for name, value in _OPTION.findall(line)[:400]:
        options[name.replace("_", "-").lower()] = value or "yes"
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "MASTER_PORT", "MASTER_ADDR"):
        if match := re.search(rf"\b{variable}=(\S{{1,80}})", line):
            options[variable] = match[1]
    return options


def _configs(text: str, keys: tuple[str, ...]) -> Iterator[tuple[int, int, JsonDict]]:
    """Give the JSON objects that hold a key of a configuration: where they begin and end, and what they say."""
    position = 0
    for _ in range(20):
        hit = min((p for p in (text.find(f'"{key}"', position) for key in keys) if p >= 0), default=-1)
        if hit < 0:
            return
        last = None
        for last in _objects_around(text, hit):
            if any(key in last[2] for key in keys):
                yield last
                break
        position = hit + (2000 if last else 1)


def _objects_around(text: str, hit: int) -> Iterator[tuple[int, int, JsonDict]]:
    """Give the JSON objects that begin at one of the four braces before ``hit``, the nearest first."""
    decoder = json.JSONDecoder()
    start = hit
    for _ in range(4):
        start = text.rfind("{", max(0, hit - 20_000), start)
        if start < 0:
            return
        with suppress(ValueError, RecursionError):
            value, length = decoder.raw_decode(text[start : start + _MAX_JSON])
            yield start, start + length, value


def _leaves(config: JsonDict, most: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Give dotted names and values, ``zero_optimization.stage`` and ``3``.

    ``most`` is how many of each level are read, lists and deeper levels not at all.
    """
    for key, value in list(config.items())[: most[0]]:
        if not isinstance(value, (dict, list)):
            yield str(key)[:80], str(value)[:80]
        elif isinstance(value, dict) and most[1:]:
            yield from ((f"{key}.{inner}", leaf) for inner, leaf in _leaves(value, most[1:]))


# ``module load`` lines of batch files and sessions: the toolkit, the compiler and the libraries that they bring.

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
