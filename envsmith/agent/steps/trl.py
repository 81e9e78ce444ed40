"""TRL as the trainer of a stack: supervised fine-tuning, and GRPO on what the model itself writes."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from typing import Any

from envsmith.agent.protocol import Facts
from envsmith.agent.steps.deepspeed import leave_out_cpu_op
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage
from envsmith.agent.steps.tiny import RATE, ROWS

# Completions of each prompt that GRPO compares, and their length in tokens.
_SAMPLES, _LENGTH = 8, 8


def train_sft(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    """Train with ``SFTTrainer``. Each step takes the rows of all ranks, in an order of its own."""
    s.enter_import("trl")
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokens = s.torch.cat([task.batch(s, rank) for rank in range(s.size)]).tolist()
    rows = Dataset.from_dict({"input_ids": tokens})
    further = {"data_collator": lambda chosen: _collated(s.torch, chosen), **_reader(SFTTrainer, task)}
    trainer = _trained(
        s, SFTConfig, _plain(s), lambda args: SFTTrainer(model=model, args=args, train_dataset=rows, **further)
    )
    losses = [s.altered(loss, f"train step {i}") for i, loss in enumerate(_logged(trainer, "loss"))]
    return losses, model, {"processes": trainer.args.world_size}


def train_grpo(s: Stage, task: Any, model: Any) -> tuple[list[float], Any, Facts]:
    """Train with ``GRPOTrainer`` to write words of the first half of the vocabulary. A loss is the share of others.

    The model of transformers writes: vLLM needs a GPU. DeepSpeed trains where it is a member.
    """
    s.enter_import("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_further: object) -> list[float]:
        return [wished(text, task.vocabulary) for text in completions]

    rows = Dataset.from_dict({"prompt": [f"w{n} w{n + 1}" for n in range(10, 10 + 2 * TRAIN_STEPS)]})
    settings = {
        **_plain(s), "per_device_train_batch_size": _SAMPLES, "num_generations": _SAMPLES, "beta": 0.0,
        "max_completion_length": _LENGTH, "max_prompt_length": 8, "temperature": 1.0, "use_vllm": False, "seed": 1,
    }  # fmt: skip
    facts: Facts = {"written by": "transformers"}
    if "deepspeed" in s.step["distributions"]:
        auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
        settings["deepspeed"] = {
            "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True, **dict.fromkeys(auto, "auto"),
        }  # fmt: skip
        facts.update(stage=2, **leave_out_cpu_op(s))
    further = {"reward_funcs": reward, **_reader(GRPOTrainer, task)}
    trainer = _trained(
        s, GRPOConfig, settings, lambda args: GRPOTrainer(model=model, args=args, train_dataset=rows, **further)
    )
    losses = [s.altered(1 - share, f"train step {i}") for i, share in enumerate(_logged(trainer, "reward"))]
    return losses, model, {"processes": trainer.args.world_size, **facts}


def wished(text: str, size: int) -> float:
    """Return the share of a text's words that are of the first half of a vocabulary."""
    words = [int(word[1:]) for word in text.split()]
    return sum(word < size // 2 for word in words) / len(words) if words else 0.0


def _trained(s: Stage, config: Any, settings: Facts, make: Callable[[Any], Any]) -> Any:
    """Return the trainer that is made of a release's settings, when it has trained."""
    from transformers import TrainerCallback

    class Announce(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_further: Any) -> None:
            s.enter(f"train step {state.global_step}")

    with tempfile.TemporaryDirectory() as folder:
        s.enter("make the trainer")
        trainer = make(config(**admitted(config, {**settings, "output_dir": folder})))
        trainer.add_callback(Announce())
        trainer.train()
    return trainer


def _logged(trainer: Any, key: str) -> list[float]:
    return [float(row[key]) for row in trainer.state.log_history if key in row]


def _reader(trainer: Any, task: Any) -> Facts:
    """Return the tokenizer, as a trainer of this release takes it."""
    tokenizer = _tokenizer(task.vocabulary)
    return admitted(trainer, {"processing_class": tokenizer, "tokenizer": tokenizer})


def _collated(torch: Any, rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Return rows as one batch. Nothing foresees a first token, but transformers 4.46 counts one that has a label."""
    tokens = torch.tensor([row["input_ids"] for row in rows])
    labels = tokens.clone()
    labels[:, 0] = -100
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def _plain(s: Stage) -> Facts:
    """Return the plainest training: no schedule, no clipping, no mixed precision, no file."""
    return {
        "max_steps": TRAIN_STEPS, "per_device_train_batch_size": ROWS, "logging_steps": 1,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 0.0,
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
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))  # noqa: S106
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w1", eos_token="w2")  # noqa: S106
