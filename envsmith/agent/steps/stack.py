"""A stack: every member is imported, then a tiny model is trained by the members together.

``model`` of the step's options names the model, ``adapter`` what is trained of it, and ``trainer`` who trains it.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from typing import Any

from envsmith.agent.protocol import Facts, Wrong
from envsmith.agent.steps.deepspeed import CONFIG, init_deepspeed
from envsmith.agent.steps.packages import step_imports
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage, Trained
from envsmith.agent.steps.tiny import MODELS, ROWS

_RATE = 1e-2


def step_stack(s: Stage) -> Trained:
    """Import the members, train, and compare the losses with those of the same training without any of them."""
    facts = dict(step_imports(s).facts)
    task = MODELS[s.step["model"]]
    s.enter("reference")
    own, mean = _reference(s, task)
    model = _adapted(s, task)
    trainer = s.step["trainer"]
    losses, trained, further = TRAINERS[trainer](s, task, model)
    facts.update(further, trainer=trainer, parameters=_digest(trained))
    if s.step.get("adapter"):
        facts["trained weights"] = sum(p.numel() for p in trained.parameters() if p.requires_grad)
        _save(s, trained)
    return Trained(losses=losses, reference=mean if trainer == "trl" else own, facts=facts)


def _adapted(s: Stage, task: Any) -> Any:
    """Return the model with its adapter, the same on every rank."""
    s.enter("make the model")
    model = task.model(s)
    if s.step.get("adapter") != "lora":
        return model
    from peft import LoraConfig, get_peft_model

    s.torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=list(task.adapted)))


def _optimizer(s: Stage, model: Any) -> Any:
    return s.torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=_RATE, weight_decay=0.0)


def _reference(s: Stage, task: Any) -> tuple[list[float], list[float]]:
    """Return this rank's losses, and the mean over the ranks, under plain data parallelism, computed here alone."""
    model = _adapted(s, task)
    optimizer, own, mean = _optimizer(s, model), [], []
    batches = [task.batch(s, rank) for rank in range(s.size)]
    for _ in range(TRAIN_STEPS):
        each = [task.loss(model, batch) for batch in batches]
        total = sum(each) / s.size
        own.append(float(each[s.rank].item()))
        mean.append(float(total.item()))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return own, mean


def _digest(model: Any) -> str:
    """Return a number that is the same on every rank that has trained the same."""
    return f"{sum(float(p.detach().double().abs().sum()) for p in model.parameters()):.6f}"


def _save(s: Stage, model: Any) -> None:
    """Write the adapter as safetensors and read it again."""
    from safetensors.torch import load_file

    s.enter("save the adapter")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, safe_serialization=True)
        tensors = load_file(f"{folder}/adapter_model.safetensors")
    state = model.state_dict()
    for name, tensor in tensors.items():
        head, _, tail = name.rpartition(".")
        if not s.torch.equal(state[f"{head}.default.{tail}"].cpu(), tensor):
            raise Wrong(f"the saved adapter differs in {name}")


# -- who trains: each returns the losses, the model, and facts --------------------------------------------------------


def _by_accelerate(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    from accelerate import Accelerator

    s.enter("Accelerator.prepare")
    accelerator = Accelerator(cpu=not s.cuda)
    prepared, optimizer = accelerator.prepare(model, _optimizer(s, model))
    batch = task.batch(s, s.rank)
    step = s.stepper(optimizer)
    losses = _losses(s, lambda: task.loss(prepared, batch), accelerator.backward, step)
    return losses, model, {"kind": accelerator.distributed_type.value}


def _by_deepspeed(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    left_out = init_deepspeed(s)
    import deepspeed

    s.enter("deepspeed.initialize")
    config = {**CONFIG, "train_micro_batch_size_per_gpu": ROWS, "zero_optimization": {"stage": 2}}
    parameters = [p for p in model.parameters() if p.requires_grad]
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=parameters, optimizer=_optimizer(s, model), config=config
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
            return _optimizer(s, self.model)

        def training_step(self, batch: Any, index: int) -> Any:
            s.enter(f"train step {index}")
            loss = task.loss(self.model, batch)
            losses.append(s.altered(float(loss.item()), f"train step {index}"))
            return loss

    s.enter("Trainer")
    trainer = lightning.Trainer(
        accelerator="gpu" if s.cuda else "cpu", devices=s.size, strategy="ddp", max_epochs=1,
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    s.enter("Trainer.fit")
    rows = [task.batch(s, s.rank)] * TRAIN_STEPS
    trainer.fit(Module(), s.torch.utils.data.DataLoader(rows, batch_size=None))
    return losses, model, {"strategy": type(trainer.strategy).__name__}


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


def _by_trl(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    """Train with ``SFTTrainer``. Each step takes the rows of all ranks, in an order of its own."""
    s.enter_import("trl")
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Announce(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_further: Any) -> None:
            s.enter(f"train step {state.global_step}")

    tokens = s.torch.cat([task.batch(s, rank) for rank in range(s.size)]).tolist()
    rows = Dataset.from_dict({"input_ids": tokens})
    tokenizer = _tokenizer(task.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        s.enter("SFTTrainer")
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(**admitted(SFTConfig, _settings(s, folder))),
            train_dataset=rows,
            data_collator=lambda chosen: _collated(s.torch, chosen),
            **admitted(SFTTrainer, {"processing_class": tokenizer, "tokenizer": tokenizer}),
        )
        trainer.add_callback(Announce())
        trainer.train()
    logged = [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]
    losses = [s.altered(loss, f"train step {i}") for i, loss in enumerate(logged)]
    return losses, model, {"processes": trainer.args.world_size}


def _collated(torch: Any, rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Return rows as one batch. Nothing foresees a first token, but transformers 4.46 counts one that has a label."""
    tokens = torch.tensor([row["input_ids"] for row in rows])
    labels = tokens.clone()
    labels[:, 0] = -100
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def _settings(s: Stage, folder: str) -> Facts:
    """Return the plainest training: no schedule, no clipping, no mixed precision, no file."""
    return {
        "output_dir": folder, "max_steps": TRAIN_STEPS, "per_device_train_batch_size": ROWS, "logging_steps": 1,
        "learning_rate": _RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 0.0,
        "optim": "adamw_torch", "save_strategy": "no", "report_to": [], "disable_tqdm": True, "bf16": False,
        "gradient_checkpointing": False, "packing": False, "dataset_kwargs": {"skip_prepare_dataset": True},
        "use_cpu": not s.cuda, "no_cuda": not s.cuda, "ddp_backend": s.job["backend"],
        "ddp_find_unused_parameters": False, "max_length": 64, "max_seq_length": 64, "dataset_text_field": "text",
    }  # fmt: skip


def admitted(callee: Callable[..., object], settings: Facts) -> Facts:
    """Return the settings that a release has. Where it has an old and a new name of one, the new one."""
    names = inspect.signature(callee).parameters
    chosen = {name: value for name, value in settings.items() if name in names}
    for new, old in (("processing_class", "tokenizer"), ("use_cpu", "no_cuda"), ("max_length", "max_seq_length")):
        if new in chosen:
            chosen.pop(old, None)
    return chosen


def _tokenizer(size: int) -> Any:
    """Return a tokenizer of ``size`` words that no file was read for."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))  # noqa: S106
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w1", eos_token="w2")  # noqa: S106


TRAINERS = {"accelerate": _by_accelerate, "deepspeed": _by_deepspeed, "lightning": _by_lightning, "trl": _by_trl}
STEPS = {"stack": step_stack}
