"""What an environment can do: which of its packages import, and how far the quick smoke test comes."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envsmith.base.files import scratch
from envsmith.base.programs import execute
from envsmith.base.progress import Clock
from envsmith.base.schema import AsJson, parse_json
from envsmith.errors import SmokeError
from envsmith.smoke import run
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.plan import Plan, Tier

_RANKS = 2
_SECONDS = 300.0
# Imports the packages of the distributions that are named, and nothing that is private or a test.
_IMPORT = r"""
import importlib, importlib.metadata, json, sys
answer = {}
for name in sys.argv[1:]:
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        continue
    tops = {f.parts[0] for f in files if len(f.parts) == 2 and f.name == "__init__.py"}
    tops |= {f.stem for f in files if len(f.parts) == 1 and f.suffix == ".py"}
    for top in sorted(tops):
        if top.startswith(("_", "test")) or not top.isidentifier():
            continue
        try:
            importlib.import_module(top)
        except BaseException as error:
            answer[top] = ("%s: %s" % (type(error).__name__, error))[:300]
print("ENVSMITH " + json.dumps(answer))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ability(AsJson):
    """What an environment can do.

    ``broken`` are modules that cannot be imported, with the error. ``rungs`` counts the rungs of the ladder that the
    smoke test reached. ``summary`` is its sentence.
    """

    passed: bool
    rungs: int
    summary: str
    broken: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Return whether nothing failed."""
        return self.passed and not self.broken

    @property
    def sentence(self) -> str:
        """Return what failed first, or that nothing did."""
        return f"cannot import {self.broken[0]}" if self.broken else self.summary

    def is_better_than(self, before: Ability) -> bool:
        """Return whether a change is worth keeping: everything works, or it comes further and breaks nothing."""
        if self.is_good:
            return True
        new = {text.partition(":")[0] for text in self.broken} - {text.partition(":")[0] for text in before.broken}
        if new or self.rungs < before.rungs or self.passed < before.passed:
            return False
        return self.rungs > before.rungs or self.passed > before.passed or len(self.broken) < len(before.broken)


class EnvironmentTrial(Protocol):
    """Tries what an environment can do."""

    def __call__(self, python: Path, distributions: Collection[str], clock: Clock, step: str) -> Ability:
        """Try the environment of an interpreter. ``distributions`` are to be importable."""


def smoke_trial(python: Path, distributions: Collection[str], clock: Clock, step: str) -> Ability:
    """Import the distributions, and run the quick smoke test on two ranks.

    ``SmokeError`` where what fails is this machine's fault, so that nothing is known of the environment.
    """
    clock.start(step)
    broken = _imports(python, distributions)
    with scratch() as folder:
        target = run.LocalTarget(python=python, extra={"TORCH_EXTENSIONS_DIR": str(folder)})
        try:
            versions = run.probe(target)
        except SmokeError as error:
            clock.done(step, error.message)
            return Ability(passed=False, rungs=0, summary=error.message, broken=broken)
        plan = Plan.build(versions, tier=Tier.QUICK, ranks=_RANKS)
        result = run.run(plan, target, progress=lambda p: clock.line(step, p.line))
    if result.host_fault and not result.cause.lasting:
        raise SmokeError(
            f"Cannot try {python.parent.parent}: {result.host_fault}.",
            hint="Mend that and run the same command again. Nothing was changed.",
            details=[result.summary],
        )
    ability = Ability(passed=result.passed, rungs=len(proved_rungs(result)), summary=result.summary, broken=broken)
    clock.done(step, ability.sentence)
    return ability


def _imports(python: Path, distributions: Collection[str]) -> tuple[str, ...]:
    """Return what cannot be imported, as ``module: Error``."""
    command = [str(python), "-I", "-B", "-c", _IMPORT, *sorted(distributions)]
    try:
        output = execute(command, seconds=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise SmokeError(f"Cannot start {python}: {error}.") from None
    line = next((row for row in output.stdout.splitlines() if row.startswith("ENVSMITH ")), "")
    try:
        answer = parse_json(line.removeprefix("ENVSMITH "))
    except ValueError:
        last = output.stderr.strip().splitlines()[-1:]
        return (f"its packages: Python ended with status {output.returncode}: {''.join(last)[:200]}",)
    return tuple(f"{name}: {error}" for name, error in sorted(answer.items()))
