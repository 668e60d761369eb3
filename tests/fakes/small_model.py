"""The default model's tokenizer and template around two small random layers: what it says is noise,
what it costs is little.

For tests of everything around a model: counts, bills, wire formats, processes. No torch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import save_file

HIDDEN: Final = 64
INNER: Final = 128
NUM_LAYERS: Final = 2
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 16
SEED: Final = 20_261_130


def save_small_model(like: Path, folder: Path) -> Path:
    """Write a Llama in fp32 that reads and renders as the model in `like` does; returns `folder`.
    Same seed, same weights."""
    config = json.loads((like / "config.json").read_text(encoding="utf-8"))
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    ):
        if (like / name).exists():
            shutil.copyfile(like / name, folder / name)
    save_file(
        _weights(config["vocab_size"]), folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


def _weights(num_words: int) -> dict[str, np.ndarray]:
    """Normal weights, large enough that attention tells tokens apart."""
    draw = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (0.1 * draw.standard_normal((rows, columns))).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": matrix(num_words, HIDDEN), "model.norm.weight": ones}
    for i in range(NUM_LAYERS):
        layer = {
            "self_attn.q_proj": matrix(NUM_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": matrix(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, NUM_HEADS * HEAD_DIM),
            "mlp.gate_proj": matrix(INNER, HIDDEN),
            "mlp.up_proj": matrix(INNER, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, INNER),
            "input_layernorm": ones,
            "post_attention_layernorm": ones,
        }
        weights |= {f"model.layers.{i}.{name}.weight": value for name, value in layer.items()}
    return weights
