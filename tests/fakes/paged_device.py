"""A device's attention, graphs and copies on a processor: checks what callers owe them,
and keeps promises no better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.model.paged.cuda import DeviceFeatures
from engine.model.paged.staging import CopyEvent


def eager_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """`torch.nn.attention.varlen.varlen_attn` of torch 2.13 over pages, as its documentation says,
    in fp32 and row by row.

    Refuses what FlashAttention 2 and 3 refuse: other dtypes than int32 for counts, and heads that
    are not equal unsaid.
    """
    assert seqused_k is not None
    assert block_table is not None
    assert num_splits in (None, 1)
    counts = (
        (cu_seq_q, seqused_k, block_table)
        if cu_seq_k is None
        else (cu_seq_q, cu_seq_k, seqused_k, block_table)
    )
    assert all(one.dtype == torch.int32 and one.is_contiguous() for one in counts)
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert query.dtype == key.dtype == value.dtype
    out = torch.zeros_like(query)
    group, left, right = query.shape[1] // key.shape[2], *window_size
    for i, num_keys in enumerate(seqused_k.tolist()):
        first, end = int(cu_seq_q[i]), int(cu_seq_q[i + 1])
        assert end - first <= max_q
        assert num_keys <= max_k
        pages = block_table[i, : -(-num_keys // key.shape[1])].long()
        keys, values = (
            side[pages].flatten(0, 1)[:num_keys].float().repeat_interleave(group, 1)
            for side in (key, value)
        )
        for row in range(first, end):
            at = num_keys - (end - row)  # rows are a sequence's last tokens
            low = 0 if left < 0 else max(0, at - left)
            high = num_keys if right < 0 else at + right + 1
            scores = torch.einsum("hd,khd->hk", query[row].float(), keys[low:high]) * (
                scale or query.shape[2] ** -0.5
            )
            out[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[low:high]).to(
                out.dtype
            )
    return out


@dataclass(slots=True)
class FakeGraph:
    """Implements `engine.model.paged.decode_graphs.Recorded`: the work once more, its result where
    the first one was."""

    work: Callable[[], torch.Tensor]
    output: torch.Tensor
    num_replays: int = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.output.copy_(self.work())


@dataclass(slots=True)
class FakeRecorder:
    """Implements `engine.model.paged.decode_graphs.Recorder`. `free` is the memory left, and each
    graph takes `cost` of it; what gives more rows than `most` cannot be recorded."""

    free: int = 1 << 40
    cost: int = 0
    most: int = 1 << 20
    graphs: list[FakeGraph] = field(default_factory=list)

    def record(self, work: Callable[[], torch.Tensor]) -> FakeGraph:
        output = work()
        if len(output) > self.most:
            raise RuntimeError("out of memory\nin so many words")
        self.free -= self.cost
        self.graphs.append(FakeGraph(work, output))
        return self.graphs[-1]

    def free_nbytes(self) -> int:
        return self.free


class FakeCopies:
    """Implements `engine.model.paged.staging.Copies` with the laziest device there can be: nothing
    is done before it must be."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], None]] = []
        self.num_done = 0
        self.num_held = 0
        """Times that what computes had to wait."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def launch(self, work: Callable[[], None]) -> CopyEvent:
        self._queue.append(work)
        return _FakeMark(self, len(self._queue))

    def do(self, up_to: int) -> None:
        """Do what was launched first, up to that many."""
        while self.num_done < up_to:
            self._queue[self.num_done]()
            self.num_done += 1


@dataclass(frozen=True, slots=True)
class _FakeMark:
    copies: FakeCopies
    at: int

    def wait(self) -> None:
        self.copies.do(self.at)

    def hold_compute(self) -> None:
        self.copies.num_held += 1
        self.copies.do(self.at)

    def is_done(self) -> bool:
        return self.copies.num_done >= self.at


def fake_kit(
    recorder: FakeRecorder | None = None, copies: FakeCopies | None = None
) -> DeviceFeatures:
    """A device with all of it."""
    return DeviceFeatures(eager_varlen, recorder or FakeRecorder(), copies or FakeCopies())
