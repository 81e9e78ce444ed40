"""What the agent said of the machine, as values: its GPUs, its cards, what of it is too small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.base.schema import spelt, written
from envsmith.smoke.fields import IsSet, Number, Rank, Whole, Words


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU as NVML sees it. ``counters`` are its states and counters by our names of them."""

    index: Rank
    name: str = ""
    uuid: str = ""
    arch: str = ""
    is_lost: IsSet = field(default=False, metadata=written("lost"))
    counters: Mapping[str, Whole] = field(default_factory=dict, metadata=written("health"))


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """What NVML says of a machine. ``pairs`` are pairs of GPUs by the way on which they reach each other.

    ``xids`` are GPU and number of what the driver reported. ``silent`` is for how many seconds NVML did not answer.
    ``cuda_level`` is the newest CUDA of the driver, as NVML counts.
    """

    driver: Words = ""
    cuda_level: Whole | None = None
    gpus: tuple[GpuHealth, ...] = ()
    pairs: Mapping[str, tuple[tuple[Rank, Rank], ...]] = field(default_factory=dict)
    xids: tuple[tuple[Whole, Whole], ...] = ()
    silent: Number = 0.0

    @property
    def counters(self) -> Mapping[int, Mapping[str, int]]:
        """Return each GPU's states and counters."""
        return {gpu.index: gpu.counters for gpu in self.gpus}


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaCards:
    """Cards with an active port by their link layer, and what lets NCCL use them."""

    active: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_devices: IsSet = field(default=False, metadata=written("devices"))
    has_peer_memory: IsSet = field(default=False, metadata=written("peer_memory"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitFinding:
    """What of the machine is too small: ``error`` when the run cannot work, ``warning`` or ``note``."""

    limit: str
    severity: str
    message: str
    fix: str
