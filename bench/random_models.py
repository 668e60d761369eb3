"""Model folders with random weights, for checks that need a model's shape and not its knowledge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

VOCAB: Final = 512
_TINY: Final[dict[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def tiny_configs() -> dict[str, PreTrainedConfig]:
    """One small model per family: plain, normed queries and keys, sliding windows, experts."""
    return {
        "llama": LlamaConfig(**_TINY),
        "qwen3": Qwen3Config(**_TINY),
        "gemma3": Gemma3TextConfig(**_TINY, sliding_window=64, query_pre_attn_scalar=32),
        "mixtral": MixtralConfig(**_TINY, num_local_experts=4, num_experts_per_tok=2),
    }


def billion_config(num_layers: int = 16) -> PreTrainedConfig:
    """A Llama of about a billion parameters at 16 layers."""
    return LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=num_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


def write_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: str) -> Path:
    """A folder the engine loads: random weights from a fixed seed and a tokenizer nobody uses."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    return folder
