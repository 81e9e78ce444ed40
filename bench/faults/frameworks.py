"""The same model trained by DDP, FSDP2, DeepSpeed's ZeRO-2, Megatron-core's pipeline of two stages, and Accelerate."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time

import torch
import torch.distributed as dist
from injected import FAULT
from torch import nn
from torch.overrides import TorchFunctionMode

WIDTH = int(os.environ.get("MODEL_WIDTH", "32"))


class Net(nn.Module):
    """Three layers. The middle one may be left out by a fault."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        inner = FAULT.value("width", 64)
        self.first, self.middle, self.last = nn.Linear(WIDTH, inner), nn.Linear(inner, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        FAULT.at("forward", tensor=h)
        if not FAULT.is_now("leave-layer-out"):
            h = torch.relu(self.middle(h))
        return self.last(h)


def loss_of(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean square error."""
    return nn.functional.mse_loss(prediction, y)


def join(options) -> None:
    """Join the process group over gloo."""
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=options.timeout))  # place: join


class Ddp:
    """DistributedDataParallel."""

    def __init__(self, options) -> None:
        join(options)
        FAULT.at("joined")
        self.net = Net()
        self.model = nn.parallel.DistributedDataParallel(self.net)  # place: wrap
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with self.model.no_sync() if FAULT.is_now("no-sync") else contextlib.nullcontext():
            loss = loss_of(self.model(x), y)
            FAULT.at("backward", loss=loss)
            loss.backward()  # place: backward
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def save(self, path: str) -> None:
        torch.save(self.net.state_dict(), path)  # place: save


class Fsdp2(Ddp):
    """``fully_shard`` over every layer."""

    def __init__(self, options) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        join(options)
        FAULT.at("joined")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.net = self.model = Net()
        for layer in (self.net.first, self.net.middle, self.net.last):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def full_state(self) -> dict:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        return get_model_state_dict(self.net, options=StateDictOptions(full_state_dict=True))  # place: full-state


class TensorParallel(Ddp):
    """The first two layers are split over the ranks, the third is on each of them."""

    def __init__(self, options) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        join(options)
        FAULT.at("joined")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan = {"first": ColwiseParallel(), "middle": RowwiseParallel()}
        self.net = self.model = parallelize_module(Net(), mesh, plan)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, foreach=False)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = FAULT.value("rows", len(x))
        loss = loss_of(self.model(x[:rows]), y[:rows])
        FAULT.at("backward", loss=loss)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Lightning:
    """PyTorch Lightning's own loop, with DDP on the CPU."""

    def __init__(self, options) -> None:
        from pytorch_lightning import LightningModule, Trainer
        from pytorch_lightning.strategies import DDPStrategy

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = Net()

            def training_step(self, batch, number):
                FAULT.now = number
                time.sleep(0.05)
                FAULT.at("step", trainer=self)
                loss = loss_of(self.net(batch[0]), batch[1])
                if FAULT.is_now("logs-alone"):
                    self.log("loss", loss, sync_dist=True)  # place: logs-alone
                FAULT.at("after", trainer=self)
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        strategy = DDPStrategy(process_group_backend="gloo", timeout=dt.timedelta(seconds=options.timeout))
        self.module = Module()
        self.trainer = Trainer(
            accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, use_distributed_sampler=False,
        )  # fmt: skip

    def fit(self, loader) -> None:
        """Train for one epoch."""
        self.trainer.fit(self.module, loader)  # place: fit


class Zero2:
    """DeepSpeed, ZeRO stage 2, on the CPU."""

    def __init__(self, options) -> None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        deepspeed.init_distributed("gloo", timeout=dt.timedelta(seconds=options.timeout))
        FAULT.at("joined")
        self.net = Net()
        config = {
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "steps_per_print": 1000,
            "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 2},
        }  # fmt: skip
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.model, *_ = deepspeed.initialize(model=self.net, optimizer=optimizer, config=config)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model(x), y)
        FAULT.at("backward", loss=loss)
        self.model.backward(loss)  # place: zero-backward
        if not FAULT.is_now("leave-step-out"):
            self.model.step()  # place: zero-step
        return loss

    def save(self, path: str) -> None:
        self.model.save_checkpoint(path)  # place: zero-save


class OnCpu(TorchFunctionMode):
    """Puts on the CPU what is asked for on a GPU by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **kwargs)


class Pipeline:
    """Megatron-core: a pipeline of two stages, of which each holds one half of the layers."""

    def __init__(self, options) -> None:
        torch.cuda.current_device = lambda: "cpu"  # it asks for the current GPU by name
        torch.cuda.synchronize = lambda *_: None
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.transformer import TransformerConfig

        join(options)
        FAULT.at("joined")
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
        config = TransformerConfig(
            num_layers=2, hidden_size=WIDTH, num_attention_heads=4, pipeline_model_parallel_size=2,
            pipeline_dtype=torch.float32,
        )  # fmt: skip
        self.model = Half(config, is_first=parallel_state.is_pipeline_first_stage())
        self.schedule = get_forward_backward_func()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = FAULT.value("microbatches", 2)
        data = iter([(x[:2], y[:2])] * count)
        with OnCpu():
            losses = self.schedule(  # place: schedule
                forward_step_func=self.forward, data_iterator=data, model=[self.model], num_microbatches=count,
                seq_length=FAULT.value("sequence", 2), micro_batch_size=1, forward_only=False,
            )  # fmt: skip
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([row["loss"] for row in losses]).mean() if losses else torch.zeros(())

    @staticmethod
    def forward(data, model):
        """Run one microbatch through this rank's half."""
        x, y = next(data)
        out = model(x)

        def loss(prediction):
            value = loss_of(prediction[:, 0], y)
            FAULT.at("backward", loss=value)
            return value, {"loss": value.detach()}

        return out, loss

    def save(self, path: str) -> None:
        torch.save(self.model.state_dict(), path)


class Half(nn.Module):
    """One stage. What the stage before it sent comes through ``set_input_tensor``."""

    def __init__(self, config, *, is_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        from megatron.core.enums import ModelType

        self.model_type = ModelType.encoder_or_decoder
        self.config, self.is_first, self.received = config, is_first, None
        self.layer = nn.Linear(WIDTH, WIDTH)

    def set_input_tensor(self, tensors) -> None:
        self.received = tensors[0] if isinstance(tensors, list) else tensors

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        FAULT.at("forward", tensor=x)
        return self.layer(x[:, None] if self.is_first else self.received)


class Accelerated:
    """Hugging Face Accelerate on the CPU."""

    def __init__(self, options) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        group = InitProcessGroupKwargs(backend="gloo", timeout=dt.timedelta(seconds=options.timeout))
        self.accelerator = Accelerator(cpu=True, kwargs_handlers=[group])
        FAULT.at("joined")
        self.net = Net()
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.model, self.optimizer = self.accelerator.prepare(self.net, optimizer)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model(x), y)
        FAULT.at("backward", loss=loss)
        self.accelerator.backward(loss)  # place: accelerate-backward
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def save(self, path: str) -> None:
        self.accelerator.save(self.net.state_dict(), path)


FRAMEWORKS = {
    "ddp": Ddp, "fsdp2": Fsdp2, "tensor": TensorParallel, "zero2": Zero2, "pipeline": Pipeline,
    "accelerate": Accelerated, "lightning": Lightning,
}  # fmt: skip
