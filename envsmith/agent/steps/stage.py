"""What a framework's step sees: the rank, the device, a toy problem, and the CPU where it asks for a GPU by name."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from envsmith.agent.counter import Counter
from envsmith.agent.faults import inject_before
from envsmith.agent.protocol import NO_GPU, Board, Facts, Phase, Skip
from envsmith.agent.world import bound_device, seconds


class Preload(NamedTuple):
    """What the nursery imports once for all ranks, on the CPU: modules, variables to set, and what to do first.

    ``later`` are modules that the steps would import by themselves, in the releases that have them.
    """

    modules: tuple[str, ...]
    env: Mapping[str, str]
    prepare: Callable[[], object] = lambda: None
    later: tuple[str, ...] = ()


@functools.cache
def hide_toolkit() -> str:
    """Take the CUDA toolkit out of torch's sight in this process. Return where it is, or an empty text.

    megatron-core 0.15 compiles for CUDA while it is imported where there is a toolkit, and without a GPU torch has no
    architecture to name.
    """
    try:
        from torch.utils import cpp_extension
    except ImportError:  # it needs setuptools; who has none cannot compile either
        return ""
    place, cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME, None
    return str(place or "")


@contextlib.contextmanager
def cpu_for_cuda(s: Stage, package: str) -> Iterator[dict[str, int]]:
    """Give Megatron the CPU where it asks for the current GPU by name, and note every place that asked.

    `torch.cuda.current_device()` answers `cpu`, a tensor asked for on `cuda` is made on the CPU, streams and events
    wait for nothing. No more is replaced: layers, schedules, dispatchers and collectives are the framework's own.
    Yields {file:line of the framework: how often}. On a GPU nothing is done.
    """
    askers: dict[str, int] = {}
    if s.cuda:
        yield askers
        return
    torch = s.torch
    cpu = torch.device("cpu")

    def note() -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and f"/{package}/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            place = f"{frame.f_code.co_filename.rpartition(f'/{package}/')[2]}:{frame.f_lineno}"
            askers[place] = askers.get(place, 0) + 1

    def is_cuda(value: Any) -> bool:
        if isinstance(value, torch.device):
            return bool(value.type == "cuda")
        return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))

    class OnTheCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                note()
                return args[0]
            if func is not torch.device and (any(map(is_cuda, args)) or is_cuda(kwargs.get("device"))):
                note()
                args = tuple(cpu if is_cuda(a) else a for a in args)
                if is_cuda(kwargs.get("device")):
                    kwargs["device"] = cpu
            return func(*args, **kwargs)

    def current_device() -> Any:
        note()
        return cpu

    class InOrder:
        """A stream or an event of a device that does one thing after the other: there is nothing to wait for."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            note()

        def __getattr__(self, name: str) -> Any:
            if name not in ("wait_stream", "wait_event", "record_event", "record", "wait", "synchronize", "query"):
                raise AttributeError(name)
            return lambda *_args, **_kwargs: InOrder() if name == "record_event" else True

    replaced = {
        "current_device": current_device, "synchronize": InOrder, "Stream": InOrder, "Event": InOrder,
        "current_stream": InOrder, "default_stream": InOrder, "stream": contextlib.nullcontext,
    }  # fmt: skip
    originals = {name: getattr(torch.cuda, name) for name in replaced}
    for name, stand_in in replaced.items():
        setattr(torch.cuda, name, stand_in)
    try:
        with OnTheCpu():
            yield askers
    finally:
        for name, original in originals.items():
            setattr(torch.cuda, name, original)


TRAIN_STEPS = 5


@dataclass(frozen=True)
class Trained:
    """What a step gives back: this rank's losses, those that they must equal where it has any, and facts."""

    losses: Sequence[float]
    reference: Sequence[float] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    def row(self) -> Facts:
        """Return what a row says of it."""
        reference = {} if self.reference is None else {"reference": self.reference}
        return {"losses": self.losses, **reference, "facts": self.facts}


class Stage:
    """What a framework step sees: who it is, the device, and where to say how far it has come."""

    def __init__(self, job: Mapping[str, Any], board: Board) -> None:
        import torch

        self.torch, self.job, self.board = torch, job, board
        self.rank, self.size, self.step = job["rank"], job["world"], job["step"]
        devices = job.get("devices")
        self.device = torch.device("cuda", devices[self.rank]) if devices else torch.device("cpu")
        self.cuda = self.device.type == "cuda"
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.at = 0
        self.in_import = False
        self.ends_group = True  # unless somebody else made it and wants to end it
        self.counter = Counter.of_process(torch)

    def enter_import(self, module: str) -> None:
        """Write that a framework is imported next. Where that fails the step itself was never asked."""
        self.enter(f"import {module}", phase=Phase.PREP)

    def enter(self, what: str, *, phase: Phase = Phase.ENTERED) -> None:
        """Write what comes next, so that a hang has a name."""
        self.in_import = phase is Phase.PREP
        self.board.sign(self.rank, what)
        self.board.mark(self.rank, self.at, phase)
        self.at += 1
        fault = self.job.get("fault") or {}
        if fault.get("rank") == self.rank and fault.get("at") == what:
            inject_before(fault, self)

    def need_own_gpu(self, program: str) -> None:
        """Raise ``Skip`` where ranks share a GPU and ``program`` takes one for each."""
        if self.job.get("sharing"):
            raise Skip(f"{program} takes a GPU for each rank, and ranks share one here", NO_GPU)

    # -- the toy problem, the same for every data-parallel engine -----------------------------------------------------

    def model(self) -> Any:
        nn = self.torch.nn
        self.torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def optimizer(self, model: Any) -> Any:
        return self.torch.optim.AdamW(model.parameters(), lr=1e-2)

    def batch(self, rank: int) -> tuple[Any, Any]:
        x = self.torch.randn(4, 16, generator=self.torch.Generator().manual_seed(100 + rank))
        return x, x.sum(1, keepdim=True)

    def reference(
        self,
        model: Any = None,
        batches: Sequence[Any] | None = None,
        own: int | None = None,
        steps: int = TRAIN_STEPS,
        optimizer: Any = None,
    ) -> list[float]:
        """Return the losses of batch number ``own`` under plain data parallelism, computed here alone.

        Unless given, model and optimizer are the toy problem's and each rank has a batch of its own.
        """
        model = model or self.model()
        batches = batches or [self.batch(r) for r in range(self.size)]
        optimizer, losses = optimizer or self.optimizer(model), []
        for _ in range(steps):
            each = [((model(x) - y) ** 2).mean() for x, y in batches]
            losses.append(float(each[self.rank if own is None else own].item()))
            optimizer.zero_grad()
            (sum(each) / len(each)).backward()
            optimizer.step()
        return losses

    def init_group(self) -> None:
        dist = self.torch.distributed
        limit, bound = (
            seconds(self.job["timeouts"]["group"]),
            bound_device(self.torch, self.device if self.cuda else None),
        )
        dist.init_process_group(self.job["backend"], timeout=limit, **bound)

    def stepper(self, optimizer: Any) -> Callable[[], None]:
        """Return what ends a training step: the optimizer's own step, and gradients of nothing."""

        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return step

    def train(
        self,
        forward: Callable[[Any], Any],
        backward: Callable[[Any], None],
        step: Callable[[], None],
        own: int | None = None,
    ) -> list[float]:
        """Train on batch number ``own``, which is the rank's unless given, and return the losses."""
        return [self.train_once(i, forward, backward, step, own) for i in range(TRAIN_STEPS)]

    def train_once(
        self,
        i: int,
        forward: Callable[[Any], Any],
        backward: Callable[[Any], None],
        step: Callable[[], None],
        own: int | None = None,
    ) -> float:
        """Take step number ``i`` of :meth:`train` and return its loss."""
        self.enter(f"train step {i}")
        x, y = (t.to(self.device) for t in self.batch(self.rank if own is None else own))
        loss = ((forward(x).float() - y) ** 2).mean()
        backward(loss)
        step()
        return self.altered(float(loss.item()), f"train step {i}")

    def altered(self, value: float, at: str) -> float:
        """Return a value as this rank reports it: twice the value where the plan wants a rank that is wrong there."""
        fault = self.job.get("fault") or {}
        wrong = fault.get("kind") == "wrong" and (fault.get("rank"), fault.get("at")) == (self.rank, at)
        return 2 * value if wrong else value


def stated_version(module: Any) -> str:
    """Return what a framework says of itself. megatron-core before 0.7 says nothing."""
    return str(getattr(module, "__version__", "unknown"))
