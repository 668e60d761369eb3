"""Pages through pinned memory: the same bytes as without,
done no earlier than needed and no later than touched.
"""

from __future__ import annotations

from typing import Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.kv_pool import KvPool, KvShape
from engine.model.paged.staging import StagedPages
from tests.fakes.paged_device import FakeCopies

pytestmark = pytest.mark.engine

CPU: Final = torch.device("cpu")
SHAPE: Final = KvShape(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16)
NUM_PAGES: Final = 12


def filled() -> KvPool:
    """Pages of four slots with distinct values, and a spare one."""
    pool = KvPool(SHAPE, NUM_PAGES, 4, CPU, num_spare=1)
    for layer in range(SHAPE.num_layers):
        values = torch.randn(
            2, 4 * NUM_PAGES, 3, 4, generator=torch.Generator().manual_seed(layer)
        ).to(SHAPE.dtype)
        pool.write(layer, values[0], values[1], slice(0, 4 * NUM_PAGES))
    return pool


def staged(pool: KvPool, pages_per_piece: int = 2) -> tuple[StagedPages, FakeCopies]:
    """With pieces of a few pages."""
    copies = FakeCopies()
    return StagedPages(pool, copies, pages_per_piece * pool.page_nbytes + 1), copies


@pytest.mark.parametrize("pages", [[3], [0, 1], [5, 4, 3, 2, 1], [11, 0, 7, 2, 9, 4, 6]], ids=str)
def test_reads_what_the_pool_reads(pages: list[int]) -> None:
    """One piece, several, and an odd last one."""
    pool = filled()
    body = staged(pool)[0].read_pages(pages)
    assert body == pool.read_pages(pages)
    assert body.readonly


@pytest.mark.parametrize("pages", [[3], [5, 4, 3, 2, 1], [11, 0, 7, 2, 9, 4, 6]], ids=str)
def test_writes_what_the_pool_writes(pages: list[int]) -> None:
    """After `settle` of all of them the pool's bytes are those of a pool that was written to at
    once."""
    pool, other = filled(), filled()
    body = pool.read_pages([(page + 1) % NUM_PAGES for page in pages])
    pages_of, _ = staged(pool)
    pages_of.write_pages(pages, body)
    pages_of.settle(pages)
    other.write_pages(pages, body)
    assert pool.read_pages(range(NUM_PAGES)) == other.read_pages(range(NUM_PAGES))


def test_only_who_touches_the_pages_waits() -> None:
    """Computing on other pages holds nothing up; touching one of a piece waits for it and for what
    came before, once."""
    pool = filled()
    before = bytes(pool.read_pages([1, 3, 5]))
    pages_of, copies = staged(pool, pages_per_piece=1)
    body = pool.read_pages([0, 2])
    pages_of.write_pages([1, 3], body)
    assert pool.read_pages([1, 3, 5]) == before
    pages_of.settle([0, 2, 4, 5])
    assert (copies.num_held, copies.num_done) == (0, 0)
    pages_of.settle([7, 1])
    assert (copies.num_held, copies.num_done) == (1, 1)
    assert pool.read_pages([1]) == body[: pool.page_nbytes]
    pages_of.settle([1])
    assert copies.num_held == 1
    pages_of.settle([3])
    assert (copies.num_held, pool.read_pages([3])) == (2, body[pool.page_nbytes :])


def test_what_was_read_from_below_need_not_last() -> None:
    """Whoever wrote may overwrite his memory at once, though nothing has reached the pool."""
    pool = filled()
    want = bytes(pool.read_pages([0, 1]))
    body = bytearray(want)
    pages_of, copies = staged(pool)
    pages_of.write_pages([4, 5], memoryview(body))
    body[:] = bytes(len(body))
    assert copies.num_done == 0
    assert pages_of.read_pages([4, 5]) == want


def test_not_finite_is_zero() -> None:
    """What a tier gave as NaN or infinity never gets into the pool."""
    pool = filled()
    values = torch.full((pool.page_nbytes // 2,), float("nan"), dtype=torch.bfloat16)
    values[::3] = float("-inf")
    values[1::3] = 1.0
    pages_of, _ = staged(pool)
    pages_of.write_pages([2], memoryview(values.view(torch.uint8).numpy().tobytes()))
    pages_of.settle([2])
    values[::3] = values[2::3] = 0.0
    assert pool.read_pages([2]) == values.view(torch.uint8).numpy().tobytes()


def test_wrong_sizes_and_pages_are_refused() -> None:
    """The spare page is nobody's, and a body has the length of its pages."""
    pages_of, copies = staged(filled())
    with pytest.raises(IndexError, match="12"):
        pages_of.read_pages([NUM_PAGES])
    with pytest.raises(ValueError, match="2 pages have"):
        pages_of.write_pages([0, 1], memoryview(b"x"))
    assert copies.num_done == 0


def test_close_leaves_nothing_under_way() -> None:
    """Pinned memory may go only when nobody reads it any more."""
    pool = filled()
    pages_of, copies = staged(pool, pages_per_piece=1)
    pages_of.write_pages([1, 2, 3], pool.read_pages([4, 5, 6]))
    pages_of.close()
    assert copies.num_done == 3


@settings(max_examples=60)
@given(data=st.data())
def test_any_order_of_calls_is_the_pool_that_does_it_at_once(data: st.DataObject) -> None:
    """Reads, writes, and computing that touches pages, in any order: contents are always those of
    the plain pool."""
    pool, plain = filled(), filled()
    pages_of, _ = staged(pool, data.draw(st.integers(1, 3)))
    some = st.lists(st.integers(0, NUM_PAGES - 1), min_size=1, max_size=6, unique=True)
    for _ in range(data.draw(st.integers(1, 8))):
        pages = data.draw(some)
        match data.draw(st.sampled_from(["write", "read", "compute"])):
            case "write":
                source = plain.read_pages(
                    data.draw(st.permutations(range(NUM_PAGES)))[: len(pages)]
                )
                pages_of.write_pages(pages, source)
                plain.write_pages(pages, source)
            case "read":
                assert pages_of.read_pages(pages) == plain.read_pages(pages)
            case "compute":
                pages_of.settle(pages)
                assert pool.read_pages(pages) == plain.read_pages(pages)
                for one in (pool, plain):
                    one.copy_page(pages[0], pages[-1], 3)
    pages_of.settle(range(NUM_PAGES))
    assert pool.read_pages(range(NUM_PAGES)) == plain.read_pages(range(NUM_PAGES))
