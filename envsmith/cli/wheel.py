"""``envsmith wheel``: ready wheels of a compiled extension that fit a cell, with their proof."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
from packaging.version import Version

from envsmith import solver
from envsmith.cli.console import dumps, print_answer, print_out, table, warn
from envsmith.cli.declare import Section, argument, group, verb
from envsmith.cli.flags import RequestFlags
from envsmith.cli.solve import show_refusal
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.graph.wheels import catalogued
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.knowledge.wheels.answer import answer, distributions_of, proof_of
from envsmith.knowledge.wheels.offers import offers, target_of
from envsmith.lock.index.compiled import measure
from envsmith.lock.index.index import find_index
from envsmith.lock.index.index_wheels import index_offers
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.net.http import HttpClient
from envsmith.solver.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envsmith.knowledge.wheels.answer import CellWheels
    from envsmith.knowledge.wheels.offers import Offer
    from envsmith.lock.index.compiled import Link
    from envsmith.model.cell import Cell, Request
    from envsmith.model.wheel import ReadyWheel

_SHOWN = 5


# Headings of ``--help``.
_REQUEST, _OUTPUT = map(Section, ("Request", "Output"))


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFlags:
    """The options of ``wheel``."""

    name: str = argument(metavar="NAME[SPEC]")
    request: RequestFlags = group(RequestFlags, "Request")
    index: bool = _REQUEST.flag("Ask the package index for compiled wheels too.")
    measure: bool = _REQUEST.flag("Read the compiled files of the best wheels: symbols, glibc, GPUs (some are 250 MB).")
    as_json: bool = _OUTPUT.flag("--json", "One JSON object: the wheels that fit, or the nearest ones.")


@verb(
    WheelFlags,
    "envsmith wheel flash-attn --torch 2.8 --cuda 12.8 --python 3.11",
    "envsmith wheel mamba-ssm --torch 2.7 --python 3.12 --json",
)
def wheel(settings: WheelFlags) -> int:
    """List ready wheels of an extension that fit a cell, best first, so that nothing is compiled.

    Each has its address, sha256 and publisher, what it was built for and who says so. Exit code 1 when none fits: the
    nearest ones are listed with what speaks against them, and how long compiling takes.
    """
    name, releases = _named(settings.name)
    request = settings.request.request()
    try:
        cell = solver.solve(_without(request, {name, *distributions_of(name)})).cell
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    result = answer(name, releases, cell, policy=request.wheels)
    if settings.index:
        result = replace(result, on_index=_on_index(result))
    if not result.total and not result.on_index:
        raise _nothing_listed(name, settings.name, cell)
    links = _links(result) if settings.measure else {}
    if settings.as_json:
        print_out(dumps({**result.to_json(), "links": {address: link.to_json() for address, link in links.items()}}))
    else:
        print_answer("\n".join(_lines(result, links)))
    return 0 if result.fitting or any(not offer.against for offer in result.on_index) else 1


def _nothing_listed(name: str, wish: str, cell: Cell) -> UsageError:
    """Return why nothing is listed: the catalogue has other releases of it, or none."""
    releases = {offer.wheel.release for each in distributions_of(name) for offer in offers(each, target_of(cell))}
    if releases:
        newest = sorted(releases, key=Version, reverse=True)
        return UsageError(
            f"Cannot list wheels of {wish}: the catalogue has only {join_words(newest)} of it.",
            hint=f"Run envsmith wheel {name}, or ask the package index with --index.",
        )
    return UsageError(
        f"Cannot list wheels of {name}: the catalogue has none of it.",
        hint=f"Choose one of {', '.join(catalogued())}, or ask the package index with --index.",
    )


def _links(result: CellWheels) -> dict[str, Link]:
    """Measure the wheels that are shown, by address. One that cannot be reached is named and passed over."""
    table = SymbolTable(find_matrix() / "symbols")
    links = {each.address: _link(each, result, table) for each in result.fitting[:_SHOWN]}
    return {address: link for address, link in links.items() if link}


def _link(each: ReadyWheel, result: CellWheels, table: SymbolTable) -> Link | None:
    try:
        return measure(each, target_of(result.cell), HttpClient(), table)
    except (ContentError, NetworkError) as error:
        warn(f"warning: not measured: {error.message}")
        return None


def _on_index(result: CellWheels) -> tuple[Offer, ...]:
    client, target = HttpClient(), target_of(result.cell)
    return tuple(o for n in distributions_of(result.name) for o in index_offers(n, target, client, find_index()))


def _named(text: str) -> tuple[str, Spec]:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise UsageError(
            f"Cannot read {text[:60]!r}: it is not NAME or NAME followed by a spec.",
            hint="Type for example: envsmith wheel 'flash-attn>=2.8'.",
        ) from None
    return requirement.name, Spec.parse(str(requirement.specifier) or "*")


def _without(request: Request, names: set[str]) -> Request:
    """Return the request for the cell alone: the extension must not decide what the cell is."""
    constraints = {n: s for n, s in request.constraints.items() if n not in names}
    constraints.setdefault("torch", Spec.parse("*"))
    return replace(request, constraints=constraints)


def _lines(result: CellWheels, links: Mapping[str, Link]) -> list[str]:
    parts = result.cell.components
    abi = {None: "", True: ", new C++ ABI", False: ", old C++ ABI"}[result.cxx11_abi]
    where = f"Python {parts['python']}, torch {parts['torch']}, {result.cell.platform.value}{abi}"
    count = f"{len(result.fitting)} of {result.total} known wheels of {result.name} fit"
    lines = [f"cell {click.style(str(result.cell.id), bold=True)}: {where}", *([count] if result.total else [])]
    for number, each in enumerate(result.fitting[:_SHOWN], 1):
        lines += _proof(each, links.get(each.address), is_locked=each in result.locked, number=number)
    if len(result.fitting) > _SHOWN:
        lines.append(f"and {len(result.fitting) - _SHOWN} more (--json has all)")
    if result.on_index:
        lines += ["on the package index, newest first; a lock takes what fits by itself", _table(result.on_index)]
    if not result.fitting:
        lines += ["the nearest ones", _table(result.nearest)] if result.nearest else []
        by_torch = (f"{torch} ({', '.join(tags)})" for torch, tags in result.pythons.items())
        lines += [f"there are wheels for torch {', '.join(by_torch)}"] if result.pythons else []
        lines += _compiling(result) if all(offer.against for offer in result.on_index) else []
    elif not result.locked:
        lines.append("A lock takes none of them: see --wheels, and the requirements that were not read.")
    return lines


def _table(offers: Iterable[Offer]) -> str:
    return table([(offer.wheel.filename, "; ".join(offer.against) or "fits") for offer in offers])


def _proof(each: ReadyWheel, link: Link | None, *, is_locked: bool, number: int) -> list[str]:
    proof = proof_of(each)
    built = f"torch {each.torch}, CUDA {each.cuda}" if each.torch != "any" else "any torch (no compiled code)"
    requires = "not read" if each.requires is None else ", ".join(each.requires)
    rows = [
        ("address", each.address),
        ("sha256", each.sha256),
        ("built for", f"{built} ({proof['linked']})"),
        *([("link", str(link))] if link else []),
        ("glibc", (link and link.glibc) or proof["glibc"] or "not known"),
        ("GPUs", ", ".join(link.gpu if link else each.gpu) or "not measured"),
        ("requires", requires),
        ("read in", "; ".join(entry.source for entry in each.evidence)),
    ]
    rows += [("a lock", f"takes it for {each.distribution} {each.release}")] if is_locked else []
    return [f"{number}. {each.distribution} {each.version} by {each.publisher} ({proof['origin']})", table(rows)]


def _compiling(result: CellWheels) -> list[str]:
    if result.time is None:
        return ["compiling: the time it takes was not measured"]
    return [f"compiling takes {result.time.text}", *(f"  {entry}" for entry in result.time.evidence)]
