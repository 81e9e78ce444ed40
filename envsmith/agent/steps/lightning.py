"""Lightning: one Trainer with plain data parallelism, FSDP2, FSDP or DeepSpeed as its strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envsmith.agent.protocol import Skip
from envsmith.agent.steps.stage import TRAIN_STEPS, Preload, Stage, Trained
from envsmith.agent.steps.torch import fully_shard_of

PRELOAD = Preload(("lightning.pytorch",), {})


def step_ddp(s: Stage) -> Trained:
    """Train with ``DDPStrategy``."""
    return _fitted(s, _strategies(s).DDPStrategy)


def step_fsdp2(s: Stage) -> Trained:
    """Train with ``ModelParallelStrategy``: the module shards itself over the strategy's mesh."""
    strategy = getattr(_strategies(s), "ModelParallelStrategy", None)
    if strategy is None:
        raise Skip("this Lightning has no ModelParallelStrategy: 2.4 is the first that has it")
    fully_shard_of(s)
    # "auto" would give every rank of the node to tensor parallelism.
    sizes = {"data_parallel_size": s.size, "tensor_parallel_size": 1}
    return _fitted(s, lambda: strategy(**sizes), shard=True)


def step_fsdp(s: Stage) -> Trained:
    """Train with ``FSDPStrategy``."""
    return _fitted(s, _strategies(s).FSDPStrategy)


def step_deepspeed(s: Stage) -> Trained:
    """Train with ZeRO stage 2 through ``DeepSpeedStrategy``."""
    try:
        import deepspeed  # noqa: F401
    except ModuleNotFoundError:
        raise Skip("this environment has no deepspeed") from None
    config = {
        "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    strategy = _strategies(s).DeepSpeedStrategy
    return _fitted(s, lambda: strategy(config=config))


def _strategies(s: Stage) -> Any:
    """Return Lightning's strategies. Their import is the first that may hang, so it has a name."""
    s.enter_import("lightning")
    from lightning.pytorch import strategies

    return strategies


def _fitted(s: Stage, strategy: Callable[[], Any], *, shard: bool = False) -> Trained:
    """Train the toy problem with a Trainer of that strategy. Lightning finds ranks by the launcher's variables."""
    import lightning.pytorch as lightning

    s.need_own_gpu("Lightning")
    torch, losses = s.torch, []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = s.model()

        def configure_model(self) -> None:
            if shard:
                fully_shard = fully_shard_of(s)
                mesh = self.device_mesh["data_parallel"]
                for layer in self.model:
                    if list(layer.parameters()):
                        fully_shard(layer, mesh=mesh)
                fully_shard(self.model, mesh=mesh)

        def configure_optimizers(self) -> Any:
            return s.optimizer(self.model)

        def training_step(self, batch: Any, index: int) -> Any:
            stage = f"train step {index}"
            s.enter(stage)
            x, y = batch
            loss = ((self.model(x).float() - y) ** 2).mean()
            losses.append(s.altered(float(loss.item()), stage))
            return loss

    s.enter("Trainer")
    trainer = lightning.Trainer(
        accelerator="gpu" if s.cuda else "cpu", devices=s.size, strategy=strategy(), max_epochs=1,
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    s.enter("Trainer.fit")
    trainer.fit(Module(), torch.utils.data.DataLoader([s.batch(s.rank)] * TRAIN_STEPS, batch_size=None))
    facts = {
        "version": lightning.__version__,
        "strategy": type(trainer.strategy).__name__,
        "processes": trainer.world_size,
    }
    return Trained(losses=losses, reference=s.reference(), facts=facts)


STEPS = {
    "lightning-ddp": step_ddp,
    "lightning-fsdp2": step_fsdp2,
    "lightning-fsdp": step_fsdp,
    "lightning-deepspeed": step_deepspeed,
}
