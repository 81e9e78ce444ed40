import torch
from _ranks import train
from olmo_core.nn.transformer import TransformerConfig

torch.manual_seed(0)
model = TransformerConfig.llama_like(vocab_size=64, d_model=32, n_layers=2, n_heads=4).build(init_device="cpu")
model.init_weights(device=torch.device("cpu"))


def loss_of(wrapped):
    tokens = torch.randint(0, 64, (2, 16))
    logits = wrapped(tokens)
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))


train(model, loss_of)
