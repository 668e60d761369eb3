"""The native forward pass of Llama-shaped decoders: one call into the C library for each step.

A row's values depend on its own inputs and its sequence's KV alone, in bits: whatever is computed
beside it, however its prompt was cut, from whichever pages, by however many threads. So it is exact
without anything to pay for it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence as Seq

import torch
from transformers import PreTrainedConfig

from engine.model.kv_pool import KvPool
from engine.model.native.weights import NativeWeights
from engine.model.page_tables import PageTables
from engine.native.library import (
    MAX_WINDOWS,
    PANEL,
    SpanStruct,
    Step,
    Team,
    library,
    why_not_native,
)
from engine.schedule.sequence import Slice

_VECTOR_WIDTH = 16


def why_not_native_model(
    config: PreTrainedConfig, windows: Seq[int | None], block_size: int
) -> str | None:
    """The first thing of a Llama-shaped model that the native library does not do, or why there is
    none, or None."""
    reason = why_not_native()
    if reason is not None:
        return reason
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if block_size % _VECTOR_WIDTH:
        return f"block_size {block_size} is not a multiple of {_VECTOR_WIDTH}"
    if head_dim % _VECTOR_WIDTH or head_dim > 256:
        return f"heads of {head_dim} are not a multiple of {_VECTOR_WIDTH} up to 256"
    if config.hidden_size % _VECTOR_WIDTH or config.intermediate_size % (PANEL // 2):
        return (
            f"layers of {config.hidden_size} and {config.intermediate_size} are not multiples "
            f"of {_VECTOR_WIDTH} and {PANEL // 2}"
        )
    if len(set(windows)) > MAX_WINDOWS:
        return f"more than {MAX_WINDOWS} different windows"
    return None


class NativeForward:
    """Implements `engine.model.runner.Forward`, exact as it is. `close` ends its threads."""

    name = "native"

    def __init__(
        self, weights: NativeWeights, pool: KvPool, windows: Seq[int | None], num_threads: int
    ) -> None:
        self._library = library()
        self._weights = weights
        self._pool = pool
        self._tables = PageTables(pool.page_size, pool.num_pages)
        heads = weights.model.heads
        if (pool.shape.num_kv_heads, pool.shape.head_dim, pool.shape.dtype) != (
            heads.num_kv_heads,
            heads.head_dim,
            torch.bfloat16,
        ):
            raise ValueError("the pool's slots are not those of the model")
        heads.page_size = pool.page_size
        for index, (layer, window) in enumerate(zip(weights.layers, windows, strict=True)):
            key, value = pool.flat(index)
            layer.key, layer.value, layer.window = key.data_ptr(), value.data_ptr(), window or 0
        self._team = Team(num_threads)

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """See `Forward`. Raises `MemoryError` where a step's arrays have no room."""
        token_ids, num_sampled = array("i"), array("i")
        spans = (SpanStruct * len(slices))()
        self._tables.renew(piece.sequence for piece in slices)
        for index, piece in enumerate(slices):
            pages = self._tables.pages(piece.sequence)
            self._check(piece, len(pages))
            spans[index] = SpanStruct(
                len(token_ids), piece.num_rows, piece.start, len(pages), pages.ctypes.data
            )
            token_ids.extend(piece.token_ids)
            num_sampled.append(piece.num_sampled)
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._weights.vocabulary:
            raise ValueError("a token is not of the model's vocabulary")
        logits = torch.empty((sum(num_sampled), self._weights.num_logits), dtype=torch.float32)
        step = Step(
            token_ids=token_ids.buffer_info()[0],
            num_sampled=num_sampled.buffer_info()[0],
            spans=ctypes.addressof(spans),
            logits=logits.data_ptr(),
            num_spans=len(slices),
            num_rows=len(token_ids),
        )
        if (
            token_ids
            and self._library.pcg_forward(self._team.handle, self._weights.model, step) != 0
        ):
            raise MemoryError(f"no memory for a step of {len(token_ids)} rows")
        return logits

    def close(self) -> None:
        """See `Forward`."""
        self._team.close()

    def _check(self, piece: Slice, num_pages: int) -> None:
        """Raise `ValueError` for a slice that would lead outside of memory: the library checks
        nothing."""
        if (
            not 0
            <= piece.start
            < piece.end
            <= min(num_pages * self._pool.page_size, self._weights.num_positions)
        ):
            raise ValueError(
                f"tokens {piece.start} to {piece.end} are not covered by {num_pages} pages"
            )
        if piece.start + piece.num_tokens > len(piece.sequence.token_ids):
            raise ValueError(
                f"{piece.num_tokens} tokens from {piece.start} are more than the sequence has"
            )
