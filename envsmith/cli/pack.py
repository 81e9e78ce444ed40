"""``envsmith pack``: a lock, its wheels and its proof as one archive for a host without a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.base.progress import Clock
from envsmith.cli.console import Console, dumps, print_out, say
from envsmith.cli.declare import ExistingFolder, File, Folder, Section, group, verb
from envsmith.cli.flags import LockFlags, RequestFlags, cells_option
from envsmith.cli.solve import show_refusal
from envsmith.cli.sources import SourceFlags, lock_options
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.model.cell import RUNTIME
from envsmith.model.finding import UnsatisfiableError

# Headings of ``--help``.
_REQUEST, _OUTPUT = map(Section, ("Request", "Output"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackFlags:
    """The options of ``pack``."""

    request: RequestFlags = group(RequestFlags, "Request")
    lock: ExistingFolder | None = _REQUEST.option("DIR", "Pack this cell's folder as it is.")
    archive: File | None = _OUTPUT.option("FILE", "The archive (default: CELL.tar).")
    output: Folder = cells_option("Folder for the cell's own folder.")
    key: File | None = _OUTPUT.option("Private key (PEM) that signs the archive: FILE.sigstore.json.")
    keyless: bool = _OUTPUT.flag("Sign with the identity of this CI job through sigstore instead.")
    sources: SourceFlags = group(SourceFlags, "Sources")
    locking: LockFlags = group(LockFlags, "Lock and network")
    as_json: bool = _OUTPUT.flag("--json", "One JSON object on stdout: path, sha256, bytes.")


@verb(
    PackFlags,
    f"envsmith pack {EXAMPLE}",
    f"envsmith pack {EXAMPLE} --platform linux-aarch64",
    "envsmith pack --project . --archive project.tar",
    "envsmith pack --lock envsmith-build/CELL --project . --archive env.tar",
)
def pack(settings: PackFlags) -> int:
    """Write one archive that installs and proves a cell on a host without network and root.

    It holds every wheel, what source distributions are built with, uv, envsmith, the lock and install.sh. With
    --project, it also holds a wheel of the project itself.
    """
    from envsmith.builder import arrow as build  # --help waits for no installer
    from envsmith.builder.pack import archive, local_wheels
    from envsmith.lock import store
    from envsmith.publish.archive import sign_archive
    from envsmith.publish.cell import seal_with

    flags = settings.request
    project = flags.project
    asks = replace(flags, project=None if settings.lock else project)
    if asks.names_something == bool(settings.lock):
        raise UsageError(
            "Cannot pack a cell: give either a request or --lock.",
            hint=f"Run envsmith pack {EXAMPLE}, or envsmith pack --lock DIR.",
        )
    if settings.key and settings.keyless:
        raise UsageError("Cannot sign an archive twice: --key and --keyless are given.", hint="Leave one of them out.")
    seal = seal_with(settings.key) if settings.key or settings.keyless else None
    try:
        with Console() as console:
            if settings.lock:
                lock = store.read(settings.lock)
            else:
                options = lock_options(
                    flags, settings.sources, settings.locking, flavour=RUNTIME, conda=False, output=settings.output
                )
                lock = build.lock_only(options, progress=console).lock
            if lock is None:
                raise UsageError(
                    f"Cannot pack {settings.lock}: it has no lock.json.", hint="Write one with envsmith lock."
                )
            path = settings.archive or Path(f"{lock.name}.tar")
            is_own = project is not None and local_wheels.is_package(project)
            own = local_wheels.UserPackage(folder=project, leave_out=flags.without) if project and is_own else None
            if project and not own:
                say(f"note: {project} has no build system: its own code is not in the archive")
            packed = archive.Packer().pack(lock, path, Clock(console), project=own)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    signature = sign_archive(path, packed.sha256, lock.name, seal) if seal else None
    if settings.as_json:
        print_out(dumps({"path": str(path), "sha256": packed.sha256, "bytes": packed.size, "files": packed.files}))
        return 0
    print_out(f"{path}: {packed.files} files, {packed.size / 1e9:.2f} GB, sha256 {packed.sha256}")
    if signature:
        print_out(f"signed: {signature}; check it with envsmith verify {path.name} --key KEY")
    print_out(f"there: tar xf {path.name} && sh {lock.name}/install.sh DIR")
    return 0
