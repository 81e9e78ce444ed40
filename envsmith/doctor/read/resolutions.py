"""What resolvers say of requirements: pip, uv, Poetry, conda and mamba, each sentence as one value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from envsmith.model.version import Spec

# asked: by the user. required: by a release. installed: is there. offered: all that an index has.
Kind = Literal["asked", "required", "installed", "offered"]
NOT_INSTALLED = "none"


@dataclass(frozen=True, slots=True)
class Statement:
    """What an ``asker`` of a ``release`` requires of ``need``, as PEP 440. What nobody requires has no asker."""

    asker: str
    release: str
    need: str
    spec: str
    kind: Kind = "required"

    def __str__(self) -> str:
        what = f"{self.need}{self.spec}"
        if self.kind == "required":
            return f"{self.asker} {self.release}".rstrip() + f" requires {what}"
        if self.kind == "offered":
            return f"only {what} is there"
        if self.kind == "installed":
            return f"{self.need} {self.version} is installed"
        return f"{what} is asked for"

    @property
    def version(self) -> str:
        """Return the version of a pin, or the range."""
        return self.spec.removeprefix("==")

    def excludes(self, rival: Statement) -> bool:
        """Return whether no version fulfils both."""
        with contextlib.suppress(ValueError):
            own, foreign = (
                Spec.parse(_comparable(self.spec, rival.spec)),
                Spec.parse(_comparable(rival.spec, self.spec)),
            )
            return not any(own.contains(point) and foreign.contains(point) for point in _points(self.spec, rival.spec))
        return False


def _comparable(spec: str, rival: str) -> str:
    """Return a spec as PEP 440 takes it: Poetry's floor with a build, ``>=2.0.0+cu118``, is above the release without."""
    return re.sub(r">=([\d.]+)\+\w+", r">=\1" if "+" in rival else r">\1", spec) or "*"


def met(specs: list[str]) -> str:
    """Return the spec of what fulfils all ``specs``, without the clauses that others imply. Empty where nothing does."""
    clauses = list(dict.fromkeys(clause for spec in specs for clause in re.split(r",\s*", spec) if clause))
    with contextlib.suppress(ValueError):
        points = _points(*clauses)
        for clause in list(clauses):
            without = [each for each in clauses if each != clause]
            if without and _fitting(without, points) == _fitting(clauses, points):
                clauses = without
        return ",".join(clauses) if _fitting(clauses, points) else ""
    return ""


def _fitting(clauses: list[str], points: list[str]) -> list[str]:
    spec = Spec.parse(",".join(clauses))
    return [point for point in points if spec.contains(point)]


def _points(*specs: str) -> list[str]:
    """Return versions of which one lies in every set that bounds of ``specs`` can make: each bound, and right above it."""
    bounds = dict.fromkeys(re.findall(r"(?<![\w.])(\d+(?:\.\d+)*)([\w.+!]*)(?<!\.)", " ".join(specs)))
    return ["0.0.1", *(point for number, suffix in bounds for point in (f"{number}{suffix}", f"{number}.0.0.1"))]


_NAME = r"[A-Za-z][\w.-]{0,60}?"
_FRILLS = r"(?:\[[\w,-]{1,60}\])?(?:\{[^}]{1,160}\})?"
_BOUND = r"[<>=!~^]=?=?\s?v?\d[\w.*+!-]{0,30}"
_RANGE = rf"{_BOUND}(?:(?:,\s?|\sand\s){_BOUND}){{0,15}}"
# `torch==2.3.0`, `numpy<1.21 and >=1.17`, Poetry's `torch (^2.0.0)`, and several of them.
_ITEM = rf"{_NAME}{_FRILLS}(?:\s?{_RANGE}|\s\([^()\n]{{1,80}}\))"
_ASKS = re.compile(
    rf"(?:(?P<user>So, because [\w.-]{{1,60}} depends on(?: both)?|[Tt]he user requested(?: \(constraint\))?|\brequest(?:ed)?|[Yy]ou require|your (?:project|workspace) depends on)"
    rf"|\b(?P<asker>{_NAME}){_FRILLS}(?:(?:==|\s)v?(?P<release>\d[\w.+!-]{{0,30}})|\s\((?P<pinned>[^()\n]{{1,60}})\)|{_BOUND})?"
    rf"(?::\w{{1,20}})?(?: which)? (?:depends on(?: both)?|requires)) (?=(?P<items>{_ITEM}(?:,? and {_ITEM}){{0,5}}))"
)
_ITEMS = re.compile(
    rf"(?P<need>{_NAME}){_FRILLS}(?:\s?(?P<spec>{_RANGE})|\s\((?P<spoken>[^()\n]{{1,80}})\))(?=,? and|$)"
)
_REFUSED = re.compile(r"Cannot install (?P<items>[^\n]{0,1500}?) because these package\s+versions\s+have")
_PINNED = re.compile(rf"(?<![\w.-])(?P<need>{_NAME})(?P<spec>(?:==|~=|[<>]=?)\d[\w.*+!-]{{0,30}})")
_OFFERED = re.compile(rf"\bonly (?P<need>{_NAME}){_FRILLS}(?P<spec>{_RANGE}) (?:is|are) available")
# pip-compile and pipenv: `Could not find a version that matches numpy<=1.14.5,==1.15.1`, `  click<8.0 (from flask==1.1.4->…)`.
_MATCHES = re.compile(
    rf"Could not find a version that matches (?P<need>{_NAME}){_FRILLS}(?P<spec>{_BOUND}(?:,{_BOUND}){{1,12}})"
)
_FROM = re.compile(
    rf"^\s+(?P<need>{_NAME}){_FRILLS}(?P<spec>{_BOUND}(?:,{_BOUND}){{0,6}}) \(from (?:(?P<asker>[A-Za-z][\w.-]{{0,60}}?)(?:\[[^\]\n]{{1,80}}\])?==(?P<release>\d[\w.+!]{{0,30}})|-r )",
    re.MULTILINE,
)
_COMPLAINT = re.compile(
    rf"(?P<asker>[A-Za-z0-9][\w.-]{{0,60}}) (?P<release>\d[\w.+!-]{{0,40}}) (?:requires|has requirement) (?P<need>{_NAME})(?:\[[\w,-]{{1,40}}\])?"
    rf"(?:(?P<spec>{_RANGE})?(?: ?;[^\n]{{1,80}}?)?, but you(?:'ll)? have [A-Za-z0-9][\w.-]{{0,60}} (?P<have>\d[\w.+!-]{{0,40}}?)(?=[.,'`\"]{{0,3}}(?:\s|$))"
    rf"|(?P<floor>{_RANGE})?, which is not installed)",
    re.MULTILINE,
)
# What asks in the words of uv, where it is no package.
_NOBODY = frozenset({"project", "you", "user", "workspace", "and", "the"})
# uv and Poetry resolve for every Python that a project supports.
_OF_PROJECT = re.compile(
    r"the requested Python version \((?P<uv>[^()\n]{1,40})\) does not satisfy Python(?P<floor>[<>=!~][^\s]{1,60}?),? (?:and [\w .-]{1,60} depends on (?P<asker>[\w.-]{1,60})?)?"
    r"|current project's (?:supported )?Python (?:requirement|range) \((?P<poetry>[^()\n]{1,60})\)"
)
_FOLLOWING = re.compile(r"\bfollowing versions of (?P<asker>[\w.-]{1,60})")


# A build of conda: `cuda-cudart-12.1.105-hd3aeb46_0`.
_BUILD = re.compile(r"-\d[\w.]*-\w*_\d+$")


def read_statements(text: str) -> list[Statement]:
    """Return what resolvers say in ``text`` of requirements, each once, in the order of its kind of sentence."""
    lines = re.sub(r"^(?:#\d+ [\d.]+ ?)?[> \t]*(?:[\u00d7x] |[│|] +(?![├└]))?", "", text, flags=re.MULTILINE)
    joined = re.sub(r"(?<=\S)[-`╰└]*[─>▶]*\s*\n\s*[│|]?\s*", " ", re.sub(r"^.*[├└]─.*$", "", lines, flags=re.MULTILINE))
    readers = (_complaints(text), _of_compiler(text), _sentences(joined), _of_conda(lines), _of_tree(text))
    return list(dict.fromkeys(statement for reader in readers for statement in reader))


def read_complaints(text: str) -> list[Statement]:
    """Return what pip says of packages that are installed: each requirement, and behind it what is there instead."""
    return list(_complaints(text))


def _complaints(text: str) -> Iterator[Statement]:
    for match in _COMPLAINT.finditer(text):
        yield Statement(match["asker"], match["release"], match["need"], _pep440(match["spec"] or match["floor"] or ""))
        yield Statement("", "", match["need"], f"=={match['have']}" if match["have"] else NOT_INSTALLED, "installed")


def _of_compiler(text: str) -> Iterator[Statement]:
    listed = [*_FROM.finditer(text)]
    for match in listed:
        yield Statement(
            match["asker"] or "",
            match["release"] or "",
            match["need"],
            match["spec"],
            "required" if match["asker"] else "asked",
        )
    for match in [] if listed else _MATCHES.finditer(text):
        for clause in match["spec"].split(","):
            yield Statement("", "", match["need"], clause, "asked")


def _sentences(text: str) -> Iterator[Statement]:
    for refused in _REFUSED.finditer(text):
        for pin in _PINNED.finditer(refused["items"]):
            yield Statement("", "", pin["need"], pin["spec"], "asked")
    for offer in _OFFERED.finditer(text):
        yield Statement("", "", offer["need"], _pep440(offer["spec"]), "offered")
    for match in _OF_PROJECT.finditer(text):
        yield Statement("", "", "Python", _pep440(match["uv"] or match["poetry"]), "asked")
        if match["floor"]:
            asker = match["asker"] or next((each["asker"] for each in _FOLLOWING.finditer(text)), "a package")
            yield Statement(asker, "", "Python", _pep440(match["floor"]))
    for match in _ASKS.finditer(text):
        asker = match["asker"] or ""
        if _BUILD.search(asker):
            continue
        kind: Kind = "asked" if match["user"] or asker in _NOBODY else "required"
        release = match["release"] or match["pinned"] or ""
        who = ("", "") if kind == "asked" else (asker, release if release[:1].isdigit() else "")
        for item in _ITEMS.finditer(match["items"]):
            if spec := _pep440(item["spec"] or item["spoken"]):
                yield Statement(*who, item["need"], spec, kind)


def _pep440(spec: str) -> str:
    """Return a range of pip, uv or Poetry as PEP 440: ``<1.0,>=0.14``, ``^2.1`` as ``>=2.1,<3``, a bare one as a pin."""
    parts = [part.strip() for part in re.split(r",\s*|\s+and\s+", re.sub(r"(?<=[<>=!~^]) +", "", spec.strip()))]
    return ",".join(_clause(part.rstrip(".")) for part in parts if part and part != "*")


def _clause(part: str) -> str:
    if part[:1].isdigit():
        return f"=={part}"
    if part[:1] != "^":
        return part
    numbers = part[1:].partition("+")[0].split(".")
    at = next((n for n, each in enumerate(numbers) if each.strip("0")), len(numbers) - 1)
    after = [*numbers[:at], str(int(numbers[at]) + 1)] if numbers[at].isdigit() else numbers
    return f">={part[1:]},<{'.'.join(after)}"


# conda: an item `pytorch 1.0.1*`, `pytorch=1.3.1`, `pytorch==0.4.0=py35_cuda9`, `python[version='>=3.6,<3.7.0a0|>=3.7']`.
_CONDA_ITEM = re.compile(
    r"(?P<need>[A-Za-z_][\w.-]{0,60}?)(?=[\[\s=<>!~]|$)(?:\[version='(?P<listed>[^']{1,4000})'[^\]]*\]|\s*(?P<spec>[<>=!~]{0,2}\d[\w.*]*(?:[,|][<>=!~]{0,2}\d[\w.*]*)*)(?:=\S*)?)?\s*"
)
_IN_CONFLICT = re.compile(
    r"(?:found to be in conflict:|^Specifications:)(?P<items>(?:\s*- [^\n]+?(?=\s+- |\s*Use \"conda|\n|$)){1,20})",
    re.MULTILINE,
)
_CONFLICTS_FOR = re.compile(r"Package (?P<need>[\w.-]{1,60}) conflicts for:\s*\n(?P<items>(?:[^\n]+(?:\n|$)){1,60})")
_YOUR_PYTHON = re.compile(r"Your python: (python\S+)")
_PROVIDERS = re.compile(
    r"package (?P<asker>[\w.-]{1,60}?)-(?P<release>\d[\w.+]{0,30})-\S{1,60} requires (?P<item>[^\n]{1,90}?),? but none of the providers"
)
_PIN = re.compile(r"^ ?- (?P<item>\S[^\n]{1,60}?) \(labeled as 'pin-", re.MULTILINE)
_COMMAND = re.compile(r"\b(?:conda|mamba|micromamba) (?:install|create)\b(?P<items>[^\n]{1,400})")


def _of_conda(text: str) -> Iterator[Statement]:
    listed = [chain for match in _IN_CONFLICT.finditer(text) for chain in re.split(r"(?:^|\s)- ", match["items"])]
    # Each package on the way of a chain is required too.
    chains = [chain[: end.start()] for chain in listed for end in re.finditer(r" ->|$", chain)]
    for match in _CONFLICTS_FOR.finditer(text):
        chains += [chain for chain in match["items"].split("\n") if match["need"] in chain.rpartition("->")[2]]
    for chain in filter(str.strip, chains):
        yield from _chain(chain.strip().removeprefix("**").removesuffix("**"))
    for match in _YOUR_PYTHON.finditer(text):
        yield from _chain(match[1], "installed")
    for match in _PROVIDERS.finditer(text):
        if item := _conda_item(match["item"]):
            yield Statement(match["asker"], match["release"], *item)
    for match in _PIN.finditer(text):
        yield from _chain(match["item"])
    if chains or "─ " in text:
        for match in _COMMAND.finditer(text):
            for word in match["items"].split():
                if "=" in word and not word.startswith("-"):
                    yield from _chain(word)


def _chain(chain: str, kind: Kind = "asked") -> Iterator[Statement]:
    items = [item for part in chain.split("->") if (item := _conda_item(part))]
    if len(items) == 1:
        yield Statement("", "", *items[0], kind)
    elif items:
        (asker, release), (need, spec) = items[0], items[-1]
        yield Statement(asker, re.sub(r"^==|\.\*$", "", release) if release.startswith("==") else "", need, spec)


def _conda_item(text: str) -> tuple[str, str] | None:
    """Return the package of an item of conda and its versions as PEP 440, or ``None`` for what is no item."""
    match = _CONDA_ITEM.match(text.strip().strip("'\"`"))
    if match is None or match["need"].startswith("__"):
        return None
    parts = (match["listed"] or match["spec"] or "").split("|")
    return match["need"], " || ".join(dict.fromkeys(",".join(map(_conda_clause, p.split(","))) for p in parts if p))


def _conda_clause(clause: str) -> str:
    if re.match(r"[<>!~]|==", clause):
        return clause.partition("=")[0] + "=" + clause.partition("=")[2].rstrip("=") if "=" in clause else clause
    version = clause.lstrip("=").rstrip("*").rstrip(".")
    return f"=={version}.*" if clause.startswith("=") or clause.endswith("*") else f"=={version}"


# A node of the tree of libmamba: `│  └─ pytorch-cuda >=11.8,<11.9 , which conflicts with any installable versions`.
_NODE = re.compile(
    r"^(?:#\d+ [\d.]+ ?)?(?P<indent>[^\w\n]*[├└]─ )(?P<need>[\w.-]{1,60})(?P<spec>[^\n]*?),? +(?P<says>(?:is|which|would|conflicts|but|cannot|for) [^\n]*)",
    re.MULTILINE,
)


@dataclass(slots=True)
class _Node:
    need: str
    spec: str
    says: str
    is_root: bool
    children: list[_Node] = field(default_factory=list)

    @property
    def requires(self) -> dict[str, str]:
        return {child.need: child.spec for child in self.children if child.need != self.need}

    @property
    def is_option(self) -> bool:
        """Return whether it is a build that can be chosen: it requires something, or nothing."""
        return bool(self.requires) or (not self.children and "can be installed" in self.says)


def _of_tree(text: str) -> Iterator[Statement]:
    """Give what a tree of libmamba says: its roots are asked for, a build requires its children.

    Of the builds of a package one can be chosen: only what all of them require is required.
    """
    nodes = _nodes(text)
    for node in nodes:
        if node.is_root and not node.need.startswith("pin-"):
            yield Statement("", "", node.need, node.spec, "asked")
    for node in nodes:
        options = [each.requires for each in nodes if each.need == node.need and each.is_option and not each.is_root]
        for need, spec in node.requires.items():
            if spec and all(need in option for option in options):
                release = re.sub(r"^==|\.\*$", "", node.spec) if "||" not in node.spec else ""
                pinned = node.need.startswith("pin-")
                yield Statement(
                    *(("", "") if pinned else (node.need, release)), need, spec, "asked" if pinned else "required"
                )


def _nodes(text: str) -> list[_Node]:
    nodes: list[_Node] = []
    path: list[tuple[int, _Node]] = []
    for match in _NODE.finditer(text):
        depth = len(match["indent"])
        path = [each for each in path if each[0] < depth]
        node = _Node(
            match["need"],
            " || ".join(_tree_specs(match["spec"])),
            match["says"],
            not path and "│" not in match["indent"],
        )
        if path:
            path[-1][1].children.append(node)
        path.append((depth, node))
        nodes.append(node)
    return nodes


def refused_roots(text: str) -> list[str]:
    """Return the packages that are asked for and that libmamba cannot install, each with what it requires."""
    roots = [node for node in _nodes(text) if node.is_root and not node.need.startswith("pin-")]
    refused = [node for node in roots if "uninstallable" in node.says or "not installable" in node.says]
    return [f"{node.need} {node.spec.removeprefix('==')}".strip() + _in_brackets(node.requires) for node in refused]


def _in_brackets(requires: dict[str, str]) -> str:
    return f" (which requires {', '.join(f'{need}{spec}' for need, spec in requires.items())})" if requires else ""


def _tree_specs(text: str) -> list[str]:
    """Return the versions that a node names: `11.7.0*`, `=10.0 *`, `[1.0|1.1|...|1.7]`, with builds left out."""
    options = text.strip().strip("[]").split("|")
    words = [words[0] for option in options if (words := option.split()) and words[0] not in {"...", "*"}]
    return list(
        dict.fromkeys(",".join(map(_conda_clause, word.split(","))) for word in words if re.search(r"\d", word))
    )
