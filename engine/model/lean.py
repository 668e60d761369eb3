"""The lean forward pass of Llama-shaped decoders: fused weights, KV written in place, the head for sampled rows only."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.kv_pool import KvPool, slots_of
from engine.model.lean_attention import LeanAttention, Plan
from engine.model.lean_rows import Rows
from engine.model.lean_weights import LeanLayer, LeanWeights
from engine.model.runner import Identity
from engine.model.runs import Run, RunTables
from engine.schedule.sequence import Slice


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: all rows, and the rows to sample from.

    `written` are the slots of the rows' tokens. `sampled` are the rows whose logits are wanted, `sampled_plan` how they
    attend as rows of a pass of their own, `answer` where among them those of each slice are, in the order of slices.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    written: slice | torch.Tensor
    plan: Plan
    sampled: torch.Tensor
    sampled_plan: Plan
    answer: torch.Tensor


class LeanForward:
    """Implements `engine.model.runner.Forward` in fast mode."""

    name = "lean"

    def __init__(self, weights: LeanWeights, pool: KvPool, identity: Identity) -> None:
        self._weights = weights
        self._pool = pool
        self._tables = RunTables(pool.page_size)
        self._attention = LeanAttention(pool, weights.shape.num_heads, identity.windows)

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """See `Forward`."""
        with torch.inference_mode():
            batch = self._batch(slices)
            weights = self._weights
            rows = F.embedding(batch.token_ids, weights.embedding)
            turns = self._turns(batch.positions)
            last = len(weights.layers) - 1
            for index, layer in enumerate(weights.layers):
                query = self._project(index, layer, rows, turns, batch.written)
                if index < last:
                    rows = self._finish(layer, rows, self._attention(index, query, batch.plan))
                elif len(batch.sampled):
                    # Of the last layer nobody needs more than KV and the sampled rows.
                    query = query[batch.sampled]
                    rows = self._finish(layer, rows[batch.sampled], self._attention(index, query, batch.sampled_plan))
            self._pool.keep_finite(batch.written)
            if not len(batch.sampled):
                return torch.empty((0, weights.embedding.shape[0]))
            return weights.head(self._normed(rows[batch.answer], weights.norm)).float()

    def _batch(self, slices: Seq[Slice]) -> Batch:
        """Rows of all slices: single ones first, those of sequences that begin alike side by side."""
        tables = self._tables
        tables.renew(piece.sequence for piece in slices)
        token_ids: list[int] = []
        positions: list[int] = []
        written: list[Run] = []
        spans: list[Rows] = []
        sampled: list[int] = []
        sampled_spans: list[Rows] = []
        places: dict[int, range] = {}
        for index in sorted(range(len(slices)), key=lambda index: _kind(slices[index])):
            piece = slices[index]
            runs = tables.cover(piece.sequence, 0, piece.end)
            spans.append(Rows(len(token_ids), piece.end - piece.start, piece.start, runs))
            token_ids += piece.sequence.token_ids[piece.start : piece.start + piece.num_tokens]
            token_ids += piece.draft
            positions += range(piece.start, piece.end)
            written += tables.cover(piece.sequence, piece.start, piece.end)
            if piece.sample:
                num_sampled = 1 + len(piece.draft)
                sampled_spans.append(Rows(len(sampled), num_sampled, piece.end - num_sampled, runs))
                places[index] = range(len(sampled), len(sampled) + num_sampled)
                sampled += range(len(token_ids) - num_sampled, len(token_ids))
        device = self._pool.device
        return Batch(
            token_ids=torch.tensor(token_ids, device=device),
            positions=torch.tensor(positions, device=device),
            written=slots_of(written, device),
            plan=self._attention.plan(spans),
            sampled=torch.tensor(sampled, dtype=torch.int64, device=device),
            sampled_plan=self._attention.plan(sampled_spans),
            answer=torch.tensor([row for index in sorted(places) for row in places[index]], dtype=torch.int64, device=device),
        )

    def _turns(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotation of each row, `[num_rows, 1, head_dim / 2]` complex64: angles as in transformers, in fp32."""
        angles = positions.float().unsqueeze(1) * self._weights.frequencies
        lengths = torch.full_like(angles, self._weights.rope_scale)
        return torch.polar(lengths, angles).unsqueeze(1)

    def _project(
        self, index: int, layer: LeanLayer, rows: torch.Tensor, turns: torch.Tensor, written: slice | torch.Tensor
    ) -> torch.Tensor:
        """Write the rows' keys and values; return their queries `[num_rows, num_heads, head_dim]` fp32."""
        shape = self._weights.shape
        heads = layer.qkv(self._normed(rows, layer.attention_norm)).view(rows.shape[0], -1, shape.head_dim)
        turned = heads[:, : shape.qk_heads]
        if layer.qk_norm is not None:
            turned = F.rms_norm(turned, (shape.head_dim,), None, shape.eps) * layer.qk_norm
        pairs = torch.view_as_complex(turned.float().view(rows.shape[0], shape.qk_heads, -1, 2))
        turned = torch.view_as_real(pairs * turns).flatten(2)
        self._pool.put(index, turned[:, shape.num_heads :], heads[:, shape.qk_heads :], written)
        return turned[:, : shape.num_heads]

    def _finish(self, layer: LeanLayer, rows: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of a layer: output projection, MLP, and their residuals."""
        rows = layer.out(attended).add_(rows)
        gate, up = layer.gate_up(self._normed(rows, layer.mlp_norm)).chunk(2, dim=1)
        return layer.down(F.silu(gate).mul_(up)).add_(rows)

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, weight.shape, weight, self._weights.shape.eps)


def _kind(piece: Slice) -> tuple[bool, int]:
    """Sorts single rows before others, and by the page their sequence begins with."""
    return piece.end - piece.start > 1, piece.sequence.block_table[0]
