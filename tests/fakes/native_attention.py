"""Attention of the native library over torch tensors, and the same in fp32 by its definition."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from engine.native.library import HeadsStruct, SpanStruct, Team
from tests.fakes.native_kernels import AttentionStruct, kernels


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence: where they stand in it, and its block table."""

    start: int
    num_rows: int
    pages: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class Pool:
    """One layer's keys and values, `[num_slots, num_kv_heads, head_dim]` bf16 each, in pages of
    `page_size` slots."""

    key: torch.Tensor
    value: torch.Tensor
    page_size: int
    num_heads: int
    window: int = 0

    @property
    def head_dim(self) -> int:
        return self.key.shape[2]


class Planned:
    """Rows of a step, planned once for a pool and a team; `free` it before the team is closed."""

    def __init__(self, team: Team, pool: Pool, spans: Seq[Rows]) -> None:
        self._team, self._pool = team, pool
        self._pages = [(ctypes.c_int32 * len(rows.pages))(*rows.pages) for rows in spans]
        native, row = (SpanStruct * len(spans))(), 0
        for span, rows, pages in zip(native, spans, self._pages, strict=True):
            span.row, span.num_rows, span.start, span.num_pages = (
                row,
                rows.num_rows,
                rows.start,
                len(rows.pages),
            )
            span.pages = ctypes.addressof(pages)
            row += rows.num_rows
        heads = HeadsStruct(pool.num_heads, pool.key.shape[1], pool.head_dim, pool.page_size)
        self._plan = kernels().pcg_plan_new(native, len(spans), heads, pool.window, team.handle)
        assert self._plan is not None

    def __call__(self, query: torch.Tensor) -> torch.Tensor:
        """What the rows of `query [num_rows, num_heads, head_dim]` bf16 attend to, in the same
        shape."""
        assert query.is_contiguous()
        assert query.dtype == torch.bfloat16
        out = torch.empty_like(query)
        layer = AttentionStruct(
            query.data_ptr(), self._pool.key.data_ptr(), self._pool.value.data_ptr(), out.data_ptr()
        )
        kernels().pcg_attend_all(self._plan, layer, self._team.handle)
        return out

    def free(self) -> None:
        kernels().pcg_plan_free(self._plan)


def attend(team: Team, pool: Pool, spans: Seq[Rows], query: torch.Tensor) -> torch.Tensor:
    """`Planned` for one call."""
    planned = Planned(team, pool, spans)
    out = planned(query)
    planned.free()
    return out


def defined(pool: Pool, spans: Seq[Rows], query: torch.Tensor) -> torch.Tensor:
    """Attention in fp32 from bf16 inputs: `[num_rows, num_heads, head_dim]`."""
    outs, row = [], 0
    for rows in spans:
        slots = torch.tensor(
            [page * pool.page_size + i for page in rows.pages for i in range(pool.page_size)]
        )[: rows.end]
        group = pool.num_heads // pool.key.shape[1]
        key, value = (
            side[slots].float().repeat_interleave(group, 1).transpose(0, 1)
            for side in (pool.key, pool.value)
        )
        own = query[row : row + rows.num_rows].float().transpose(0, 1)
        positions = torch.arange(rows.start, rows.end).unsqueeze(1)
        keys = torch.arange(rows.end).unsqueeze(0)
        hidden = keys > positions
        if pool.window:
            hidden |= keys <= positions - pool.window
        scores = (own @ key.transpose(1, 2) * pool.head_dim**-0.5).masked_fill(
            hidden, float("-inf")
        )
        outs.append((scores.softmax(-1) @ value).transpose(0, 1))
        row += rows.num_rows
    return torch.cat(outs)
