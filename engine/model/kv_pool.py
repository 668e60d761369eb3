"""The pool of KV: one tensor of slots for all layers, cut into pages.

Knows no sequences and no attention.

Layout of a page's bytes, as `read_pages` returns them: `[num_layers, 2 (K, V), page_size,
num_kv_heads, head_dim]` in the pool's dtype, native byte order, no padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch

from engine.memory import buffer, mapping
from engine.model.runs import SlotRun

PAD_SLOTS: Final = 512
"""Slots after the last page that are zero and stay zero: a view may run past a sequence's end, up
to a multiple of this."""

_INTEGERS: Final[dict[int, tuple[Any, Any]]] = {
    2: (numpy.int16, numpy.uint16),
    4: (numpy.int32, numpy.uint32),
}
"""Integers with and without a sign, by the bytes of an item of KV."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """The part of a model's shape that KV depends on."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def page_nbytes(self, page_size: int) -> int:
        """Bytes of one page over all layers, K and V."""
        return (
            self.num_layers
            * 2
            * page_size
            * self.num_kv_heads
            * self.head_dim
            * self.dtype.itemsize
        )


def slots_of(runs: Sequence[SlotRun], device: torch.device) -> slice | torch.Tensor:
    """The slots of `runs` in order, in the form `KvPool.write` takes."""
    if len(runs) == 1:
        return slice(runs[0].first, runs[0].first + runs[0].num_slots)
    indices = [slot for run in runs for slot in range(run.first, run.first + run.num_slots)]
    return torch.tensor(indices, dtype=torch.int64, device=device)


class KvPool:
    """`num_pages` pages of `page_size` slots, `num_spare` pages that are no sequence's, and
    `PAD_SLOTS` zero slots after them.

    Every value in the pool is finite, always: NaN and infinity from a model or a tier are
    stored as zero. Slots under an attention mask weigh exactly nothing only then (0 * NaN is NaN),
    and one sequence can never reach another.
    """

    def __init__(
        self,
        shape: KvShape,
        num_pages: int,
        page_size: int,
        device: torch.device,
        *,
        num_spare: int = 0,
    ) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.num_spare = num_spare
        self.page_size = page_size
        self.page_nbytes = shape.page_nbytes(page_size)
        num_slots = (num_pages + num_spare) * page_size
        dims = (shape.num_layers, 2, num_slots + PAD_SLOTS, shape.num_kv_heads, shape.head_dim)
        self._slots = _zeros(dims, shape.dtype, device)
        self._planes = tuple((layer[0], layer[1]) for layer in self._slots)
        self._flat = tuple((key.flatten(1), value.flatten(1)) for key, value in self._planes)
        by_head = self._slots.transpose(2, 3).unsqueeze(2)
        self._sides = tuple(
            (by_head[layer, 0], by_head[layer, 1]) for layer in range(shape.num_layers)
        )
        self._slot_nbytes = shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
        # The same memory as `[layers and sides, bytes]`: copies of bytes are one thread's work, and
        # wait for no others.
        self._bytes = (
            self._slots.view(torch.uint8).view(2 * shape.num_layers, -1).numpy()
            if device.type == "cpu"
            else None
        )
        self._scratch = torch.zeros(
            (2, 0, shape.num_kv_heads, shape.head_dim), dtype=shape.dtype, device=device
        )

    @property
    def device(self) -> torch.device:
        """The device of the pool's memory."""
        return self._slots.device

    def touch(self, nbytes: int) -> None:
        """Have the memory of the first pages at hand, up to `nbytes`: later writes would wait for
        it. Only of a fresh pool."""
        num_pages = min(nbytes // self.page_nbytes, self.num_pages)
        self._slots[:, :, : num_pages * self.page_size].zero_()

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: slice | torch.Tensor
    ) -> None:
        """Store keys and values `[num_tokens, num_kv_heads, head_dim]` in `slots`: a slice or int64
        indices, one per token."""
        for side, new in enumerate((key, value)):
            finite = _finite(new)
            if isinstance(slots, slice):
                self._slots[layer, side, slots] = finite
            else:
                self._slots[layer, side].index_copy_(0, slots, finite)

    def write_unchecked(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: slice | torch.Tensor
    ) -> None:
        """As `write`, of any floating dtype and unchecked: `keep_finite` must follow before anyone
        else reads the pool."""
        for side, new in zip(self._planes[layer], (key, value), strict=True):
            if isinstance(slots, slice):
                side[slots] = new
            else:
                side.index_copy_(0, slots, new.to(self.shape.dtype))

    def keep_finite(self, slots: slice | torch.Tensor) -> None:
        """Make what was written unchecked in `slots`, in all layers, finite: on the CPU one sum
        where it is, which is nearly always.

        Elsewhere it is written again unasked: waiting for a device's answer costs more, and cannot
        be recorded.
        """
        written = self._slots[:, :, slots]
        if self._bytes is None or not bool(written.sum(dtype=torch.float32).isfinite()):
            self._slots[:, :, slots] = _finite(written)

    def sides(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All slots' keys and values in place, as `[1, num_kv_heads, num_slots, head_dim]` each."""
        return self._sides[layer]

    def flat(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All slots' keys and values in place, as `[num_slots, num_kv_heads * head_dim]` each."""
        return self._flat[layer]

    def whole_pages(self) -> torch.Tensor:
        """All pages in place, the spare ones last, as `[layers and sides, num_pages + num_spare,
        items]`."""
        count = self.num_pages + self.num_spare
        return self._slots[:, :, : count * self.page_size].reshape(
            2 * self.shape.num_layers, count, -1
        )

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All pages' keys and values in place, the spare ones last: `[num_pages + num_spare,
        page_size, num_kv_heads, head_dim]` each."""
        count = self.num_pages + self.num_spare
        key, value = (
            side[: count * self.page_size].unflatten(0, (count, self.page_size))
            for side in self._planes[layer]
        )
        return key, value

    def gather(self, layer: int, runs: Sequence[SlotRun]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `runs`, shaped as `sides`; see `read` for how long they last."""
        key, value = self.read(layer, runs, sum(run.num_slots for run in runs))
        return key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0)

    def empty(self, size: int) -> torch.Tensor:
        """`size` values of the pool's dtype on its device, not initialised."""
        return torch.empty(size, dtype=self.shape.dtype, device=self.device)

    def read(
        self, layer: int, runs: Sequence[SlotRun], num_slots: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `runs`, extended to `num_slots` slots, as `[num_slots, num_kv_heads,
        head_dim]` each.

        One run is a view of the pool, and its extension whatever finite values follow it. Several
        are copied into scratch that the next call overwrites, and extended by zeros. What is read
        beyond the runs must be masked.
        """
        if len(runs) == 1 and runs[0].first + num_slots <= self._slots.shape[2]:
            both = self._slots[layer, :, runs[0].first : runs[0].first + num_slots]
            return both[0], both[1]
        if self._scratch.shape[1] < num_slots:
            size = (2, -(-num_slots // PAD_SLOTS) * PAD_SLOTS, *self._scratch.shape[2:])
            self._scratch = torch.zeros(size, dtype=self.shape.dtype, device=self.device)
        out, row = self._scratch[:, :num_slots], 0
        for run in runs:
            out[:, row : row + run.num_slots] = self._slots[
                layer, :, run.first : run.first + run.num_slots
            ]
            row += run.num_slots
        out[:, row:] = 0
        return out[0], out[1]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page, in every layer."""
        if not 0 <= num_tokens <= self.page_size:
            raise ValueError(f"a page holds {self.page_size} tokens, not {num_tokens}")
        self._page(target)[:, :, :num_tokens] = self._page(source)[:, :, :num_tokens]

    def read_pages(self, pages: Sequence[int]) -> memoryview:
        """The bytes of the pages, one after the other, `page_nbytes` each; see the module's
        docstring for the layout."""
        body = buffer(len(pages) * self.page_nbytes)
        for part, first, end in self._page_runs(pages, body):
            if self._bytes is None:
                run = self._slots[:, :, first:end].cpu().view(torch.uint8).numpy()
            else:
                run = self._bytes[:, first * self._slot_nbytes : end * self._slot_nbytes]
            part[:] = run.reshape(part.shape[1], part.shape[0], -1).swapaxes(0, 1)
        return body.toreadonly()

    def write_pages(self, pages: Sequence[int], body: memoryview) -> None:
        """Put the bytes of whole pages of a pool of the same shape into pages. Raises as
        `check_pages`."""
        for part, first, end in self._page_runs(pages, body):
            slots = self._slots[:, :, first:end]
            if self._bytes is None:
                values = torch.from_numpy(part.swapaxes(0, 1).copy()).to(self.device)
                slots.copy_(_finite(values.view(self.shape.dtype).view(slots.shape)))
                continue
            run = self._bytes[:, first * self._slot_nbytes : end * self._slot_nbytes]
            run.reshape(part.shape[1], part.shape[0], -1)[:] = part.swapaxes(0, 1)
            if not _all_finite(run, self.shape.dtype):
                slots.copy_(_finite(slots))

    def check_pages(self, pages: Sequence[int], nbytes: int) -> None:
        """Raise `IndexError` unless they are pages of the pool, and `ValueError` unless they have
        `nbytes` bytes together."""
        if nbytes != len(pages) * self.page_nbytes:
            raise ValueError(
                f"{len(pages)} pages have {len(pages) * self.page_nbytes} bytes, not {nbytes}"
            )
        if not all(0 <= page < self.num_pages for page in pages):
            raise IndexError(f"a page of {list(pages)} is not among the pool's {self.num_pages}")

    def _page_runs(self, pages: Sequence[int], body: memoryview) -> Iterator[tuple[Any, int, int]]:
        """For every run of consecutive pages: its part of `body` as `[pages, layers and sides,
        bytes]`, first and end slot."""
        self.check_pages(pages, len(body))
        whole = numpy.frombuffer(body, numpy.uint8).reshape(
            len(pages), 2 * self.shape.num_layers, -1
        )
        at = 0
        while at < len(pages):
            num = 1
            while at + num < len(pages) and pages[at + num] == pages[at] + num:
                num += 1
            yield (
                whole[at : at + num],
                pages[at] * self.page_size,
                (pages[at] + num) * self.page_size,
            )
            at += num

    def _page(self, page: int) -> torch.Tensor:
        if not 0 <= page < self.num_pages:
            raise IndexError(f"page {page} of {self.num_pages}")
        return self._slots[:, :, page * self.page_size : (page + 1) * self.page_size]


def _finite(values: torch.Tensor) -> torch.Tensor:
    """The values, with zero for what is not finite."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _all_finite(planes: Any, dtype: torch.dtype) -> bool:
    """True if rows of bytes hold finite floats only: taken as integers, the others are the largest
    of either sign."""
    signed, unsigned = _INTEGERS[dtype.itemsize]
    infinity, minus_infinity = (
        torch.tensor([torch.inf, -torch.inf], dtype=dtype).view(torch.uint8).numpy().view(unsigned)
    )
    return bool(
        planes.view(signed).max() < infinity and planes.view(unsigned).max() < minus_infinity
    )


def _zeros(dims: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU from the kernel's zero pages, so that memory is only used near what was
    written."""
    if device.type != "cpu":
        return torch.zeros(dims, dtype=dtype, device=device)
    num_items = 1
    for size in dims:
        num_items *= size
    return torch.frombuffer(mapping(num_items * dtype.itemsize), dtype=dtype).view(dims)
