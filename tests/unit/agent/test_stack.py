"""The step of a stack, as far as it needs no torch: which settings a release admits, which tokens are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from envsmith.agent.steps.tiny import SPECIAL, Llama
from envsmith.agent.steps.trl import admitted, wished


def test_a_release_gets_the_settings_that_it_has_and_of_two_names_the_new_one() -> None:
    def old(model: object, tokenizer: object, max_seq_length: int) -> None: ...

    def new(model: object, processing_class: object, tokenizer: object, max_length: int) -> None: ...

    settings = {"processing_class": "t", "tokenizer": "t", "max_length": 64, "max_seq_length": 64, "optim": "adamw"}
    assert admitted(old, settings) == {"tokenizer": "t", "max_seq_length": 64}
    assert admitted(new, settings) == {"processing_class": "t", "max_length": 64}


class _Tensor:
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def to(self, _device: object) -> _Tensor:
        return self


def test_no_token_of_the_llama_is_one_of_the_tokenizer_s_own() -> None:
    def randint(low: int, high: int, _shape: tuple[int, ...], **_settings: Any) -> _Tensor:
        return _Tensor(low, high)

    generator = SimpleNamespace(manual_seed=lambda _seed: None)
    torch = SimpleNamespace(randint=randint, Generator=lambda: generator)
    stage: Any = SimpleNamespace(torch=torch, device="cpu")
    tokens = Llama.batch(stage, 0)
    assert (tokens.low, tokens.high) == (SPECIAL, Llama.vocabulary)


def test_the_reward_of_a_text_is_its_share_of_words_of_the_first_half() -> None:
    assert wished("w3 w63 w64 w127", 128) == 0.5
    assert wished("", 128) == 0.0
