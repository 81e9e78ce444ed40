"""DeepSpeed: ZeRO and a mixture of experts."""

from __future__ import annotations

import os
from typing import Any

from envsmith.agent.protocol import Facts, Wrong, one_line
from envsmith.agent.steps.stage import Preload, Stage, Trained, stated_version

# ZeRO asks whether an optimizer is its Muon, and Muon has torch.compile as a decorator: 640 modules of inductor.
PRELOAD = Preload(("deepspeed",), {"DS_ACCELERATOR": "cpu"}, later=("deepspeed.runtime.zero.muon.muon_optimizer",))
CONFIG = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "steps_per_print": 1000,
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,  # 1.0 is the default from 0.19.3 on and changes every loss
}  # fmt: skip


# DeepSpeed 0.14.1 and later compile it in `init_distributed` where there is no GPU (deepspeed/comm/torch.py). Only
# `inference_all_reduce` calls it.
_CPU_OP = "deepspeed_shm_comm"


def leave_out_cpu_op(s: Stage) -> Facts:
    """Keep DeepSpeed from compiling its op for inference on the CPU, so that a proof needs no compiler there.

    Return the fact for the record. On a GPU nothing is changed.
    """
    import deepspeed

    if s.cuda:
        return {}
    compatible = getattr(deepspeed.ops, "__compatible_ops__", {})
    if not compatible.get(_CPU_OP):
        return {}
    compatible[_CPU_OP] = False
    return {"ops left out": [_CPU_OP]}


def init_deepspeed(s: Stage) -> Facts:
    """Import DeepSpeed and make its group. Return what was left out, for the record."""
    s.enter_import("deepspeed")
    import deepspeed

    s.enter("deepspeed.init_distributed")
    left_out = leave_out_cpu_op(s)
    deepspeed.init_distributed()
    return left_out


def step_deepspeed_zero(s: Stage) -> Trained:
    """Train with ZeRO through `deepspeed.initialize` and torch's optimizer, so that no optimizer kernel is compiled."""
    left_out = init_deepspeed(s)
    import deepspeed

    s.enter("deepspeed.initialize")
    dtype = s.step.get("dtype", "float32")
    config: Facts = {**CONFIG, "zero_optimization": {"stage": s.step["stage"]}}
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    model = s.model()
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=s.optimizer(model), config=config
    )
    kind = getattr(s.torch, dtype)
    losses = s.train(lambda x: engine(x.to(kind)), engine.backward, engine.step)
    facts = {
        "version": stated_version(deepspeed),
        "optimizer": type(optimizer).__name__,
        "accelerator": deepspeed.accelerator.get_accelerator().device_name(),
        "backend": s.torch.distributed.get_backend(),
        **_deepspeed_ops(),
        **left_out,
    }
    return Trained(losses=losses, reference=s.reference(), facts=facts)


def _deepspeed_ops() -> Facts:
    """Say which ops came compiled with the package, and which were compiled here when they were first used."""
    try:
        from deepspeed.git_version_info import installed_ops

        facts: Facts = {"ops installed": sorted(name for name, compiled in installed_ops.items() if compiled)}
    except Exception as error:
        facts = {"ops installed": one_line(error, 120)}
    folder = os.environ.get("TORCH_EXTENSIONS_DIR", "")
    built = [file[:-3] for _, _, files in os.walk(folder) for file in files if file.endswith(".so")] if folder else []
    facts["ops compiled here"] = sorted(set(built))
    return facts


def step_deepspeed_moe(s: Stage) -> Trained:
    """Train a mixture of experts that are spread over the ranks: all_to_all there and back."""
    left_out = init_deepspeed(s)
    import deepspeed

    s.enter("deepspeed.moe.layer.MoE")
    from deepspeed.moe.layer import MoE

    torch = s.torch
    torch.manual_seed(0)

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(16, 16)
            # Capacity for every token, so that none is dropped and the count must be conserved.
            capacity = {"capacity_factor": float(s.size), "min_capacity": 4}
            expert = torch.nn.Linear(16, 16)
            self.moe = MoE(
                hidden_size=16, expert=expert, num_experts=s.size, ep_size=s.size, k=1, use_rts=False, **capacity
            )
            self.last = torch.nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            out, _, self.counts = self.moe(self.first(x))
            return self.last(out)

    model = Net()
    s.enter("deepspeed.initialize")
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    groups = split({"params": list(model.parameters()), "name": "all"})
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, optimizer=optimizer, config=CONFIG)
    losses = s.train(engine, engine.backward, engine.step)
    tokens = int(torch.as_tensor(engine.module.counts).sum().item())
    if tokens != 4:
        raise Wrong(f"{tokens} tokens reached an expert, 4 were sent")
    return Trained(losses=losses, facts={"version": stated_version(deepspeed), "tokens": tokens, **left_out})


STEPS = {"deepspeed-zero": step_deepspeed_zero, "deepspeed-moe": step_deepspeed_moe}
