"""What code has to know of a training framework: a value with defaults, filled in by one file for each framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from envsmith.base.json_types import JsonDict, JsonFields

# Seconds for a step whose framework neither compiles nor imports much.
DEADLINE = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One framework step of a smoke test.

    ``kind`` is the key of the agent's function, ``options`` are its parameters. ``tolerance`` is the relative
    difference that is allowed in every loss, from the step's own reference and from the first step of its ``family``
    that ran: the same training, distributed otherwise. ``torch`` is the spec of the releases of torch that it is about.
    ``issues`` are the collectives without which the step is not what its name says (``a|b``: one of them). ``native``
    says that C++ issues them, so that only torch's flight recorder sees them. ``needs`` is ``gpu`` or nothing, ``why`` the reason that a record gives when it is missing.
    ``stops_with`` is a pattern: a step that needs a GPU is tried on the CPU all the same, and an error that matches is
    a skip. ``launcher`` names the agent's function that starts the ranks by the framework's own launcher. A step that does not
    train has no losses: it passes when every rank came to its end.
    """

    name: str
    kind: str
    options: JsonFields = field(default_factory=dict)
    ranks: int = 2
    deadline: float = DEADLINE
    tolerance: float | None = 1e-4
    family: str = ""
    issues: tuple[str, ...] = ()
    native: bool = False
    torch: str = ""
    needs: str = ""
    why: str = ""
    stops_with: str = ""
    launcher: str = ""
    trains: bool = True

    def to_json(self) -> JsonDict:
        """Return the step as the agent reads it."""
        row: JsonDict = {
            "name": self.name,
            "kind": self.kind,
            "ranks": self.ranks,
            "deadline": self.deadline,
            **self.options,
        }
        optional = {
            "needs": self.needs,
            "why": self.why,
            "stops_with": self.stops_with,
            "launcher": self.launcher,
            "tolerance": self.tolerance,
            "issues": list(self.issues),
        }
        row.update({key: value for key, value in optional.items() if value})
        return row


class ToolkitTable(NamedTuple):
    """The table in a framework's sources that says which CUDA toolkits it accepts for which CUDA of torch.

    ``rule`` is the id in ``rules/toolkit.yaml`` whose rows follow the table, ``since`` the first release that has one.
    ``read`` returns, for a CUDA major, the minors that may stand for one another.
    """

    rule: str
    file: str
    variable: str
    since: str
    read: Callable[[bytes], dict[str, tuple[str, ...]]]


class ImportWithoutGpu(NamedTuple):
    """How to import a framework on a host without a GPU when it asks for the extension ``needs``.

    With ``variables`` set the import is tried again. An error that begins with ``host_errors`` is the host's, not the
    cell's.
    """

    needs: str
    variables: Mapping[str, str]
    host_errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Framework:
    """All that code knows of one framework.

    Releases and rules are data: ``matrix/releases/NAME.yaml``, ``matrix/rules/NAME.yaml``.

    ``short`` spells it in a cell id, ``parts`` does so for companions that belong to it. ``module`` is what is
    imported. ``extras`` are those of its distribution that training needs. ``undeclared`` are distributions that it needs
    at run time and does not declare. ``compiles`` says that it compiles extensions at build time or first use.
    ``quick_steps`` are run by every smoke test, ``steps`` by the framework tier. ``errors`` are patterns of its errors,
    each with the cause and what to do. ``slow_host`` are words with which it says that the machine was too slow.
    ``ignored_requirements`` depend on the machine that made the metadata, ``reads_sdist`` says that the sdist tells
    more than a wheel.
    """

    name: str
    short: str
    title: str
    distributions: tuple[str, ...]
    module: str
    aliases: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    extras: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ("numpy",)
    compiles: bool = False
    quick_steps: tuple[Step, ...] = ()
    steps: tuple[Step, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    slow_host: tuple[str, ...] = ()
    ignored_requirements: frozenset[str] = frozenset()
    reads_sdist: bool = False
    toolkit_table: ToolkitTable | None = None
    import_without_gpu: ImportWithoutGpu | None = None
