"""Which requirements exclude each other: what pip, uv, Poetry and conda say of the sets that they cannot resolve."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from envsmith.doctor.needed_releases import newest_that_needs
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.signatures import Hit
from envsmith.model.version import Spec

_SPEC = r"(?P<spec>(?:[<>=!~]=?=?\d[\w.*+]{0,30}(?:(?:,\s?|\sand\s)(?=[<>=!~]))?){1,4})"
# pip: `xformers 0.0.26 depends on torch==2.3.0`. uv: `opencv-python==4.11.0.86 depends on numpy>=1.26.0`.
_DEPENDS = re.compile(
    r"(?:\b(?P<asker>[A-Za-z][\w.-]{0,60}?)(?:\[[\w,-]{1,60}\])?(?:\{[^}\n]{1,160}\})?(?:(?:==| )v?(?P<version>\d[\w.+]{0,30}))?"
    rf" depends on|The user requested) (?P<need>[A-Za-z][\w.-]{{0,60}}?)(?:\[[\w,-]{{1,60}}\])?(?:\{{[^}}\n]{{1,160}}\}})?\s?{_SPEC}"
)
_REACH = 4000
# An item of conda with its build, `zlib==1.2.13=h5eee18b_0`, and packages that PyTorch's channel no longer has.
_BUILD = re.compile(r"=[\d.][\w.]*=\w*_?\w*h[0-9a-f]{7}_\d+$|=py[\d.]+_cuda")
# libmamba: `nothing provides requested zlib ==1.2.13 h5eee18b_0`, `├─ quarto ~= does not exist (perhaps a typo or …)`.
_NOT_PROVIDED = re.compile(
    r"(?:nothing provides requested |[─-] )([a-z][\w.-]{1,60})(?: ([=<>~]{1,2}[\d.][\w.*]{0,30}))?(?: (\w{1,60}))?"
    r"(?=\s*$| ~?=? ?\*?\s?does not exist \(perhaps a typo)",
    re.MULTILINE,
)
_ENDED = re.compile(r"pytorch[=>]=?2\.(?:[6-9]|\d\d)|torchvision[=>]=?0\.2[1-9]|torchaudio[=>]=?2\.(?:[6-9]|\d\d)")
# What asks in uv's words, where it is no package.
_OF_USER = frozenset({"project", "you", "user"})


@dataclass(frozen=True, slots=True)
class _Requirement:
    """What ``asker`` (empty: the user) of a version requires of ``need``."""

    asker: str
    version: str
    need: str
    spec: str

    def __str__(self) -> str:
        who = f"{self.asker} {self.version}".strip()
        return f"{who} requires {self.need}{self.spec}" if who else f"{self.need}{self.spec} is asked for"


def with_conflict(hit: Hit, text: str) -> Hit:
    """Return what a resolver says with the requirements behind it, and those of one package that exclude each other."""
    if hit.signature.id == "conda-package-unknown":
        return _with_absent(hit, text[max(0, hit.position - 800) : hit.position + _REACH])
    if hit.signature.id != "pip-resolution":
        return hit
    requirements = list(_requirements(text[max(0, hit.position - 400) : hit.position + _REACH]))
    if not requirements:
        return hit
    needs = dict.fromkeys(f"{each.need}{each.spec}" for each in _binding(each for each in requirements if each.asker))
    pair = next(_excluding(requirements), ())
    return hit.naming(needs="; ".join(needs)[:400], told="; ".join(map(str, pair)), way=_way_out(pair))


def _with_absent(hit: Hit, around: str) -> Hit:
    """Return conda's message with what its channels lack: builds of another platform, PyTorch's packages after 2.5."""
    listed = r"^\s*- ([a-z][\w.-]*[=<>]\S{1,80}|[a-z][\w.-]{1,60})$"
    items = re.findall(listed, around[at:], re.MULTILINE) if (at := around.find("NotFound")) >= 0 else []
    items += ["=".join(filter(None, parts)).replace("===", "==") for parts in _NOT_PROVIDED.findall(around)]
    platform = re.search(r"Platform: ((?:win|osx|linux)-\w{2,8})", around)
    return hit.naming(
        absent=", ".join(items[:6]),
        build=next(filter(_BUILD.search, items), None),
        ended=next(filter(_ENDED.match, items), None),
        platform=platform[1] if platform else None,
    )


def _requirements(text: str) -> Iterator[_Requirement]:
    for match in _DEPENDS.finditer(re.sub(r"\n\s*│?\s*", " ", text)):
        asker = match["asker"] or ""
        spec = re.sub(r",?\s(?:and\s)?", ",", match["spec"])
        yield _Requirement("your project" if asker in _OF_USER else asker, match["version"] or "", match["need"], spec)


def _excluding(requirements: Sequence[_Requirement]) -> Iterator[tuple[_Requirement, _Requirement]]:
    """Give the pairs of which one pins a release that the other does not take."""
    for pin in requirements:
        for rival in requirements:
            if pin.need == rival.need and pin.spec.startswith("==") and not _contains(rival.spec, pin.spec[2:]):
                yield pin, rival


def _way_out(pair: Sequence[_Requirement]) -> str:
    """Return which release of one of two packages that exclude each other takes what the other pins."""
    for pin, rival in (pair, pair[::-1]) if pair else ():
        asker, need = component_of(rival.asker), component_of(pin.need)
        if asker and need and pin.spec.startswith("==") and (release := newest_that_needs(asker, need, pin.spec[2:])):
            alternative = (
                f", or {rival.need}{rival.spec} with what belongs to it" if rival.spec.startswith("==") else ""
            )
            return f"{asker} {release} takes {pin.need}{pin.spec}{alternative}"
    askers = [each for each in pair if each.asker]
    if not askers:
        return ""
    asks, wish = askers[-1], next(each for each in pair if each is not askers[-1])
    return f"Ask for {asks.need}{asks.spec}, or take a release of {asks.asker} that goes with {wish.need}{wish.spec}"


def _binding(requirements: Iterable[_Requirement]) -> Iterator[_Requirement]:
    """Give the requirements without the ranges that a release fulfils which another one pins."""
    every = list(requirements)
    pins = [(each.need, each.spec[2:]) for each in every if each.spec.startswith("==") and "," not in each.spec]
    for each in every:
        fulfilled = any(name == each.need and _contains(each.spec, pin) for name, pin in pins)
        if each.spec.startswith("==") or not fulfilled:
            yield each


def _contains(spec: str, version: str) -> bool:
    with contextlib.suppress(ValueError):
        return Spec.parse(spec).contains(version)
    return True
