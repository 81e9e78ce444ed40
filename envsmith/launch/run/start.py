"""One watched launch from its begin to its end: the environment of the ranks, the folder of evidence, what is printed."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.base.files import remove_abandoned
from envsmith.errors import EnvsmithError, UsageError
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stored import EvidenceFile
from envsmith.launch.run.connection import Ranks
from envsmith.launch.run.launcher import Launcher, code_of
from envsmith.launch.run.report import block
from envsmith.launch.run.watch import LaunchWatch, WatchSettings

# Folders of launches that failed stay for whoever reads them, the newest ones.
_PREFIX, _MOST_FOLDERS = "envsmith-run-", 16
_KEPT = ("evidence-", "nccl_trace_rank_")
HOOK = Path(__file__).with_name("hook")


@dataclass
class Launch:
    """One launch. ``say`` prints a block, ``keep`` is the user's folder of evidence.

    ``diverts`` sends what the launcher prints to stderr, so that stdout is ours. ``preflight`` names a module of this package. Each rank calls its ``run`` after it made its first process group.
    """

    command: Sequence[str]
    settings: WatchSettings
    say: Callable[[str], None]
    keep: Path | None = None
    preflight: str = ""
    diverts: bool = False
    blame: Blame | None = None
    evidence: LaunchEvidence = field(default_factory=LaunchEvidence)
    has_said: bool = False
    file: EvidenceFile | None = None

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
            launcher = Launcher(self.command, environment, diverts=self.diverts)
        except OSError as error:
            self._say(f"envsmith run: Cannot start {self.command[0]}: {error.strerror}.")
            if isinstance(error, FileNotFoundError):
                self._say("  next: Activate the environment that has it, or give its path.")
            status = code_of(error)
        else:
            if folder and ranks:
                self._watch(launcher, ranks, folder.path)
            status = launcher.wait()
        if folder:
            folder.close(keep=self.has_said and not self.keep)
        return status

    @property
    def kept_in(self) -> Path | None:
        """Return the folder of evidence, where there is any."""
        return self.file.path.parent if self.file and self.file.path.is_file() else None

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
        self.has_said, self.blame, self.evidence = True, blame, evidence
        target = self.keep or folder
        self.file = self.file or EvidenceFile(target / f"evidence-{socket.gethostname()}-{os.getpid()}.jsonl")
        try:
            target.mkdir(parents=True, exist_ok=True)
            self.file.append(evidence, blame)
        except (OSError, EnvsmithError) as error:
            reason = error.reason if isinstance(error, EnvsmithError) else error.strerror
            self.say(f"envsmith run: Cannot write the evidence into {target}: {reason}.")
        self.say(block(blame, evidence, self.kept_in))


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
        """Let go of it, and remove it, or all but the evidence and what torch itself dumped."""
        if keep:
            for path in self.path.iterdir():
                if not path.name.startswith(_KEPT):
                    with suppress(OSError):
                        path.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def check_command(command: Sequence[str]) -> None:
    """Refuse an empty command."""
    if not command:
        raise UsageError(
            "Cannot watch a launch: no command was given.",
            hint="Give the launcher after `--`, as in `envsmith run -- torchrun train.py`.",
        )
