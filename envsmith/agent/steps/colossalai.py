"""Colossal-AI: one Booster plugin, or its three-dimensional parallelism on a small Llama."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from envsmith.agent.protocol import Facts
from envsmith.agent.steps.stage import TRAIN_STEPS, Preload, Stage, Trained, cpu_for_cuda, stated_version

PRELOAD = Preload(("colossalai", "colossalai.booster.plugin", "transformers.models.llama.modeling_llama"), {})


def step_colossalai(s: Stage) -> Trained:
    """Train with a Booster and the plugin that the step names."""
    colossalai = _colossalai_launched(s)
    from colossalai.booster import Booster
    from colossalai.booster import plugin as plugins

    s.enter(f"Booster({s.step['plugin']})")
    precision = s.step.get("precision", "bf16")
    kwargs: dict[str, dict[str, str | int | float]] = {
        "TorchDDPPlugin": {}, "TorchFSDPPlugin": {},
        "LowLevelZeroPlugin": {"stage": s.step.get("stage", 1), "precision": precision, "initial_scale": 1.0},
        "GeminiPlugin": {"precision": precision, "initial_scale": 1.0},
    }  # fmt: skip
    model = s.model()
    optimizer = s.optimizer(model)
    if s.step.get("optimizer"):
        from colossalai.nn import optimizer as optimizers

        optimizer = getattr(optimizers, s.step["optimizer"])(model.parameters(), lr=1e-2)
    booster = Booster(plugin=getattr(plugins, s.step["plugin"])(**kwargs[s.step["plugin"]]))
    model, optimizer, *_ = booster.boost(model, optimizer, criterion=lambda out, y: ((out.float() - y) ** 2).mean())
    losses = s.train(model, lambda loss: booster.backward(loss, optimizer), s.stepper(optimizer))
    facts = _colossalai_facts(s, colossalai, {}, s.step["plugin"])
    return Trained(losses=losses, reference=s.reference(), facts=facts)


def step_colossalai_3d(s: Stage) -> Trained:
    """Train a two-layer Llama with HybridParallelPlugin: `tp`, `pp` and `zero` choose the three dimensions."""
    colossalai = _colossalai_launched(s)
    s.enter_import("transformers")
    import transformers  # noqa: F401
    from colossalai.booster import plugin  # noqa: F401

    with cpu_for_cuda(s, "colossalai") as askers:
        return _colossalai_3d(s, colossalai, askers)


def _colossalai_3d(s: Stage, colossalai: Any, askers: Mapping[str, int]) -> Trained:
    from colossalai.booster import Booster
    from colossalai.booster.plugin import HybridParallelPlugin
    from transformers import LlamaConfig, LlamaForCausalLM

    torch = s.torch
    tp, pp, zero = (int(s.step.get(key, default)) for key, default in (("tp", 1), ("pp", 1), ("zero", 0)))
    extra: Facts = {}
    if pp > 1 and not s.cuda:
        extra = _names_of_hccl(torch.distributed)
    s.enter("HybridParallelPlugin")
    precision = s.step.get("precision", "fp32")
    sizes = {"tp_size": tp, "pp_size": pp, "zero_stage": zero, **({"num_microbatches": 2} if pp > 1 else {})}
    plugin = HybridParallelPlugin(precision=precision, enable_all_optimization=False, initial_scale=1.0, **sizes)
    booster = Booster(plugin=plugin)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, use_cache=False, **heads, **layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 128, (2, 32), generator=torch.Generator().manual_seed(7)).to(s.device)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    reference = _llama_reference(s, model, batch)
    s.enter("booster.boost")
    model, optimizer, criterion, *_ = booster.boost(model, optimizer, criterion=lambda outputs, _: outputs.loss)
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        if pp > 1:
            output = booster.execute_pipeline(iter([batch]), model, criterion, optimizer, return_loss=True)["loss"]
            loss = output.detach().clone() if output is not None else torch.zeros((), device=s.device)
            with s.counter.unseen():
                torch.distributed.broadcast(loss, src=s.size - 1)
        else:
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.item()))
    facts = _colossalai_facts(s, colossalai, askers, "HybridParallelPlugin", tp=tp, pp=pp, zero=zero, **extra)
    return Trained(losses=losses, reference=reference, facts=facts)


def _names_of_hccl(dist: Any) -> Facts:
    """Set two names of Huawei's backend that Colossal-AI's pipeline asks torch for where the group is not NCCL's.

    They are given the only true answers, and the record says so: without them every pipeline on gloo ends with an
    AttributeError (`_check_for_nccl_hccl_backend` in pipeline/p2p.py, read in 0.5.0).
    """
    names = []
    if not hasattr(dist.Backend, "HCCL"):
        dist.Backend.HCCL = "hccl"
        names.append("torch.distributed.Backend.HCCL")
    if not hasattr(dist, "is_hccl_available"):
        dist.is_hccl_available = lambda: False
        names.append("torch.distributed.is_hccl_available")
    return {"given, as Colossal-AI asks for them off NCCL": names} if names else {}


def _llama_reference(s: Stage, model: Any, batch: Mapping[str, object]) -> list[float]:
    """Train the same model here alone."""
    import copy

    alone, losses = copy.deepcopy(model).to(s.device), []
    optimizer = s.torch.optim.AdamW(alone.parameters(), lr=1e-2)
    for i in range(TRAIN_STEPS):
        s.enter(f"reference step {i}")
        loss = alone(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


def _colossalai_launched(s: Stage) -> Any:
    s.enter_import("colossalai")
    import colossalai

    s.enter("colossalai.launch_from_torch")
    if "config" in inspect.signature(colossalai.launch_from_torch).parameters:  # before 0.4.0
        colossalai.launch_from_torch(config={})
    else:
        colossalai.launch_from_torch()
    return colossalai


def _colossalai_facts(s: Stage, colossalai: Any, askers: Mapping[str, int], plugin: str, **extra: object) -> Facts:
    from colossalai.accelerator import get_accelerator

    facts: Facts = {
        "version": stated_version(colossalai), "plugin": plugin, "accelerator": get_accelerator().name,
        "backend": s.torch.distributed.get_backend(), **extra,
    }  # fmt: skip
    if askers:
        facts["stand-in"] = "asked for the current GPU by name; was given the CPU"
        facts["asked for CUDA at"] = dict(sorted(askers.items()))
    return facts


STEPS = {"colossalai": step_colossalai, "colossalai-3d": step_colossalai_3d}
