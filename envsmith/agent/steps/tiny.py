"""Models of a few thousand weights, made from a configuration. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

from envsmith.agent.steps.stage import Stage

# Rows that a rank trains on in each step.
ROWS = 2
# What every trainer learns at.
RATE = 1e-2
# The first tokens are those of a tokenizer's own: unknown, padding, end. Older trainers leave them out of the loss.
SPECIAL = 3


class Llama:
    """A two-layer Llama of transformers, on random tokens."""

    adapted = ("q_proj", "v_proj")
    vocabulary = 128

    @staticmethod
    def model(s: Stage) -> Any:
        """Return the model, the same on every rank."""
        from transformers import LlamaConfig, LlamaForCausalLM

        s.torch.manual_seed(0)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}
        layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        config = LlamaConfig(vocab_size=Llama.vocabulary, use_cache=False, **heads, **layers)
        return LlamaForCausalLM(config).to(s.device)

    @staticmethod
    def batch(s: Stage, rank: int) -> Any:
        """Return the tokens of a rank."""
        generator = s.torch.Generator().manual_seed(7 + rank)
        tokens = s.torch.randint(SPECIAL, Llama.vocabulary, (ROWS, 32), generator=generator)
        return tokens.to(s.device)

    @staticmethod
    def loss(model: Any, batch: Any) -> Any:
        """Return how badly the model foresees each next token."""
        return model(input_ids=batch, labels=batch).loss


class Denoiser:
    """A U-Net of diffusers with attention to a text, on random pictures."""

    adapted = ("to_q", "to_v")

    @staticmethod
    def model(s: Stage) -> Any:
        """Return the model, the same on every rank."""
        from diffusers import UNet2DConditionModel

        s.torch.manual_seed(0)
        blocks = {
            "down_block_types": ("CrossAttnDownBlock2D",), "up_block_types": ("CrossAttnUpBlock2D",),
            "block_out_channels": (16,), "layers_per_block": 1, "norm_num_groups": 4,
        }  # fmt: skip
        model = UNet2DConditionModel(sample_size=8, cross_attention_dim=16, attention_head_dim=4, **blocks)
        return model.to(s.device)

    @staticmethod
    def batch(s: Stage, rank: int) -> Any:
        """Return noisy pictures, their time steps, their texts, and the noise to be foreseen."""
        torch, generator = s.torch, s.torch.Generator().manual_seed(7 + rank)
        noisy, noise = (torch.randn(ROWS, 4, 8, 8, generator=generator) for _ in range(2))
        text = torch.randn(ROWS, 3, 16, generator=generator)
        moment = torch.randint(0, 1000, (ROWS,), generator=generator)
        return tuple(part.to(s.device) for part in (noisy, moment, text, noise))

    @staticmethod
    def loss(model: Any, batch: Any) -> Any:
        """Return how badly the model foresees the noise."""
        noisy, moment, text, noise = batch
        return ((model(noisy, moment, encoder_hidden_states=text).sample - noise) ** 2).mean()


MODELS = {"llama": Llama, "denoiser": Denoiser}
