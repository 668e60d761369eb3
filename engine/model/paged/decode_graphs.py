"""Decode steps recorded once and replayed: a step costs one launch, not a few hundred.

Knows no CUDA: a `Recorder` records.

A graph is of one batch size and reads its rows from memory that never moves. Fewer sequences than
it has rows are filled up with a dummy of one token in the pool's spare page, which is never
read otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.kv_pool import KvPool
from engine.model.llama.layers import LlamaLayers, RowBatch
from engine.model.page_tables import PageTables
from engine.model.paged.attention import PagedRows
from engine.schedule.sequence import Slice

_log = logging.getLogger(__name__)

FREE_NBYTES: Final = 1024**3
"""No graph is recorded where the device has less memory free: prefills need it."""


class Recorded(Protocol):
    """Work that was recorded; `output` is where it leaves its result, every time."""

    output: torch.Tensor

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what is launched, and how much memory is left for it."""

    def record(self, work: Callable[[], torch.Tensor]) -> Recorded:
        """`work` may run more than once. Raises `RuntimeError` where it cannot be recorded."""
        ...

    def free_nbytes(self) -> int: ...


class DecodeGraphs:
    """One graph for each of some batch sizes, recorded when it is made. The pool needs a spare
    page."""

    def __init__(
        self,
        layers: LlamaLayers[PagedRows],
        pool: KvPool,
        context: int,
        max_sequences: int,
        recorder: Recorder,
    ) -> None:
        self._context = context
        self._sizes: dict[int, _DecodeGraph] = {}
        # The largest first: the memory its intermediate results take serves the others, too.
        for num_rows in reversed(batch_sizes(max_sequences)):
            if recorder.free_nbytes() < FREE_NBYTES:
                _log.warning("no memory for a decode graph", extra={"fields": {"batch": num_rows}})
                continue
            try:
                self._sizes[num_rows] = _DecodeGraph(layers, pool, context, num_rows, recorder)
            except RuntimeError as error:
                fields = {"batch": num_rows, "error": str(error).splitlines()[0][:200]}
                _log.warning("a decode graph cannot be recorded", extra={"fields": fields})

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were recorded, in ascending order."""
        return tuple(sorted(self._sizes))

    def run(self, slices: Seq[Slice], tables: PageTables) -> torch.Tensor | None:
        """The logits of a step in which every slice is one sampled token, else None; they last
        until the next call."""
        if any(
            piece.num_tokens != 1 or piece.draft or not piece.sample or piece.end > self._context
            for piece in slices
        ):
            return None
        fitting = [size for size in self._sizes if size >= len(slices)]
        return self._sizes[min(fitting)](slices, tables) if fitting else None


def batch_sizes(max_sequences: int) -> tuple[int, ...]:
    """1, 2, 4, ..., and the largest there can be."""
    sizes = [1]
    while sizes[-1] < max_sequences:
        sizes.append(min(2 * sizes[-1], max_sequences))
    return tuple(sizes)


class _DecodeGraph:
    """The graph of one batch size, and the memory it reads: all of it in one tensor, so that a step
    is one copy."""

    def __init__(
        self,
        layers: LlamaLayers[PagedRows],
        pool: KvPool,
        context: int,
        num_rows: int,
        recorder: Recorder,
    ) -> None:
        num_pages = -(-context // pool.page_size)
        self._lengths = (num_rows, num_rows, num_rows, num_rows, num_rows + 1, num_rows * num_pages)
        self._host: NDArray[np.int32] = np.zeros(sum(self._lengths), dtype=np.int32)
        self._ids, self._positions, self._written, self._num_keys, self._cu_keys, table = np.split(
            self._host, np.cumsum(self._lengths)[:-1]
        )
        self._table = table.reshape(num_rows, num_pages)
        self._dummy = pool.num_pages
        self._page_size = pool.page_size
        self._context = context
        self._all_rows = torch.arange(num_rows, device=pool.device)
        self._cu_rows = torch.arange(num_rows + 1, dtype=torch.int32, device=pool.device)
        self._rows = torch.empty(len(self._host), dtype=torch.int32, device=pool.device)
        self._pad(0)
        self._upload()
        with torch.inference_mode():
            self._graph = recorder.record(lambda: layers(self._batch()))

    def __call__(self, slices: Seq[Slice], tables: PageTables) -> torch.Tensor:
        """Logits `[num_slices, vocab]` of slices of one token each."""
        num = len(slices)
        sequences = [piece.sequence for piece in slices]
        self._ids[:num] = [piece.sequence.token_ids[piece.start] for piece in slices]
        self._positions[:num] = [piece.start for piece in slices]
        self._num_keys[:num] = [piece.end for piece in slices]
        tables.fill(self._table[:num], sequences)
        pages = self._table[np.arange(num), self._positions[:num] // self._page_size]
        self._written[:num] = pages * self._page_size + self._positions[:num] % self._page_size
        self._pad(num)
        self._upload()
        self._graph.replay()
        return self._graph.output[:num]

    def _pad(self, num: int) -> None:
        """Make every row from `num` on the dummy."""
        self._ids[num:] = self._positions[num:] = 0
        self._written[num:] = self._dummy * self._page_size
        self._num_keys[num:] = 1
        self._table[num:, 0] = self._dummy
        np.cumsum(self._num_keys, out=self._cu_keys[1:])

    def _upload(self) -> None:
        self._rows.copy_(torch.from_numpy(self._host))

    def _batch(self) -> RowBatch[PagedRows]:
        ids, positions, written, num_keys, cu_keys, table = torch.split(
            self._rows, list(self._lengths)
        )
        plan = PagedRows(
            cu_rows=self._cu_rows,
            cu_keys=cu_keys,
            num_keys=num_keys,
            block_table=table.view(self._table.shape),
            max_rows=1,
            max_keys=self._context,
        )
        return RowBatch(ids, positions, written.long(), plan, self._all_rows, plan, self._all_rows)
