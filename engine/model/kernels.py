"""Attention over keys and values, as torch offers it on this device. Knows no pages,
sequences or models."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F

# Torch's fused CPU kernel with its log-sum-exp; not part of the public API, so every use has a
# fallback.
_FLASH_CPU: Final[Any] = getattr(
    torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None
)


def can_merge_parts(device: torch.device) -> bool:
    """True where `attend_part` works: attention can be computed in parts and merged."""
    return _FLASH_CPU is not None and device.type == "cpu"


def attend_part(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to a part of the keys, and the log-sum-exp of its scores.

    `query [num_heads, num_rows, head_dim]`, `key` and `value [num_keys, num_kv_heads, head_dim]`;
    returns `[num_heads, num_rows, head_dim]` in the query's dtype and `[num_heads, num_rows]` fp32.
    With `causal`, row i sees the keys up to i; else all.
    """
    num_heads, num_rows, head_dim = query.shape
    q, k, v = _per_head(query, key, value) if causal else _heads_as_rows(query, key, value)
    out, lse = _FLASH_CPU(q, k, v, 0.0, causal, scale=scale)
    return out.reshape(num_heads, num_rows, head_dim), lse.reshape(num_heads, num_rows)


def attend_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token's attention to a part of its keys, and the log-sum-exp of its scores.

    `query [1, num_kv_heads, num_group, head_dim]`: the query heads of a KV head stand as its rows,
    so that keys are read once. `key` and `value [1, num_kv_heads, num_keys, head_dim]`. Returns the
    query's shape, and `[1, num_kv_heads, num_group]` fp32.
    """
    out, lse = _FLASH_CPU(query, key, value, 0.0, False, scale=scale)
    return out, lse


def merge_parts(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention to all keys from attention to disjoint parts of them, in the shape of each."""
    out, lse = parts[0]
    for other, other_lse in parts[1:]:
        weight = torch.sigmoid(other_lse - lse).unsqueeze(-1)
        out = torch.lerp(out.float(), other.float(), weight)
        lse = torch.logaddexp(lse, other_lse)
    return out.to(parts[0][0].dtype)


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention in one call under an additive mask `[num_rows, num_keys]` in the query's dtype
    (None: all keys).

    Shapes as in `attend_part`. At fixed row and key counts a row's bits depend on nothing but the
    row and the keys it sees.
    """
    q, k, v = _heads_as_rows(query, key, value) if mask is None else _per_head(query, key, value)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).reshape(query.shape)


def causal_mask(
    shape: tuple[int, int], start: int, window: int | None, like: torch.Tensor
) -> torch.Tensor:
    """Additive mask of `shape = (num_rows, num_keys)`: row i stands at `start + i` and sees the
    last `window` keys up to there.

    Positions count from the first key the caller passes; dtype and device are those of `like`.
    """
    rows = torch.arange(start, start + shape[0], device=like.device).unsqueeze(1)
    keys = torch.arange(shape[1], device=like.device).unsqueeze(0)
    hidden = keys > rows
    if window is not None:
        hidden |= keys <= rows - window
    return torch.zeros(shape, dtype=like.dtype, device=like.device).masked_fill_(
        hidden, float("-inf")
    )


def _per_head(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch = KV heads, heads = the query heads of each: keys repeated by a stride of zero, copying
    nothing."""
    num_heads, num_rows, head_dim = query.shape
    num_kv = key.shape[1]
    group = num_heads // num_kv
    k, v = (side.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1) for side in (key, value))
    return query.reshape(num_kv, group, num_rows, head_dim), k, v


def _heads_as_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch = 1, heads = KV heads, rows = the query heads of each: keys are read once. Only where
    nothing depends on a row's place."""
    num_heads, num_rows, head_dim = query.shape
    num_kv = key.shape[1]
    q = query.reshape(1, num_kv, num_heads // num_kv * num_rows, head_dim)
    return q, key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0)
