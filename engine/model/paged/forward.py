"""The lean forward pass over a paged attention kernel: all rows of a step in one call per layer,
decode steps as graphs."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.kv_pool import KvPool
from engine.model.llama.layers import LlamaLayers, RowBatch
from engine.model.page_tables import PageTables
from engine.model.paged.attention import PagedRows
from engine.model.paged.decode_graphs import DecodeGraphs
from engine.schedule.sequence import Sequence, Slice


class PagedForward:
    """Implements `engine.model.runner.Forward` in fast mode."""

    name = "lean"

    def __init__(
        self, layers: LlamaLayers[PagedRows], pool: KvPool, graphs: DecodeGraphs | None = None
    ) -> None:
        self._layers = layers
        self._device = pool.device
        self._graphs = graphs
        self._tables = PageTables(pool.page_size, pool.num_pages)

    def close(self) -> None:
        """See `Forward`: there is nothing."""

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """See `Forward`. What a graph computed lasts until the next call."""
        self._tables.renew(piece.sequence for piece in slices)
        with torch.inference_mode():
            logits = None if self._graphs is None else self._graphs.run(slices, self._tables)
            return self._layers(self._batch(slices)) if logits is None else logits

    def _batch(self, slices: Seq[Slice]) -> RowBatch[PagedRows]:
        token_ids: list[int] = []
        positions: list[NDArray[np.int64]] = []
        written: list[NDArray[np.int64]] = []
        sampled: list[int] = []
        for piece in slices:
            token_ids += piece.token_ids
            positions.append(np.arange(piece.start, piece.end))
            written.append(self._tables.slots(piece.sequence, piece.start, piece.end))
            sampled += range(len(token_ids) - piece.num_sampled, len(token_ids))
        sampling = [piece for piece in slices if piece.sample]
        return RowBatch(
            token_ids=self._upload(np.array(token_ids)),
            positions=self._upload(np.concatenate(positions)),
            written=self._upload(np.concatenate(written)),
            plan=self._rows(
                [piece.sequence for piece in slices],
                [(piece.num_rows, piece.end) for piece in slices],
            ),
            sampled=self._upload(np.array(sampled, dtype=np.int64)),
            sampled_plan=self._rows(
                [piece.sequence for piece in sampling],
                [(piece.num_sampled, piece.end) for piece in sampling],
            ),
            answer=torch.arange(len(sampled), device=self._device),
        )

    def _rows(self, sequences: Seq[Sequence], counts: Seq[tuple[int, int]]) -> PagedRows:
        """The plan for rows and keys of each sequence, in order."""
        both = np.array([(0, 0), *counts], dtype=np.int32)
        max_rows, max_keys = (int(most) for most in both.max(axis=0))
        table = np.zeros((len(sequences), -(-max_keys // self._tables.page_size)), dtype=np.int32)
        self._tables.fill(table, sequences)
        cumulative = both.cumsum(axis=0, dtype=np.int32)
        return PagedRows(
            cu_rows=self._upload(np.ascontiguousarray(cumulative[:, 0])),
            cu_keys=self._upload(np.ascontiguousarray(cumulative[:, 1])),
            num_keys=self._upload(np.ascontiguousarray(both[1:, 1])),
            block_table=self._upload(table),
            max_rows=max_rows,
            max_keys=max_keys,
            counts=tuple(counts),
        )

    def _upload(self, array: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
