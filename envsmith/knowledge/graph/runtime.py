"""What a cell needs beside its Python packages, by flavour of the image: ``matrix/runtime.yaml`` as values."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement

from envsmith.base.schema import Checked, Flag, Parsed, Text, strict
from envsmith.errors import LockError
from envsmith.knowledge.graph.fields import Sources, SpecText, kept_table, plain_text
from envsmith.knowledge.graph.ready import Unready, everywhere
from envsmith.model import plain
from envsmith.model.cell import DEVEL, RUNTIME, Cell, Request, WheelPolicy
from envsmith.model.component import ComponentTable
from envsmith.model.lock import Compile, CompiledSource, Lock, Pin
from envsmith.model.rule import LOCK_STAGE, Evidence, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, minor_of

RUNTIME_FILE = "runtime.yaml"
_UNREADABLE = "what they require only their setup knows, which imports torch"
_SM = re.compile(r"sm_(\d+)(\d)")


def _template(text: str) -> str:
    plain.plain_value(text.replace("{archs}", "").replace("{dotted}", ""))
    return text


def _home(text: str) -> str:
    plain.path(f"/{text}")
    return text


def _requirement(text: object, _context: object) -> str:
    try:
        return str(Requirement(str(text)))
    except InvalidRequirement:
        raise ValueError("not a requirement") from None


_Distribution = Annotated[str, plain_text(plain.os_package)]
_Variable = Annotated[str, plain_text(plain.variable)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeNeed:
    """What the releases of a component need in images of a flavour. Each flavour has what ``runtime`` has."""

    component: Text
    flavour: Literal["runtime", "train", "devel"]
    needs: tuple[Literal["c++", "cc", "headers", "make", "nvcc", "cluster"], ...]
    why: Text
    evidence: Sources
    releases: SpecText | None = None

    def holds(self, version: str) -> bool:
        """Tell whether it speaks of this release."""
        return self.releases is None or self.releases.contains(version)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """Where nvcc of a CUDA major comes from: distributions and a folder below site-packages, or why there is none."""

    cuda: Annotated[str, plain_text(plain.version)]
    evidence: Sources
    distributions: tuple[_Distribution, ...] = ()
    home: Annotated[str, plain_text(_home)] = ""
    missing: Text = ""


def _found_or_missing(toolkit: Toolkit, _context: object) -> Toolkit:
    if not (toolkit.home or toolkit.missing):
        raise ValueError("home or missing is wanted")
    return toolkit


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class StatedText:
    """A text with evidence of its own."""

    text: Text
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class TorchSource:
    """A source distribution that is compiled against the cell's torch.

    ``time`` is what that takes. Of ``unreadable`` releases (a spec) only the setup knows what they require.
    ``requires`` are what its setup needs and does not declare; ``variables`` what is set meanwhile, in which
    ``{archs}`` and ``{dotted}`` stand for the GPU architectures asked for (``90``, ``9.0``; joined with ``;``). A
    variable that needs them is left out when none was asked for. An ``optional`` one is compiled so only when the user
    gave a variable for it, or its archive.
    """

    distribution: _Distribution
    requires: tuple[Annotated[str, Parsed(_requirement)], ...]
    toolkit: Flag
    evidence: Sources
    variables: Mapping[_Variable, Annotated[str, plain_text(_template)]] = field(default_factory=dict)
    optional: Flag = False
    time: StatedText | None = None
    unreadable: StatedText | None = None

    def compiled(self, cell: Cell, compile_by_user: Compile | None = None) -> CompiledSource:
        """Return it as it stands in the lock of ``cell``. The variables that the user gave have the last word."""
        user = compile_by_user or Compile()
        archive = user.archive(self.distribution)
        variables = {**dict(self._filled(cell)), **dict(user.variables.get(self.distribution, ()))}
        return CompiledSource(
            name=self.distribution,
            variables=dict(sorted(variables.items())),
            toolkit=self.toolkit,
            archive=archive.origin if archive else "",
        )

    def _filled(self, cell: Cell) -> list[tuple[str, str]]:
        archs = [m for word in cell.components.get("gpu", "").split(",") if (m := _SM.fullmatch(word.strip()))]
        words = {
            "{archs}": ";".join(f"{m[1]}{m[2]}" for m in archs),
            "{dotted}": ";".join(f"{m[1]}.{m[2]}" for m in archs),
        }
        filled = []
        for name, text in self.variables.items():
            if not archs and any(word in text for word in words):
                continue
            for word, value in words.items():
                text = text.replace(word, value)  # noqa: PLW2901 - one word after the other
            filled.append((name, text))
        return filled


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """The whole file."""

    needs: tuple[RuntimeNeed, ...]
    toolkits: tuple[Annotated[Toolkit, Checked(_found_or_missing)], ...]
    sources: tuple[TorchSource, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


_NO_TIME = StatedText(text="how long that takes was not measured", evidence=())


def lock_rules(
    runtime: Runtime, table: ComponentTable, unready: Callable[[str, str, Spec], Iterable[Unready]] | None = None
) -> Iterator[Rule]:
    """Yield what ``sources`` say of what can be locked: with which CUDA, which releases, and what compiling takes.

    ``unready`` tells, for a component, its distribution and some of its releases, where they have no ready wheel.
    """
    cuda = {"cuda": Spec.parse(_with_nvcc(runtime) or "none")}
    missing = [t for t in runtime.toolkits if t.missing]
    no_nvcc = [e for t in missing for e in t.evidence]
    for source in runtime.sources:
        component = table.find(source.distribution)
        if component is None:
            continue
        name = component.name
        compiling = functools.partial(unready or everywhere, name, source.distribution)
        if source.unreadable:
            row = Row(when={}, cause=_UNREADABLE, fix="Take a newer release.", evidence=source.unreadable.evidence)
            places = compiling(Spec.parse(source.unreadable.text))
            yield from _rules(f"{name}-unreadable", RuleKind.CONFLICTS, row, places, name)
        if source.toolkit and not source.optional:
            cause = "; ".join([f"a lock compiles {source.distribution} with nvcc", *(t.missing for t in missing)])
            fix = f"Take a build of torch with such a CUDA, or install {name} on top of the finished cell."
            row = Row(when={}, needs=cuda, cause=cause, fix=fix, evidence=(*no_nvcc, *source.evidence))
            yield from _rules(f"{name}-nvcc", RuleKind.REQUIRES, row, compiling(Spec.parse("*")), name)
        if source.time or (source.toolkit and not source.optional):
            time = source.time or _NO_TIME
            cause = f"compiled from source when the cell is built ({time.text})"
            if not component.distributions:
                cause += f"; {component.title} is on no index: lock and build want its archive (--source)"
            fix = "Keep the folder of the cell: it is compiled once."
            if source.toolkit:
                fix = "Name the GPUs, so that it is compiled for no others: --gpu."
            row = Row(when={}, severity=Severity.NOTE, cause=cause, fix=fix, evidence=time.evidence or source.evidence)
            yield from _rules(f"{name}-compiled", RuleKind.CONFLICTS, row, compiling(Spec.parse("*")), name)


def _rules(rule_id: str, kind: RuleKind, row: Row, places: Iterable[Unready], name: str) -> Iterator[Rule]:
    """Yield a rule for each group of policies: where nothing is ready, what ``row`` says holds."""
    groups: dict[tuple[WheelPolicy, ...], list[Row]] = {}
    for place in places:
        fix = f"{row.fix} Or see what is compiled already: envsmith wheel {name}." if place.policies else row.fix
        groups.setdefault(place.policies, []).append(replace(row, when=place.when, platforms=place.platforms, fix=fix))
    for policies, rows in groups.items():
        usual = not policies or WheelPolicy.OFFICIAL in policies
        suffix = "" if usual else "-" + "-".join(policy.value for policy in policies)
        yield Rule(id=rule_id + suffix, kind=kind, rows=tuple(rows), stage=LOCK_STAGE, policies=policies)


def source_for(name: str) -> TorchSource | None:
    """Return how a distribution is compiled. ``None`` for one that needs nothing beyond what it declares."""
    return next((s for s in load_runtime().sources if s.distribution == name), None)


def is_compiled(name: str) -> bool:
    """Return whether a distribution is compiled against the torch of its cell, unless a ready wheel of it fits."""
    source = source_for(name)
    return source is not None and not source.optional


# What a setup that compiles against torch imports: torch.utils.cpp_extension wants setuptools and, to be quick, ninja.
_USUAL = ("ninja", "packaging", "setuptools", "wheel")


def sources_of(pins: Iterable[Pin], cell: Cell, user: Compile | None = None) -> tuple[TorchSource, ...]:
    """Return how those source distributions are compiled that need more than they declare, or that the user spoke of.

    ``LockError`` when the user speaks of a distribution that is not a source distribution of the lock.
    """
    user = user or Compile()
    named = {*user.variables, *(a.name for a in user.archives)}
    sources = []
    for pin in pins:
        row = source_for(pin.name) if pin.sdist else None
        if pin.sdist and pin.name in named:
            sources.append(row or _unknown(pin.name, cell, user))
        elif row is not None and not row.optional:
            sources.append(row)
    if odd := sorted(named - {s.distribution for s in sources}):
        raise LockError(
            f"Cannot use --compile for {cell.id}: the lock compiles nothing called {', '.join(odd)}.",
            hint="Name a distribution that the index has as source only, or that --source gives.",
        )
    return tuple(sources)


def _unknown(name: str, cell: Cell, user: Compile) -> TorchSource:
    """Make a source that ``runtime.yaml`` lacks: with nvcc where the cell has CUDA and the archive CUDA code."""
    archive = user.archive(name)
    cuda = cell.components.get("cuda", "cpu") != "cpu" and archive is not None and archive.cuda
    variables = {"TORCH_CUDA_ARCH_LIST": "{dotted}"} if cuda else {}
    return TorchSource(distribution=name, requires=_USUAL, variables=variables, toolkit=cuda, evidence=())


def needs_of(lock: Lock, runtime: Runtime) -> tuple[str, ...]:
    """Return the needs of a lock in its flavour, sorted: of its components and of the distributions that come along.

    ``nvcc`` is none of a cell without CUDA.
    """
    versions: dict[str, str] = {pin.name: pin.version for pin in lock.pins}
    versions |= {n: v for n, v in lock.cell.components.items() if v != "none"}
    needs = {
        need
        for row in runtime.needs
        if row.component in versions and row.flavour in {RUNTIME, lock.flavour} and row.holds(versions[row.component])
        for need in row.needs
    }
    needs -= {"cc"} if "c++" in needs else set()
    needs -= {"nvcc"} if lock.cell.components.get("cuda", "cpu") == "cpu" else set()
    return tuple(sorted(needs))


def toolkit_for(cell: Cell, runtime: Runtime) -> Toolkit | None:
    """Return where the nvcc of the cell's CUDA comes from. ``None`` when nothing is known or the cell has no CUDA."""
    major = cell.components.get("cuda", "cpu").partition(".")[0]
    return next((t for t in runtime.toolkits if t.cuda == major), None)


def toolkit_requirements(cell: Cell, flavour: str) -> tuple[str, ...]:
    """Return what a lock asks the index for besides the cell: the parts of the toolkit at the cell's CUDA.

    ``LockError`` for a ``devel`` image of a cell that needs nvcc where the index has none.
    """
    cuda = cell.components.get("cuda", "cpu")
    if flavour != DEVEL or cuda == "cpu":
        return ()
    runtime = load_runtime()
    asks = [row for row in runtime.needs if "nvcc" in row.needs and row.component in cell.components]
    if not asks:
        return ()
    toolkit = toolkit_for(cell, runtime)
    if toolkit is None or toolkit.missing:
        raise LockError(
            f"Cannot make a devel image of {cell.id}: "
            f"{toolkit.missing if toolkit else f'no toolkit is known for CUDA {cuda}'}.",
            details=[f"{row.component} needs nvcc: {row.why} ({row.evidence[0]})" for row in asks],
            hint="Use --flavour runtime, or a cell with CUDA 13, whose nvcc is on the package index.",
        )
    return toolkit_parts(cell, toolkit)


def nvcc_cuda(request: Request, flavour: str) -> tuple[Spec, str] | None:
    """Return the CUDA releases whose nvcc an image of the flavour can have, and why. ``None`` where it needs none."""
    runtime, names = load_runtime(), {*request.frameworks, *request.constraints}
    cuda = request.constraints.get("cuda")
    without = cuda is not None and not cuda.is_any and cuda.contains("cpu")
    needed = any("nvcc" in row.needs and row.component in names for row in runtime.needs)
    if flavour != DEVEL or without or not needed:
        return None
    reasons = [f"an image of the flavour {DEVEL} has nvcc", *(t.missing for t in runtime.toolkits if t.missing)]
    return Spec.parse(_with_nvcc(runtime)), "; ".join(reasons)


def _with_nvcc(runtime: Runtime) -> str:
    return " || ".join(f"=={t.cuda}.*" for t in runtime.toolkits if not t.missing)


def toolkit_parts(cell: Cell, toolkit: Toolkit) -> tuple[str, ...]:
    """Return the requirements that bring a toolkit at the minor of the cell's CUDA."""
    minor = minor_of(cell.components.get("cuda", ""))
    return tuple(f"{name}=={minor}.*" for name in toolkit.distributions)


RUNTIME_TABLE = kept_table("runtime", RUNTIME_FILE, Runtime)


def load_runtime() -> Runtime:
    """Return the installed ``runtime.yaml``. ``DataError`` lists every problem with its key path."""
    return RUNTIME_TABLE.load()
