"""A given set of releases, read: which values of which component each text stands for, and what the knowledge does not list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from envsmith.errors import UsageError
from envsmith.model.component import Role
from envsmith.model.version import Spec, parse_version, version_key
from envsmith.solve.kernel import bits
from envsmith.solve.prefer import Support
from envsmith.solve.problem import Problem
from envsmith.solve.solver import Solver
from envsmith.solve.words import name_release

__all__ = ["Given", "known_pair", "read_given"]


# Some release of it is there; it is known to be absent.
ANY, NONE = "*", "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """By variable: component, mask of releases it stands for, text; ``plain`` are single components with their text.

    ``extras`` are releases that the knowledge does not list; ``unknown`` says what follows from that.
    """

    components: Mapping[str, str]
    masks: Mapping[str, int]
    text: Mapping[str, str]
    plain: Mapping[str, str]
    extras: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]


def read_given(solver: Solver, given: Mapping[str, str]) -> Given:
    """Read ``{component: version}``. Names may be aliases; several GPUs are joined by commas; ``*`` is some release, ``none`` is absent."""
    compiled = solver.compiled
    components: dict[str, str] = {}
    masks: dict[str, int] = {}
    texts: dict[str, str] = {}
    plain: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    unknown: list[str] = []
    for spelling, value in given.items():
        name = spelling if spelling in compiled.roles else _find(solver, spelling)
        if name is None:
            unknown.append(f"{spelling} {value}: envsmith knows no such component")
            continue
        if value.strip() == ANY and compiled.roles[name] is Role.CORE:
            continue  # that there is a Python and a torch says nothing
        releases = compiled.versions.get(name, ())
        for number, text in enumerate(_versions(solver, name, value)):
            variable = name if number == 0 else f"{name}#{number + 1}"
            mask, extra = stands_for(releases, name, text)
            if extra is not None:
                listed = extras.setdefault(name, [])
                if extra not in listed:
                    listed.append(extra)
                mask = 1 << (len(releases) + listed.index(extra))
                if text not in (ANY, NONE) and _is_missed(compiled.roles[name], releases, text):
                    unknown.append(
                        f"{name_release(name, text)} is not among the releases envsmith knows{_newest(releases)}"
                    )
            components[variable], masks[variable], texts[variable] = name, mask, text
            if text not in (ANY, NONE):
                plain.setdefault(name, text)
    return Given(
        components=components,
        masks=masks,
        text=texts,
        plain=plain,
        extras={n: tuple(v) for n, v in extras.items()},
        unknown=tuple(unknown),
    )


def _is_missed(role: Role, releases: tuple[str, ...], text: str) -> bool:
    """Whether a release that is not listed leaves something unknown. Companions' files list every final release of the index; the host's not every patch."""
    return role in (Role.FRAMEWORK, Role.CORE) or (role is Role.COMPANION and _is_a_gap(releases, text))


def _newest(versions: tuple[str, ...]) -> str:
    stable = [v for v in versions if (key := version_key(v)) and not key.is_prerelease]
    return f" (the newest is {stable[-1]})" if stable else ""


def _is_a_gap(versions: tuple[str, ...], text: str) -> bool:
    """Whether a final release lies between the oldest and the newest that are listed and is none of them: mistyped, or never published."""
    if not versions or (key := version_key(text)) is None or key.is_prerelease or key.is_postrelease or key.local:
        return False
    first, last = version_key(versions[0]), version_key(versions[-1])
    return first is not None and last is not None and first < key < last


def _find(solver: Solver, name: str) -> str | None:
    component = solver.knowledge().components.find(name)
    return component.name if component else None


def _versions(solver: Solver, name: str, value: str) -> list[str]:
    parts = value.split(",") if name == "gpu" else [value]
    found = []
    for part in parts:
        text = part.strip()
        if name == "gpu":
            folded = re.sub(r"[-_\s]+", "", text.lower())
            text = solver.compiled.gpus.get(folded, text)
            if re.fullmatch(r"\d{1,2}\.\d", text):
                text = "sm_" + text.replace(".", "")
        try:
            found.append(ANY if text == ANY else parse_version(text))
        except ValueError as error:
            raise UsageError(f"{name}: {error}", hint=f"give a version, as {name}=={_example(name)}") from error
    return list(dict.fromkeys(found))


def _example(name: str) -> str:
    return {"gpu": "sm_90", "driver": "535.54.03", "torch": "2.9.1+cu128"}.get(name, "1.2.3")


def stands_for(versions: tuple[str, ...], component: str, text: str) -> tuple[int, str | None]:
    """The mask of listed releases that ``text`` stands for, or the release itself as one that is not listed.

    Exactly that release; the same version spelt otherwise (``0.16``, ``0.16.0``); for torch without a build tag all builds; for Python and
    CUDA the minor series; for others than frameworks a shorter version stands for what begins with it (cuDNN ``9.1.0``).
    """
    if text == ANY:
        return ((1 << len(versions)) - 1, None) if versions else (0, text)
    key = version_key(text)
    if text in versions:
        return 1 << versions.index(text), None
    if key is None:
        return 0, text
    if component in ("python", "cuda") and len(key.release) > 1:
        series = f"{key.major}.{key.minor}"
        if series in versions:
            return 1 << versions.index(series), None
    mask = 0
    for index, version in enumerate(versions):
        other = version_key(version)
        if other is not None and _same(component, key, other):
            mask |= 1 << index
    return (mask, None) if mask else (0, text)


def _same(component: str, key: Version, other: Version) -> bool:
    if key == other:
        return True
    if component == "torch":
        return key.local is None and key == Version(other.public)
    plain = key.pre is None and key.post is None and not key.is_devrelease and key.local is None
    shorter = len(key.release) < len(other.release) and other.release[: len(key.release)] == key.release
    return plain and shorter and other.pre is None and component not in _EXACT


_EXACT = frozenset({"deepspeed", "megatron-core", "colossalai", "gpu", "gcc"})


def known_pair(solver: Solver, problem: Problem, given: Given, framework: str) -> str | None:
    """Why the knowledge cannot vouch for a framework with the given torch; ``None`` when it can, or when there is nothing to vouch for.

    It can when somebody tested this framework release (its series, or an older release) with this torch or a newer one, or when
    the release itself declares a range that ends above this torch.
    """
    compiled = solver.compiled
    if compiled.roles[framework] is not Role.FRAMEWORK or "torch" not in given.masks:
        return None
    listed = (1 << len(compiled.versions.get(framework, ()))) - 1
    releases = given.masks[framework] & listed
    torches = given.masks["torch"] & ((1 << len(compiled.versions.get("torch", ()))) - 1)
    if not releases or not torches:
        return None
    release = releases.bit_length() - 1
    support = Support.of(problem, framework)
    older = support.torch(release)
    for frameworks, tested in support.lines:
        if frameworks & ((1 << (release + 1)) - 1):
            older |= tested
    if older and torches & -torches <= older:
        return None
    if _declared_bound(solver, framework, release, torches):
        return None
    version = given.text[framework]
    newest = (
        str(problem.values[problem.names.index("torch")][older.bit_length() - 1]).split("+", maxsplit=1)[0]
        if older
        else ""
    )
    tail = f": the newest torch it was tested with is {newest}" if newest else ""
    return f"whether {framework} {version} works with torch {given.text['torch']}{tail}"


def _declared_bound(solver: Solver, framework: str, release: int, torches: int) -> bool:
    """Whether the release declares a range for torch that has an upper end and contains the given torch."""
    version = solver.compiled.versions[framework][release]
    for rule in solver.knowledge().rules:
        if rule.id != f"{framework}-declares-torch":
            continue
        for row in rule.rows:
            spec: Spec = row.needs["torch"]
            if row.when[framework].contains(version) and re.search(r"<|==|~=", spec.text):
                return any(spec.contains(solver.compiled.versions["torch"][i]) for i in bits(torches))
    return False
