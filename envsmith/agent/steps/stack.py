"""A stack: every member is imported, then a tiny model is trained by the members together.

``model`` of the step's options names the model, ``adapter`` what is trained of it, and ``trainer`` who trains it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from envsmith.agent.protocol import Skip, Wrong
from envsmith.agent.steps.packages import step_imports
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage, Trained
from envsmith.agent.steps.tiny import MODELS
from envsmith.agent.steps.trainers import TRAINERS, optimizer_of


def step_stack(s: Stage) -> Trained:
    """Import the members, train, and compare the losses with those of the same training without any of them."""
    s.ends_group = not s.step.get("launcher")
    facts = dict(step_imports(s).facts)
    task: Any = MODELS[s.step["model"]]
    trainer = TRAINERS[s.step["trainer"]]
    expected = None
    if trainer.compared:
        s.enter("reference")
        ranks = range(s.size) if trainer.each_its_own else (0,)
        own, mean = _reference(s, _adapted(s, task), task, [task.batch(s, rank) for rank in ranks])
        expected = mean if trainer.mean else own
    losses, trained, further = trainer.train(s, task, _adapted(s, task))
    facts.update(further, trainer=s.step["trainer"], parameters=_digest(trained))
    if s.step.get("adapter"):
        facts["trained weights"] = sum(p.numel() for p in trained.parameters() if p.requires_grad)
        _save(s, trained)
    return Trained(losses=losses, reference=expected, facts=facts)


def _adapted(s: Stage, task: Any) -> Any:
    """Return the model with its adapter, the same on every rank."""
    s.enter("make the model")
    model = task.model(s)
    adapter = s.step.get("adapter")
    if adapter is None:
        return model
    if adapter == "qlora":
        _quantize(s, model)
    from peft import LoraConfig, get_peft_model

    s.torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=list(task.adapted)))


def _quantize(s: Stage, model: Any) -> None:
    """Keep every linear layer but the head in four bits, as ``BitsAndBytesConfig(load_in_4bit=True)`` does."""
    s.enter("quantize to 4 bits")
    from bitsandbytes.nn import Linear4bit, Params4bit

    torch = s.torch
    for name, layer in list(model.named_modules()):
        if type(layer) is not torch.nn.Linear or name == "lm_head":
            continue
        small = Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
        )
        small.weight = Params4bit(layer.weight.data.clone(), requires_grad=False, quant_type="nf4")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, small.to(s.device))
        if small.weight.dtype is torch.uint8:
            continue
        if not s.cuda:
            raise Skip("this bitsandbytes quantizes to 4 bits on a GPU only")
        raise Wrong(f"bitsandbytes left {name} in {small.weight.dtype}")
    model.is_loaded_in_4bit = model.is_quantized = True


def _reference(s: Stage, model: Any, task: Any, batches: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return this rank's losses, and the mean over the batches, under plain data parallelism, computed here alone."""
    optimizer, own, mean = optimizer_of(s, model), [], []
    for _ in range(TRAIN_STEPS):
        each = [task.loss(model, batch) for batch in batches]
        total = sum(each) / len(each)
        own.append(float(each[s.rank % len(each)].item()))
        mean.append(float(total.item()))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return own, mean


def _digest(model: Any) -> str:
    """Return a number that is the same on every rank that has trained the same, of the layers that each has whole."""
    whole = (p for p in model.parameters() if not getattr(p, "tensor_model_parallel", False))
    return f"{sum(float(p.detach().double().abs().sum()) for p in whole):.6f}"


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


STEPS = {"stack": step_stack}
