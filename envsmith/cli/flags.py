"""The request flags, the same on ``solve``, ``lock`` and ``build``: parsed here once, into a :class:`Request`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from packaging.utils import canonicalize_name

from envsmith.errors import UsageError
from envsmith.files import open_input
from envsmith.frameworks import EXAMPLE, FRAMEWORKS
from envsmith.graph.load import components, gpu_names, version_graph
from envsmith.model.cell import FLAVOURS, RUNTIME, Platform, Request, WheelPolicy
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.version import ABSENT, Spec, parse_release, parse_version

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from envsmith.conda.model import CondaRequest
    from envsmith.model.finding import Finding

_Flags = TypeVar("_Flags")
_Result = TypeVar("_Result")
_NAMED = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z0-9._-]*?)\s*(?P<spec>(?:[=<>!~@,\s].*)?)", re.DOTALL)
_LONGEST = 300


def alternatives(names: Iterable[str]) -> str:
    """Return ``a, b or c``."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


# The flags of a command are a frozen dataclass: each field declares its option, in the order of ``--help``.


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
EXISTING_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


class Option(click.Option):
    """An option that stands in a section of ``--help``."""

    def __init__(self, *args: Any, section: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Verb(click.Command):
    """A command whose ``--help`` shows its options in sections and ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section in the order of its first option. ``--help`` itself stands with the output."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections.setdefault(getattr(parameter, "section", "") or "Output", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the examples as they are typed."""
        if self.examples:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in self.examples))


def verb(*examples: str) -> Callable[[Callable[..., int]], Verb]:
    """Decorate a function that is a command with examples of its use."""
    return click.command(cls=Verb, examples=examples)


def option(*names: str, **settings: Any) -> Any:
    """Declare a field that is an option of a command, with click's default as its own. ``--help`` shows a default.

    ``section`` is its heading in ``--help``, by default that of its dataclass (:func:`group`).
    """
    absent = () if settings.get("multiple") else False if settings.get("is_flag") else None
    settings = {"show_default": "default" in settings, "cls": Option, **settings}
    metadata = {"click": (click.option, names, settings)}
    return dataclasses.field(default=settings.get("default", absent), metadata=metadata)


def flag(*names_and_help: str, section: str = "") -> Any:
    """Declare a field that is an option without a value: its names, then its line of ``--help``."""
    *names, text = names_and_help
    return option(*names, is_flag=True, help=text, section=section)


def choice(name: str, words: Iterable[str], text: str, *, default: str | None = None, section: str = "") -> Any:
    """Declare a field that is an option with one of a few words, and its line of ``--help``."""
    settings: dict[str, Any] = {"type": click.Choice(list(words)), "help": text, "section": section}
    return option(name, **settings) if default is None else option(name, default=default, **settings)


def argument(**settings: Any) -> Any:
    """Declare a field that is an argument of a command."""
    return dataclasses.field(metadata={"click": (click.argument, (), settings)})


def group(kind: type, section: str = "") -> Any:
    """Declare a field whose value is a dataclass of flags itself. ``section`` is their heading in ``--help``."""
    return dataclasses.field(metadata={"group": kind, "section": section})


def takes(kind: type[_Flags]) -> Callable[[Callable[[_Flags], _Result]], Callable[..., _Result]]:
    """Decorate a command that takes one value: its flags."""

    def decorate(function: Callable[[_Flags], _Result]) -> Callable[..., _Result]:
        @functools.wraps(function)
        def command(**parameters: Any) -> _Result:
            return function(_value(kind, parameters))

        decorated: Any = command
        for parameter in reversed(list(_parameters(kind))):
            decorated = parameter(decorated)
        return cast("Callable[..., _Result]", decorated)

    return decorate


def _parameters(kind: type, section: str = "") -> Iterator[Callable[[Any], Any]]:
    for field in dataclasses.fields(kind):
        if "group" in field.metadata:
            yield from _parameters(field.metadata["group"], field.metadata["section"] or section)
            continue
        declare, names, settings = field.metadata["click"]
        if "cls" in settings:
            settings = {**settings, "section": settings.get("section") or section}
        yield declare(*names, field.name, **settings)


def _value(kind: type[_Flags], parameters: Mapping[str, Any]) -> _Flags:
    groups = {field.name: field.metadata.get("group") for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{n: _value(group, parameters) if group else parameters[n] for n, group in groups.items()})


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFlags:
    """The flags as they were typed; :meth:`request` parses them against the components that the graph knows."""

    framework: tuple[str, ...] = option(
        "--framework",
        "-f",
        multiple=True,
        metavar="NAME[SPEC]",
        shell_complete=_completion(lambda: FRAMEWORKS),
        help=f"{alternatives(FRAMEWORKS)}; repeatable.",
    )
    with_: tuple[str, ...] = option(
        "--with",
        multiple=True,
        metavar="COMPONENT[SPEC]",
        shell_complete=_completion(lambda: components().by_name),
        help="Any component that must be in the cell; repeatable.",
    )
    python: str | None = option("--python", metavar="SPEC", help="Python, e.g. 3.12.")
    torch: str | None = option("--torch", metavar="SPEC", help="PyTorch, e.g. 2.9, '>=2.6,<2.10', 2.9.1+cu126.")
    cuda: str | None = option(
        "--cuda", metavar="SPEC", help="CUDA that torch was built with, e.g. 12.8; 'cpu' for a build without."
    )
    nccl: str | None = option("--nccl", metavar="SPEC", help="NCCL, e.g. '>=2.27'.")
    driver: str | None = option("--driver", metavar="VERSION", help="The NVIDIA driver of the host, e.g. 535.54.03.")
    gpu: tuple[str, ...] = option(
        "--gpu",
        multiple=True,
        metavar="NAME|sm_NN",
        shell_complete=_completion(gpu_names),
        help="A GPU the cell must run on (h100, rtx5090, sm_70); repeatable.",
    )
    platform: str = option("--platform", default="linux-64", metavar="PLATFORM", help="linux-64 or linux-aarch64.")
    exclude_newer: str | None = option(
        "--exclude-newer", metavar="DATE", help="Only releases published up to this day (2026-11-01)."
    )
    wheels: str = choice(
        "--wheels",
        [policy.value for policy in WheelPolicy],
        "Ready wheels that spare compiling: the projects' own, all listed ones (envsmith wheel), or none.",
        default=WheelPolicy.OFFICIAL.value,
    )
    date: str | None = option(
        "--date", metavar="DATE", help="Prefer what was newest on this day. Newer releases stay allowed."
    )
    package: tuple[str, ...] = option(
        "--package",
        multiple=True,
        metavar="REQUIREMENT",
        help="Install this package too, e.g. 'wandb>=0.15'; it is not in the cell's name; repeatable.",
    )
    code: Path | None = option(
        "--code",
        type=click.Path(path_type=Path, exists=True),
        metavar="PATH",
        help="Add what this code needs: a folder, a git checkout, a file or a notebook.",
    )

    def request(self) -> Request:
        """Parse the flags. ``UsageError`` names the flag, what is wrong with it and, for a name, the nearest one."""
        table = components()
        frameworks: dict[str, Spec] = {}
        constraints: dict[str, Spec] = {}

        def require(place: dict[str, Spec], name: str, spec: Spec) -> None:
            place[name] = place[name].meet(spec) if name in place else spec

        for text in self.framework:
            component, spec = parse_component(text, table, flag="--framework", role=Role.FRAMEWORK)
            require(frameworks, component.name, spec)
        gpus = list(self.gpu)
        driver = self.driver
        for text in self.with_:
            component, spec = parse_component(text, table, flag="--with")
            if component.role is Role.FRAMEWORK:
                require(frameworks, component.name, spec)
            elif component.name == "driver":
                driver = _only_version(spec, "--with driver")
            elif component.name == "gpu":
                gpus.append(_only_version(spec, "--with gpu"))
            else:
                require(constraints, component.name, spec)
        for name in ("python", "torch", "cuda", "nccl"):
            value = getattr(self, name)
            if value is not None:
                require(constraints, name, _spec(value, f"--{name}"))
        packages, narrowed = self._packages(table, {**frameworks, **constraints})
        frameworks |= {name: spec for name, (spec, _) in narrowed.items() if table.by_name[name].role is Role.FRAMEWORK}
        return Request(
            frameworks=frameworks,
            constraints=constraints,
            driver=None if driver is None else _driver(driver),
            gpus=tuple(dict.fromkeys(_gpu(name, gpu_names()) for name in gpus)),
            platform=parse_platform(self.platform),
            exclude_newer=_day(self.exclude_newer, "--exclude-newer"),
            date=_day(self.date, "--date"),
            packages=packages,
            narrowed={name: wish for name, wish in narrowed.items() if name not in frameworks},
            wheels=WheelPolicy(self.wheels),
        )

    def _packages(
        self, table: ComponentTable, named: Mapping[str, Spec]
    ) -> tuple[tuple[str, ...], dict[str, tuple[Spec, str]]]:
        """Return the requirements of ``--package`` that uv chooses, and those of components that the solver chooses.

        These are in the cell, not in its name. uv chooses where envsmith knows no release that is asked for.
        """
        if not self.package:
            return (), {}
        lines: set[str] = set()
        graph = version_graph()
        narrowed: dict[str, tuple[Spec, str]] = {}
        for requirement in map(_requirement, self.package):
            component = table.find(requirement.name)
            is_part = component is not None and component.distributions[:1] == (canonicalize_name(requirement.name),)
            spec = str(requirement.specifier) or "*"
            if component is None or not is_part or not graph.knows_release(component.name, spec):
                lines.add(str(requirement))
                continue
            if component.name not in named:
                narrowed[component.name] = (Spec.parse(spec), f"--package {requirement}")
            if requirement.extras:
                lines.add(f"{requirement.name}[{','.join(sorted(requirement.extras))}]")
        return tuple(sorted(lines)), narrowed

    def text(self, *, flavour: str = "runtime", sources: str = "") -> str:
        """Return the flags in one order: what a lock says it was made from."""
        parts = [f"--framework {f}" for f in sorted(self.framework)] + [f"--with {w}" for w in sorted(self.with_)]
        parts += [
            f"--{n} {v}" for n in ("python", "torch", "cuda", "nccl", "driver") if (v := getattr(self, n)) is not None
        ]
        parts += [f"--wheels {self.wheels}"] if self.wheels != WheelPolicy.OFFICIAL.value else []
        parts += [f"--gpu {g}" for g in sorted(self.gpu)] + [f"--package {p}" for p in sorted(self.package)]
        parts += [f"--date {self.date}"] if self.date else []
        parts += [f"--flavour {flavour}"] if flavour != "runtime" else []
        parts += [sources] if sources else []
        return " ".join([*parts, f"--platform {self.platform}"])


def name_in(text: str) -> str:
    """Return the name in ``NAME[SPEC]``."""
    match = _NAMED.fullmatch(text)
    return match["name"] if match else text


def parse_component(text: str, table: ComponentTable, *, flag: str, role: Role | None = None) -> tuple[Component, Spec]:
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
    if component is None or (role is not None and component.role is not role):
        names = table.nearest(match["name"], role=role)
        names_known = ", ".join(c.name for c in (table.with_role(role) if role else table.by_name.values()))
        hint = f"Try {' or '.join(names)}." if names else f"Use one of: {names_known}."
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: {match['name']!r} is not a {role.value if role else 'component'} "
            "that envsmith knows.",
            hint=hint,
        )
    if flag == "--with" and component.role is Role.COMPANION and not component.distributions:
        raise UsageError(
            f"Cannot put {component.name} into a cell: the package index does not have it.",
            hint=f"Leave {flag} {component.name} out and build it from its repository inside the finished environment.",
        )
    return component, _spec(match["spec"] or "*", f"{flag} {component.name}")


def parse_pairs(pairs: Iterable[str], table: ComponentTable) -> dict[str, str]:
    """Parse the ``NAME==VERSION`` arguments of ``check`` into component -> version.

    Every problem is in one ``UsageError``. A name that is not a component stays as it is: the judgement lists it.

    The version may be ``*`` (some release is there) or ``none`` (known to be absent).
    """
    versions: dict[str, str] = {}
    problems: list[str] = []
    for text in pairs:
        try:
            name, read = _pair(text, table)
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


def _pair(text: str, table: ComponentTable) -> tuple[str, str]:
    """Parse ``NAME==VERSION``. The ``ValueError`` is a line for the user."""
    name, equals, version = text.partition("==")
    if not equals:
        raise ValueError(f"{_short(text)}: it is not NAME==VERSION" + _spelt_otherwise(text, table))
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


def _spec(text: str, flag: str) -> Spec:
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


def _only_version(spec: Spec, flag: str) -> str:
    text = str(spec).removeprefix("==")
    if any(mark in text for mark in "<>!~*|,"):
        raise UsageError(
            f"Cannot read {flag} {str(spec)!r}: it is not one version.",
            hint="Give exactly one version. It is a fact of the host.",
        )
    return text


def _driver(text: str) -> str:
    clean = text.strip()
    floor = re.fullmatch(r">=\s*([0-9.]+)", clean)
    try:
        return parse_version(floor[1] if floor else clean.removeprefix("=="))
    except ValueError:
        raise UsageError(
            f"Cannot read --driver {_short(text)}: it is not the version of a driver.",
            hint="Write it as nvidia-smi prints it: 535.54.03.",
        ) from None


def _gpu(text: str, names: dict[str, str]) -> str:
    clean = re.sub(r"[\s_-]+", "", text.lower()).removeprefix("nvidia").removeprefix("geforce")
    if match := re.fullmatch(r"sm(\d{2,3})[af]?", clean):
        return f"sm_{match[1]}"
    if clean in ABSENT:
        return "none"
    if clean in names:
        return names[clean]
    import difflib

    near = difflib.get_close_matches(clean, names, n=3, cutoff=0.5)
    raise UsageError(
        f"Cannot read --gpu {_short(text)}: it is not a GPU that envsmith knows.",
        hint=f"Try {' or '.join(near)}, or write sm_NN." if near else "Give its name (h100, v100, rtx4090) or sm_NN.",
    )


def parse_platform(text: str, flag: str = "--platform") -> Platform:
    """Parse a platform. ``UsageError`` names the flag."""
    try:
        return Platform.parse(text)
    except ValueError as error:
        raise UsageError(f"Cannot read {flag}: {error}.") from None


def _requirement(text: str) -> Requirement:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text) if len(text) <= _LONGEST else None
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url:
        raise UsageError(
            f"Cannot read --package {_short(text)}: it is not a requirement of the package index.",
            hint="Write a name and a specifier, such as 'wandb>=0.15'.",
        )
    return requirement


def _day(text: str | None, flag: str) -> str | None:
    if text is None:
        return None
    try:
        return dt.date.fromisoformat(text.strip()[:10]).isoformat()
    except ValueError:
        raise UsageError(
            f"Cannot read {flag} {_short(text)}: it is not a day.", hint="Write it as 2026-11-01."
        ) from None


# Flags that mean the same on several verbs: where cells lie, the flavour, Conda, how much is said, what fails.


def cells_option(what: str) -> Any:
    """Return ``--output``, the folder under which every cell has its own. ``what`` says what this verb does with it."""
    return option("--output", "-o", type=FOLDER, default=Path("envsmith-build"), help=what, section="Output")


def flavour_option() -> Any:
    """Return ``--flavour``. ``minimal`` is another word for ``runtime``."""
    return option(
        "--flavour",
        "--flavor",
        type=click.Choice([*FLAVOURS, "minimal"]),
        callback=lambda _context, _parameter, word: RUNTIME if word == "minimal" else word,
        help="runtime (or minimal): what training needs; train: also ssh, pdsh, git, pip and RDMA's libraries; "
        "devel: also the CUDA compiler.",
        default=RUNTIME,
        section="Request",
    )


matrix_option = click.option(
    "--matrix", "folder", type=EXISTING_FOLDER, help="The folder of the knowledge. [default: the one envsmith uses]"
)


def fail_on_option() -> Any:
    """Return ``--fail-on``."""
    return choice(
        "--fail-on",
        ["error", "warning", "note", "never"],
        "The least severity that makes the exit code 1.",
        default="error",
    )


def exit_code(findings: Iterable[Finding], fail_on: str) -> int:
    """Return 1 when a finding is as severe as ``--fail-on`` says, else 0."""
    levels = ("note", "warning", "error", "never")
    return int(any(levels.index(f.severity.value) >= levels.index(fail_on) for f in findings))


@dataclass(frozen=True, kw_only=True, slots=True)
class LockFlags:
    """The options of ``lock`` and ``build`` about the Conda part, an existing lock, and the network."""

    channel: tuple[str, ...] = option(
        "--channel",
        multiple=True,
        metavar="URL|NAME",
        help="Conda channel for conda-lock.yml; repeatable.",
        section="Conda",
    )
    conda_platform: tuple[str, ...] = option(
        "--conda-platform",
        multiple=True,
        metavar="PLATFORM",
        help="Another platform that conda-lock.yml covers (linux-aarch64); repeatable.",
        section="Conda",
    )
    conda_tolerate: tuple[str, ...] = option(
        "--conda-tolerate",
        multiple=True,
        type=click.Choice(["nccl", "cudnn", "triton"]),
        help="Allow this component to have a different version in conda-lock.yml (with a warning).",
        section="Conda",
    )
    no_conda: bool = flag("--no-conda", "Do not try to write conda-lock.yml.", section="Conda")
    locked: bool = flag(
        "--locked",
        "Use the existing lock. Fail (exit code 1) if it is out of date for this request.",
    )
    frozen: bool = flag("--frozen", "Use the existing lock as it is. Ask no index and no channel.")
    offline: bool = flag("--offline", "Use no network, only the caches.")

    def conda(self, exclude_newer: str | None) -> CondaRequest:
        """Return what is asked of the channels.

        ``UsageError`` for flags that exclude each other or a platform that does not exist.
        """
        from envsmith.conda.model import CondaRequest

        if self.locked and self.frozen:
            raise UsageError(
                "Cannot combine --locked with --frozen: --frozen does not check whether the lock is current.",
                hint="Leave one of them out.",
            )
        return CondaRequest(
            channels=self.channel,
            platforms=tuple(parse_platform(p, "--conda-platform") for p in self.conda_platform),
            tolerate=self.conda_tolerate,
            exclude_newer=exclude_newer,
            offline=self.offline,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """How much is said while something runs."""

    verbose: bool = flag("--verbose", "-v", "Show every line of every step.")
    quiet: bool = flag("--quiet", "-q", "Print only warnings, errors and the result.")

    def __post_init__(self) -> None:
        if self.verbose and self.quiet:
            raise UsageError(
                "Cannot combine --verbose with --quiet: they contradict each other.", hint="Leave one of them out."
            )


# What ``--from`` names, the same on ``check`` and ``doctor``.


def open_source(source: str) -> tuple[str, list[str]]:
    """Read the text of a file, or of stdin for ``-``, bounded, with notes on what was cut.

    :class:`UsageError` when it cannot be read.
    """
    from envsmith.doctor.read.pasted import read_bounded

    with open_input(Path(source), UsageError) as file:
        return read_bounded(file)
