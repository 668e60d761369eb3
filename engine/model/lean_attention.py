"""Attention of the lean forward pass: rows of several sequences, each over its own runs of the pool. Knows no weights.

A sequence's only row is attended in place, run by run, by torch's fused kernel. Several rows go through plain matrix
products, some rows and one KV head at a time: their scores stay in the processor's cache, and products in bf16 are two to
three times as fast as the fused kernel, which multiplies in fp32. Only a block's own keys are masked, as a triangle.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from engine.model.kernels import attend_row, has_parts, merge_parts
from engine.model.kv_pool import KvPool
from engine.model.runs import Run, cut_runs, skip_runs

MAX_RUNS: Final = 6
"""More runs than this are copied together rather than attended one by one."""

PRODUCT_ROWS: Final = 192
"""Rows of one matrix product, the query heads of a KV head counted apart: enough for its speed, few enough for the cache."""

_Heads: TypeAlias = tuple[torch.Tensor, ...]
"""One `[num_slots, head_dim]` for every KV head."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of one sequence: `num_rows` from `row` on, the first of them at position `start`.

    `runs` hold the sequence's tokens `[0, start + num_rows)`.
    """

    row: int
    num_rows: int
    start: int
    runs: tuple[Run, ...]

    @property
    def end(self) -> int:
        """Tokens the last row attends to."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class _Keys:
    """What rows attend to: `runs` of slots in the memory behind `key` and `value`."""

    key: _Heads
    value: _Heads
    runs: tuple[Run, ...]


class LeanAttention:
    """Attention over one pool. Keeps scratch memory between calls, so it is one thread's."""

    def __init__(self, pool: KvPool, num_heads: int, windows: Seq[int | None]) -> None:
        self._pool = pool
        self._num_kv = pool.shape.num_kv_heads
        self._num_group = num_heads // self._num_kv
        self._head_dim = pool.shape.head_dim
        self._scale = self._head_dim**-0.5
        self._windows = windows
        self._has_parts = has_parts(pool.device)
        self._block_rows = max(16, PRODUCT_ROWS // self._num_group)
        self._later = self._hidden(self._block_rows).triu_(1)
        self._scratch = pool.empty(0)

    def __call__(self, layer: int, query: torch.Tensor, spans: Seq[Rows]) -> torch.Tensor:
        """Attend with `query [num_rows, num_heads, head_dim]`, in fp32 or the pool's dtype, to what the pool holds.

        Returns `[num_rows, num_heads * head_dim]` in the pool's dtype. `spans` are all rows, in order.
        """
        heads = query.view(-1, self._num_kv, self._num_group, self._head_dim)
        parts: list[torch.Tensor] = []
        for span in spans:
            if span.num_rows == 1 and self._has_parts:
                parts.append(self._one(layer, heads[span.row : span.row + 1], span))
            else:
                self._several(layer, heads[span.row : span.row + span.num_rows], span, parts)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(query.shape[0], -1)

    def _one(self, layer: int, query: torch.Tensor, span: Rows) -> torch.Tensor:
        """One row, `[1, num_kv_heads, num_group, head_dim]` as it comes."""
        query = query.to(self._pool.shape.dtype)
        key, value = self._pool.sides(layer)
        runs = skip_runs(span.runs, self._first(layer, span.start))
        if len(runs) > MAX_RUNS:
            key, value = self._pool.gather(layer, runs)
            runs = (Run(0, key.shape[2]),)
        parts = [
            attend_row(query, key.narrow(2, run.first, run.num_slots), value.narrow(2, run.first, run.num_slots), self._scale)
            for run in runs
        ]
        return merge_parts(parts)

    def _several(self, layer: int, query: torch.Tensor, span: Rows, parts: list[torch.Tensor]) -> None:
        """Append to `parts` what the rows attend to, `[some rows, num_kv_heads, num_group, head_dim]` each."""
        key, value = self._pool.sides(layer)
        runs, window = span.runs, self._windows[layer]
        if len(runs) > MAX_RUNS:
            key, value = self._pool.gather(layer, runs)
            runs = (Run(0, span.end),)
        keys, values = key[0].unbind(0), value[0].unbind(0)
        for offset in range(0, span.num_rows, self._block_rows):
            start = span.start + offset
            end = min(start + self._block_rows, span.end)
            first = self._first(layer, start)
            seen = _Keys(keys, values, skip_runs(cut_runs(runs, end), first))
            hidden = self._before(start, end, first, window)
            parts.append(self._block(query[offset : offset + end - start], seen, hidden))

    def _block(self, query: torch.Tensor, seen: _Keys, hidden: torch.Tensor | None) -> torch.Tensor:
        """The rows of `query [num_rows, num_kv_heads, num_group, head_dim]` stand at the last of the keys seen.

        `hidden [num_rows, some keys]` is added to the scores of the first keys.
        """
        num_rows, num_keys = query.shape[0], sum(run.num_slots for run in seen.runs)
        heads, scores, weights = self._buffers(num_rows, num_keys)
        torch.mul(query.permute(1, 2, 0, 3), self._scale, out=heads.view(self._num_kv, self._num_group, num_rows, -1))
        by_row = scores.view(self._num_group, num_rows, num_keys)
        own = by_row.narrow(2, num_keys - num_rows, num_rows)
        out = self._pool.empty(self._num_kv * self._num_group * num_rows * self._head_dim).view(heads.shape)
        for head in range(self._num_kv):
            at = 0
            for run in seen.runs:
                key = seen.key[head].narrow(0, run.first, run.num_slots)
                torch.mm(heads[head], key.t(), out=scores.narrow(1, at, run.num_slots))
                at += run.num_slots
            own.add_(self._later[:num_rows, :num_rows])
            if hidden is not None:
                by_row[..., : hidden.shape[1]].add_(hidden)
            torch.softmax(scores, -1, out=weights)
            at = 0
            for run in seen.runs:
                value, weight = seen.value[head].narrow(0, run.first, run.num_slots), weights.narrow(1, at, run.num_slots)
                torch.addmm(out[head], weight, value, beta=1 if at else 0, out=out[head])
                at += run.num_slots
        return out.view(self._num_kv, self._num_group, num_rows, self._head_dim).permute(2, 0, 1, 3)

    def _first(self, layer: int, position: int) -> int:
        """The first token that a row at `position` sees."""
        window = self._windows[layer]
        return 0 if window is None else max(0, position + 1 - window)

    def _before(self, start: int, end: int, first: int, window: int | None) -> torch.Tensor | None:
        """What hides the keys from `first` on that have left the window of the rows at `[start, end)`, if any have."""
        if window is None or end <= window:
            return None
        # The row at start + i sees keys later than start + i - window; the key in column c is first + c.
        return self._hidden(end - start).tril_(start - window - first)

    def _hidden(self, size: int) -> torch.Tensor:
        return self._pool.empty(size * size).fill_(float("-inf")).view(size, size)

    def _buffers(self, num_rows: int, num_keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scratch for a block: queries `[num_kv_heads, rows, head_dim]`, scores and weights `[rows, num_keys]`."""
        num_product = self._num_group * num_rows
        sizes = [self._num_kv * num_product * self._head_dim, num_product * num_keys, num_product * num_keys]
        if self._scratch.shape[0] < sum(sizes):
            self._scratch = self._pool.empty(sum(sizes))
        heads, scores, weights = torch.split(self._scratch[: sum(sizes)], sizes)
        return (
            heads.view(self._num_kv, num_product, self._head_dim),
            scores.view(num_product, num_keys),
            weights.view(num_product, num_keys),
        )
