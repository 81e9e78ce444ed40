"""Which of a person's requirements the version graph decides, and which are the package resolver's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from envsmith.knowledge.graph.load import VersionGraph
from envsmith.lock.index.markers import holds_everywhere, holds_somewhere
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Component, Role
from envsmith.model.version import Spec
from envsmith.project.demand import Demand, Demands

Narrowed = Mapping[str, tuple[Spec, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """``narrowed`` are components with the spec and where it stands.

    ``packages`` are the lines that the package resolver gets, those of components among them: it checks them again.
    ``bounds`` are ``(requirement, where)`` that install nothing. ``origins`` say where a distribution is asked for.
    """

    narrowed: Narrowed = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    bounds: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def put_into(self, request: Request) -> Request:
        """Return a request that asks for all of it."""
        return replace(
            request, packages=self.packages, bounds=self.bounds, origins=self.origins, narrowed=self.narrowed
        )


def divide(demands: Demands, named: Collection[str], graph: VersionGraph, platform: Platform) -> Division:
    """Divide what is asked for. ``named`` are the components that the request names already.

    A requirement whose marker holds for some Pythons only is the resolver's alone. So is one that no release which the
    graph knows can meet, unless it is of a component that every cell has.
    """
    pythons = graph.compiled.versions.get("python", ())
    lines: dict[str, Demand] = {}
    narrowed: dict[str, tuple[Spec, str]] = {}
    bounds: list[Demand] = []
    for demand in demands.demands:
        marker = demand.requirement.marker
        if not holds_somewhere(marker, pythons, platform):
            continue
        if demand.is_bound:
            bounds.append(demand)
            continue
        component = _component(demand, graph)
        if component is None or not _names_build(demand):
            lines.setdefault(_line(demand), demand)
        if component is not None and holds_everywhere(marker, pythons, platform):
            _narrow(narrowed, component.name, str(demand.requirement.specifier), demand.where)
    present = {*named, *narrowed, *(c.name for c in graph.components.with_role(Role.CORE))}
    for demand in bounds:
        component = _component(demand, graph)
        if component is not None and component.name in present:
            _narrow(narrowed, component.name, str(demand.requirement.specifier), demand.where)
    for text, where in demands.python:
        _narrow(narrowed, "python", text, where)
    if demands.cuda and "cuda" not in named:
        builds = " || ".join(
            dict.fromkeys(version if version == "cpu" else f"=={version}" for version, _ in demands.cuda)
        )
        narrowed["cuda"] = (Spec.parse(builds), demands.cuda[0][1])
    return Division(
        narrowed=narrowed,
        packages=tuple(sorted(lines)),
        bounds=tuple((str(d.requirement), d.where) for d in bounds),
        origins={demand.name: demand.where for demand in reversed(lines.values())},
    )


def _line(demand: Demand) -> str:
    return " ".join([str(demand.requirement), *(f"--hash=sha256:{h}" for h in sorted(demand.hashes))])


def _names_build(demand: Demand) -> bool:
    """Return whether a requirement is of one build (``torch==2.9.1+cu128``), which the default index has without name."""
    return "+" in str(demand.requirement.specifier) and not demand.requirement.extras


def _component(demand: Demand, graph: VersionGraph) -> Component | None:
    """Return the component that a requirement is of: by its first distribution, which is what a cell pins."""
    component = graph.components.find(demand.name)
    if component is None or component.distributions[:1] != (demand.name,) or component.role is Role.HOST:
        return None
    spec = str(demand.requirement.specifier) or "*"
    return component if component.role is not Role.COMPANION or graph.knows_release(component.name, spec) else None


def _narrow(narrowed: dict[str, tuple[Spec, str]], name: str, text: str, where: str) -> None:
    """Add a spec of a component to what is asked of it. One that cannot be expressed is the resolver's alone."""
    try:
        spec = Spec.parse(text or "*")
        earlier, place = narrowed.get(name, (Spec.parse("*"), where))
        narrowed[name] = (earlier.meet(spec), place if where in place else f"{place} and {where}")
    except ValueError:
        return
