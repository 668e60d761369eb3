"""Whole pages between a device's pool and the host, through pinned memory, beside what computes.
Knows no sequences.

A write returns when its bytes are in pinned memory or on their way; nothing that computes waits for
it until it touches one of those pages (`settle`). A read returns when its bytes are there. Both go
piece by piece through two buffers, so that the copy to or from pinned memory, which is the
processor's work, goes on beside the device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np
import torch

from engine.memory import buffer
from engine.model.kv_pool import KvPool

PIECE_NBYTES: Final = 16 * 1024**2
"""Pinned memory of each of the two buffers: pieces long enough for the bus's full speed."""


class CopyEvent(Protocol):
    """A place in a queue of copies."""

    def wait(self) -> None:
        """Return when everything up to here is done."""
        ...

    def hold_compute(self) -> None:
        """Have the device start nothing that is launched from now on before everything up to here
        is done."""
        ...

    def is_done(self) -> bool: ...


class Copies(Protocol):
    """A queue of work on a device beside the one that computes; its work is done in order."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Memory of the host that the device reads and writes by itself, uint8."""
        ...

    def launch(self, work: Callable[[], None]) -> CopyEvent:
        """Have `work` done after all that computes by now and all that was launched here before;
        does not wait."""
        ...


@dataclass(slots=True)
class _Buffer:
    """Pinned memory for one piece and the numbers of its pages, the device's copy of both, and the
    event that ends its last use."""

    host: torch.Tensor
    host_pages: torch.Tensor
    values: torch.Tensor
    pages: torch.Tensor
    event: CopyEvent | None = None

    def wait(self) -> None:
        """Return when it is not in use any more."""
        if self.event is not None:
            self.event.wait()


class StagedPages:
    """Implements `engine.model.runner.PageMover`, in the layout of `KvPool.read_pages`. One
    thread's."""

    def __init__(self, pool: KvPool, copies: Copies, piece_nbytes: int = PIECE_NBYTES) -> None:
        self._pool = pool
        self._copies = copies
        self._whole = pool.whole_pages()
        self._num_pages = max(1, piece_nbytes // pool.page_nbytes)
        self._buffers = [self._buffer() for _ in range(2)]
        self._turn = 0
        self._pending: dict[int, CopyEvent] = {}
        """Pages that are being written, with the end of their piece, in the order of their
        pieces."""

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """As `KvPool.write_pages`, but nothing may read or write the pages before `settle`."""
        self._pool.check_pages(pages, len(body))
        self._drop_done()
        source = np.frombuffer(body, np.uint8)
        for at in range(0, len(pages), self._num_pages):
            piece = pages[at : at + self._num_pages]
            one = self._next_buffer(piece)
            nbytes = len(piece) * self._pool.page_nbytes
            one.host[:nbytes].numpy()[:] = source[at * self._pool.page_nbytes :][:nbytes]
            one.event = self._copies.launch(partial(self._copy_in, one, len(piece)))
            for page in piece:
                self._pending.pop(page, None)
                self._pending[page] = one.event

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """As `KvPool.read_pages`."""
        body = buffer(len(pages) * self._pool.page_nbytes)
        self._pool.check_pages(pages, len(body))
        target = np.frombuffer(body, np.uint8)
        waiting: list[tuple[_Buffer, int, int]] = []
        for at in range(0, len(pages), self._num_pages):
            piece = pages[at : at + self._num_pages]
            one = self._next_buffer(piece)
            one.event = self._copies.launch(partial(self._copy_out, one, len(piece)))
            waiting.append((one, at, len(piece)))
            if len(waiting) == len(self._buffers):
                self._receive(target, *waiting.pop(0))
        for arrival in waiting:
            self._receive(target, *arrival)
        return body.toreadonly()

    def close(self) -> None:
        """Return when no copy is under way."""
        for one in self._buffers:
            one.wait()

    def settle(self, pages: Iterable[int]) -> None:
        """Have everything that is launched from now on find in these pages what was written to
        them."""
        if not self._pending:
            return
        touched = self._pending.keys() & set(pages)
        if not touched:
            return
        events = list(dict.fromkeys(self._pending.values()))
        latest = max(events.index(self._pending[page]) for page in touched)
        events[latest].hold_compute()
        # Copies are done in order: what came before is done then, too.
        held = set(map(id, events[: latest + 1]))
        self._pending = {
            page: event for page, event in self._pending.items() if id(event) not in held
        }

    def _drop_done(self) -> None:
        """Drop pages whose copies are done."""
        if self._pending:
            done = {id(event): event.is_done() for event in self._pending.values()}
            self._pending = {
                page: event for page, event in self._pending.items() if not done[id(event)]
            }

    def _next_buffer(self, pages: Seq[int]) -> _Buffer:
        """The next buffer, once it is not in use any more, with the numbers of these pages."""
        one = self._buffers[self._turn]
        self._turn = 1 - self._turn
        one.wait()
        one.host_pages[: len(pages)] = torch.tensor(pages, dtype=torch.int64)
        return one

    def _copy_in(self, one: _Buffer, num_pages: int) -> None:
        """From pinned memory into the pool: on the device, in the copies' queue."""
        values = one.values[:num_pages]
        one.pages.copy_(one.host_pages, non_blocking=True)
        values.copy_(
            one.host[: values.nbytes].view(values.dtype).view(values.shape), non_blocking=True
        )
        finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        self._whole.index_copy_(1, one.pages[:num_pages], finite.transpose(0, 1))

    def _copy_out(self, one: _Buffer, num_pages: int) -> None:
        """From the pool into pinned memory."""
        values = one.values[:num_pages]
        one.pages.copy_(one.host_pages, non_blocking=True)
        values.copy_(self._whole.index_select(1, one.pages[:num_pages]).transpose(0, 1))
        one.host[: values.nbytes].view(values.dtype).view(values.shape).copy_(
            values, non_blocking=True
        )

    def _receive(
        self, target: np.typing.NDArray[np.uint8], one: _Buffer, at: int, num_pages: int
    ) -> None:
        one.wait()
        nbytes = num_pages * self._pool.page_nbytes
        target[at * self._pool.page_nbytes :][:nbytes] = one.host[:nbytes].numpy()

    def _buffer(self) -> _Buffer:
        planes, _, items = self._whole.shape
        nbytes, device = self._num_pages * self._pool.page_nbytes, self._pool.device
        return _Buffer(
            host=self._copies.pinned(nbytes),
            host_pages=self._copies.pinned(8 * self._num_pages).view(torch.int64),
            values=torch.empty(
                (self._num_pages, planes, items), dtype=self._whole.dtype, device=device
            ),
            pages=torch.empty(self._num_pages, dtype=torch.int64, device=device),
        )
