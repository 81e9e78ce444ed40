"""A first step of minimind on the CPU."""

from __future__ import annotations

import torch
from _ranks import train
from model.model_minimind import MiniMindConfig, MiniMindForCausalLM

model = MiniMindForCausalLM(MiniMindConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128))


def loss_of(wrapped):
    tokens = torch.randint(128, (2, 32))
    return wrapped(input_ids=tokens, labels=tokens).loss


train(model, loss_of)
