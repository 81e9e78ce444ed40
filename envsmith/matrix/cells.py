"""Records as cells: how far each was proved, until when that counts, whether the run agreed with the graph."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from envsmith.base.json_types import JsonDict
from envsmith.frameworks import CORE, FRAMEWORKS, frameworks_of
from envsmith.knowledge.graph.expiry import Expiry
from envsmith.knowledge.graph.runtime import is_compiled
from envsmith.matrix.vouchers import UNSIGNED, Voucher
from envsmith.model.cell import CellId, Platform
from envsmith.model.record import Expected, Record, Rung
from envsmith.model.version import public

_LADDER = list(Rung)
# What gives a cell, by tool: with what envsmith has made of the cell, and from nothing. The page's script fills in the
# same texts. All of them go by a lock: a tool alone takes the newest numpy and setuptools, which break older releases.
ASK = "{chosen} --torch {torch} --cuda {cuda} --python {python}{host}"
LOCKED = {
    "venv": "envsmith build {ask} --engine venv",
    "docker": "envsmith build {ask} --engine docker",
    "conda": "envsmith build {ask} --engine conda",
    "lock": "envsmith lock {ask}",
    "pip": "pip install --require-hashes --no-deps -r envsmith-build/{id}/requirements.txt",
    "uv": "uv pip sync envsmith-build/{id}/pylock.toml",
}
TOOLS = {
    "venv": LOCKED["venv"],
    "docker": LOCKED["docker"],
    "conda": "envsmith lock {ask} --format conda\nconda-lock install envsmith-build/{id}/conda-lock.yml",
    "uv": f"{LOCKED['lock']}\nuv venv --python {{python}} && {LOCKED['uv']}",
    "pip": f"{LOCKED['lock']}\npython{{python}} -m venv env && env/bin/{LOCKED['pip']}",
}
_TOOLS_ALONE = {"pip", "uv"}


def commands_of(cell: str, templates: Mapping[str, str]) -> dict[str, str]:
    """Return what a user types for a cell, by tool. pip and uv compile a source in an environment without torch."""
    chosen = dict(CellId.parse(cell).components)
    torch, cuda, python = (chosen.pop(name, "") for name in ("torch", "cuda", "python"))
    torch = public(torch)
    flags = [f"--{'framework' if n in FRAMEWORKS else 'with'} {n}=={v}" for n, v in chosen.items()]
    if not any(name in FRAMEWORKS for name in chosen):
        flags.insert(0, f"--framework {CORE}")
    platform = CellId.parse(cell).platform
    host = "" if platform is Platform.LINUX_64 else f" --platform {platform.value}"
    values = {"id": cell, "torch": torch, "cuda": cuda, "python": python, "chosen": " ".join(flags), "host": host}
    values["ask"] = ASK.format(**values)
    tools = templates.keys() - (_TOOLS_ALONE if any(map(is_compiled, chosen)) else set())
    return {tool: text.format(**values) for tool, text in templates.items() if tool in tools}


class Status(str, Enum):
    """What the newest runs say of a cell."""

    PROVED = "proved"
    FAILED = "failed"
    # The host could not show it: a GPU, an extension was missing.
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellState:
    """A cell with all its records, newest first; ``best`` is the one that speaks for it."""

    id: str
    status: Status
    best: Record
    records: tuple[Record, ...]
    expires: dt.date
    stale: bool
    counts_as: Rung
    vouchers: Mapping[str, Voucher] = field(default_factory=dict)

    def voucher(self, record: Record) -> Voucher:
        """Return who vouches for a record of the cell."""
        return self.vouchers.get(record.name, UNSIGNED)

    @property
    def is_proved(self) -> bool:
        """Return whether the run that speaks for the cell passed."""
        return self.status is Status.PROVED

    def to_json(self) -> JsonDict:
        """Return one entry of ``cells`` in ``matrix.json``."""
        best, failure = self.best, self.best.failure
        framework = next(iter(frameworks_of(best.components)), None)
        return {
            "id": self.id,
            "framework": framework,
            "version": best.components.get(framework or ""),
            "torch": best.components.get("torch"),
            "cuda": best.components.get("cuda"),
            "python": best.components.get("python"),
            "platform": CellId.parse(self.id).platform.value,
            "components": dict(best.components),
            "status": self.status.value,
            "rung": best.rung.value,
            "counts_as": self.counts_as.value,
            "date": best.day,
            "expires": self.expires.isoformat(),
            "stale": self.stale,
            "flaky": best.flaky,
            "expected": best.expected.value if best.expected else None,
            "rules": list(best.rules),
            "agrees": agreement(best),
            "failed_at": failure.rung.value if failure else None,
            "symptom": failure.symptom if failure else None,
            "lock": best.lock or None,
            "image": best.image,
            "records": [
                {
                    "name": r.name,
                    "engine": r.engine,
                    "date": r.day,
                    "passed": r.passed,
                    "rung": r.rung.value,
                    "vouched_by": str(self.voucher(r)),
                }
                for r in self.records
            ],
        }


def agreement(record: Record) -> bool | None:
    """Return whether the run did what the graph said, or ``None`` where that is not decided."""
    expected = record.expected
    if expected not in {Expected.GOOD, Expected.BAD} or (not record.passed and record.of_host):
        return None
    return bool(record.passed == (expected is Expected.GOOD))


def cell_states(
    records: Iterable[Record], expiry: Expiry, today: dt.date, people: Mapping[str, Voucher] | None = None
) -> list[CellState]:
    """Return the state of each cell, by id. The highest of each engine's newest records speaks for it.

    ``people`` vouch for records by their names.
    """
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record.cell, []).append(record)
    return [_state(name, by_cell[name], expiry, today, people or {}) for name in sorted(by_cell)]


def _state(
    name: str, records: list[Record], expiry: Expiry, today: dt.date, people: Mapping[str, Voucher]
) -> CellState:
    ordered = sorted(records, key=lambda r: (r.started, r.name), reverse=True)
    newest: dict[str, Record] = {}
    for record in ordered:
        newest.setdefault(record.engine, record)
    best = max(newest.values(), key=lambda r: (r.passed, _LADDER.index(r.rung), r.started, r.name))
    status = Status.PROVED if best.passed else Status.NOT_SHOWN if best.of_host else Status.FAILED
    return CellState(
        id=name,
        status=status,
        best=best,
        records=tuple(ordered),
        expires=expiry.until(best),
        stale=expiry.is_stale(best, today),
        counts_as=expiry.rung(best, today),
        vouchers={record.name: people[record.name] for record in ordered if record.name in people},
    )
