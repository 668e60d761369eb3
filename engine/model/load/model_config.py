"""A model's configuration: reads it and refuses what this engine does not implement.

Refuses by name; loads no weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig

from engine.errors import ModelUnsupported

_LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention"})

# Attributes that change what attention computes or what a layer remembers, and what to call them in
# an error.
_UNIMPLEMENTED: Final[dict[str, str]] = {
    "kv_lora_rank": "multi-head latent attention",
    "attn_logit_softcapping": "soft-capped attention scores",
    "alibi": "ALiBi position biases",
    "use_bidirectional_attention": "bidirectional attention",
    "num_kv_shared_layers": "KV shared between layers",
    "attention_chunk_size": "chunked attention",
    "mamba_d_state": "recurrent (Mamba) layers",
    "ssm_state_size": "recurrent (Mamba) layers",
    "state_size": "recurrent (Mamba) layers",
    "linear_num_key_heads": "recurrent (linear attention) layers",
    "rescale_every": "recurrent (RWKV) layers",
    "chunkwise_kernel": "recurrent (xLSTM) layers",
    "conv_L_cache": "recurrent (short convolution) layers",
    "lru_width": "recurrent (linear recurrent unit) layers",
    "quantization_config": "quantized weights",
}


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration in a model folder. Raises `ModelUnsupported` for one that transformers
    cannot use."""
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (ValueError, KeyError, OSError, TypeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelUnsupported(
            f"{folder / 'config.json'}: transformers {transformers.__version__} cannot use it: "
            f"{reason}"
        ) from error
    return config


def check_supported(config: PreTrainedConfig) -> None:
    """Raise `ModelUnsupported` naming the first thing that is not implemented.

    What the configuration leaves open is checked later: unknown attention arguments when they
    arrive, layers without attention after loading.
    """
    name = _name(config)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelUnsupported(
            f"{name} is an encoder-decoder model; only decoder-only models are supported"
        )
    if config.get_text_config() is not config:
        raise ModelUnsupported(f"{name} is a multimodal model; only text models are supported")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not name.endswith(
        ("ForCausalLM", "LMHeadModel")
    ):
        raise ModelUnsupported(f"{name} is not a decoder-only language model")
    for attribute, what in _UNIMPLEMENTED.items():
        if getattr(config, attribute, None):
            raise ModelUnsupported(f"{name} has {what} ({attribute}), which is not implemented")
    for layer, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in _LAYER_TYPES:
            raise ModelUnsupported(
                f"{name}: layer {layer} is {kind!r}; only full and sliding-window attention are "
                "supported"
            )


def layer_windows(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """Each layer's sliding window in tokens, or None where it attends to everything."""
    num_layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return (window,) * num_layers


def has_experts(config: PreTrainedConfig) -> bool:
    """True for mixture-of-experts models."""
    return any(
        getattr(config, name, None)
        for name in ("num_local_experts", "num_experts", "n_routed_experts")
    )


def fit_context(config: PreTrainedConfig, context: int) -> None:
    """Make positions up to `context` usable, changing `config` where the model was trained for
    fewer.

    Beyond the trained length the rotary embedding is scaled by YaRN (arXiv 2309.00071), whose
    factor is fixed: a token's KV must not depend on how long its sequence becomes. The answers get
    worse; this is for testing long prompts. Raises `ModelUnsupported` where it cannot be done, or
    where the model's own scaling depends on the sequence's length.
    """
    name = _name(config)
    trained: int | None = getattr(config, "max_position_embeddings", None)
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    flat = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    for part in flat:
        limit = part.get("original_max_position_embeddings") or trained
        if (
            part.get("rope_type") in ("dynamic", "longrope")
            and limit is not None
            and context > limit
        ):
            raise ModelUnsupported(
                f"{name}: {part['rope_type']} rotary scaling depends on the prompt's length; set "
                f"context <= {limit}"
            )
    if trained is None or context <= trained:
        return
    if flat != [rope] or rope.get("rope_type", "default") != "default" or "rope_theta" not in rope:
        raise ModelUnsupported(
            f"{name} was trained for {trained} tokens and its positions cannot be scaled; set "
            f"context <= {trained}"
        )
    config.rope_parameters = rope | {
        "rope_type": "yarn",
        "factor": context / trained,
        "original_max_position_embeddings": trained,
    }
    config.max_position_embeddings = context


def _name(config: PreTrainedConfig) -> str:
    architectures: list[str] = getattr(config, "architectures", None) or [config.model_type]
    return architectures[0]
