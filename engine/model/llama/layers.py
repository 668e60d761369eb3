"""The layers of a Llama-shaped decoder over fused weights: tensors in, logits out.

Knows no sequences and no kernel of attention: an `AttentionFn` finds the rows' keys by a plan of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F

from engine.model.kv_pool import KvPool
from engine.model.llama.linear import Linear
from engine.model.llama.weights import LlamaLayer, LlamaWeights

PlanT = TypeVar("PlanT")
PlanT_contra = TypeVar("PlanT_contra", contravariant=True)


class AttentionFn(Protocol[PlanT_contra]):
    """Attention over one pool, for rows that a plan describes."""

    def __call__(self, layer: int, query: torch.Tensor, plan: PlanT_contra) -> torch.Tensor:
        """Attend with `query [num_rows, num_heads, head_dim]`, in fp32 or the pool's dtype, to what
        the pool holds.

        The rows' own keys and values are there already. Returns `[num_rows, num_heads * head_dim]`
        in the pool's dtype.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowBatch(Generic[PlanT]):
    """One forward pass: all rows, and the rows to sample from.

    `written` are the slots of the rows' tokens. `sampled` are the rows whose logits are wanted,
    `sampled_plan` how they attend as rows of a pass of their own, `answer` where among them those
    of each slice are, in the order of slices.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    written: slice | torch.Tensor
    plan: PlanT
    sampled: torch.Tensor
    sampled_plan: PlanT
    answer: torch.Tensor


class LlamaLayers(Generic[PlanT]):
    """Embedding, layers and head. What it launches depends on shapes alone, so on a device it can
    be recorded."""

    def __init__(
        self, weights: LlamaWeights[Linear], pool: KvPool, attention: AttentionFn[PlanT]
    ) -> None:
        self._weights = weights
        self._pool = pool
        self._attention = attention

    def __call__(self, batch: RowBatch[PlanT]) -> torch.Tensor:
        """Write the rows' KV and return the logits of the rows to sample from, fp32 `[num_sampled,
        vocab]`."""
        weights = self._weights
        rows = F.embedding(batch.token_ids, weights.embedding)
        turns = self._turns(batch.positions)
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            query = self._project(index, layer, rows, turns, batch.written)
            if index < last:
                rows = self._finish(layer, rows, self._attention(index, query, batch.plan))
            elif len(batch.sampled):
                # Of the last layer only KV and the sampled rows are needed.
                query = query[batch.sampled]
                rows = self._finish(
                    layer, rows[batch.sampled], self._attention(index, query, batch.sampled_plan)
                )
        self._pool.keep_finite(batch.written)
        if not len(batch.sampled):
            return torch.empty((0, weights.embedding.shape[0]))
        return weights.head(self._normed(rows[batch.answer], weights.norm)).float()

    def _turns(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotation of each row, `[num_rows, 1, head_dim / 2]` complex64: angles as in
        transformers, in fp32."""
        angles = positions.float().unsqueeze(1) * self._weights.frequencies
        lengths = torch.full_like(angles, self._weights.rope_scale)
        return torch.polar(lengths, angles).unsqueeze(1)

    def _project(
        self,
        index: int,
        layer: LlamaLayer[Linear],
        rows: torch.Tensor,
        turns: torch.Tensor,
        written: slice | torch.Tensor,
    ) -> torch.Tensor:
        """Write the rows' keys and values; return their queries `[num_rows, num_heads, head_dim]`
        fp32."""
        shape = self._weights.shape
        heads = layer.qkv(self._normed(rows, layer.attention_norm)).view(
            rows.shape[0], -1, shape.head_dim
        )
        turned = heads[:, : shape.qk_heads]
        if layer.qk_norm is not None:
            turned = F.rms_norm(turned, (shape.head_dim,), None, shape.eps) * layer.qk_norm
        pairs = torch.view_as_complex(turned.float().view(rows.shape[0], shape.qk_heads, -1, 2))
        turned = torch.view_as_real(pairs * turns).flatten(2)
        self._pool.write_unchecked(
            index, turned[:, shape.num_heads :], heads[:, shape.qk_heads :], written
        )
        return turned[:, : shape.num_heads]

    def _finish(
        self, layer: LlamaLayer[Linear], rows: torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        """The rest of a layer: output projection, MLP, and their residuals."""
        rows = layer.out(attended).add_(rows)
        gate, up = layer.gate_up(self._normed(rows, layer.mlp_norm)).chunk(2, dim=1)
        return layer.down(F.silu(gate).mul_(up)).add_(rows)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, weight.shape, weight, self._weights.shape.eps)
