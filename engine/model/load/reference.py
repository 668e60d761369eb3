"""A transformers model as the reference for ours: its logits, and how its layers attend."""

from __future__ import annotations

from typing import Any

import torch

from engine.errors import ModelUnsupported
from engine.model.checks import TRIAL_LENGTHS, trial_sequences, whole_prompts
from engine.model.generic.attention import ATTENTION_NAME, ForwardPass
from engine.model.generic.forward import run_group
from engine.model.kv_pool import KvPool
from engine.model.page_tables import PageTables
from engine.model.rows import one_group
from engine.model.runner import Identity


def reference_logits(model: Any, page_size: int) -> torch.Tensor:
    """The logits that transformers, with its own attention, gives the trial sequences.

    Those of each one's last token, fp32 `[num_sequences, vocab]`.
    """
    rows = []
    model.set_attn_implementation("sdpa")
    try:
        with torch.inference_mode():
            for sequence in trial_sequences(TRIAL_LENGTHS, page_size, model.config.vocab_size):
                ids = torch.tensor([sequence.token_ids], dtype=torch.int64, device=model.device)
                rows.append(model(input_ids=ids, use_cache=False).logits[0, -1].float())
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return torch.stack(rows)


def check_layers(model: Any, pool: KvPool, identity: Identity) -> None:
    """Every layer of a transformers model must attend through our function, with KV of one shape.

    Overwrites the pool's first pages. Raises `ModelUnsupported`.
    """
    name = type(model).__name__
    slices = whole_prompts(trial_sequences(TRIAL_LENGTHS, pool.page_size, model.config.vocab_size))
    tables = PageTables(pool.page_size, pool.num_pages)
    tables.renew(piece.sequence for piece in slices)
    context = ForwardPass(one_group(slices, tables), pool, identity.windows)
    run_group(model, context)
    shape = (pool.shape.num_kv_heads, pool.shape.head_dim, pool.shape.head_dim)
    for layer in range(pool.shape.num_layers):
        if layer not in context.kv_shapes:
            raise ModelUnsupported(
                f"{name}: layer {layer} has no attention of the kind this engine implements"
            )
        if context.kv_shapes[layer] != shape:
            raise ModelUnsupported(
                f"{name}: layer {layer} has KV of shape {context.kv_shapes[layer]}, "
                f"layer 0's is {shape}"
            )
