"""A set of releases that is judged: read, narrowed to what can be meant, completed by what a wheel carries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from envsmith.errors import UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.cell import Platform
from envsmith.model.component import CARRIED, Role
from envsmith.model.rule import Rule, RuleKind, Severity
from envsmith.model.version import WORDS, Spec, local_cuda, parse_release, public, version_key
from envsmith.solver.kernel import Domains, Net, bits
from envsmith.solver.problem import Problem
from envsmith.solver.solver import FOLLOWS, Solver
from envsmith.solver.words import name_release

# What a torch wheel carries.
# Some release of it is there; it is known to be absent.
ANY, NONE = "*", "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """By variable: component, mask of releases it stands for, text. ``plain`` are single components with their text.

    ``extras`` are releases that the knowledge does not list. ``unknown`` says what cannot be judged, ``unlisted`` which
    of these releases only a run of the very set speaks for.
    """

    components: Mapping[str, str]
    masks: Mapping[str, int]
    text: Mapping[str, str]
    plain: Mapping[str, str]
    extras: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    unlisted: tuple[str, ...] = ()


@dataclass(slots=True)
class JudgementDraft:
    """One judgement in the making.

    ``keep`` are the components that no repair may change, ``features`` are in use. A repair gives every component of
    ``needed`` a release of its spec.
    """

    solver: Solver
    subject: Given
    problem: Problem
    keep: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    needed: Mapping[str, Spec] = field(default_factory=dict)

    def rule(self, rule_id: str) -> Rule:
        """Return the text of one rule. Most judgements show few of them."""
        return self.solver.graph.rule(rule_id)

    def carries(self, rule_id: str) -> bool:
        """Tell whether a rule says what a wheel or an image carries."""
        return self.rule(rule_id).kind is RuleKind.BUNDLES

    def masks(self) -> list[tuple[int, int]]:
        """Return what is given, as ``(variable, mask of releases)``."""
        return [(self.problem.names.index(name), mask) for name, mask in self.subject.masks.items()]

    def listed(self, name: str) -> int:
        """Return the mask of what is given of a component, without what the knowledge does not list."""
        return self.subject.masks[name] & ((1 << len(self.solver.compiled.versions.get(name, ()))) - 1)


def subject_of(solver: Solver, versions: Mapping[str, str], platform: Platform) -> Given:
    """Read what is given, without builds that a torch without a build tag cannot mean.

    A build of another platform is not meant, nor one without CUDA, unless it is stated or the platform has no other. A
    library beside a torch that is built without it is not its own.
    """
    subject, listed = read_given(solver, versions), solver.compiled.versions
    here = solver.compiled.torch_index.get(platform.value, {})
    mask = subject.masks.get("torch", 0)
    builds = {version: 1 << i for i, version in enumerate(listed.get("torch", ())) if mask >> i & 1}
    if len(builds) > 1:
        possible = [v for v in builds if v in here] or list(builds)
        possible = [v for v in possible if v.endswith("+cpu") is states_cpu(solver, subject)] or possible
        builds = {v: builds[v] for v in possible}
        subject = replace(subject, masks={**subject.masks, "torch": sum(builds.values())})
    if not builds or not all(v.endswith("+cpu") for v in builds):
        return subject
    if "+" not in subject.text["torch"] and states_cuda(subject):
        return _of_no_published_build(solver, subject, platform)
    beside = {n for n in FOLLOWS if n in subject.plain and "none" in listed.get(n, ())}
    find = solver.graph.components.find
    own = {n: v for n, v in versions.items() if (component := find(n)) is None or component.name not in beside}
    return subject_of(solver, own, platform) if len(own) < len(versions) else subject


def states_cuda(subject: Given) -> bool:
    """Tell whether something is stated that only a torch with CUDA goes with: a GPU, its driver, nvcc, a library."""
    return any(subject.text.get(n, NONE) not in WORDS for n in ("gpu", "driver", "toolkit", "cuda", "nccl", "cudnn"))


def _of_no_published_build(solver: Solver, subject: Given, platform: Platform) -> Given:
    """Return the subject with a torch of which only the version is known.

    The platform has builds without CUDA only, and CUDA is there: a vendor made this one, or it was compiled.
    """
    torch = subject.text["torch"]
    reason = f"which build of torch {torch} it is: with CUDA none was published for {platform.value}"
    return replace(
        subject,
        masks={**subject.masks, "torch": 1 << len(solver.compiled.versions["torch"])},
        extras={**subject.extras, "torch": (torch,)},
        unknown=(*subject.unknown, reason),
    )


def states_cpu(solver: Solver, subject: Given) -> bool:
    """Tell whether a torch without CUDA is stated: by CUDA itself, or by a library that only such a build lacks."""
    listed = solver.compiled.versions
    return any((t := subject.text.get(n)) in WORDS and t in listed.get(n, ()) for n in CARRIED)


def bits_of(problem: Problem, versions: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return releases as ``(variable, mask)``."""
    return [(problem.names.index(n), problem.bit(problem.names.index(n), v)) for n, v in versions.items()]


def carrying(case: JudgementDraft) -> Net:
    """Return the rules about what torch wheels there are, and what they carry."""
    problem = case.problem
    bundles = {r.id for r in case.solver.compiled.rules_of(problem.components) if r.bundles} | {"torch-wheels-platform"}
    parts = [
        problem.part(i) for i, g in enumerate(problem.groups) if g.rule in bundles and g.severity is Severity.ERROR
    ]
    return Net(problem.full).joined(parts)


def infer(case: JudgementDraft) -> tuple[list[tuple[int, int]], dict[str, str], frozenset[str]]:
    """Return the masks narrowed to what goes together, what follows, and what of that only the default build has."""
    problem, subject = case.problem, case.subject
    torch = problem.variable("torch")
    if torch is None or "torch" not in subject.masks:
        return case.masks(), {}, frozenset()
    net = carrying(case)
    domains = net.begin(case.masks()) or net.begin([(torch, subject.masks["torch"])])
    if domains is None:
        return case.masks(), {}, frozenset()
    narrowed = [
        (v, m) for v, m in enumerate(domains) if problem.names[v] in subject.masks or problem.names[v] in CARRIED
    ]
    inferred = _single(problem, domains, subject)
    default = _default_build(problem, torch, domains[torch])
    if default is None or not domains[torch] & (domains[torch] - 1):
        return narrowed, inferred, frozenset()
    closer = net.narrow(domains, torch, 1 << default)
    default_follows = _single(problem, closer, subject) if closer else {}
    default_follows["torch"] = str(problem.values[torch][default])
    assumed = frozenset(n for n in default_follows if n not in inferred)
    return narrowed, {**default_follows, **inferred}, assumed


def _single(problem: Problem, domains: Domains, subject: Given) -> dict[str, str]:
    """Return the carried components that are not given and have one release left."""
    singles = {}
    for name in CARRIED:
        variable = problem.variable(name)
        if variable is None or name in subject.masks:
            continue
        domain = domains[variable]
        value = problem.values[variable][domain.bit_length() - 1]
        if not domain & (domain - 1) and value is not None:
            singles[name] = value
    return singles


def _default_build(problem: Problem, torch: int, domain: int) -> int | None:
    """Return the build that ``pip install torch`` gives, among those that are possible."""
    index = problem.compiled.torch_index.get(problem.platform.value, {})
    return next((i for i in bits(domain) if index.get(str(problem.values[torch][i])) == "default"), None)


def read_given(solver: Solver, versions: Mapping[str, str]) -> Given:
    """Read ``{component: version}``.

    Names may be aliases. Several GPUs are joined by commas. ``*`` is some release, ``none`` is absent. The build tag of a
    torch that is not listed says its CUDA.
    """
    compiled = solver.compiled
    torch = versions.get("torch", "")
    tag = local_cuda(torch) if torch not in compiled.versions.get("torch", ()) else None
    stated = {"cuda": tag} if tag else {}
    components: dict[str, str] = {}
    masks: dict[str, int] = {}
    texts: dict[str, str] = {}
    plain: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    unknown: list[str] = []
    unlisted: list[str] = []
    for spelling, value in {**stated, **versions}.items():
        component = solver.graph.components.find(spelling)
        if component is None:
            near = solver.graph.components.nearest(spelling)
            unknown.append(
                f"{spelling} {value}: envsmith knows no such component" + (f", did you mean {near[0]}?" if near else "")
            )
            continue
        name = component.name
        if value.strip() == ANY and compiled.roles[name] is Role.CORE:
            continue  # that there is a Python and a torch says nothing
        releases = compiled.versions.get(name, ())
        for number, text in enumerate(_versions(solver, name, value)):
            variable = name if number == 0 else f"{name}#{number + 1}"
            mask, extra = _stands_for(releases, name, text)
            if extra is not None:
                listed = extras.setdefault(name, [])
                if extra not in listed:
                    listed.append(extra)
                mask = 1 << (len(releases) + listed.index(extra))
                if (
                    spelling in versions
                    and text not in (ANY, NONE)
                    and _is_missed(compiled.roles[name], releases, text)
                ):
                    unlisted.append(
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
        unlisted=tuple(unlisted),
    )


def _is_missed(role: Role, releases: tuple[str, ...], text: str) -> bool:
    """Tell whether a release that is not listed leaves something unknown: what it declares was not read.

    Files of the host do not list every patch. A build of a listed release (``2.7.4+cu12``) says what that one says.
    """
    return bool(releases) and role is not Role.HOST and public(text) not in releases


def _newest(versions: tuple[str, ...]) -> str:
    stable = [v for v in versions if (key := version_key(v)) and not key.is_prerelease]
    return f" (the newest is {stable[-1]})" if stable else ""


def _versions(solver: Solver, name: str, value: str) -> list[str]:
    parts = value.split(",") if name == "gpu" else [value]
    versions = []
    for part in parts:
        text = part.strip()
        if name == "gpu":
            folded = re.sub(r"[-_\s]+", "", text.lower())
            text = solver.compiled.gpus.get(folded, text)
            if re.fullmatch(r"\d{1,2}\.\d", text):
                text = "sm_" + text.replace(".", "")
        try:
            versions.append(ANY if text == ANY else parse_release(name, text))
        except ValueError as error:
            example = {"gpu": "sm_90", "driver": "535.54.03", "torch": "2.9.1+cu128"}.get(name, "1.2.3")
            raise UsageError(f"Cannot read {name}: {error}.", hint=f"Give a version: {name}=={example}.") from error
    return list(dict.fromkeys(versions))


def _stands_for(versions: tuple[str, ...], component: str, text: str) -> tuple[int, str | None]:
    """Return the mask of listed releases that ``text`` stands for, or the release itself as one that is not listed.

    Exactly that release. The same version spelt otherwise (``0.16``, ``0.16.0``). For torch without a build tag all
    builds. For Python and CUDA the minor series. For others than frameworks a shorter version stands for what begins
    with it (cuDNN ``9.1.0``).
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
        listed = version_key(version)
        if listed is not None and _same(component, key, listed):
            mask |= 1 << index
    return (mask, None) if mask else (0, text)


def _same(component: str, key: Version, listed: Version) -> bool:
    if key == listed:
        return True
    if component == "torch":
        return key.local is None and key == Version(listed.public)
    plain = key.pre is None and key.post is None and not key.is_devrelease and key.local is None
    shorter = len(key.release) < len(listed.release) and listed.release[: len(key.release)] == key.release
    return plain and shorter and listed.pre is None and component not in _EXACT


_EXACT = frozenset({*FRAMEWORKS, "gpu", "gcc"})
