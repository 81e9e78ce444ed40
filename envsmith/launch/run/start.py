"""One watched launch from its begin to its end: the environment of the ranks, the folder of evidence, what is printed."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_bounded, remove_abandoned, write_whole
from envsmith.base.text import without_secrets
from envsmith.errors import EnvsmithError, UsageError
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.differences import different_environments
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stored import write_evidence
from envsmith.launch.run.connection import SOCKET, Ranks
from envsmith.launch.run.launcher import Launcher, code_of
from envsmith.launch.run.watch import LaunchWatch, WatchSettings

# Folders of launches that failed stay for whoever reads them, the newest ones.
_PREFIX, _MOST_FOLDERS = "envsmith-run-", 16
_MOST_BYTES = 1 << 30
HOOK = Path(__file__).with_name("hook")


@dataclass
class Launch:
    """One launch. ``say`` prints a block, ``keep`` is the user's folder of evidence.

    ``preflight`` names a module of this package. Each rank calls its ``run`` after it made its first process group.
    """

    command: Sequence[str]
    settings: WatchSettings
    say: Callable[[str], None]
    keep: Path | None = None
    preflight: str = ""
    blame: Blame | None = None
    has_said: bool = False

    def run(self) -> int:
        """Run the command under watch and return how it ended, negative for a signal.

        What keeps the watch from its work is one line. The launch goes on as it would without us.
        """
        folder: _Folder | None = None
        ranks: Ranks | None = None
        environment: Mapping[str, str] = os.environ
        try:
            folder = _Folder()
            ranks = Ranks(folder.path)
            environment = self._environment(folder.path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the launch is to start
            self._give_up(error)
        try:
            launcher = Launcher(self.command, environment)
        except OSError as error:
            self._say(f"envsmith run: Cannot start {self.command[0]}: {error.strerror}.")
            status = code_of(error)
        else:
            if folder and ranks:
                self._watch(launcher, ranks, folder.path)
            status = launcher.wait()
        if folder:
            folder.close(keep=self.has_said and not self.keep)
        return status

    def _watch(self, launcher: Launcher, ranks: Ranks, folder: Path) -> None:
        try:
            LaunchWatch(launcher, ranks, self.settings, lambda blame, facts: self._report(blame, facts, folder)).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the launch goes on
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        reason = (error.reason if isinstance(error, EnvsmithError) else getattr(error, "strerror", "")) or str(error)
        self._say(
            f"envsmith run: Cannot watch the launch: {reason or type(error).__name__}. The launch is not affected."
        )

    def _say(self, text: str) -> None:
        """Print a line, where anybody can read it."""
        with suppress(Exception):
            self.say(text)

    def _environment(self, folder: Path) -> Mapping[str, str]:
        environment = dict(os.environ)
        path = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(part for part in (str(HOOK), path) if part)
        environment["ENVSMITH_RUN_FOLDER"] = str(folder)
        environment.pop("ENVSMITH_RUN_RANK", None)
        if self.preflight:
            package = folder / "package"
            package.mkdir()
            (package / "envsmith").symlink_to(Path(__file__).parents[2])
            environment["ENVSMITH_RUN_PREFLIGHT"] = f"{self.preflight}:{package}"
        return environment

    def _report(self, blame: Blame | None, evidence: LaunchEvidence, folder: Path) -> None:
        """Print the block, and keep the evidence in the user's folder, or in our own."""
        self.has_said, self.blame = True, blame
        target = self.keep or folder
        number = f"-attempt{evidence.attempt}" if evidence.attempt else ""
        name = f"evidence-{socket.gethostname()}-{os.getpid()}{number}.json"
        try:
            target.mkdir(parents=True, exist_ok=True)
            write_whole(target / name, write_evidence(evidence, blame), mode=0o600)
            if self.keep:
                _copy(folder, target)
        except (OSError, EnvsmithError) as error:
            reason = error.reason if isinstance(error, EnvsmithError) else error.strerror
            self.say(f"envsmith run: Cannot write the evidence into {target}: {reason}.")
        self.say(block(blame, evidence, target))


class _Folder:
    """A new folder for what the ranks leave, held by a lock while it is in use."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):
            folders = sorted(self.path.parent.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime)
            for path in folders[:-_MOST_FOLDERS]:
                remove_abandoned(path)

    def close(self, *, keep: bool) -> None:
        """Let go of it, and remove it or what only a running launch needs."""
        with suppress(OSError):
            (self.path / SOCKET).unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def _copy(folder: Path, target: Path) -> None:
    """Copy what the ranks wrote, without secrets, for this user alone."""
    for path in folder.iterdir():
        if not path.is_file():
            continue
        if path.suffix in {".marks", ".stacks", ".calls"} or path.name.startswith("nccl_trace_rank_"):
            content = read_bounded(path, _MOST_BYTES)
            if path.suffix in {".marks", ".stacks"}:
                content = without_secrets(content.decode(errors="replace"), mail="").encode()
            write_whole(target / path.name, content, mode=0o600, durable=False)


def check_command(command: Sequence[str]) -> None:
    """Refuse an empty command."""
    if not command:
        raise UsageError(
            "Cannot watch a launch: no command was given.",
            hint="Give the launcher after `--`, as in `envsmith run -- torchrun train.py`.",
        )


_MOST_FACTS = 8


def block(blame: Blame | None, evidence: LaunchEvidence, folder: Path | None) -> str:
    """Return the block as lines."""
    return "\n".join(_lines(blame, evidence, folder))


def _lines(blame: Blame | None, evidence: LaunchEvidence, folder: Path | None) -> Iterator[str]:
    yield f"envsmith run: {_headline(blame, evidence)}"
    if blame:
        yield f"  {blame.message}"
        if blame.place:
            yield f"  place: {blame.place}"
        yield f"  cause: {blame.cause.value}" + (
            "" if blame.confidence == "high" else f" (confidence {blame.confidence})"
        )
        for fact in blame.evidence[:_MOST_FACTS]:
            yield f"  evidence: {fact}"
    for event in evidence.events:
        if event.kind == "attempt" and event.text.partition(":")[0] != f"attempt {evidence.attempt}":
            yield f"  {event.text}"
    for line in different_environments(evidence.ranks):
        yield f"  differs: {line}"
    for machine in evidence.machines:
        for line in machine.kernel[-3:] if blame and blame.cause.kind == "rank-died" else ():
            yield f"  kernel: {line}"
    if blame:
        yield f"  next: {blame.fix}"
    elif not evidence.ranks:
        yield "  next: Read what the launcher printed. If ranks did start, give them RANK, and a Python that reads PYTHONPATH."
    for line in evidence.unread:
        yield f"  not read: {line}"
    if folder:
        yield f"  all evidence: {folder}"


def _ended(evidence: LaunchEvidence) -> str:
    count, code = len(evidence.ranks), evidence.launcher.code if evidence.launcher else None
    ranks = f"{count} rank{'' if count == 1 else 's'}"
    if code is not None and code < 0:
        return f"a signal ended the launch of {ranks}"
    return f"the launch of {ranks} ended with exit code {code}"


def _headline(blame: Blame | None, evidence: LaunchEvidence) -> str:
    if evidence.stalled:
        still = f"no rank of {len(evidence.ranks)} has called a collective for {evidence.stalled:.0f} s"
        if blame is None or not any(one.calls for one in evidence.ranks):
            return f"note: {still}"
        return f"{'hang' if blame.is_hang else 'waiting'}: {still}"
    if blame and blame.cause is Cause.SLOW:
        return "note: one rank is slow"
    if evidence.launcher and evidence.launcher.code is None:
        return f"attempt {evidence.attempt} of {len(evidence.ranks)} ranks failed, and the launcher starts them again"
    ending_text = _ended(evidence)
    if blame and blame.is_hang:
        return f"{ending_text}, after it stood still"
    if evidence.is_interrupted:
        return f"{ending_text}, after it was interrupted"
    if not evidence.ranks:
        return f"{ending_text}, and no rank loaded the hook"
    return ending_text if blame else f"{ending_text}, and the evidence does not say which rank was first"
