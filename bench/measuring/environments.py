"""A record's structured environment -> versions of components and facts, by one parser that knows no record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from envsmith.doctor.facts import Draft
from envsmith.doctor.read import read_text
from envsmith.doctor.read.lines import component_of, gpu_architecture, read_lines
from envsmith.doctor.read.pasted import clean
from envsmith.model.cell import Platform
from envsmith.model.version import Spec, local_cuda, parse_version, version_key
from envsmith.solver import default_solver

KEYS = {"system_cuda": "toolkit", "torch_cuda": "cuda", "gpu_arch": "gpu", "gpu": "gpu"}
_NUMBER = r"[vV]?\d{1,5}(?:\.\d{1,9}){0,4}(?:\.?(?:a|b|rc|dev|post)\d{0,12})?(?:\+[A-Za-z0-9][\w.]{0,40})?"
_TOKEN = re.compile(rf"([<>=!~]{{1,2}})?\s*(?<![\w.])({_NUMBER})(\.x\b|x\b|\+(?!\w))?(?![\w])")
_SPAN = re.compile(rf"(?<![\w.])({_NUMBER})\s*-\s*({_NUMBER})(?![\w-])")
_DATE = re.compile(r"\b(?:19|20)\d\d-\d\d(?:-\d\d)?\b|\bcommit\s+\w+|\bPR\s+\d+")
_SIZE = re.compile(r"\d[\d.]*\s?[GM]i?B\b")


def versions_in(component: str, text: str) -> tuple[str, ...]:
    """The versions that a text of an environment stands for: one, the alternatives of a list, or one inside a stated range."""
    if component == "gpu":
        return _gpus(text)
    if component == "driver" and (level := re.search(r"CUDA (\d+\.\d+)", text)):
        return _driver_of(level[1])
    if dated := re.fullmatch(r"\s*(<?=?)\s*((?:19|20)\d\d-\d\d(?:-\d\d)?)\s*", text):
        found = release_before(component, dated[2] if dated[1] != "<" else f"{dated[2][:7]}-00")
        return (found,) if found else ()
    plain = re.sub(r"\([^)]*\)", " ", text)
    found = _listed(component, plain) or _listed(component, text)
    if component == "gcc" and not found and (tools := re.search(r"toolset-(\d+)", text)):
        return (tools[1],)
    return found


def _listed(component: str, text: str) -> tuple[str, ...]:
    text = _SIZE.sub(" ", _DATE.sub(" ", text))
    if span := _SPAN.search(text):
        return one_inside(component, f">={span[1]},<={span[2]}")
    bounds, exact = [], []
    for match in _TOKEN.finditer(text):
        operator, number, tail = match[1] or "", match[2].lstrip("vV"), match[3] or ""
        if tail.endswith("x"):
            bounds.append(f"=={number}.*")
        elif tail == "+":
            bounds.append(f">={number}")
        elif operator and operator != "==":
            bounds.append(operator + number)
        else:
            exact.append(number)
    if bounds:
        return one_inside(component, ",".join(dict.fromkeys(bounds)))
    return tuple(v for v in dict.fromkeys(exact) if is_version(v))[:4]


def is_version(text: str) -> bool:
    try:
        return bool(parse_version(text))
    except ValueError:
        return False


def _gpus(text: str) -> tuple[str, ...]:
    if numbers := re.findall(r"\b(?:sm|compute)_(\d{2,3})\b", text):
        return tuple(dict.fromkeys(f"sm_{n}" for n in numbers))
    if match := re.fullmatch(r"\s*(\d{1,2})\.(\d)\s*", text):
        return (f"sm_{match[1]}{match[2]}",)
    known = gpu_architecture(text)
    return (known,) if known else ()


def _driver_of(level: str) -> tuple[str, ...]:
    """The newest driver that shows this CUDA level: all that the reporter's driver can be and not more."""
    releases = default_solver().knowledge().releases["driver"]
    found = [r.version for r in releases if r.facts.get("cuda_shown") == level]
    return (found[-1],) if found else ()


def one_inside(component: str, text: str) -> tuple[str, ...]:
    """The release inside a range that lies nearest to the bound it names; a number beside the bound where no releases are listed."""
    try:
        spec = Spec.parse(text)
    except ValueError:
        return ()
    listed = [v for v in default_solver().compiled.versions.get(component, ()) if spec.contains(v)]
    stable = [v for v in listed if (key := version_key(v)) is not None and not key.is_prerelease]
    public = list(dict.fromkeys(v.split("+")[0] for v in stable or listed))
    upper = "<" in text or "==" in text
    if public:
        return (public[-1] if upper else public[0],)
    number = re.findall(_NUMBER, text)[-1 if upper else 0]
    return tuple(v for v in (number, *_beside(number)) if is_version(v) and spec.contains(v))[:1]


def _beside(number: str) -> list[str]:
    parts = [int(p) for p in re.findall(r"\d+", number)[:4]]
    lower = parts.copy()
    for place in reversed(range(len(lower))):
        if lower[place]:
            lower[place] -= 1
            break
    return [".".join(map(str, [*parts, 1])), ".".join(map(str, lower))]


@dataclass(slots=True)
class Told:
    """What one record tells: versions (several where it names alternatives), components said to be absent, all facts for the doctor."""

    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    facts: Draft = field(default_factory=Draft)
    platform: Platform = Platform.LINUX_64

    def sets(self) -> list[dict[str, str]]:
        """One set per alternative; a component with one version is in all of them."""
        rows = zip_longest(*self.versions.values())
        first = {name: found[0] for name, found in self.versions.items()}
        return [
            {name: version or first[name] for name, version in zip(self.versions, row, strict=True)} for row in rows
        ][:4]


def read_env(env: Mapping[str, Any]) -> Told:
    """A record's structured environment as components and facts."""
    told = Told()
    fields = {str(k): str(v) for k, v in env.items() if v is not None}
    framework = component_of(fields.get("framework", ""))
    if framework and (found := versions_in(framework, fields.get("framework_version", ""))):
        told.versions[framework] = found
    for key, value in fields.items():
        name = KEYS.get(key) or component_of(key)
        if name and (found := versions_in(name, value)):
            told.versions.setdefault(name, found)
        if key not in {"framework", "framework_version"}:
            read_lines(f"{key}: {value}", told.facts, "env")
        if re.search(r"nvhpc|hpc[_ ]sdk", value, re.IGNORECASE):
            told.facts.host["toolkit_vendor"] = "nvhpc"
    if match := re.search(r"glibc(\d+\.\d+)", fields.get("os", "")):
        told.versions.setdefault("glibc", (match[1],))
    if "aarch64" in fields.get("arch", "") + fields.get("os", ""):
        told.platform = Platform.LINUX_AARCH64
    if framework:
        told.versions.setdefault(framework, ("*",))
    _settle(told)
    return told


def add_report(told: Told, report: str) -> None:
    """What the pasted report (``env_report``) tells beside ``env``, by the readers of ``doctor``."""
    draft = Draft()
    read_text(clean(report), draft, "report")
    facts = draft.done()
    for name, stated in facts.components.items():
        if stated.exact and told.versions.get(name, ("*",)) == ("*",):
            told.versions[name] = (stated.version,)
    for field_ in ("variables", "limits", "tools", "host"):
        own = getattr(told.facts, field_)
        own.update({k: v for k, v in getattr(facts, field_).items() if k not in own})
    told.facts.launches += facts.launches
    told.facts.gpus = told.facts.gpus or list(facts.gpus)
    _settle(told)


def _settle(told: Told) -> None:
    """What torch's build tag says of CUDA is not asked twice."""
    torch = told.versions.get("torch", ())
    if torch and any(local_cuda(v) for v in torch):
        told.versions.pop("cuda", None)


def release_before(component: str, date: str) -> str | None:
    """The newest final release of a component that was out on a day (``2023-05``: by its end), else its first one."""
    listed = [r for r in default_solver().knowledge().releases.get(component, ()) if r.date]
    final = [r for r in listed if (key := version_key(r.version)) and not key.is_prerelease] or listed
    day = date if len(date) > 7 else f"{date}-31"
    out = [r for r in final if str(r.date) <= day]
    chosen = out[-1] if out else final[0] if final else None
    return chosen.version.split("+")[0] if chosen else None
