"""Megatron-core: tensor, pipeline, context and expert parallelism on small models."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from envsmith.agent.protocol import Facts, Skip, one_line
from envsmith.agent.steps.stage import TRAIN_STEPS, Preload, Stage, Trained, cpu_for_cuda, hide_toolkit, stated_version

PRELOAD = Preload(
    (
        "megatron.core",
        "megatron.core.models.gpt.gpt_model",
        "megatron.core.models.gpt.gpt_layer_specs",
        "megatron.core.pipeline_parallel",
    ),
    # Megatron's fused functions go through torch.compile, which takes minutes on the CPU and proves nothing there.
    {"TORCHDYNAMO_DISABLE": "1"},
    hide_toolkit,
)


def start_megatron(s: Stage, **kwargs: int) -> Any:
    s.enter_import("megatron.core")
    if not s.cuda:
        os.environ.update(PRELOAD.env)
        hide_toolkit()
    import megatron.core
    from megatron.core import parallel_state

    s.enter("init_process_group")
    s.init_group()
    s.enter("initialize_model_parallel")
    parallel_state.initialize_model_parallel(**kwargs)
    if s.cuda:
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(123)
    else:
        from megatron.core.tensor_parallel import random

        make = getattr(random, "initialize_rng_tracker", None)  # 0.4 has none
        if make is not None and "inference_rng_tracker" in inspect.signature(make).parameters:
            if hasattr(random, "partial"):  # 0.11 would derive its class from a functools.partial
                random.partial = lambda tracker, **_: tracker
            make(inference_rng_tracker=True)  # keeps no CUDA random state; dropout is off
    return megatron.core


def _megatron_facts(s: Stage, core: Any, askers: Mapping[str, int], **extra: object) -> Facts:
    facts: Facts = {"version": stated_version(core), "backend": s.torch.distributed.get_backend(), **extra}
    if not s.cuda and hide_toolkit():
        facts["toolkit"] = f"{hide_toolkit()}, out of sight: there is no GPU to compile for"
    if askers:
        facts["stand-in"] = "asked for the current GPU by name; was given the CPU, without CUDA's random state"
        facts["asked for CUDA at"] = dict(sorted(askers.items()))
    return facts


def step_megatron_tp(s: Stage) -> Trained:
    """Train ColumnParallelLinear, gelu, RowParallelLinear across all ranks, against the same layers in one piece."""
    parallel = bool(s.step.get("sequence_parallel"))
    if not parallel:  # these layers ask for no GPU then
        return _megatron_two_layers(s, parallel, {})
    with cpu_for_cuda(s, "megatron") as askers:
        return _megatron_two_layers(s, parallel, askers)


def _megatron_two_layers(s: Stage, parallel: bool, askers: Mapping[str, int]) -> Trained:
    core = start_megatron(s, tensor_model_parallel_size=s.size)
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch = s.torch
    s.enter("ColumnParallelLinear, RowParallelLinear")
    config = TransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=4, use_cpu_initialization=not s.cuda,
        sequence_parallel=parallel, tensor_model_parallel_size=s.size,
    )  # fmt: skip
    init = torch.nn.init.xavier_normal_
    column = ColumnParallelLinear(16, 32, config=config, init_method=init, bias=True, gather_output=False)
    row = RowParallelLinear(
        32, 16, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=False
    )
    torch.manual_seed(0)
    full = [torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)]
    x = torch.randn(6 - 6 % s.size, 2, 16)
    y = x.flip(-1)
    part = slice(s.rank * 32 // s.size, (s.rank + 1) * 32 // s.size)
    with torch.no_grad():
        column.weight.copy_(full[0].weight[part])
        column.bias.copy_(full[0].bias[part])
        row.weight.copy_(full[1].weight[:, part])
        row.bias.copy_(full[1].bias)
    reference = _two_layers(
        s, x, y, torch.nn.ModuleList(full), lambda h: full[1](torch.nn.functional.gelu(full[0](h))), what="reference"
    )
    layers = torch.nn.ModuleList([column, row]).to(s.device)
    x, y = x.to(s.device), y.to(s.device)
    if parallel:
        x, y = x.chunk(s.size)[s.rank], y.chunk(s.size)[s.rank]
    losses = _two_layers(
        s, x, y, layers, lambda h: row(torch.nn.functional.gelu(column(h)[0]))[0], what="train", parallel=parallel
    )
    facts = _megatron_facts(s, core, askers, weight=list(column.weight.shape))
    return Trained(losses=losses, reference=reference, facts=facts)


def _two_layers(
    s: Stage, x: Any, y: Any, layers: Any, forward: Callable[[Any], Any], *, what: str, parallel: bool = False
) -> list[float]:
    """Return the losses of a few steps of SGD. Under sequence parallelism the loss is the mean of the parts."""
    torch, losses = s.torch, []
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
    for i in range(TRAIN_STEPS):
        s.enter(f"{what} step {i}")
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(x), y)
        (loss / s.size if parallel else loss).backward()
        if parallel:
            with s.counter.unseen():
                torch.distributed.all_reduce(layers[1].bias.grad)  # only added to this rank's part of the sequence
                loss = loss.detach() / s.size
                torch.distributed.all_reduce(loss)
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


def step_megatron_gpt(s: Stage) -> Trained:
    """Train a GPT of two layers on mock tokens: `tp`, `pp`, `cp`, `ep`, `sequence_parallel` choose how it is spread.

    The weights depend on the parameters' names only, so that every spread starts from the same model and must give the
    same losses.
    """
    with cpu_for_cuda(s, "megatron") as askers:
        try:
            return _megatron_gpt(s, askers)
        except NameError as error:
            if "te_" not in str(error):
                raise
            # 0.14 to 0.16 name a function of Transformer Engine in the router whether or not it was imported.
            raise Skip(
                f"this megatron-core needs Transformer Engine for a mixture of experts: {one_line(error, 120)}"
            ) from None


def _megatron_gpt(s: Stage, askers: Mapping[str, int]) -> Trained:
    torch = s.torch
    tp, pp, cp, ep = (int(s.step.get(key, 1)) for key in ("tp", "pp", "cp", "ep"))
    sequence = bool(s.step.get("sequence_parallel"))
    sizes = {"pipeline_model_parallel_size": pp, "context_parallel_size": cp, "expert_model_parallel_size": ep}
    core = start_megatron(s, tensor_model_parallel_size=tp, **{k: v for k, v in sizes.items() if v > 1})
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    s.enter("GPTModel")
    experts = int(s.step.get("experts", 0))
    mixture: dict[str, str | int | bool] = {}
    if experts:
        mixture = {
            "num_moe_experts": experts, "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none", "moe_router_topk": 1, "add_bias_linear": False,
            "moe_router_pre_softmax": True,
        }  # fmt: skip
        parameters = inspect.signature(TransformerConfig).parameters
        mixture = {key: value for key, value in mixture.items() if key in parameters}
    torch.manual_seed(0)
    kind = getattr(torch, s.step.get("dtype", "float32"))
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, params_dtype=kind,
        pipeline_dtype=kind, bf16=kind is torch.bfloat16, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=tp, sequence_parallel=sequence, **sizes, **mixture,
    )  # fmt: skip
    if experts and not s.cuda:
        _splits_as_on_a_gpu()
    spec = _gpt_spec(experts, needs_te=cp > 1, sequence=sequence)
    model = GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=128, max_sequence_length=32,
        pre_process=bool(parallel_state.is_pipeline_first_stage()),
        post_process=bool(parallel_state.is_pipeline_last_stage()),
    )  # fmt: skip
    _fill_by_name(s, model, tp)
    model = model.to(s.device, kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        optimizer.zero_grad()
        loss = _gpt_through_pipeline(s, model, pp) if pp > 1 else _gpt_step(s, model, cp)
        _average_gradients(s, model, cp)
        optimizer.step()
        losses.append(loss)
    return Trained(losses=losses, facts=_megatron_facts(s, core, askers, tp=tp, pp=pp, cp=cp, ep=ep))


def _splits_as_on_a_gpu() -> None:
    """Make the sizes of the dispatcher's pieces numbers, as on a GPU: all_to_all_single refuses the CPU's tensors."""
    from megatron.core.transformer.moe import token_dispatcher

    if hasattr(token_dispatcher, "maybe_move_tensor_to_cpu"):
        token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
            tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor
        )


def _gpt_spec(experts: int, needs_te: bool, sequence: bool) -> Any:
    """Choose Megatron's own layers, or Transformer Engine's where only they can do it."""
    from megatron.core.models.gpt import gpt_layer_specs

    if needs_te or sequence:
        try:
            import transformer_engine.pytorch  # noqa: F401
        except ImportError as error:
            what = "context parallelism" if needs_te else "sequence parallelism of a whole layer"
            reason = f"Transformer Engine's layers, which cannot be imported: {one_line(error, 120)}"
            raise Skip(f"Megatron has {what} only in {reason}") from None
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(num_experts=experts or None)
    return gpt_layer_specs.get_gpt_layer_local_spec(num_experts=experts or None, moe_grouped_gemm=False)


def _fill_by_name(s: Stage, model: Any, tp: int) -> None:
    """Fill matrices by a generator seeded with their global name. Vectors keep zeros and ones."""
    from megatron.core import parallel_state

    torch = s.torch
    shard = parallel_state.get_tensor_model_parallel_rank()
    layers = model.decoder.layers
    expert_rank = parallel_state.get_expert_model_parallel_rank()
    with torch.no_grad():
        for own_name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            name = re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{layers[int(m[1])].layer_number - 1}.", own_name)
            local = re.search(r"local_experts\.(\d+)\.", name)
            if local:
                names = " ".join(n for n, _ in model.named_parameters())
                count = len(set(re.findall(r"local_experts\.(\d+)\.", names)))
                name = name.replace(local[0], f"local_experts.{int(local[1]) + expert_rank * count}.")
            axis = parameter.partition_dim if tp > 1 and getattr(parameter, "tensor_model_parallel", False) else -1
            shape = [n * tp if i == axis else n for i, n in enumerate(parameter.shape)]
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
            weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1
            parameter.copy_(weight.chunk(tp, axis)[shard] if axis >= 0 else weight)


class _Tokens(NamedTuple):
    """A batch of a GPT: what is read, what comes next, and who may look at whom."""

    inputs: Any
    labels: Any
    positions: Any
    mask: Any

    def each(self, change: Callable[[Any], Any]) -> _Tokens:
        """Return the batch with all but the mask changed."""
        return _Tokens(change(self.inputs), change(self.labels), change(self.positions), self.mask)


def _gpt_batch(s: Stage) -> _Tokens:
    torch = s.torch
    tokens = torch.randint(0, 128, (2, 32), generator=torch.Generator().manual_seed(7)).to(s.device)
    positions = torch.arange(32, device=s.device).unsqueeze(0).expand(2, -1)
    mask = torch.triu(torch.ones(1, 1, 32, 32, dtype=torch.bool, device=s.device), 1)
    return _Tokens(tokens, tokens.roll(-1, 1), positions, mask)


def _gpt_step(s: Stage, model: Any, cp: int) -> float:
    """Run forward and backward of the batch, or of this context-parallel rank's piece of it."""
    torch, batch = s.torch, _gpt_batch(s)
    mask = None if cp > 1 else batch.mask
    if cp > 1:
        # Two chunks a rank, one from each end: every rank has the same share of the causal triangle (Megatron's own
        # layout).
        pieces = torch.tensor([s.rank, 2 * cp - 1 - s.rank], device=s.device)
        shape = (2, 2 * cp, 32 // (2 * cp))
        batch = batch.each(lambda row: row.reshape(shape).index_select(1, pieces).reshape(2, -1))
    loss = model(batch.inputs, batch.positions, mask, labels=batch.labels).float().mean()
    loss.backward()
    average = loss.detach().clone()
    if cp > 1:
        with s.counter.unseen():
            torch.distributed.all_reduce(average)
        average /= cp
    return float(average.item())


def _gpt_through_pipeline(s: Stage, model: Any, stages: int) -> float:
    """Run Megatron's 1F1B schedule over two microbatches. Every rank learns the last stage's loss."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    torch, batch = s.torch, _gpt_batch(s)
    micro = iter([batch.each(itemgetter(slice(i, i + 1))) for i in range(2)])

    def forward(pieces: Any, module: Any) -> tuple[Any, Any]:
        piece = next(pieces)
        out = module(piece.inputs, piece.positions, piece.mask, labels=piece.labels)

        def loss(output: Any) -> tuple[Any, object]:
            value = output.float().mean()
            return value, {"loss": value.detach().clone()}

        return out, loss

    results = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=micro, model=[model], num_microbatches=2, seq_length=32,
        micro_batch_size=1, forward_only=False,
    )  # fmt: skip
    loss = torch.stack([row["loss"] for row in results]).mean() if results else torch.zeros((), device=s.device)
    with s.counter.unseen():
        torch.distributed.broadcast(loss, src=stages - 1)
    return float(loss.item())


def _average_gradients(s: Stage, model: Any, cp: int) -> None:
    """Reduce over the ranks that hold the same parameter. An expert's gradient is summed by its tokens already."""
    from megatron.core import parallel_state

    dist = s.torch.distributed
    group = parallel_state.get_data_parallel_group(**({"with_context_parallel": True} if cp > 1 else {}))
    copies = dist.get_world_size(group)
    if copies == 1:
        return
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if getattr(parameter, "allreduce", True):
            dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= copies


def step_megatron_context(s: Stage) -> Trained:
    """Run attention over a sequence that is cut between the ranks, by Megatron's own all-to-all exchange.

    The whole-layer form of context parallelism is in Transformer Engine. This exchange is Megatron's own and needs no
    GPU.
    """
    with cpu_for_cuda(s, "megatron") as askers:
        core = start_megatron(s, tensor_model_parallel_size=1, context_parallel_size=s.size)
        from megatron.core import parallel_state

        try:
            from megatron.core.ssm import mamba_context_parallel as exchange

            to_heads, to_sequence = exchange._all_to_all_cp2hp, exchange._all_to_all_hp2cp
        except (ImportError, AttributeError) as error:
            raise Skip(
                f"megatron-core {core.__version__} has no exchange of sequence for heads: {one_line(error, 120)}"
            ) from None
        group = parallel_state.get_context_parallel_group()
        s.enter("attention")
        reference = _attention_losses(s, slice(None), lambda t: t, lambda t: t)
        piece = slice(s.rank * 8, (s.rank + 1) * 8)
        losses = _attention_losses(s, piece, lambda t: to_heads(t, group), lambda t: to_sequence(t, group))
        return Trained(losses=losses, reference=reference, facts=_megatron_facts(s, core, askers, cp=s.size))


def _attention_losses(
    s: Stage, piece: slice, to_heads: Callable[[Any], Any], to_sequence: Callable[[Any], Any]
) -> list[float]:
    """Train one causal attention layer of eight-wide heads over `8 * ranks` positions, of which `piece` is ours."""
    torch, width = s.torch, 8 * s.size
    torch.manual_seed(0)
    inward, outward = torch.nn.Linear(16, 3 * width).to(s.device), torch.nn.Linear(width, 16).to(s.device)
    x = torch.randn(8 * s.size, 2, 16).to(s.device)
    y = x.roll(1, 0)
    layers = torch.nn.ModuleList([inward, outward])
    optimizer, losses, alone = torch.optim.SGD(layers.parameters(), lr=0.5), [], piece == slice(None)
    for i in range(TRAIN_STEPS):
        s.enter(f"{'reference' if alone else 'train'} step {i}")
        optimizer.zero_grad()
        q, k, v = (to_heads(t.contiguous()) for t in inward(x[piece]).chunk(3, -1))
        heads = [t.reshape(t.shape[0], 2, -1, 8).permute(1, 2, 0, 3) for t in (q, k, v)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        out = outward(to_sequence(mixed.permute(2, 0, 1, 3).reshape(q.shape).contiguous()))
        loss = torch.nn.functional.mse_loss(out, y[piece])
        loss.backward()
        average = loss.detach().clone()
        if not alone:
            with s.counter.unseen():
                for parameter in layers.parameters():
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= s.size
                torch.distributed.all_reduce(average)
            average /= s.size
        optimizer.step()
        losses.append(float(average.item()))
    return losses


STEPS = {"megatron-tp": step_megatron_tp, "megatron-gpt": step_megatron_gpt, "megatron-context": step_megatron_context}
