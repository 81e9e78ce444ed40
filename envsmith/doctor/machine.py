"""What decides between builds of torch, read from this machine or from the snapshot of another one."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.errors import UsageError
from envsmith.lock.index.python_files import minors_here
from envsmith.model.cell import Machine, Platform

if TYPE_CHECKING:
    from envsmith.doctor.facts import Facts

# Where the kernel driver shows itself. NVIDIA's own program may stand for it, as in WSL.
_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


@functools.cache
def this_machine() -> Machine:
    """Return the machine at hand, without what cannot be read of it.

    Where nothing shows an NVIDIA driver, no program is started.
    """
    if not (any(map(os.path.exists, _SIGNS)) or shutil.which("nvidia-smi")):
        return Machine(platform=Platform.host(), glibc=_glibc(), pythons=minors_here())
    from envsmith.doctor import host  # who has no GPU does not wait for the reader of hosts
    from envsmith.doctor.facts import Draft

    draft = Draft()
    for look in (host.driver, host.gpus, host.system):
        with contextlib.suppress(*host.UNREADABLE):
            look(draft)
    return machine_of(draft.done())


def _glibc() -> str | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, OSError, ValueError):
        return None
    return version if name == "glibc" and version else None


def snapshot_machine(path: Path) -> Machine:
    """Return the machine of a snapshot (``envsmith doctor --save``). ``UsageError`` when it cannot be read."""
    from envsmith.doctor.snapshot import read_snapshot

    return machine_of(read_snapshot(path))


def machine_of(facts: Facts) -> Machine:
    """Return the machine that facts describe."""
    from envsmith.doctor.read.lines import gpu_architecture

    named = [architecture for name in facts.gpus if (architecture := gpu_architecture(name))]
    one = facts.version("gpu")
    if not named and one and one != "none":
        named = [one]
    try:
        platform = Platform.parse(facts.host.get("machine", ""))
    except ValueError:
        platform = Platform.host()
    return Machine(
        driver=facts.version("driver"),
        gpus=facts.gpus,
        architectures=tuple(dict.fromkeys(named)),
        glibc=facts.version("glibc"),
        platform=platform,
        pythons=tuple(word for word in facts.host.get("pythons", "").split() if re.fullmatch(r"3\.\d{1,2}", word)),
    )


def named_machine(text: str | None) -> Machine | None:
    """Return what ``--machine`` names: nothing for ``none``, a snapshot for a file, this machine where it is silent."""
    if text is None:
        return this_machine()
    if text == "none":
        return None
    if not Path(text).is_file():
        raise UsageError(
            f"Cannot read --machine {text!r}: there is no such file.",
            hint="Give none, or a file that envsmith doctor --save FILE wrote on that machine.",
        )
    return snapshot_machine(Path(text))


def gpus_of(machine: Machine | None) -> tuple[str, ...]:
    """Return what ``--gpu auto`` means. ``UsageError`` where no GPU was found."""
    if machine is None or not machine.architectures:
        raise UsageError(
            "Cannot use --gpu auto: no NVIDIA GPU was found.", hint="Name the GPU that trains: --gpu a100."
        )
    return machine.architectures


def driver_of(machine: Machine | None) -> str:
    """Return what ``--driver auto`` means. ``UsageError`` where no driver was found."""
    if machine is None or not machine.driver:
        raise UsageError(
            "Cannot use --driver auto: no NVIDIA driver was found.",
            hint="Name the driver of the machine that trains: --driver 535.183.01.",
        )
    return machine.driver
