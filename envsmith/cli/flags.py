"""The flags that several verbs share. Those of a request are parsed here once, into a :class:`Request`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from envsmith.base.files import open_input
from envsmith.cli.console import say
from envsmith.cli.declare import (
    ExistingFile,
    ExistingFolder,
    ExistingPath,
    Section,
    alternatives,
    choice,
    completion,
    flag,
    option,
    several,
)
from envsmith.cli.values import (
    host_of_gpu,
    is_package,
    name_in,
    only_version,
    parse_component,
    parse_day,
    parse_driver,
    parse_gpu,
    parse_platform,
    parse_requirement,
    parse_spec,
)
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE, FRAMEWORKS
from envsmith.knowledge.graph.load import components, gpu_names, version_graph
from envsmith.model.cell import FLAVOURS, RUNTIME, Machine, Platform, Request, WheelPolicy
from envsmith.model.component import Role
from envsmith.model.version import Spec
from envsmith.project.demand import Demands

if TYPE_CHECKING:
    from envsmith.lock.conda.model import CondaRequest
    from envsmith.model.finding import Finding
    from envsmith.project.division import Division


# Headings of ``--help``.
_OUTPUT, _REQUEST, _CONDA = map(Section, ("Output", "Request", "Conda"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFlags:
    """The flags as they were typed; :meth:`request` parses them against the components that the graph knows."""

    framework: tuple[str, ...] = several(
        "-f", "NAME[SPEC]", f"{alternatives(FRAMEWORKS)}; repeatable.", shell_complete=completion(lambda: FRAMEWORKS)
    )
    with_: tuple[str, ...] = several(
        "NAME[SPEC]",
        "A component, stack or any other package that must be installed, as the arguments; repeatable.",
        positional="[NAME[SPEC]...]",
        shell_complete=completion(lambda: components().by_name),
    )
    stack: tuple[str, ...] = several(
        "NAME",
        "Packages that people install together (hf, diffusion, …); repeatable.",
        shell_complete=completion(lambda: _stacks().stack_names()),
    )
    requirements: tuple[ExistingFile, ...] = several(
        "-r",
        "FILE",
        "Meet a file of requirements: of pip's format, or an environment.yml or pyproject.toml; repeatable.",
    )
    project: ExistingFolder | None = option(
        "DIR",
        "Meet what the project in a folder requires (pyproject.toml, setup.cfg, setup.py, requirements.txt, "
        "environment.yml).",
    )
    extra: tuple[str, ...] = several("NAME", "With this extra of the project.")
    group: tuple[str, ...] = several("NAME", "With this dependency group of the project.")
    without: tuple[str, ...] = several("NAME", "Leave this requirement of the files out; repeatable.")
    keep: tuple[str, ...] = several(
        "NAME", "Keep the version that the project's lock or the active environment has; repeatable."
    )
    python: str | None = option("SPEC", "Python, e.g. 3.12.", old=("--python-version",))
    torch: str | None = option("SPEC", "PyTorch, e.g. 2.9, '>=2.6,<2.10', 2.9.1+cu126.")
    cuda: str | None = option(
        "SPEC", "CUDA that torch was built with, e.g. 12.8; 'cpu' for a build without.", old=("--torch-backend",)
    )
    nccl: str | None = option("SPEC", "NCCL, e.g. '>=2.27'.")
    driver: str | None = option("VERSION", "The NVIDIA driver of the host, e.g. 535.54.03.")
    gpu: tuple[str, ...] = several(
        "NAME|sm_NN",
        "A GPU the cell must run on (h100, rtx5090, sm_70); repeatable.",
        shell_complete=completion(gpu_names),
    )
    machine: str | None = option(
        "none|FILE",
        "Where the cell will run: none for any machine, or what envsmith doctor --save wrote on another one. Default: "
        "this machine's driver, GPUs and Pythons.",
    )
    platform: str | None = option(
        "PLATFORM",
        "linux-64 or linux-aarch64. Default: that of the machine, or of a GPU that comes with its host (gb200).",
    )
    exclude_newer: str | None = option("DATE", "Only releases published up to this day (2026-11-01).")
    wheels: str = choice(
        [policy.value for policy in WheelPolicy],
        "Ready wheels that spare compiling: the projects' own, all listed ones (envsmith wheel), or none.",
        default=WheelPolicy.OFFICIAL.value,
    )
    date: str | None = option(
        "--prefer-date", "DATE", "Prefer what was newest on this day. Newer releases stay allowed.", old=("--date",)
    )
    package: tuple[str, ...] = several(
        "REQUIREMENT", "Install this too. Of a component the cell's name does not have it.", hidden=True
    )
    code: ExistingPath | None = option(
        "PATH", "Add what this code needs: a folder, a git checkout, a file or a notebook."
    )

    @property
    def names_something(self) -> bool:
        """Return whether a framework, a package, or a file that asks for some, is named."""
        return self.names_packages or bool(self.requirements)

    @property
    def names_packages(self) -> bool:
        """Return whether a framework, a package, a project or code is named."""
        named = self.framework or self.with_ or self.stack or self.package
        return bool(named or self.project or self.code) or self.torch is not None

    def request(self, demands: Demands | None = None) -> Request:
        """Parse the flags. ``UsageError`` names the flag, what is wrong with it and, for a name, the nearest one.

        ``demands`` are what the files ask for that the flags name.
        """
        for text in self.with_:
            _refuse_path(text)
        table = components()
        frameworks: dict[str, Spec] = {}
        constraints: dict[str, Spec] = {}

        def require(place: dict[str, Spec], name: str, spec: Spec) -> None:
            place[name] = place[name].meet(spec) if name in place else spec

        for text in self.framework:
            component, spec = parse_component(text, table, flag="--framework", frameworks=FRAMEWORKS)
            require(frameworks, component.name, spec)
        machine = self.where()
        gpus = [each for name in self.gpu for each in (_machines().gpus_of(machine) if name == "auto" else [name])]
        driver = _machines().driver_of(machine) if self.driver == "auto" else self.driver
        for text in self.components_named():
            component, spec = parse_component(text, table, flag="--with")
            if component.role is Role.FRAMEWORK:
                require(frameworks, component.name, spec)
            elif component.name == "driver":
                driver = only_version(spec, "--with driver")
            elif component.name == "gpu":
                gpus.append(only_version(spec, "--with gpu"))
            else:
                require(constraints, component.name, spec)
        for name, spec in (pair for stack in self.stacks() for pair in _stacks().find_stack(stack).requires.items()):
            require(frameworks if table.by_name[name].role is Role.FRAMEWORK else constraints, name, spec)
        for name in ("python", "torch", "cuda", "nccl"):
            value = _cuda(self.cuda) if name == "cuda" else getattr(self, name)
            if value is not None:
                require(constraints, name, parse_spec(value, f"--{name}"))
        platform = self.target(machine)
        division = self._division({*frameworks, *constraints}, demands, platform)
        for name in division.narrowed if division else ():
            if table.by_name[name].role is Role.FRAMEWORK:
                frameworks.setdefault(name, Spec.parse("*"))
        architectures = version_graph().compiled.versions["gpu"]
        request = Request(
            frameworks=frameworks,
            constraints=constraints,
            driver=None if driver is None else parse_driver(driver),
            gpus=tuple(dict.fromkeys(parse_gpu(name, gpu_names(), architectures) for name in gpus)),
            platform=platform,
            exclude_newer=parse_day(self.exclude_newer, "--exclude-newer"),
            date=parse_day(self.date, "--prefer-date"),
            wheels=WheelPolicy(self.wheels),
            machine=machine,
        )
        return division.put_into(request) if division else request

    def components_named(self) -> tuple[str, ...]:
        """Return what ``--with`` and the arguments name of components."""
        return tuple(text for text in self.with_ if not self._is_package(text) and not _is_stack(text))

    def stacks(self) -> tuple[str, ...]:
        """Return the stacks that are named, by ``--stack`` or among the arguments."""
        return (*self.stack, *filter(_is_stack, self.with_))

    def refuse_nothing(self, action: str, verb: str) -> None:
        """Refuse a request that names neither a package nor what a PyTorch alone should be or run on."""
        of_torch = (self.python, self.cuda, self.nccl, self.driver, *self.gpu, *self.keep)
        of_torch += (self.machine, self.exclude_newer, self.date)
        if not self.names_something and all(value is None for value in of_torch):
            raise UsageError(
                f"Cannot {action}: nothing is named.",
                hint=f"Name a framework: envsmith {verb} {EXAMPLE}. For PyTorch alone: envsmith {verb} torch.",
            )

    @staticmethod
    def _is_package(text: str) -> bool:
        return is_package(text, components()) and not _is_stack(text)

    def where(self) -> Machine | None:
        """Return the machine that the cell is for, ``None`` for any."""
        machine: Machine | None = _machines().named_machine(self.machine or os.environ.get("ENVSMITH_MACHINE"))
        return machine

    def target(self, machine: Machine | None) -> Platform:
        """Return the platform that is named, else that of a GPU which comes with its host, else that of the machine."""
        if self.platform is not None:
            return parse_platform(self.platform)
        on_arm = version_graph().compiled.gpus_on_arm if self.gpu else ()
        if host := next(filter(None, (host_of_gpu(name, on_arm) for name in self.gpu)), None):
            return host
        return machine.platform if machine else Platform.host()

    def _division(self, named: Collection[str], demands: Demands | None, platform: Platform) -> Division | None:
        """Return which requirements the graph decides, of those that are typed and those of files."""
        typed = [parse_requirement(text, "--package") for text in self.package]
        typed += [parse_requirement(text, "--with") for text in self.with_ if self._is_package(text)]
        if not typed and demands is None:
            return None
        from envsmith.project.division import divide  # who asks for nothing but a cell does not wait for it

        every = Demands(demands=tuple(typed)).joined(demands or Demands())
        return divide(every, named, version_graph(), platform)

    def text(self, *, flavour: str = "runtime", sources: str = "", demands: Demands | None = None) -> str:
        """Return the flags in one order: what a lock says it was made from. Of files it has a digest."""
        named = {text for text in self.with_ if name_in(text) in FRAMEWORKS and text != "torch"}
        parts = [f"--framework {f}" for f in sorted((*self.framework, *named))]
        parts += [f"--with {w}" for w in sorted(w for w in self.with_ if w not in named and not _is_stack(w))]
        parts += [f"--stack {s}" for s in sorted(self.stacks())]
        parts += [
            f"--{n} {v}" for n in ("python", "torch", "cuda", "nccl", "driver") if (v := getattr(self, n)) is not None
        ]
        parts += [f"--wheels {self.wheels}"] if self.wheels != WheelPolicy.OFFICIAL.value else []
        parts += [f"--gpu {g}" for g in sorted(self.gpu)] + [f"--package {p}" for p in sorted(self.package)]
        parts += [f"--files {demands.digest}"] if demands else []
        parts += [f"--date {self.date}"] if self.date else []
        parts += [f"--flavour {flavour}"] if flavour != "runtime" else []
        parts += [sources] if sources else []
        return " ".join([*parts, f"--platform {self.target(self.where()).value}"])


# Flags that mean the same on several verbs: where cells lie, the flavour, Conda, how much is said, what fails.


def _refuse_path(text: str) -> None:
    """Refuse a file or a folder where a package is named. One that may be called like a package is taken for a package."""
    path = Path(text)
    what, flag = ("folder", "--project") if path.is_dir() else ("file", "-r") if path.is_file() else ("", "")
    if what and ("/" in text or path.suffix or text in {".", ".."}):
        raise UsageError(f"Cannot take {text} for a package: it is a {what}.", hint=f"Use {flag} {text} instead.")


def cells_option(what: str) -> Any:
    """Return ``--output``, the folder under which every cell has its own. ``what`` says what this verb does with it."""
    return _OUTPUT.option("-o", what, default=Path("envsmith-build"))


def flavour_option() -> Any:
    """Return ``--flavour``. ``minimal`` is another word for ``runtime``."""
    return _REQUEST.option(
        "--flavour",
        "--flavor",
        "runtime (or minimal): what training needs; train: also ssh, pdsh, git, pip and RDMA's libraries; "
        "devel: also the CUDA compiler.",
        type=click.Choice([*FLAVOURS, "minimal"]),
        callback=lambda _context, _parameter, word: RUNTIME if word == "minimal" else word,
        default=RUNTIME,
    )


def matrix_option() -> Any:
    """Return ``--matrix``."""
    return option("--matrix", "The folder of the knowledge. [default: the one envsmith uses]")


def fail_on_option() -> Any:
    """Return ``--fail-on``."""
    words = ["error", "warning", "note", "never"]
    return choice(words, "The least severity that makes the exit code 1.", default="error")


def exit_code(findings: Iterable[Finding], fail_on: str) -> int:
    """Return 1 when a finding is as severe as ``--fail-on`` says, else 0."""
    levels = ("note", "warning", "error", "never")
    return int(any(levels.index(f.severity.value) >= levels.index(fail_on) for f in findings))


@dataclass(frozen=True, kw_only=True, slots=True)
class LockFlags:
    """The options of ``lock`` and ``build`` about the Conda part, an existing lock, and the network."""

    channel: tuple[str, ...] = _CONDA.several("URL|NAME", "Conda channel for conda-lock.yml; repeatable.")
    conda_platform: tuple[str, ...] = _CONDA.several(
        "PLATFORM", "Another platform that conda-lock.yml covers (linux-aarch64); repeatable."
    )
    conda_tolerate: tuple[str, ...] = _CONDA.several(
        "Allow this component to have a different version in conda-lock.yml (with a warning).",
        type=click.Choice(["nccl", "cudnn", "triton"]),
    )
    no_conda: bool = _CONDA.flag("Do not try to write conda-lock.yml.")
    locked: bool = flag("Use the existing lock. Fail (exit code 1) if it is out of date for this request.")
    frozen: bool = flag("Use the existing lock as it is. Ask no index and no channel.")
    offline: bool = flag("Use no network, only the caches.")

    def conda(self, exclude_newer: str | None) -> CondaRequest:
        """Return what is asked of the channels.

        ``UsageError`` for flags that exclude each other or a platform that does not exist.
        """
        from envsmith.lock.conda.model import CondaRequest

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


def _is_stack(text: str) -> bool:
    """Return whether a name is that of a stack, and of no component."""
    return text.replace("-", "").isalpha() and components().find(text) is None and text in _stacks().stack_names()


def _cuda(text: str | None) -> str | None:
    """Return a CUDA as uv and PyTorch's index spell it (``cu128``) as a version. ``auto`` leaves the choice."""
    match = re.fullmatch(r"cu(\d{2})(\d)", text or "")
    return f"{match[1]}.{match[2]}" if match else None if text == "auto" else text


def _machines() -> ModuleType:
    """Return the reader of machines: who reads no request does not wait for it."""
    from envsmith.doctor import machine

    return machine


def _stacks() -> ModuleType:
    """Return the module of the stacks: most requests name none and do not wait for it."""
    from envsmith.knowledge.graph import stacks

    return stacks


def say_project(folder: Path) -> None:
    """Say how the project in a folder is judged, where the environment at hand is none of it."""
    from envsmith.project.declared import declaring_files  # most folders are no project

    if files := declaring_files(folder):
        say(f"no environment is active, so that of envsmith is looked at. {folder.name} is a project ({files[0]}):")
        say("  envsmith solve --project .          what it can have")
        say("  envsmith check --code .             what its code takes")
        say("  envsmith doctor --python .venv      an environment of it")


# What ``--from`` names, the same on ``check`` and ``doctor``.


def open_source(source: str) -> tuple[str, list[str]]:
    """Read the text of a file, or of stdin for ``-``, bounded, with notes on what was cut.

    :class:`UsageError` when it cannot be read.
    """
    from envsmith.doctor.read.pasted import read_bounded

    with open_input(Path(source), UsageError) as file:
        return read_bounded(file)
