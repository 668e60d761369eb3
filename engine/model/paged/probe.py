"""Chooses the attention kernel for a device by trying the candidates.

What torch offers depends on its version and the device.

FlashAttention 2 reads pages of a multiple of 256 tokens, 3 of any size, torch before 2.12 none;
each takes other arguments, and FlashAttention 2 gave wrong sums where it split a sequence's keys
(Dao-AILab/flash-attention, issue 1217, 2024-09).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

import torch

from engine.model.paged.attention import (
    GatheredKernel,
    PagedKernel,
    PagedRows,
    VarlenAttention,
    VarlenKernel,
)

_log = logging.getLogger(__name__)

LARGE_PAGE: Final = 256
"""Tokens per page that every flash attention takes which takes pages at all."""

TOLERANCE: Final = 0.02
"""Largest relative difference, by the norm of a sequence's rows, to the plain computation in the
same dtype."""

_MIXED: Final = ((70, 70), (1, 300), (33, 2100))
_SINGLE: Final = ((1, 5), (1, 2100), (1, 700))
"""Rows and keys of sequences that are tried together: long ones are where a kernel splits keys
among processors."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The properties of a model that a kernel may refuse or get wrong."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel that serves, the page size it needs, and what was wrong with those that were
    preferred to it."""

    kernel: PagedKernel
    page_size: int
    refused: tuple[str, ...]


def choose_kernel(
    attend: VarlenAttention | None, heads: HeadShape, page_sizes: Seq[int], device: torch.device
) -> KernelChoice:
    """Torch's `attend` over pages of the first size it takes, else plain attention over the first;
    logs one line about it."""
    refused: list[str] = []
    for size, kernel in _candidates(attend, page_sizes):
        reason = why_not(kernel, heads, size, device)
        if reason is None:
            return _logged(KernelChoice(kernel, size, tuple(refused)))
        refused.append(f"{kernel.name}, pages of {size}: {reason}")
    if attend is None:
        refused.append("this torch has no varlen_attn")
    return _logged(KernelChoice(GatheredKernel(), page_sizes[0], tuple(refused)))


def why_not(
    kernel: PagedKernel, heads: HeadShape, page_size: int, device: torch.device
) -> str | None:
    """The reason not to take a kernel: its own error, or a wrong result; None for a good one."""
    for window in sorted(set(heads.windows), key=str):
        for counts in (_MIXED, _SINGLE):
            try:
                error = _difference(
                    kernel, heads, page_size, window, _trial(counts, page_size, device)
                )
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as problem:
                return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0][:200]}"
            if not error < TOLERANCE:
                return f"wrong by {error:.1%} for rows and keys of {counts}, window {window}"
    return None


def _candidates(
    attend: VarlenAttention | None, page_sizes: Seq[int]
) -> Iterator[tuple[int, VarlenKernel]]:
    if attend is None:
        return
    for size in page_sizes:
        for num_splits in (None, 1):
            for counts_keys in (False, True):
                yield size, VarlenKernel(attend, num_splits=num_splits, counts_keys=counts_keys)


def _logged(choice: KernelChoice) -> KernelChoice:
    fields = {
        "kernel": choice.kernel.name,
        "page_size": choice.page_size,
        "refused": list(choice.refused),
    }
    _log.info("attention kernel chosen", extra={"fields": fields})
    return choice


def _trial(counts: Seq[tuple[int, int]], page_size: int, device: torch.device) -> PagedRows:
    """Sequences in pages of their own, which lie in no order. `max_keys` is only a bound, as in a
    recorded step."""
    num_pages = [-(-num_keys // page_size) for _, num_keys in counts]
    order = torch.randperm(sum(num_pages), generator=torch.Generator().manual_seed(1)).int()
    table = torch.nn.utils.rnn.pad_sequence(list(torch.split(order, num_pages)), batch_first=True)
    both = torch.tensor([(0, 0), *counts], dtype=torch.int32)
    cumulative = both.cumsum(0, dtype=torch.int32)
    return PagedRows(
        cu_rows=cumulative[:, 0].contiguous().to(device),
        cu_keys=cumulative[:, 1].contiguous().to(device),
        num_keys=both[1:, 1].contiguous().to(device),
        block_table=table.to(device),
        max_rows=max(num_rows for num_rows, _ in counts),
        max_keys=2 * max(num_keys for _, num_keys in counts),
        counts=tuple(counts),
    )


def _difference(
    kernel: PagedKernel, heads: HeadShape, page_size: int, window: int | None, rows: PagedRows
) -> float:
    """Of the sequence whose result is farthest from the plain computation's."""
    device = rows.num_keys.device
    num_rows = sum(count for count, _ in rows.counts)
    num_pages = int(rows.block_table.max()) + 1
    random = torch.Generator().manual_seed(2)
    query = torch.randn((num_rows, heads.num_heads, heads.head_dim), generator=random)
    sides = torch.randn(
        (2, num_pages, page_size, heads.num_kv_heads, heads.head_dim), generator=random
    )
    query, sides = query.to(device, heads.dtype), sides.to(device, heads.dtype)
    with torch.inference_mode():
        ours = kernel(query, sides[0], sides[1], rows, window).float()
        plain = GatheredKernel()(query, sides[0], sides[1], rows, window).float()
    parts = [count for count, _ in rows.counts]
    pairs = zip(torch.split(ours, parts), torch.split(plain, parts), strict=True)
    return float(torch.stack([(one - other).norm() / other.norm() for one, other in pairs]).max())
