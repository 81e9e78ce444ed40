"""What the metadata of a release asks of components: on every platform and Python, and on some only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from envsmith.base.json_types import JsonDict
from envsmith.lock.index.metadata import active
from envsmith.model.cell import Platform
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.project_name import normal_name

# The minors among which a marker must hold everywhere before a requirement becomes a rule; wide enough for every
# release that is listed.
_MINORS = tuple(f"3.{n}" for n in range(6, 16))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# An extra in a marker, and words in the names of extras that are for developers of a package or for other hardware.
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_LEFT_OUT = re.compile(
    "all|full|complete|dev|develop(ment)?|tests?|testing|docs?|documentation|quality|lint(ing)?|style|ci|typing|types?|"
    "mypy|bench(marks?)?|examples?|release|notebooks?|tutorials?|check|cover(age)?|enabler|core|build|ruff|format|qa|"
    "amd|hip|rocm|xpu|npu|tpu|hpu|mps|mlx|neuronx?|ascend|musa|intel|gaudi|habana"
)


def extras_of(marker: str) -> list[str]:
    """Return the extras that a marker names."""
    return _EXTRA.findall(marker)


def is_for_users(extra: str) -> bool:
    """Return whether an extra is neither for developers of its package nor for hardware other than CUDA's."""
    return not any(_LEFT_OUT.fullmatch(word) for word in re.split(r"[-_.]", extra.lower()))


def spec_text(specifier: SpecifierSet | str, *, drop_patch: bool = False) -> str:
    """Return a specifier as the files spell it: clauses by version, ``>=2.0.6,!=2.0.9,<=2.4.2``, or ``*`` for none.

    ``drop_patch`` writes bounds of Python by minor (``>=3.7.1`` is ``>=3.7``: a minor counts when one of its patch
    releases does).
    """
    try:
        clauses = list(SpecifierSet(specifier) if isinstance(specifier, str) else specifier)
    except InvalidSpecifier:
        return "*"

    def key(clause: Any) -> tuple[Version, str]:
        return Version(clause.version.removesuffix(".*")), clause.operator

    texts = []
    for clause in sorted(clauses, key=key):
        text = f"{clause.operator}{clause.version}"
        if drop_patch:
            match = re.fullmatch(r"(>=|<)(3\.\d+)(?:\.\d+)?", text)
            if not match and not re.fullmatch(r"(==|!=|~=|>|<=)3\.\d+(\.\*)?", text):
                continue
            # `<3.13.1` still admits 3.13.0, so it bounds the next minor.
            up = match and match[1] == "<" and text != f"<{match[2]}" and not text.endswith(".0")
            text = f"<3.{int(match[2][2:]) + 1}" if match and up else f"{match[1]}{match[2]}" if match else text
        texts.append(text)
    return ",".join(dict.fromkeys(texts)) or "*"


def _minors(requires_python: str | None) -> list[str]:
    """Return the minors that ``Requires-Python`` admits with at least one patch release."""
    try:
        specifier = SpecifierSet(requires_python or "")
    except InvalidSpecifier:
        return list(_MINORS)
    return [m for m in _MINORS if any(specifier.contains(f"{m}.{patch}") for patch in range(25))] or list(_MINORS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentNeeds:
    """The requirements of one release, which is of the component ``own``.

    ``ignore`` are components whose requirement depends on the machine that made the metadata. A hard requirement on
    ``<cuda_core>-cuNN`` bounds CUDA to that major. Requirements of ``extras`` count.
    """

    requires: tuple[str, ...]
    requires_python: str | None
    components: ComponentTable
    own: str
    ignore: frozenset[str] = frozenset()
    cuda_core: str | None = None
    extras: tuple[str, ...] = ()

    def everywhere(self) -> dict[str, str]:
        """Return a spec by component: what the release asks for on every platform and every Python it admits.

        Requirements of one platform or of some Pythons only are left out, alternatives are joined. One without a bound
        is kept for core components only.
        """
        specs: dict[str, str] = {}
        python_spec = spec_text(self.requires_python or "", drop_patch=True)
        if python_spec != "*":
            specs["python"] = python_spec
        for name, at in self._by_place().items():
            core = re.fullmatch(r"(.+)-cu(\d+)", name)
            texts = list(dict.fromkeys(at.values()))
            if None in texts:
                continue
            if self.cuda_core and core and core[1] == self.cuda_core:
                specs["cuda"] = f"=={core[2]}.*"
                continue
            component = self._component(name)
            if component is not None and ("*" not in texts or component.role is Role.CORE):
                specs[component.name] = "*" if "*" in texts else " || ".join(filter(None, texts))
        return _first(specs, ("python", "cuda", "torch"))

    def of_extras(self) -> dict[str, str]:
        """Return by component the oldest release that its extras ask for, where all that speak of it name one.

        Of several extras the one that asks least counts. Extras for developers and other hardware are left out,
        and what it requires of everybody.
        """
        lines_of: dict[str, list[str]] = {}
        for line in self._about_components():
            for extra in filter(is_for_users, extras_of(line.partition(";")[2])):
                lines_of.setdefault(extra, []).append(line)
        floors: dict[str, list[Version | None]] = {}
        for extra, lines in lines_of.items():
            for name, spec in replace(self, requires=tuple(lines), extras=(extra,)).everywhere().items():
                floors.setdefault(name, []).append(_floor(spec))
        bounds = {n: min(filter(None, listed)) for n, listed in floors.items() if None not in listed and n != "python"}
        always = {name: _floor(spec) for name, spec in self.everywhere().items()}
        return {n: f">={bound}" for n, bound in sorted(bounds.items()) if bound > (always.get(n) or Version("0"))}

    def somewhere(self) -> list[JsonDict]:
        """Return what the release asks for on one platform or some Pythons only: ``{platform, python, requires}``."""
        minors = _minors(self.requires_python)
        entries: dict[tuple[str, str], dict[str, str]] = {}
        for name, at in self._by_place().items():
            component = self._component(name)
            specs = dict.fromkeys(at.values())
            if component is None or len(specs) < 2:
                continue
            for spec in specs:
                pythons = {p: [m for m in minors if at[p, m] == spec] for p in Platform}
                if spec is None or spec == "*":
                    continue
                everywhere = len({tuple(ms) for ms in pythons.values()}) == 1
                for platform in [None] if everywhere else [p for p in Platform if pythons[p]]:
                    some = _range_of(pythons[platform or next(iter(Platform))], minors)
                    entry = entries.setdefault((platform.value if platform else "", some), {})
                    entry[component.name] = spec
        return [
            {**({"platform": platform} if platform else {}), **({"python": some} if some else {}), "requires": specs}
            for (platform, some), specs in sorted(entries.items())
        ]

    def _component(self, name: str) -> Component | None:
        component = self.components.find(name)
        skipped = component is None or component.name == self.own or component.name in self.ignore
        return None if skipped else component

    def _about_components(self) -> list[str]:
        """Return the requirements that this reading is about: the others need no evaluation of their markers."""
        named = [(match[0], line) for line in self.requires if (match := _NAME.match(line))]
        core = f"{self.cuda_core}-cu" if self.cuda_core else None
        return [line for name, line in named if self._component(name) or (core and normal_name(name).startswith(core))]

    def _by_place(self) -> dict[str, dict[tuple[Platform, str], str | None]]:
        """Return for each distribution what is asked of it by platform and Python, ``None`` where it is not required."""
        requires = self._about_components()
        at = {
            (platform, python): active(requires, python=python, platform=platform, extras=self.extras)
            for python in _minors(self.requires_python)
            for platform in Platform
        }
        names = dict.fromkeys(name for lines_of_place in at.values() for name in lines_of_place)
        return {n: {place: spec_text(rs[n].specifier) if n in rs else None for place, rs in at.items()} for n in names}


def _floor(spec: str) -> Version | None:
    """Return the oldest release that a spec names as a bound. ``None`` where one of its alternatives has none."""
    floors = []
    for alternative in spec.split(" || "):
        bounds = (
            [c for c in SpecifierSet(alternative) if c.operator in {">=", ">", "~=", "=="}]
            if alternative != "*"
            else []
        )
        if not bounds:
            return None
        floors.append(max(Version(Version(clause.version.removesuffix(".*")).public) for clause in bounds))
    return min(floors)


def _range_of(some: Sequence[str], minors: Sequence[str]) -> str:
    """Return the spec of ``some`` of the minors that a release admits: ``>=3.12``, or nothing for all of them."""
    if list(some) == list(minors):
        return ""
    places = [minors.index(m) for m in some]
    if places != list(range(places[0], places[-1] + 1)):
        return " || ".join(f"=={m}.*" for m in some)
    start = [] if places[0] == 0 else [f">={some[0]}"]
    return ",".join(start if places[-1] + 1 == len(minors) else [*start, f"<{minors[places[-1] + 1]}"])


def _first(specs: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    head = [n for n in names if n in specs]
    return {n: specs[n] for n in [*head, *(s for s in specs if s not in head)]}
