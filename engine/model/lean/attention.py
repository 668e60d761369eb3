"""Attention of the lean forward pass: rows of several sequences,
each over its own runs of the pool.

Knows no weights.

Torch's fused kernel multiplies bf16 in fp32, at a third of the speed of plain products in bf16, so
it serves only single rows over few keys. Several rows of a sequence take plain products, some rows
and one KV head at a time: their scores stay in the processor's cache, and only a block's own keys
are masked, as a triangle. Single rows take them over all KV heads at once, and those of sequences
that begin with the same slots together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from engine.model.kernels import attend_row, can_merge_parts, merge_parts
from engine.model.kv_pool import KvPool
from engine.model.lean.rows import MAX_RUNS, Part, SequenceRows, SharedPrefixRows, plan_parts
from engine.model.runs import SlotRun, cut_runs, skip_runs

PRODUCT_ROWS: Final = 384
"""Rows of one matrix product, the query heads of a KV head counted apart: enough for its speed, few
enough for the cache."""

MIN_WIDE: Final = 512
"""Keys from which on a single row is faster in matrix products than in torch's fused kernel."""

WIDE_VALUES: Final = 1024
"""Most rows times KV heads of one product over all KV heads: beyond, what it computes in vain costs
more than it saves."""

Plan: TypeAlias = Mapping[int | None, tuple[Part, ...]]
"""For each window that layers have, how they take the rows."""

_Heads: TypeAlias = tuple[torch.Tensor, ...]
"""One `[num_slots, head_dim]` for every KV head."""


@dataclass(frozen=True, slots=True)
class _VisibleKeys:
    """The keys and values that rows attend to: `runs` of slots in the memory behind `key` and
    `value`."""

    key: _Heads
    value: _Heads
    runs: tuple[SlotRun, ...]


class LeanAttention:
    """Attention over one pool. Keeps scratch memory between calls, so it is one thread's."""

    def __init__(self, pool: KvPool, num_heads: int, windows: Seq[int | None]) -> None:
        self._pool = pool
        self._num_kv = pool.shape.num_kv_heads
        self._num_group = num_heads // self._num_kv
        self._head_dim = pool.shape.head_dim
        self._scale = self._head_dim**-0.5
        self._windows = windows
        self._can_merge_parts = can_merge_parts(pool.device)
        self._block_rows = max(16, PRODUCT_ROWS // self._num_group)
        self._max_shared_rows = max(1, WIDE_VALUES // (num_heads * self._num_kv))
        self._causal_mask = self._all_hidden(self._block_rows).triu_(1)
        self._diagonal = (
            torch.eye(self._num_kv, device=pool.device).view(self._num_kv, 1, self._num_kv, 1)
            * self._scale
        )
        self._scratch = pool.empty(0)

    def plan(self, spans: Seq[SequenceRows]) -> Plan:
        """All rows of a pass, in order, for `__call__`; single rows whose sequences begin alike
        best stand side by side."""
        return {
            window: plan_parts(spans, window, self._max_shared_rows)
            for window in set(self._windows)
        }

    def __call__(self, layer: int, query: torch.Tensor, plan: Plan) -> torch.Tensor:
        """Attend with `query [num_rows, num_heads, head_dim]`, in fp32 or the pool's dtype, to what
        the pool holds.

        Returns `[num_rows, num_heads * head_dim]` in the pool's dtype.
        """
        heads = query.view(-1, self._num_kv, self._num_group, self._head_dim)
        out: list[torch.Tensor] = []
        for part in plan[self._windows[layer]]:
            rows = heads[part.row : part.row + part.num_rows]
            if isinstance(part, SequenceRows):
                self._attend_rows(layer, rows, part, out)
            elif (
                part.num_rows == 1
                and self._can_merge_parts
                and part.shared.num_slots + part.num_own < MIN_WIDE
            ):
                out.append(self._attend_fused(layer, rows, (part.shared, *part.own[0])))
            else:
                out.append(self._attend_all_heads(layer, rows, part))
        return (out[0] if len(out) == 1 else torch.cat(out)).reshape(query.shape[0], -1)

    def _attend_fused(
        self, layer: int, query: torch.Tensor, runs: tuple[SlotRun, ...]
    ) -> torch.Tensor:
        """One row over few keys, in torch's fused kernel: `[1, num_kv_heads, num_group, head_dim]`
        as it comes."""
        query = query.to(self._pool.shape.dtype)
        key, value = self._pool.sides(layer)
        if len(runs) > MAX_RUNS:
            key, value = self._pool.gather(layer, runs)
            runs = (SlotRun(0, key.shape[2]),)
        parts = [
            attend_row(
                query,
                key.narrow(2, run.first, run.num_slots),
                value.narrow(2, run.first, run.num_slots),
                self._scale,
            )
            for run in runs
        ]
        return merge_parts(parts)

    def _attend_all_heads(
        self, layer: int, query: torch.Tensor, part: SharedPrefixRows
    ) -> torch.Tensor:
        """Single rows, `[num_rows, num_kv_heads, num_group, head_dim]` as they come, over all KV
        heads in one product.

        Every query head becomes a row as wide as a slot's keys of all KV heads, zero but for its
        own: products that are not needed, but keys are read once, where they are, in the order they
        lie.
        """
        key, value = self._pool.flat(layer)
        if len(part.own[0]) >= MAX_RUNS and part.num_rows == 1:
            runs = (part.shared, *part.own[0])
            num_slots = sum(run.num_slots for run in runs)
            key, value = (side.flatten(1) for side in self._pool.read(layer, runs, num_slots))
            part = SharedPrefixRows(part.row, SlotRun(0, num_slots), ((),))
        num_heads, num_shared = self._num_kv * self._num_group, part.shared.num_slots
        num_all = part.num_rows * num_heads
        scores, weights = self._buffers((num_all, num_shared + part.num_own), 2)
        wide = self._pool.empty(num_all * key.shape[1]).view(
            *query.shape[:3], self._num_kv, self._head_dim
        )
        torch.mul(query.unsqueeze(3), self._diagonal, out=wide)
        wide = wide.view(num_all, -1)
        torch.mm(wide, _run_of(key, part.shared).t(), out=scores.narrow(1, 0, num_shared))
        if part.num_own:
            scores.narrow(1, num_shared, part.num_own).fill_(float("-inf"))
        own = [
            (slice(i * num_heads, (i + 1) * num_heads), at, run) for i, at, run in _own_runs(part)
        ]
        for rows, at, run in own:
            torch.mm(wide[rows], _run_of(key, run).t(), out=scores[rows, at : at + run.num_slots])
        torch.softmax(scores, -1, out=weights)
        out = torch.mm(weights.narrow(1, 0, num_shared), _run_of(value, part.shared))
        for rows, at, run in own:
            out[rows].addmm_(weights[rows, at : at + run.num_slots], _run_of(value, run))
        return (
            out.view(*query.shape[:3], self._num_kv, self._head_dim)
            .diagonal(0, 1, 3)
            .permute(0, 3, 1, 2)
        )

    def _attend_rows(
        self, layer: int, query: torch.Tensor, span: SequenceRows, parts: list[torch.Tensor]
    ) -> None:
        """Append the rows' attention to `parts`, `[some rows, num_kv_heads, num_group, head_dim]`
        each."""
        key, value = self._pool.sides(layer)
        runs, window = span.runs, self._windows[layer]
        if len(runs) > MAX_RUNS:
            key, value = self._pool.gather(layer, runs)
            runs = (SlotRun(0, span.end),)
        keys, values = key[0].unbind(0), value[0].unbind(0)
        for offset in range(0, span.num_rows, self._block_rows):
            start = span.start + offset
            end = min(start + self._block_rows, span.end)
            first = self._first_visible(layer, start)
            seen = _VisibleKeys(keys, values, skip_runs(cut_runs(runs, end), first))
            hidden = self._window_mask(start, end, first, window)
            parts.append(self._attend_block(query[offset : offset + end - start], seen, hidden))

    def _attend_block(
        self, query: torch.Tensor, seen: _VisibleKeys, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        """The rows of `query [num_rows, num_kv_heads, num_group, head_dim]` stand at the last of
        the keys seen.

        `hidden [num_rows, some keys]` is added to the scores of the first keys.
        """
        num_rows, num_keys = query.shape[0], sum(run.num_slots for run in seen.runs)
        num_product = self._num_group * num_rows
        scores, weights = self._buffers((num_product, num_keys), 2)
        heads = self._pool.empty(self._num_kv * num_product * self._head_dim).view(
            self._num_kv, num_product, -1
        )
        torch.mul(
            query.permute(1, 2, 0, 3),
            self._scale,
            out=heads.view(self._num_kv, self._num_group, num_rows, -1),
        )
        by_row = scores.view(self._num_group, num_rows, num_keys)
        own = by_row.narrow(2, num_keys - num_rows, num_rows)
        out = torch.empty_like(heads)
        for head in range(self._num_kv):
            at = 0
            for run in seen.runs:
                key = seen.key[head].narrow(0, run.first, run.num_slots)
                torch.mm(heads[head], key.t(), out=scores.narrow(1, at, run.num_slots))
                at += run.num_slots
            own.add_(self._causal_mask[:num_rows, :num_rows])
            if hidden is not None:
                by_row[..., : hidden.shape[1]].add_(hidden)
            torch.softmax(scores, -1, out=weights)
            at = 0
            for run in seen.runs:
                value, weight = (
                    seen.value[head].narrow(0, run.first, run.num_slots),
                    weights.narrow(1, at, run.num_slots),
                )
                torch.addmm(out[head], weight, value, beta=1 if at else 0, out=out[head])
                at += run.num_slots
        return out.view(self._num_kv, self._num_group, num_rows, self._head_dim).permute(2, 0, 1, 3)

    def _first_visible(self, layer: int, position: int) -> int:
        """The first token that a row at `position` sees."""
        window = self._windows[layer]
        return 0 if window is None else max(0, position + 1 - window)

    def _window_mask(
        self, start: int, end: int, first: int, window: int | None
    ) -> torch.Tensor | None:
        """The mask of the keys from `first` on that have left the window of the rows at `[start,
        end)`; None if none have."""
        if window is None or end <= window:
            return None
        # The row at start + i sees keys later than start + i - window; the key in column c is first
        # + c.
        return self._all_hidden(end - start).tril_(start - window - first)

    def _all_hidden(self, size: int) -> torch.Tensor:
        return self._pool.empty(size * size).fill_(float("-inf")).view(size, size)

    def _buffers(self, shape: tuple[int, int], count: int) -> list[torch.Tensor]:
        """`count` pieces of scratch memory of that shape, not initialised."""
        size = shape[0] * shape[1]
        if self._scratch.shape[0] < count * size:
            self._scratch = self._pool.empty(count * size)
        return [self._scratch[i * size : (i + 1) * size].view(shape) for i in range(count)]


def _run_of(side: torch.Tensor, run: SlotRun) -> torch.Tensor:
    return side.narrow(0, run.first, run.num_slots)


def _own_runs(part: SharedPrefixRows) -> Iterator[tuple[int, int, SlotRun]]:
    """Every own run with the number of its row and the column of its first key."""
    for index, runs in enumerate(part.own):
        at = part.shared.num_slots
        for run in runs:
            yield index, at, run
            at += run.num_slots
