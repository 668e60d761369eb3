"""The runner: any forward pass over the paged pool, with sampling and the moving of pages.

Knows no scheduling and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from engine.model.kv_pool import KvPool
from engine.model.rows import RowGroups
from engine.model.sampling.sampler import sample
from engine.schedule.sequence import Sampled, Slice

LogitsSink: TypeAlias = Callable[[str, int, torch.Tensor], None]
"""Called with request id, number of tokens the row has seen, and the row's logits `[vocab]`: for
tests and measurements."""


class Forward(Protocol):
    """A model's forward pass over a pool of pages. Called by one thread."""

    name: str
    """`generic`, `lean` or `native`."""

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """Write the slices' KV and return fp32 logits `[num_rows, vocab]`.

        One row for each slice that samples and one for each of its draft's tokens, in order. Every
        slice's block table covers its tokens, the draft's included.
        """
        ...

    def close(self) -> None:
        """End threads, if there are any. Idempotent."""
        ...


class PageMover(Protocol):
    """Brings whole pages of a pool in and out, in the layout of `engine.model.kv_pool`."""

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """See `Runner.read_pages`."""
        ...

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """See `Runner.write_pages`. May return before the bytes are there."""
        ...

    def settle(self, pages: Iterable[int]) -> None:
        """Have computations from now on find in these pages the bytes written to them."""
        ...

    def close(self) -> None:
        """Return when nothing is on its way. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """The fixed properties of a runner: the fingerprint of its KV, windows per layer, exactness.

    `rows` are the row groups by which the generic runner is exact (None: fast mode, or another
    runner).
    """

    fingerprint: str
    windows: tuple[int | None, ...]
    exact: bool
    rows: RowGroups | None


class TorchRunner:
    """Implements `engine.schedule.runner.Runner`. Used by one thread."""

    def __init__(
        self,
        forward: Forward,
        pool: KvPool,
        identity: Identity,
        logits_sink: LogitsSink | None = None,
        mover: PageMover | None = None,
    ) -> None:
        """Without `mover` the pool itself brings pages in and out."""
        self.name = forward.name
        self.device = pool.device.type
        self.fingerprint = identity.fingerprint
        self.num_pages = pool.num_pages
        self.page_size = pool.page_size
        self.page_nbytes = pool.page_nbytes
        self.exact = identity.exact
        self.reuse_decode_kv = (
            identity.rows is None or identity.rows.prefill == identity.rows.decode
        )
        self._forward: Forward | None = forward
        self._pool: KvPool | None = pool
        self._sink = logits_sink
        self._mover = mover

    def step(self, slices: Seq[Slice]) -> list[Sampled | None]:
        """See `Runner.step`. Every slice's block table must cover its tokens, the draft's
        included."""
        if self._forward is None:
            raise RuntimeError("the runner is closed")
        if not slices:
            return []
        for piece in slices:
            self._settle(piece.sequence.block_table)
        logits = self._forward(slices)
        wanted = [piece for piece in slices if piece.sample]
        if self._sink is not None:
            self._send_logits(logits, wanted)
        sampled = iter(sample(logits, wanted) if wanted else [])
        return [next(sampled) if piece.sample else None for piece in slices]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """See `Runner.copy_page`."""
        self._settle((source, target))
        self._open().copy_page(source, target, num_tokens)

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """See `Runner.read_pages`; the layout is in `engine.model.kv_pool`."""
        return (self._mover or self._open()).read_pages(pages)

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """See `Runner.write_pages`."""
        (self._mover or self._open()).write_pages(pages, body)

    def close(self) -> None:
        """Release weights and pool. Idempotent."""
        if self._mover is not None:
            self._mover.close()
        self._mover = None
        if self._forward is not None:
            self._forward.close()
        self._pool = None
        self._forward = None

    def _open(self) -> KvPool:
        if self._pool is None:
            raise RuntimeError("the runner is closed")
        return self._pool

    def _settle(self, pages: Seq[int]) -> None:
        """Have computations from now on find in these pages the bytes written to them."""
        if self._mover is not None:
            self._mover.settle(pages)

    def _send_logits(self, logits: torch.Tensor, wanted: Seq[Slice]) -> None:
        assert self._sink is not None
        rows = iter(logits)
        for piece in wanted:
            for num_seen in range(piece.start + piece.num_tokens, piece.end + 1):
                self._sink(piece.sequence.request_id, num_seen, next(rows))
