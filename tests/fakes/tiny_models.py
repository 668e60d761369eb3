"""Tiny random models of the supported families, saved as model folders. Same seed, same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY: Final = 320
WINDOW: Final = 24
"""Gemma's and Mistral's sliding window, smaller than any prompt of the tests."""

_SHAPE: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    # The default of 0.02 makes attention almost uniform: errors in it would not show.
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_CONFIGS: Final[dict[str, Callable[[], PreTrainedConfig]]] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "qwen3": lambda: Qwen3Config(**_SHAPE),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHAPE,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mixtral": lambda: MixtralConfig(
        **_SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
}

_LEAN_ONLY: Final[dict[str, Callable[[], PreTrainedConfig]]] = {
    "qwen2": lambda: Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=WINDOW),
}

FAMILIES: Final = tuple(_CONFIGS)
"""Those that show what the generic runner must know."""

LEAN_FAMILIES: Final = ("llama", "qwen2", "qwen3", "mistral")
"""Those the lean runner does."""


def tiny_config(family: str) -> PreTrainedConfig:
    """The configuration of a family's tiny model."""
    return (_CONFIGS | _LEAN_ONLY)[family]()


def save_tiny_model(family: str, folder: Path) -> Path:
    """Write the family's tiny model in fp32 with a placeholder tokenizer; returns `folder`."""
    torch.manual_seed(20_261_130)
    model = AutoModelForCausalLM.from_config(tiny_config(family))  # type: ignore[no-untyped-call, unused-ignore]
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder
