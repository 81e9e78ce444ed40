"""What is typed after a flag, parsed into values. ``UsageError`` names the flag and what is wrong with it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable

from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.model.cell import Platform
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.project_name import normal_name
from envsmith.model.version import ABSENT, Spec, parse_release, parse_version
from envsmith.project.demand import Demand, parse_line

_NAMED = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z0-9._-]*?)\s*(?P<spec>(?:[=<>!~@,\s].*)?)", re.DOTALL)
_LONGEST = 300
# How alike a name and that of a component are when one is taken for a misspelling of the other.
_ALIKE = 0.85
# How alike they are when one is worth a suggestion.
_NEAR = 0.7


def name_in(text: str) -> str:
    """Return the name in ``NAME[SPEC]``."""
    match = _NAMED.fullmatch(text)
    return match["name"] if match else text


def parse_component(
    text: str, table: ComponentTable, *, flag: str, frameworks: Collection[str] = ()
) -> tuple[Component, Spec]:
    """Parse ``NAME[SPEC]`` into a component and a spec.

    ``UsageError`` has the nearest names for one that does not exist.
    """
    match = _NAMED.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: it is neither a name nor a name followed by a spec.",
            hint=f"Type for example {EXAMPLE} or '{EXAMPLE}>=0.16,<0.17'.",
        )
    component = table.find(match["name"])
    if component is None or (frameworks and component.name not in frameworks):
        names = table.nearest(match["name"], frameworks or None, cutoff=_NEAR)
        if component is not None:
            hint = f"It is a component: give it as --with {component.name}."
        elif names:
            hint = f"Try {' or '.join(names)}."
        elif frameworks:
            hint = f"Use one of: {', '.join(frameworks)}."
        else:
            hint = f"Name a package, the host or the GPU, such as {EXAMPLE}, 'torch>=2.9', driver or gpu."
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: {match['name']!r} is not a {'framework' if frameworks else 'component'} "
            "that envsmith knows.",
            hint=hint,
        )
    if flag == "--with" and component.role is Role.COMPANION and not component.distributions:
        raise UsageError(
            f"Cannot put {component.name} into a cell: the package index does not have it.",
            hint=f"Leave {flag} {component.name} out and build it from its repository inside the finished environment.",
        )
    if match["spec"].startswith(",") and table.find(name_in(match["spec"].strip(", "))):
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: it is several names.",
            hint=f"Write a blank between them: {' '.join(text.split(','))}.",
        )
    return component, parse_spec(match["spec"] or "*", f"{flag} {component.name}")


def parse_pairs(pairs: Iterable[str], table: ComponentTable) -> dict[str, str]:
    """Parse the ``NAME==VERSION`` arguments of ``check`` into component -> version, without the extras of a name.

    Every problem is in one ``UsageError``. A name that is not a component stays as it is: the judgement lists it.

    The version may be ``*`` (some release is there) or ``none`` (known to be absent).
    """
    versions: dict[str, str] = {}
    problems: list[str] = []
    words = [*pairs]
    for text, following in zip(words, [*words[1:], ""], strict=False):
        try:
            name, read = _pair(text, table, following)
        except ValueError as problem:
            problems.append(str(problem))
            continue
        if versions.setdefault(name, read) != read:
            problems.append(f"{name}: {versions[name]} and {read} contradict each other")
    if problems:
        raise UsageError(
            "Cannot judge these versions: some of them cannot be read.",
            details=problems,
            hint=f"Type for example: envsmith check {EXAMPLE}==0.14.0 torch==2.6.0 driver==535.54.03.",
        )
    return versions


def parse_extras(pairs: Iterable[str], table: ComponentTable) -> dict[str, frozenset[str]]:
    """Return the extras of ``NAME[EXTRA,...]==VERSION``, by component, or by normalised name where it is no component."""
    extras: dict[str, frozenset[str]] = {}
    for pair in pairs:
        name, of_name = _split_extras(pair.partition("==")[0])
        component = table.find(name)
        if of_name:
            extras[component.name if component else normal_name(name)] = of_name
    return extras


def _split_extras(name: str) -> tuple[str, frozenset[str]]:
    """Split ``ray[data,rllib]`` into the name and its extras."""
    plain, bracket, extras = name.partition("[")
    if not (bracket and extras.endswith("]")):
        return name, frozenset()
    return plain.strip(), frozenset(normal_name(extra.strip()) for extra in extras[:-1].split(","))


def misspelt(names: Iterable[str], table: ComponentTable) -> dict[str, str]:
    """Return the names that are no component's and nearly spelt as that of one, each with the component."""
    near = {name: table.nearest(name, cutoff=_ALIKE) for name in names if table.find(name) is None}
    return {name: components[0] for name, components in near.items() if components}


def _pair(text: str, table: ComponentTable, following: str) -> tuple[str, str]:
    """Parse ``NAME==VERSION``. The ``ValueError`` is a line for the user."""
    name, equals, version = text.partition("==")
    if not equals:
        meant = f"{text} {following}" if following[:1].isdigit() else text  # a space in the place of ==
        raise ValueError(f"{_short(text)}: it is not NAME==VERSION" + _spelt_otherwise(meant, table))
    name, _ = _split_extras(name)
    component = table.find(name)
    if component is None:
        return name[:60], version[:60]
    try:
        return component.name, version if version == "*" else parse_release(component.name, version)
    except ValueError as error:
        spelling = " (a GPU is sm_NN, or a name such as h100)" if component.name == "gpu" else ""
        raise ValueError(f"{component.name}: {error}{spelling}") from None


def _spelt_otherwise(text: str, table: ComponentTable) -> str:
    """Guess what was meant by ``torch``, ``torch=2.6`` and ``torch>=2.6``."""
    match = _NAMED.fullmatch(text) if len(text) <= _LONGEST else None
    component = table.find(match["name"]) if match else None
    if match is None or component is None:
        return ""
    version = match["spec"].strip(" =<>~!") or "*"
    return f" (did you mean {component.name}=={version}?)" if "," not in version else " (give one version, not a range)"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def parse_spec(text: str, flag: str) -> Spec:
    """Parse a version or a spec of versions. A single ``=`` and a leading ``@`` are read as well."""
    clean = text.strip().lstrip("@").strip()
    if not clean:  # "$TORCH" of a script that never set it must not mean "any"
        raise UsageError(
            f"Cannot read {flag}: the version is empty.",
            hint=f"Leave {flag.partition(' ')[0]} out, or write * for any release.",
        )
    if clean.startswith("=") and not clean.startswith("=="):
        clean = clean[1:]
    try:
        return Spec.parse(clean)
    except ValueError as error:
        raise UsageError(
            f"Cannot read {flag}: {error}.", hint="Give a version or a spec: 2.4, ==2.4.* or '>=0.16,<0.17'."
        ) from None


def only_version(spec: Spec, flag: str) -> str:
    """Return the one version that a spec names."""
    text = str(spec).removeprefix("==")
    if any(mark in text for mark in "<>!~*|,"):
        raise UsageError(
            f"Cannot read {flag} {str(spec)!r}: it is not one version.",
            hint="Give exactly one version. It is a fact of the host.",
        )
    return text


def parse_driver(text: str) -> str:
    """Parse the version of a driver. ``>=`` means its lower end."""
    clean = text.strip()
    floor = re.fullmatch(r">=\s*([0-9.]+)", clean)
    try:
        return parse_version(floor[1] if floor else clean.removeprefix("=="))
    except ValueError:
        raise UsageError(
            f"Cannot read --driver {_short(text)}: it is not the version of a driver.",
            hint="Write it as nvidia-smi prints it: 535.54.03.",
        ) from None


# GPUs that people name and that no build with CUDA runs on.
_OTHER_MAKERS = {
    "AMD": re.compile(r"^(?:amd|radeon|instinct|mi\d{2,3}[axp]?|rx\d{4}|gfx\d|rocm|w[67][89]00)"),
    "Intel": re.compile(r"^(?:intel|arc[ab]?\d|gaudi|hpu|xpu|pvc|max1[15]50|flex1[47]0)"),
    "Apple": re.compile(r"^(?:apple|mps|metal|m[1-5](?:pro|max|ultra)?$)"),
}


def parse_gpu(text: str, names: dict[str, str], architectures: Collection[str] = ()) -> str:
    """Return ``sm_NN`` of a GPU's name, one of ``names``, or of ``sm_NN`` itself: one of ``architectures`` or older."""
    counted = re.sub(r"^\s*\d{1,4}\s*[x*]\s*(?=[a-z])", "", text.lower())  # 4xA100
    clean = re.sub(r"[\s_-]+", "", counted).removeprefix("nvidia").removeprefix("geforce")
    if match := re.fullmatch(r"sm(\d{2,3})[af]?", clean):
        return _architecture(int(match[1]), architectures)
    if clean in ABSENT:
        return "none"
    if clean in names:
        return names[clean]
    if maker := next((maker for maker, pattern in _OTHER_MAKERS.items() if pattern.search(clean)), None):
        raise UsageError(
            f"Cannot use --gpu {_short(text)}: envsmith knows NVIDIA's GPUs only, and this one is of {maker}.",
            hint="Install PyTorch's own build for it. What envsmith has for a machine without NVIDIA's GPUs is --cuda cpu.",
        )
    from envsmith.doctor.read.lines import gpu_architecture  # names as nvidia-smi prints them

    if architecture := gpu_architecture(counted):
        return architecture
    import difflib

    near = difflib.get_close_matches(clean, names, n=3, cutoff=_NEAR)
    raise UsageError(
        f"Cannot read --gpu {_short(text)}: it is not a GPU that envsmith knows.",
        hint=f"Try {' or '.join(near)}, or write sm_NN." if near else "Give its name (h100, v100, rtx4090) or sm_NN.",
    )


def _architecture(number: int, architectures: Collection[str]) -> str:
    numbers = sorted(int(name.removeprefix("sm_")) for name in architectures)
    if numbers and number > numbers[0] and number not in numbers:
        near = sorted(sorted(numbers, key=lambda each: abs(each - number))[:2])
        raise UsageError(
            f"Cannot use --gpu sm_{number}: envsmith knows no GPU of this architecture.",
            hint=f"Try {' or '.join(f'sm_{each}' for each in near)}, or leave --gpu out.",
        )
    return f"sm_{number}"


def host_of_gpu(text: str, on_arm: Collection[str]) -> Platform | None:
    """Return the platform of the host that a GPU is built into (``gb200``), ``None`` where it does not say."""
    words = re.split(r"[\s,/():;]+", re.sub(r"^\s*\d{1,4}\s*[x*]\s*", "", text.lower()).replace("nvidia", " "))
    names = {re.sub(r"[-_]+", "", word) for word in (*words, "".join(words))}
    return Platform.LINUX_AARCH64 if names & {*on_arm} else None


def parse_platform(text: str, flag: str = "--platform") -> Platform:
    """Parse a platform. ``UsageError`` names the flag."""
    try:
        return Platform.parse(text)
    except ValueError as error:
        raise UsageError(f"Cannot read {flag}: {error}.") from None


def parse_requirement(text: str, flag: str) -> Demand:
    """Parse a requirement of the package index."""
    try:
        return parse_line(text, f"{flag} {text}")
    except ValueError:
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: it is not a requirement of the package index.",
            hint="Write a name and a specifier, such as 'wandb>=0.15'.",
        ) from None


def is_package(text: str, table: ComponentTable) -> bool:
    """Return whether ``NAME[SPEC]`` asks for a package that is not a component, nor a misspelt one, or for its extras."""
    named = _NAMED.fullmatch(text) if len(text) <= _LONGEST else None
    if named is not None and (table.find(named["name"]) or misspelt([named["name"]], table)):
        return False
    try:
        demand = parse_line(text, "")
    except ValueError:
        return False
    return named is not None or bool(demand.requirement.extras)


def parse_day(text: str | None, flag: str) -> str | None:
    """Parse an ISO day."""
    if text is None:
        return None
    try:
        return dt.date.fromisoformat(text.strip()[:10]).isoformat()
    except ValueError:
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: it is not a day.", hint="Write it as 2026-11-01."
        ) from None
