"""The lean forward pass on the CPU: the rows of a step,
side by side where their sequences begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.model.kv_pool import KvPool, slots_of
from engine.model.lean.attention import LeanAttention, Plan
from engine.model.lean.rows import SequenceRows
from engine.model.llama.layers import LlamaLayers, RowBatch
from engine.model.llama.linear import Linear
from engine.model.llama.weights import LlamaWeights
from engine.model.page_tables import PageTables
from engine.model.runs import SlotRun
from engine.schedule.sequence import Slice


class LeanForward:
    """Implements `engine.model.runner.Forward` in fast mode."""

    name = "lean"

    def __init__(
        self, weights: LlamaWeights[Linear], pool: KvPool, windows: Seq[int | None]
    ) -> None:
        self._device = pool.device
        self._tables = PageTables(pool.page_size, pool.num_pages)
        self._attention = LeanAttention(pool, weights.shape.num_heads, windows)
        self._layers = LlamaLayers(weights, pool, self._attention)

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """See `Forward`."""
        with torch.inference_mode():
            return self._layers(self._batch(slices))

    def close(self) -> None:
        """See `Forward`: there is nothing."""

    def _batch(self, slices: Seq[Slice]) -> RowBatch[Plan]:
        """Rows of all slices: single ones first, those of sequences that begin alike side by
        side."""
        tables = self._tables
        tables.renew(piece.sequence for piece in slices)
        token_ids: list[int] = []
        positions: list[int] = []
        written: list[SlotRun] = []
        spans: list[SequenceRows] = []
        sampled: list[int] = []
        sampled_spans: list[SequenceRows] = []
        places: dict[int, range] = {}
        for index in sorted(range(len(slices)), key=lambda index: _kind(slices[index])):
            piece = slices[index]
            runs = tables.runs(piece.sequence, 0, piece.end)
            spans.append(SequenceRows(len(token_ids), piece.num_rows, piece.start, runs))
            token_ids += piece.token_ids
            positions += range(piece.start, piece.end)
            written += tables.runs(piece.sequence, piece.start, piece.end)
            if piece.sample:
                num_sampled = piece.num_sampled
                sampled_spans.append(
                    SequenceRows(len(sampled), num_sampled, piece.end - num_sampled, runs)
                )
                places[index] = range(len(sampled), len(sampled) + num_sampled)
                sampled += range(len(token_ids) - num_sampled, len(token_ids))
        device = self._device
        return RowBatch(
            token_ids=torch.tensor(token_ids, device=device),
            positions=torch.tensor(positions, device=device),
            written=slots_of(written, device),
            plan=self._attention.plan(spans),
            sampled=torch.tensor(sampled, dtype=torch.int64, device=device),
            sampled_plan=self._attention.plan(sampled_spans),
            answer=torch.tensor(
                [row for index in sorted(places) for row in places[index]],
                dtype=torch.int64,
                device=device,
            ),
        )


def _kind(piece: Slice) -> tuple[bool, int]:
    """Sorts single rows before others, and by the page their sequence begins with."""
    return piece.num_rows > 1, piece.sequence.block_table[0]
