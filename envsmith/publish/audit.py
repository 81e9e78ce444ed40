"""Known vulnerabilities of the locked packages, asked of the public advisory services through pip-audit.

pip-audit runs as a program, because it promises no Python interface. What it could not look up is "not audited" and never clean: it itself
answers "no known vulnerabilities" for packages that the service does not know.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.lock.files import layer_text
from envsmith.model.lock import Lock

NOT_AUDITED = "not audited"
# The services that pip-audit knows, in the order in which they are asked: OSV has the advisories of the index and more.
_SERVICES = ("osv", "pypi")
# Hundreds of packages, one question each; a service that hangs must not hang a publication.
_TIMEOUT = 600.0
_QUESTION_TIMEOUT = 15
# Characters of a name, names of one advisory: more is no advisory.
_LONG, _MANY = 128, 50
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vulnerability:
    """One advisory about one locked package; ``fixed`` are the releases that mend it."""

    package: str
    version: str
    id: str
    aliases: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As it stands in a record."""
        return {
            "package": self.package,
            "version": self.version,
            "id": self.id,
            "aliases": list(self.aliases),
            "fixed": list(self.fixed),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What was asked, when, and what came back.

    ``status`` is ``clean``, ``N known vulnerabilities``, or begins with ``not audited``; ``asked`` packages got an answer, ``unknown`` did not.
    """

    status: str
    when: dt.datetime
    service: str = ""
    tool: str = ""
    asked: int = 0
    unknown: tuple[str, ...] = ()
    findings: tuple[Vulnerability, ...] = ()

    @property
    def done(self) -> bool:
        """True when a service answered for at least one package."""
        return not self.status.startswith(NOT_AUDITED)

    def to_json(self) -> dict[str, object]:
        """As it stands in a record and in the statement."""
        return {
            "status": self.status,
            "when": self.when.isoformat(timespec="seconds"),
            "service": self.service,
            "tool": self.tool,
            "asked": self.asked,
            "unknown": list(self.unknown),
            "findings": [f.to_json() for f in self.findings],
        }


def run_pip_audit(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pip-audit of this interpreter; ``OSError`` or ``subprocess.TimeoutExpired`` when it cannot be run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pip_audit", *arguments], capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )


def audit(
    lock: Lock, *, services: Sequence[str] = _SERVICES, now: dt.datetime | None = None, run: Run | None = None
) -> Audit:
    """Ask about every package of ``lock``; the first service that answers for any of them counts. Never raises for one that does not."""
    when = now or dt.datetime.now(dt.timezone.utc)
    if run is None and importlib.util.find_spec("pip_audit") is None:
        return Audit(status=f"{NOT_AUDITED}: pip-audit is not installed (pip install 'envsmith[audit]')", when=when)
    tool = _version()
    reasons = []
    for service in services:
        told, reason = _ask(lock, service, run or run_pip_audit)
        result = _judge(told, service, tool, when, _own(lock)) if told is not None else None
        if result is not None:
            return result
        reasons.append(f"{service}: {reason or 'it knows none of these releases'}")
    return Audit(status=f"{NOT_AUDITED}: {'; '.join(reasons)}", when=when, tool=tool)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"pip-audit {version('pip-audit')}"
    except PackageNotFoundError:
        return "pip-audit"


def _ask(lock: Lock, service: str, run: Run) -> tuple[Mapping[str, Any] | None, str]:
    """The JSON that pip-audit prints about the pins, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="envsmith-audit-") as folder:
        pins = Path(folder) / "requirements.txt"
        # Local versions (+cu128) are builds of a release; advisories speak of releases.
        asked = [pin for pin in lock.pins if pin.name not in _own(lock)]
        pins.write_text(layer_text(asked).replace("\\\n    ", ""), encoding="utf-8")
        words = ["-r", str(pins), "--disable-pip", "--no-deps", "--require-hashes", "-f", "json", "-s", service]
        words += ["--progress-spinner", "off", "--timeout", str(_QUESTION_TIMEOUT), "--aliases", "on", "--desc", "off"]
        try:
            ran = run(words)
        except subprocess.TimeoutExpired:
            return None, f"no answer within {_TIMEOUT:.0f} s"
        except OSError as error:
            return None, f"pip-audit cannot be run: {error}"
    try:
        value = json.loads(ran.stdout)
    except (ValueError, RecursionError):
        last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        # The kind of failure only: what follows names hosts and proxies, and this sentence is published.
        kind = re.sub(r"[^A-Za-z ].*", "", last.partition(":")[0].rpartition(".")[2])[:60]
        return None, f"it cannot be reached ({kind.strip() or 'no answer'})"
    return (value, "") if isinstance(value, dict) else (None, "it answers nonsense")


def _own(lock: Lock) -> tuple[str, ...]:
    """What was built from archives of the user's: an advisory about their names on the index would speak of other programs."""
    return tuple(source.name for source in lock.compiled if source.archive)


def _judge(told: Mapping[str, Any], service: str, tool: str, when: dt.datetime, own: Sequence[str]) -> Audit | None:
    """``None`` when the service knew none of the packages; ``own`` were not asked about."""
    rows = told.get("dependencies")
    packages = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    # An answer that is no list of advisories is no answer.
    silent = [_word(row.get("name")) for row in packages if not isinstance(row.get("vulns"), list)]
    unknown = tuple(sorted([*silent, *own]))
    asked = len(packages) - len(silent)
    if not asked:
        return None
    findings = tuple(
        Vulnerability(
            package=_word(row.get("name")),
            version=_word(row.get("version")),
            id=_word(v.get("id")),
            aliases=_texts(v.get("aliases")),
            fixed=_texts(v.get("fix_versions")),
        )
        for row in packages
        for v in (row["vulns"] if isinstance(row.get("vulns"), list) else ())
        if isinstance(v, dict)
    )
    count = len(findings)
    status = f"{count} known vulnerabilit{'y' if count == 1 else 'ies'}" if findings else "clean"
    if unknown:
        status += f", {len(unknown)} of {len(packages) + len(own)} packages {NOT_AUDITED}"
    return Audit(status=status, when=when, service=service, tool=tool, asked=asked, unknown=unknown, findings=findings)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_word(v) for v in value[:_MANY]) if isinstance(value, list) else ()


def _word(value: object) -> str:
    """A name or number as a service gives it: it goes into records and onto terminals."""
    return "".join(c if c.isprintable() else "?" for c in str(value)[:_LONG])
