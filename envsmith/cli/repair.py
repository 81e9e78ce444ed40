"""``--fix-to`` of ``doctor``: a repair written as a lock."""

from __future__ import annotations

from pathlib import Path

from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.repaired_set import request_of
from envsmith.errors import UsageError


def write_fix(diagnosis: Diagnosis, directory: Path) -> str:
    """Write the repair's cell as lock and Dockerfile into ``directory``."""
    # Resolving is most of the program, and no other option of doctor needs it.
    from envsmith.builder import arrow as build
    from envsmith.builder import options

    if diagnosis.repair is None:
        raise UsageError(
            "Cannot write a repair with --fix-to: no versions contradict a rule.",
            hint="Leave --fix-to out. A repair exists only for versions that contradict a rule.",
        )
    request, text = request_of(diagnosis.repair)
    outcome = build.lock_only(options.Options(request=request, request_text=text, output=directory, conda=None))
    return f"written to {outcome.directory}: {', '.join(outcome.files)}"
