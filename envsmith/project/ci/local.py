"""One job of a library's matrix, on this machine: the job's environment, the library in it, its test, the verdict.

The same on a CI runner and on a maintainer's own machine: what failed there can be repeated here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import claim, mark, scratch, storage_errors
from envsmith.base.interpreter import python_in
from envsmith.base.json_types import JsonDict, JsonFields
from envsmith.base.programs import Conversation, Lines
from envsmith.base.progress import Clock, Progress, silent
from envsmith.errors import BuildError, EngineError, EnvsmithError, LockError
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.uv import Uv, find_uv, uv_environment
from envsmith.project.ci.jobs import CiJob
from envsmith.project.ci.library import FRAMEWORK_STEP, Library
from envsmith.project.declared import read_toml
from envsmith.smoke.plan import Plan
from envsmith.smoke.run import LocalTarget, probe
from envsmith.smoke.run import run as smoke


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """How a job ended.

    ``stage`` is the last thing that was tried: ``install``, ``import`` or ``test``; ``as_expected`` decides the exit
    code.
    """

    job: CiJob
    passed: bool
    stage: str
    detail: str
    seconds: Mapping[str, float]
    smoke: JsonFields | None = None

    @property
    def as_expected(self) -> bool:
        """Return whether the job ended as it should. A known-bad job that passes is news: its rule may be lifted."""
        return self.passed == (self.job.expect == "pass")

    @property
    def sentence(self) -> str:
        """Return the outcome in one line."""
        if self.as_expected:
            return "passed" if self.passed else f"failed as rule {self.job.rule} says: {self.detail}"
        if self.passed:
            why = f"rule {self.job.rule} says that it fails ({self.job.symptom})"
            return f"passed, though {why}: lift the rule, or report it"
        return f"failed at {self.stage}: {self.detail}"

    def to_json(self) -> JsonDict:
        """Return the record that the action uploads."""
        return {
            "schema": 1,
            "job": self.job.to_json(),
            "passed": self.passed,
            "as_expected": self.as_expected,
            "stage": self.stage,
            "detail": self.detail,
            "seconds": {k: round(v, 1) for k, v in self.seconds.items()},
            **({"smoke": dict(self.smoke)} if self.smoke is not None else {}),
        }


class _Failed(Exception):  # noqa: N818 - an outcome, not an error for the user
    def __init__(self, stage: str, detail: str) -> None:
        super().__init__(detail)
        self.stage, self.detail = stage, detail


@dataclass(frozen=True, slots=True)
class _Run:
    """What every stage of one run needs; ``place`` is the environment, ``folder`` ends with the run."""

    job: CiJob
    root: Path
    place: Path
    folder: Path
    clock: Clock

    @property
    def constraints(self) -> Path:
        return self.folder / "constraints.txt"

    @property
    def python(self) -> Path:
        return python_in(self.place)

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[None]:
        """Time a stage and announce it, however it ends."""
        self.clock.start(name, text)
        try:
            yield
        finally:
            self.clock.done(name)


def run_job(
    library: Library,
    job: CiJob,
    root: Path,
    *,
    environment: Path | None = None,
    ranks: int = 2,
    progress: Progress = silent,
) -> JobEnd:
    """Make the environment (``environment``, or one that is removed afterwards), install, test.

    :class:`EngineError` when this machine has no interpreter of the job's Python. A job that fails is a verdict, not an
    error.
    """
    minor = job.cell.components["python"]
    interpreter = find_interpreter(minor)
    if interpreter is None:
        raise EngineError(
            f"Cannot run with Python {minor}: it is not on this machine.",
            hint=f"Install it: uv python install {minor}.",
        )
    with scratch() as folder:
        place = folder / "env"
        if environment is not None:
            place = environment.absolute()
            _clear(place)
        run = _Run(job, root, place, folder, Clock(progress))
        try:
            with run.stage("install", " ".join(job.constraints)):
                _install(run, str(interpreter.path))
            with run.stage("test", library.settings.smoke):
                smoke = None
                if library.settings.smoke == FRAMEWORK_STEP:
                    smoke = _framework_step(run, ranks)
                else:
                    _command(run, library.settings.smoke)
        except _Failed as end:
            return JobEnd(job=job, passed=False, stage=end.stage, detail=end.detail, seconds=run.clock.seconds)
    return JobEnd(job=job, passed=True, stage="test", detail="", seconds=run.clock.seconds, smoke=smoke)


# The mark of an environment that ``ci run --environment`` may make anew, and what an environment consists of.
_KIND = "an environment of ci run"
_PARTS = ("bin", "include", "lib", "lib64", "pyvenv.cfg")


def _clear(place: Path) -> None:
    """Remove the environment of an earlier run, and nothing else. ``UsageError`` when envsmith did not make ``place``."""
    claim(place, _KIND)
    mark(place, _KIND)
    with storage_errors(place):
        for path in (place / name for name in _PARTS if os.path.lexists(place / name)):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _install(run: _Run, python: str) -> None:
    place, job = run.place, run.job
    uv = Uv()

    def line(text: str) -> None:
        run.clock.line("install", text.strip())

    run.constraints.write_text("\n".join(job.constraints) + "\n", encoding="utf-8")
    arguments = ["pip", "install", "--python", str(run.python), "--constraint", str(run.constraints)]
    arguments += ["--torch-backend", job.backend] if job.backend else []
    library = f"{run.root.resolve()}[{job.extra}]" if job.extra else str(run.root.resolve())
    arguments += [*job.constraints, *([library] if _installable(run.root) else [])]
    create = ["venv", "--quiet", "--no-project", "--allow-existing", "--python", python, str(place)]
    try:
        uv.check(create, work="create the virtual environment")
        uv.check(arguments, work="install the packages", on_line=line)
    except (LockError, BuildError) as error:
        raise _Failed("install", "; ".join([error.message, *error.details[-3:]])) from None


def _installable(root: Path) -> bool:
    """Return whether pip can install the folder. One that only lists requirements is tested as it lies there."""
    if (root / "setup.py").is_file() or (root / "setup.cfg").is_file():
        return True
    path = root / "pyproject.toml"
    return path.is_file() and ("project" in (tables := read_toml(path)) or "build-system" in tables)


def _framework_step(run: _Run, ranks: int) -> JsonFields:
    target = LocalTarget(python=run.python)
    try:
        result = smoke(Plan.build(probe(target), tier="quick", ranks=ranks), target)
    except EnvsmithError as error:
        raise _Failed("import", error.message) from None
    if not result.passed:
        raise _Failed("test", result.summary)
    return {"summary": result.summary, "loaded": dict(result.loaded), "counts": dict(result.counts())}


def _command(run: _Run, command: str) -> None:
    """Run the library's own test in its folder, with the environment first on PATH, then the uv that installed it.

    The command is the maintainer's: a shell runs it. What uv adds to the environment keeps the job's constraints.
    """
    place, tools = run.place, run.folder / "tools"
    tools.mkdir()
    variables = {k: v for k, v in uv_environment().items() if os.environ.get(k) != v}
    variables["UV_CONSTRAINT"] = str(run.constraints)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    script = "\n".join(["#!/bin/sh", *exports, f'exec {shlex.quote(find_uv())} "$@"', ""])
    (tools / "uv").write_text(script, encoding="utf-8")
    (tools / "uv").chmod(0o700)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([f"{place / 'bin'}", f"{tools}", os.environ.get("PATH", "")]),
        "VIRTUAL_ENV": str(place),
        "ENVSMITH_CELL": run.job.id,
    }
    environment.pop("PYTHONPATH", None)
    shell, last_line = [shutil.which("bash") or "/bin/sh", "-c", command], ""

    def hear(line: str) -> None:
        nonlocal last_line
        last_line = line.strip() or last_line

    status = Conversation(shell, out=Lines(hear).add, cwd=run.root, env=environment).finish(patience=5.0)
    if status:
        quoted = json.dumps(last_line[:300], ensure_ascii=False) if last_line else "no output"
        raise _Failed("test", f"exit status {status}, last line {quoted}")
