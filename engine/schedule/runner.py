"""The contract between the step loop and a model.

No torch: the loop is tested with a fake.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from engine.schedule.sequence import Sampled, Slice


class Runner(Protocol):
    """A model on a device with a pool of KV pages, used by the engine thread alone.

    In exact mode the KV and logits of a token depend only on the tokens before it, bit for bit: not
    on the split into steps, not on the rest of the batch, not on whether pages were computed,
    copied or read back. `fingerprint` names everything KV bits depend on (weights, dtype, runner,
    exact mode, block size, layout).
    """

    name: str
    """`generic`, `lean` or `native`."""
    device: str
    """The kind of device: `cpu`, `cuda`."""
    fingerprint: str
    num_pages: int
    page_size: int
    """Tokens of a page: what was asked for, or what the device needs."""
    page_nbytes: int
    exact: bool
    reuse_decode_kv: bool
    """False where tokens computed in decode steps have other bits than prefilled ones (exact mode
    with unequal row groups)."""

    def step(self, slices: Seq[Slice]) -> list[Sampled | None]:
        """Compute the slices, writing KV in place, and return the tokens sampled for each (None
        without `sample`).

        KV of a draft's rejected tokens is garbage afterwards, past the tokens that the sequence
        counts as computed.
        """
        ...

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a page in every layer."""
        ...

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """The raw KV bytes of all layers, page after page of `page_nbytes`, in memory of their
        own."""
        ...

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """Put what `read_pages` returned, or whole pages of it, into pages."""
        ...

    def close(self) -> None:
        """Release the device. Idempotent."""
        ...
