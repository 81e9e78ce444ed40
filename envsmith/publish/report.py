"""What a verification found: its checks, whom the caller believes, and what a trusted signature covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from envsmith.base.json_types import JsonDict
from envsmith.base.schema import AsJson
from envsmith.errors import ContentError, DataError
from envsmith.model.lock import Lock
from envsmith.publish.statement import Claim

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


class CheckState(str, Enum):
    """What became of one check."""

    OK = "ok"
    DIFFERS = "differs"
    UNPROVED = "unproved"
    UNCOVERED = "not covered"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check(AsJson):
    """One part of the image or its proof, and what is to be said of it."""

    part: str
    state: CheckState
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Whom the caller believes: public keys, or an identity that sigstore vouches for, or none."""

    keys: tuple[SSlibKey, ...] = ()
    identity: str = ""
    issuer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """What a trusted signature covers, itself or by a digest: the only source of what is shown as a fact of an image."""

    signer: str
    claim: Claim
    lock: Lock | None = None


@dataclass(slots=True)
class VerifyReport:
    """The checks in the order in which they were made, and what the signature covers."""

    where: str
    digest: str
    checks: list[Check] = field(default_factory=list)
    covered: Covered | None = None

    def add(self, part: str, state: CheckState, text: str) -> None:
        """Add a check."""
        self.checks.append(Check(part=part, state=state, text=text))

    @property
    def status(self) -> str:
        """Return ``verified``, ``differs`` (a part is wrong) or ``unproved`` (nothing differs, not all is shown)."""
        states = {check.state for check in self.checks}
        if CheckState.DIFFERS in states:
            return "differs"
        return "unproved" if CheckState.UNPROVED in states else "verified"

    @property
    def exit_code(self) -> int:
        """Return 0, 8 (content) or 1 (the answer is no), as the table of exit codes says."""
        return {"verified": 0, "differs": ContentError.exit_code, "unproved": 1}[self.status]

    def to_json(self) -> JsonDict:
        """Return it as ``verify --json`` prints it."""
        claim = self.covered.claim if self.covered else None
        return {
            "status": self.status,
            "image": self.where,
            "digest": self.digest,
            "signer": self.covered.signer if self.covered else None,
            "cell": claim.cell if claim else None,
            "lock": claim.lock if claim else None,
            "rungs": list(claim.rungs) if claim else [],
            "recorded": claim.recorded.isoformat() if claim else None,
            "expires": claim.expires.isoformat() if claim else None,
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True, slots=True)
class PartCheck:
    """Put into the report how a part differs; the other parts are checked all the same."""

    report: VerifyReport
    name: str

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, (ContentError, DataError)):
            return False
        text = "; ".join([error.reason, *error.details[:5]])
        self.report.add(self.name, CheckState.DIFFERS, text)
        return True
