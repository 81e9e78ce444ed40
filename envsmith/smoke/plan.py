"""The plan of a smoke test: what is run, how long anything may take, what is expected.

Pure; the agent gets it as one line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from envsmith.agent.protocol import MAX_RANKS
from envsmith.base.files import digest_of
from envsmith.base.json_types import JsonDict, JsonFields
from envsmith.base.schema import AsJson, written
from envsmith.errors import UsageError
from envsmith.frameworks import CORE, FRAMEWORKS, frameworks_of
from envsmith.frameworks.framework import Step
from envsmith.knowledge.graph.stacks import stacks_of
from envsmith.model.cell import Cell
from envsmith.model.version import Spec
from envsmith.smoke.bandwidth import PREFIX, bandwidth_cases
from envsmith.smoke.bandwidth_floors import Floor, floors_of
from envsmith.smoke.cases import Case, full_cases, quick_cases
from envsmith.smoke.expect import WORKS, Expect, Expectation, Expectations, load_expectations

BACKENDS = ("auto", "gloo", "nccl")
SHARING = ("hostid", "multi-rank")
# Two engines stand behind the name nccl in torch 2.15; written from its sources, not run by us.
TWO_ENGINES = Spec.parse(">=2.15")


class Tier(str, Enum):
    """How much is run: cases, and steps of the frameworks.

    ``import`` runs nothing, ``quick`` and ``full`` run cases and a step per framework, ``framework`` the quick cases
    and every step.
    """

    IMPORT = "import"
    QUICK = "quick"
    FULL = "full"
    FRAMEWORK = "framework"
    BANDWIDTH = "bandwidth"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts(AsJson):
    """Seconds, nested: ``case`` < ``group`` (torch's own) < ``tier`` (all cases) < the outer parent's limit.

    ``imports`` bounds ``import torch``; ``init`` anything before the first case; ``first`` the first NCCL call of its
    kind, which makes a communicator and loads kernels. torch's defaults (10 minutes, heartbeat 480 s) are never relied
    on.
    """

    imports: float = field(default=120.0, metadata=written("import"))
    init: float = 30.0
    first: float = 60.0
    case: float = 3.0
    group: float = 90.0
    tier: float = 300.0


# The step that imports what was asked for beside the components. It trains nothing.
IMPORTS = "imports"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Built with :meth:`build`.

    ``fault`` is for the tests of the blame and is part of the plan, never of the environment. What does not fit into
    ``limit`` seconds is not begun by the agent, and said.
    """

    tier: Tier
    ranks: int
    backend: str
    cases: tuple[Case, ...]
    steps: tuple[Step, ...]
    expected: Mapping[str, Mapping[str, Expectation]]
    versions: Mapping[str, str]
    frameworks: Mapping[str, str]
    timeouts: Timeouts = field(default_factory=Timeouts)
    image: str | None = None
    engine: str | None = None
    sharing: str | None = None
    port: int | None = None
    fault: JsonFields | None = None
    cell: str | None = None
    nodes: int = 1
    floors: tuple[Floor, ...] = ()
    limit: float | None = None

    @classmethod
    def build(
        cls,
        cell: Cell | Mapping[str, str] | None = None,
        *,
        tier: Tier | str = Tier.QUICK,
        ranks: int | None = None,
        backend: str = "auto",
        steps: bool = True,
        engine: str | None = None,
        sharing: str | None = None,
    ) -> Plan:
        """Make the plan for a cell, or for a mapping of component to version: ``{"torch": "2.13.0", "numpy": "none"}``.

        ``ranks`` is 4 unless given (the agent takes two where a single GPU has to hold them all). ``steps=False``
        leaves the framework steps out. ``engine`` is ``legacy`` or ``2``: which of torch 2.15's two NCCL engines.
        ``sharing`` puts all ranks on the first GPU, by ``hostid`` or ``multi-rank``, however many there are. Raises
        :class:`UsageError`.
        """
        kind = _tier(tier)
        count = 4 if ranks is None else ranks
        _refuse(count=count, backend=backend, engine=engine, sharing=sharing)
        stated = dict(cell.components) if isinstance(cell, Cell) else dict(cell or {})
        components = {name: version for name, version in stated.items() if version != "none"}
        versions: dict[str, str] = {
            name: components[name] for name in ("torch", "nccl", "python", "cuda") if name in components
        }
        frameworks: dict[str, str] = {name: components[name] for name in frameworks_of(components)}
        gpu = backend != "gloo" and "+cpu" not in versions.get("torch", "")
        listed = _cases_of(kind, count, gpu=gpu)
        every = kind is Tier.FRAMEWORK
        chosen = (
            framework_steps(
                frameworks, every=every, control=every or kind is Tier.FULL, torch=versions.get("torch", "")
            )
            if steps and kind not in {Tier.IMPORT, Tier.BANDWIDTH}
            else ()
        )
        if steps and kind is not Tier.BANDWIDTH:
            chosen = (*chosen, *(stack.step for stack in stacks_of(components)))
        if isinstance(cell, Cell) and cell.further and steps and kind is not Tier.BANDWIDTH:
            chosen = (*chosen, import_step(cell.further_names))
        return cls(
            tier=kind,
            ranks=count,
            backend=backend,
            cases=listed,
            steps=chosen,
            expected=_expected(listed, {**stated, **versions}, engine, load_expectations()),
            versions=versions,
            frameworks=frameworks,
            timeouts=Timeouts(case=3.0 if kind is Tier.QUICK else 10.0, tier=60.0 if kind is Tier.QUICK else 900.0),
            engine=engine,
            sharing=sharing,
            cell=str(cell.id) if isinstance(cell, Cell) else None,
        )

    def with_(self, **changes: object) -> Plan:
        """Return a copy with other fields (``fault``, ``image``, ``nodes``, ``timeouts``, ``cases``)."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def on_machine(self, machine: str) -> Plan:
        """Return the plan of the bandwidth tier held against the floors of a type of ``matrix/bandwidth.yaml``.

        Raises :class:`UsageError`.
        """
        if self.tier is not Tier.BANDWIDTH:
            raise UsageError(
                "Cannot use a machine type here: it is for the bandwidth tier.",
                hint="Leave --machine out, or use --tier bandwidth.",
            )
        return self.with_(floors=floors_of(machine))

    @property
    def digest(self) -> str:
        """Return the hash of what every rank must agree on: the case list, in order.

        The same for the same tier and number of ranks.
        """
        text = json.dumps([case.to_json() for case in self.cases], sort_keys=True, separators=(",", ":"))
        return digest_of(text.encode())

    @property
    def outer_deadline(self) -> float:
        """Return the seconds after which the outer parent ends the run, whatever the agent says."""
        steps = sum(step.deadline + 10 for step in self.steps)
        times = self.timeouts
        # The agent gives four times its limit to what only waits for a processor (PATIENCE in agent.py), and imports
        # torch, then a framework.
        return 4 * (3 * times.imports + times.init + 3 * times.first + times.tier + steps) + 30

    def expect(self, case: str, backend: str) -> Expectation:
        """Return what is expected of a case: that it works when no line speaks of it."""
        return self.expected.get(case, {}).get(backend, WORKS)

    def to_json(self) -> JsonDict:
        """Return what the agent reads, and what a record may keep."""
        rows = []
        for case in self.cases:
            row = case.to_json()
            expected = self.expected.get(case.id)
            if expected:
                row["expected"] = {backend: line.to_json() for backend, line in expected.items()}
            rows.append(row)
        return {
            "schema": 1,
            "cell": self.cell,
            "tier": self.tier.value,
            "ranks": self.ranks,
            "backend": self.backend,
            "engine": self.engine,
            "sharing": self.sharing,
            "digest": self.digest,
            "versions": dict(self.versions),
            "frameworks": dict(self.frameworks),
            "timeouts": self.timeouts.to_json(),
            "image": self.image,
            "port": self.port,
            "nodes": self.nodes,
            "limit": self.limit,
            "fault": dict(self.fault) if self.fault else None,
            "cases": rows,
            "steps": [step.to_json() for step in self.steps],
        }


def framework_steps(frameworks: Mapping[str, str], *, every: bool, control: bool, torch: str = "") -> tuple[Step, ...]:
    """Return the quick steps of each framework, or ``every`` one. ``control`` adds torch's quick ones before."""
    steps = [*(FRAMEWORKS[CORE].quick_steps if control else ())]
    for name in frameworks:
        if name in FRAMEWORKS:
            steps.extend(FRAMEWORKS[name].steps if every else FRAMEWORKS[name].quick_steps)
    about = (s for s in steps if not s.torch or (torch and Spec.parse(s.torch).contains(torch)))
    return tuple({step.name: step for step in about}.values())


def import_step(distributions: Collection[str]) -> Step:
    """Return the step that imports every module of some distributions."""
    options = {"distributions": list(distributions)}
    return Step(name=IMPORTS, kind="imports", options=options, tolerance=None, trains=False, deadline=300.0)


def _refuse(*, count: int, backend: str, engine: str | None, sharing: str | None) -> None:
    """Refuse words that no agent knows, before anything is started."""
    if not 1 <= count <= MAX_RANKS:
        raise UsageError(f"Cannot run a smoke test on {count} ranks: 1 to {MAX_RANKS} are possible.")
    if backend not in BACKENDS:
        raise UsageError(f"Cannot use the backend {backend!r}: there are {', '.join(BACKENDS)}.")
    if engine not in {None, "legacy", "2"}:
        raise UsageError(f"Cannot use the NCCL engine {engine!r}: torch 2.15 has 'legacy' and '2'.")
    if sharing not in {None, *SHARING}:
        raise UsageError(f"Cannot share a GPU by {sharing!r}: {' and '.join(SHARING)} are possible.")


def _tier(tier: Tier | str) -> Tier:
    try:
        return Tier(tier)
    except ValueError:
        raise UsageError(f"Cannot use the tier {tier!r}: there are {', '.join(t.value for t in Tier)}.") from None


def _cases_of(kind: Tier, ranks: int, *, gpu: bool) -> tuple[Case, ...]:
    if kind is Tier.BANDWIDTH:
        return bandwidth_cases(ranks, gpu=gpu)
    make = {Tier.QUICK: quick_cases, Tier.FULL: full_cases, Tier.FRAMEWORK: quick_cases}.get(kind)
    return make(ranks) if make else ()


def _expected(
    cases: tuple[Case, ...], versions: Mapping[str, str], engine: str | None, lines: Expectations
) -> dict[str, dict[str, Expectation]]:
    """Return only what is not simply expected to work, per case and backend.

    torch takes its newer NCCL engine from 2.15 on unless a setting says otherwise. An unknown torch is taken for an older
    one: what could break a group there is not run.
    """
    table: dict[str, dict[str, Expectation]] = {}
    newer = "torch" in versions and TWO_ENGINES.contains(versions["torch"])
    engine = engine if engine and newer else "2" if newer else "legacy"
    by_backend = {backend: lines.under(backend, engine, versions) for backend in ("gloo", "nccl")}
    for case in cases:
        facts = {"op": case.op.removeprefix(PREFIX), "dtype": case.dtype, "redop": case.redop, "n": str(case.n)}
        for backend, expectations in by_backend.items():
            line = expectations.of(facts)
            if line.expect is not Expect.OK or line.min_sm:
                table.setdefault(case.id, {})[backend] = line
    return table
