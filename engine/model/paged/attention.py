"""Attention over pages: rows of several sequences in one call,
their keys found through a block table.

Knows no weights and no device. A kernel sees a layer's pages where they lie in the pool; which
kernel serves is chosen by `engine.model.paged.probe`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from engine.model.kernels import attend_masked, causal_mask
from engine.model.kv_pool import KvPool

VarlenAttention: TypeAlias = Callable[..., Any]
"""`torch.nn.attention.varlen.varlen_attn` (torch 2.13), or what has its signature."""


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The rows and keys of the sequences of a call: sequence i has rows `[cu_rows[i], cu_rows[i +
    1])`, its last tokens.

    `cu_rows`, `cu_keys [num_seqs + 1]` and `num_keys [num_seqs]` count rows and keys, `block_table
    [num_seqs, any]` holds the pages of each in order, all int32 on the pool's device. No sequence
    has more than `max_rows` and `max_keys`. `counts` are rows and keys of each for the host, empty
    where the tensors are filled anew without it.
    """

    cu_rows: torch.Tensor
    cu_keys: torch.Tensor
    num_keys: torch.Tensor
    block_table: torch.Tensor
    max_rows: int
    max_keys: int
    counts: tuple[tuple[int, int], ...] = ()


class PagedKernel(Protocol):
    """Causal attention of rows to the pages of their sequences."""

    name: str
    """The kernel and everything of it that changes bits: part of the fingerprint."""
    recordable: bool
    """True if it launches the same work for the same shapes, asking the device nothing."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rows: PagedRows,
        window: int | None,
    ) -> torch.Tensor:
        """`query [num_rows, num_heads, head_dim]`, `key` and `value [num_pages, page_size,
        num_kv_heads, head_dim]`.

        A row sees its sequence's keys up to its own, of these the last `window`. Returns the
        query's shape and dtype.
        """
        ...


class VarlenKernel:
    """Torch's variable-length flash attention, in place over the pages."""

    recordable = True

    def __init__(
        self, attend: VarlenAttention, *, num_splits: int | None, counts_keys: bool
    ) -> None:
        """`num_splits` is as in `attend`; `counts_keys` asks for the offsets of the keys.

        One split keeps a row's bits from depending on the rest of the batch. With `counts_keys` the
        kernel gets the places at which each sequence's keys would begin if they lay in a row:
        FlashAttention 2 wants that, 3 refuses it.
        """
        self.name = f"varlen/splits={num_splits or 'auto'}/{'cu_keys' if counts_keys else 'paged'}"
        self._attend = attend
        self._options: dict[str, Any] = {} if num_splits is None else {"num_splits": num_splits}
        self._counts_keys = counts_keys

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rows: PagedRows,
        window: int | None,
    ) -> torch.Tensor:
        """See `PagedKernel`."""
        # A single row is its sequence's last: it sees everything. Said so, the kernel takes the
        # query heads of a KV head together and reads keys once.
        left = -1 if window is None else window - 1
        right = -1 if window is None and rows.max_rows == 1 else 0
        out: torch.Tensor = self._attend(
            query,
            key,
            value,
            rows.cu_rows,
            rows.cu_keys if self._counts_keys else None,
            rows.max_rows,
            rows.max_keys,
            scale=query.shape[2] ** -0.5,
            window_size=(left, right),
            enable_gqa=query.shape[1] != key.shape[2],
            seqused_k=rows.num_keys,
            block_table=rows.block_table,
            **self._options,
        )
        return out


class GatheredKernel:
    """Torch's scaled dot product attention, a sequence at a time, over a copy of its pages: works
    everywhere."""

    name = "gathered"
    recordable = False

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rows: PagedRows,
        window: int | None,
    ) -> torch.Tensor:
        """See `PagedKernel`. `rows` must have `counts`."""
        out, row = torch.empty_like(query), 0
        for index, (num_rows, num_keys) in enumerate(rows.counts):
            first = 0 if window is None else max(0, num_keys - num_rows + 1 - window)
            page = first // key.shape[1]
            pages = rows.block_table[index, page : -(-num_keys // key.shape[1])]
            seen = slice(first - page * key.shape[1], num_keys - page * key.shape[1])
            keys, values = (side[pages].flatten(0, 1)[seen] for side in (key, value))
            own = query[row : row + num_rows].transpose(0, 1)
            mask = None
            if num_rows > 1:
                mask = causal_mask(
                    (num_rows, num_keys - first), num_keys - num_rows - first, window, query
                )
            attended = attend_masked(own, keys, values, mask, query.shape[2] ** -0.5)
            out[row : row + num_rows] = attended.transpose(0, 1)
            row += num_rows
        return out


class PagedAttention:
    """`engine.model.llama.layers.AttentionFn` over a pool by a kernel."""

    def __init__(self, pool: KvPool, windows: Seq[int | None], kernel: PagedKernel) -> None:
        self._dtype = pool.shape.dtype
        self._pages = [pool.pages(layer) for layer in range(pool.shape.num_layers)]
        self._windows = windows
        self._kernel = kernel

    def __call__(self, layer: int, query: torch.Tensor, plan: PagedRows) -> torch.Tensor:
        """See `AttentionFn`."""
        key, value = self._pages[layer]
        return self._kernel(query.to(self._dtype), key, value, plan, self._windows[layer]).flatten(
            1
        )
