import torch
from _ranks import train
from models.config import VLMConfig
from models.language_model import LanguageModel

torch.manual_seed(0)
small = {"lm_hidden_dim": 32, "lm_inter_dim": 64, "lm_n_heads": 4, "lm_n_kv_heads": 2, "lm_n_blocks": 2}
config = VLMConfig(**small, lm_vocab_size=64, lm_base_vocab_size=64, lm_use_tokens=True)


def loss_of(wrapped):
    tokens = torch.randint(0, 64, (2, 16))
    logits = wrapped(tokens)[0]
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 64), tokens[:, 1:].reshape(-1))


train(LanguageModel(config), loss_of)
