"""Attention of a packed forward pass over the paged pool, as transformers calls it.

Knows no scheduling and no sampling.

Registered with transformers' `AttentionInterface` under `ATTENTION_NAME`; the pass's `ForwardPass`
travels through `model.forward(..., pcg_pass=...)` to every layer, so nothing is patched and nothing
is global. No mask function is registered under that name, and transformers then passes no mask:
causality and windows are applied here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import AttentionInterface

from engine.errors import ModelUnsupported
from engine.model.kernels import (
    attend_masked,
    attend_part,
    can_merge_parts,
    causal_mask,
    merge_parts,
)
from engine.model.kv_pool import PAD_SLOTS, KvPool, slots_of
from engine.model.rows import QUERY_ROWS, Group, RowSpan
from engine.model.runs import SlotRun, cut_runs, skip_runs

ATTENTION_NAME: Final = "pcg_paged"
MAX_PARTS: Final = 6
"""More runs than this are copied together rather than attended one by one."""

# Arguments without an effect on the result: they repeat what the pass already has, or ask for
# extra outputs.
_IGNORED: Final = frozenset(
    {
        "position_ids",
        "cache_position",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)


class ForwardPass:
    """One forward pass: its rows, the pool they read and write, and masks shared by layers.

    `windows[i]` is layer i's sliding window by the model's configuration, or None. Lives for one
    call of the model.
    """

    def __init__(self, group: Group, pool: KvPool, windows: tuple[int | None, ...]) -> None:
        self.group = group
        self.pool = pool
        self.windows = windows
        self.num_rows = sum(span.num_rows for span in group.spans)
        self.written = slots_of([run for span in group.spans for run in span.written], pool.device)
        self.kv_shapes: dict[int, tuple[int, int, int]] = {}
        """Layers that attended, with their `(num_kv_heads, head_dim of K, head_dim of V)`."""
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def mask(
        self, row: int, window: int | None, shape: tuple[int, int, int], like: torch.Tensor
    ) -> torch.Tensor:
        """The mask for `(num_rows, start, num_keys)` of the rows from `row` on, made at the first
        layer that asks."""
        key = (row, window)
        if key not in self._masks:
            num_rows, start, num_keys = shape
            self._masks[key] = causal_mask((num_rows, num_keys), start, window, like)
        return self._masks[key]


def register() -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    pcg_pass: ForwardPass | None = None,
    sliding_window: int | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Write the rows' KV into the pool and attend: `query [1, num_heads, num_rows, head_dim]`,
    `key`/`value` with KV heads.

    Returns `[1, num_rows, num_heads, head_dim]`; padding rows are zero. Raises `ModelUnsupported`
    for any argument that would change the result and is not implemented.
    """
    if pcg_pass is None:
        raise RuntimeError("paged attention needs pcg_pass in model.forward")
    _refuse_unknown(module, attention_mask, dropout, arguments)
    layer: int = module.layer_idx  # type: ignore[assignment]
    window = _window(pcg_pass, layer, sliding_window)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    pcg_pass.kv_shapes[layer] = (key.shape[1], key.shape[3], value.shape[3])
    num_rows = pcg_pass.num_rows
    keys, values = key[0, :, :num_rows].transpose(0, 1), value[0, :, :num_rows].transpose(0, 1)
    pcg_pass.pool.write(layer, keys, values, pcg_pass.written)
    attend = _LayerAttention(pcg_pass, layer, window, scale)
    spans = pcg_pass.group.spans
    if len(spans) == 1 and spans[0].num_rows == query.shape[2]:
        return attend(spans[0], query[0], keys, values).transpose(0, 1).unsqueeze(0), None
    out = query.new_zeros((1, query.shape[2], query.shape[1], query.shape[3]))
    for span in spans:
        rows = slice(span.row, span.row + span.num_rows)
        out[0, rows] = attend(span, query[0, :, rows], keys[rows], values[rows]).transpose(0, 1)
    return out, None


class _LayerAttention:
    """One layer's attention within a pass: chooses how a span attends."""

    def __init__(self, context: ForwardPass, layer: int, window: int | None, scale: float) -> None:
        self._pass, self._layer, self._window, self._scale = context, layer, window, scale

    def __call__(
        self, span: RowSpan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """`query [num_heads, num_rows, head_dim]`; `key` and `value [num_rows, num_kv_heads,
        head_dim]` are the span's own."""
        first = 0 if self._window is None else max(0, span.start + 1 - self._window)
        if self._pass.group.attend == "prompt":
            return self._fixed(span, query)
        if span.num_rows == 1:
            return self._one_row(span, query, first)
        if can_merge_parts(query.device) and (self._window is None or span.end <= self._window):
            return self._in_parts(span, query, key, value)
        return self._under_mask(span, query, first)

    def _fixed(self, span: RowSpan, query: torch.Tensor) -> torch.Tensor:
        """Calls of `QUERY_ROWS` rows, keys padded to a multiple of `PAD_SLOTS` from position 0:
        bits depend on no cut.

        Measured with torch 2.13 in bf16 and fp32; see docs/decisions. Windows are masked, never
        cut.
        """
        keys, values = self._pass.pool.read(self._layer, span.slots, _padded(span.end))
        out = torch.empty_like(query)
        tile = query.new_zeros((query.shape[0], QUERY_ROWS, query.shape[2]))
        for row in range(0, span.num_rows, QUERY_ROWS):
            num_rows = min(QUERY_ROWS, span.num_rows - row)
            num_keys = _padded(span.start + row + num_rows)
            mask = self._pass.mask(
                span.row + row, self._window, (QUERY_ROWS, span.start + row, num_keys), query
            )
            tile[:, :num_rows] = query[:, row : row + num_rows]
            attended = attend_masked(tile, keys[:num_keys], values[:num_keys], mask, self._scale)
            out[:, row : row + num_rows] = attended[:, :num_rows]
        return out

    def _one_row(self, span: RowSpan, query: torch.Tensor, first: int) -> torch.Tensor:
        """A single token sees all its keys: no mask. In exact mode one call whatever runs there
        are: bits depend on no run."""
        runs = skip_runs(span.slots, first)
        if not can_merge_parts(query.device):
            return attend_masked(
                query, *self._pass.pool.read(self._layer, runs, span.end - first), None, self._scale
            )
        whole = self._pass.group.attend == "generated"
        return merge_parts(
            [self._part(query, piece) for piece in ([runs] if whole else _pieces(runs))]
        )

    def _in_parts(
        self, span: RowSpan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """The past without a mask, run by run, and the span itself causally, merged: cheaper than
        one masked call."""
        parts = [attend_part(query, key, value, self._scale, causal=True)]
        parts += [self._part(query, piece) for piece in _pieces(cut_runs(span.slots, span.start))]
        return merge_parts(parts)

    def _part(
        self, query: torch.Tensor, runs: tuple[SlotRun, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._pass.pool.read(self._layer, runs, sum(run.num_slots for run in runs))
        return attend_part(query, keys, values, self._scale, causal=False)

    def _under_mask(self, span: RowSpan, query: torch.Tensor, first: int) -> torch.Tensor:
        """Several rows with a window that hides something, or a device without parts: one masked
        call over `[first, end)`."""
        runs = skip_runs(span.slots, first)
        keys, values = self._pass.pool.read(self._layer, runs, span.end - first)
        mask = self._pass.mask(
            span.row, self._window, (span.num_rows, span.start - first, span.end - first), query
        )
        return attend_masked(query, keys, values, mask, self._scale)


def _refuse_unknown(
    module: torch.nn.Module, mask: torch.Tensor | None, dropout: float, arguments: Mapping[str, Any]
) -> None:
    name = type(module).__name__
    if mask is not None or dropout:
        raise ModelUnsupported(f"{name} brings its own attention mask or dropout")
    for argument, value in arguments.items():
        if (
            value is None
            or value is False
            or argument in _IGNORED
            or (argument == "is_causal" and value is True)
        ):
            continue
        raise ModelUnsupported(
            f"{name} uses the attention argument {argument!r}, which is not implemented"
        )


def _window(context: ForwardPass, layer: int, passed: int | None) -> int | None:
    """The layer's window by the configuration; the module must pass the same one or none."""
    configured = context.windows[layer]
    if passed is not None and passed != configured:
        raise ModelUnsupported(
            f"layer {layer} passes sliding_window={passed}, its configuration says {configured}"
        )
    return configured


def _padded(num_keys: int) -> int:
    return -(-num_keys // PAD_SLOTS) * PAD_SLOTS


def _pieces(runs: tuple[SlotRun, ...]) -> list[tuple[SlotRun, ...]]:
    """Runs to attend to one by one, in place; too many are taken together, which copies them."""
    return [(run,) for run in runs] if len(runs) <= MAX_PARTS else [runs]
