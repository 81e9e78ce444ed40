"""Who trains the model of a stack: a function for each member that can, which returns losses, model and facts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from envsmith.agent.protocol import Facts
from envsmith.agent.steps.deepspeed import CONFIG, init_deepspeed, leave_out_cpu_op
from envsmith.agent.steps.megatron_core import start_megatron
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage, stated_version
from envsmith.agent.steps.tiny import RATE, ROWS
from envsmith.agent.steps.trl import train_grpo, train_sft

_ZERO: Facts = {**CONFIG, "train_micro_batch_size_per_gpu": ROWS, "zero_optimization": {"stage": 2}}


class Trainer(NamedTuple):
    """``train`` and what its losses must equal: those of a rank's own batch, of the one that all share, or the mean."""

    train: Callable[[Stage, Any, Any], tuple[list[float], Any, Facts]]
    compared: bool = True
    each_its_own: bool = True
    mean: bool = False


def optimizer_of(s: Stage, model: Any) -> Any:
    """Return the optimizer that every trainer is given."""
    return s.torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)


def _losses(
    s: Stage, loss_of: Callable[[], Any], backward: Callable[[Any], None], step: Callable[[], None]
) -> list[float]:
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        loss = loss_of()
        backward(loss)
        step()
        losses.append(s.altered(float(loss.item()), f"train step {i}"))
    return losses


def _by_accelerate(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    from accelerate import Accelerator

    s.enter("Accelerator.prepare")
    accelerator = Accelerator(cpu=not s.cuda)
    prepared, optimizer = accelerator.prepare(model, optimizer_of(s, model))
    batch = task.batch(s, s.rank)
    step = s.stepper(optimizer)
    losses = _losses(s, lambda: task.loss(prepared, batch), accelerator.backward, step)
    return losses, model, {"kind": accelerator.distributed_type.value}


def _by_deepspeed(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    left_out = init_deepspeed(s)
    import deepspeed

    s.enter("deepspeed.initialize")
    parameters = [p for p in model.parameters() if p.requires_grad]
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=parameters, optimizer=optimizer_of(s, model), config=_ZERO
    )
    batch = task.batch(s, s.rank)
    losses = _losses(s, lambda: task.loss(engine, batch), engine.backward, engine.step)
    return losses, model, {"stage": 2, **left_out}


def _by_lightning(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    import lightning.pytorch as lightning

    losses = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def configure_optimizers(self) -> Any:
            return optimizer_of(s, self.model)

        def training_step(self, batch: Any, index: int) -> Any:
            s.enter(f"train step {index}")
            loss = task.loss(self.model, batch)
            losses.append(s.altered(float(loss.item()), f"train step {index}"))
            return loss

    s.need_own_gpu("Lightning")
    s.enter("Trainer")
    strategy, facts = _strategy(s)
    trainer = lightning.Trainer(
        accelerator="gpu" if s.cuda else "cpu", devices=s.size, strategy=strategy, max_epochs=1,
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    s.enter("Trainer.fit")
    rows = [task.batch(s, s.rank)] * TRAIN_STEPS
    trainer.fit(Module(), s.torch.utils.data.DataLoader(rows, batch_size=None))
    return losses, model, {"strategy": type(trainer.strategy).__name__, **facts}


def _strategy(s: Stage) -> tuple[Any, Facts]:
    """Return DeepSpeed's strategy where it is a member. On the CPU, two checks that refuse any are left out."""
    if "deepspeed" not in s.step["distributions"]:
        return "ddp", {}
    from lightning.pytorch.strategies import DeepSpeedStrategy

    # Lightning sets it by an argument of its Trainer, and refuses it here.
    config = {key: value for key, value in _ZERO.items() if key != "gradient_accumulation_steps"}
    if s.cuda:
        return DeepSpeedStrategy(config=config), {"stage": 2}

    class DeepSpeedOnCpu(DeepSpeedStrategy):  # type: ignore[misc]
        # DeepSpeed is told the number of a device, and that of a CPU is none.
        root_device = s.torch.device("cpu", 0)

        def setup_environment(self) -> None:
            super(DeepSpeedStrategy, self).setup_environment()

    home: Any = sys.modules[DeepSpeedStrategy.__module__]
    home._validate_device_index_selection = lambda _devices: None
    stand_in = "DeepSpeedStrategy refuses whatever is no CUDA GPU: its two checks of the device were left out"
    return DeepSpeedOnCpu(config=config), {"stage": 2, "stand-in": stand_in, **leave_out_cpu_op(s)}


def _by_megatron(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    """Train with each rank holding its part of the feed-forward layers, cut from the model of transformers."""
    core = start_megatron(s, tensor_model_parallel_size=s.size)
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch = s.torch
    hidden = model.config.hidden_size
    config = TransformerConfig(
        num_layers=model.config.num_hidden_layers, hidden_size=hidden, tensor_model_parallel_size=s.size,
        num_attention_heads=model.config.num_attention_heads, use_cpu_initialization=not s.cuda,
    )  # fmt: skip
    common = {"config": config, "init_method": torch.nn.init.xavier_normal_, "bias": False}

    class ParallelMlp(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, whole: Any) -> None:
            super().__init__()
            inner = whole.gate_proj.out_features
            self.gate, self.up = (ColumnParallelLinear(hidden, inner, gather_output=False, **common) for _ in range(2))
            self.down = RowParallelLinear(inner, hidden, input_is_parallel=True, skip_bias_add=False, **common)
            part = slice(s.rank * inner // s.size, (s.rank + 1) * inner // s.size)
            with torch.no_grad():
                self.gate.weight.copy_(whole.gate_proj.weight[part])
                self.up.weight.copy_(whole.up_proj.weight[part])
                self.down.weight.copy_(whole.down_proj.weight[:, part])

        def forward(self, x: Any) -> Any:
            return self.down(torch.nn.functional.silu(self.gate(x)[0]) * self.up(x)[0])[0]

    s.enter("cut the feed-forward layers")
    for layer in model.model.layers:
        layer.mlp = ParallelMlp(layer.mlp).to(s.device)
    batch, step = task.batch(s, 0), s.stepper(optimizer_of(s, model))
    losses = _losses(s, lambda: task.loss(model, batch), lambda loss: loss.backward(), step)
    cut = list(model.model.layers[0].mlp.gate.weight.shape)
    return losses, model, {"version": stated_version(core), "weight of a rank": cut}


TRAINERS = {
    "accelerate": Trainer(_by_accelerate),
    "deepspeed": Trainer(_by_deepspeed),
    "lightning": Trainer(_by_lightning),
    "megatron-core": Trainer(_by_megatron, each_its_own=False),
    "trl": Trainer(train_sft, mean=True),
    # What is sampled is the release's own, so no other training has the same losses.
    "trl-grpo": Trainer(train_grpo, compared=False),
}
