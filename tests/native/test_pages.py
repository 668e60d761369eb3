"""Whole pages by the native library against those of the pool itself."""

from __future__ import annotations

import random

import pytest
import torch

from engine.memory import MAPPED_NBYTES
from engine.model.kv_pool import KvPool, KvShape
from engine.model.native.pages import NativePages
from tests.fakes.native import NEEDS_NATIVE

pytestmark = [pytest.mark.engine, NEEDS_NATIVE]

NUM_PAGES = 40
SHAPE = KvShape(num_layers=6, num_kv_heads=3, head_dim=64, dtype=torch.bfloat16)


def make_pool(*, seed: int | None = None) -> KvPool:
    """Zeros, or any finite bytes."""
    pool = KvPool(SHAPE, NUM_PAGES, 16, torch.device("cpu"), num_spare=1)
    if seed is not None:
        values = torch.randn(
            (2, SHAPE.num_layers, NUM_PAGES * 16, 3, 64),
            generator=torch.Generator().manual_seed(seed),
        )
        for layer in range(SHAPE.num_layers):
            pool.write(layer, values[0, layer], values[1, layer], slice(0, NUM_PAGES * 16))
    return pool


def some_pages(num_pages: int) -> list[int]:
    """So many, in runs and one by one, in no order."""
    pages = [*range(20, 30), 3, *range(5, 9), 0, NUM_PAGES - 1, 17, *range(30, 39)]
    return pages[:num_pages]


@pytest.mark.parametrize("num_pages", [1, 14, 15, 27])
def test_what_is_read_is_what_the_pool_reads(num_pages: int) -> None:
    """Around the size at which the library begins to do it, too."""
    pool = make_pool(seed=1)
    assert 14 * pool.page_nbytes < MAPPED_NBYTES <= 15 * pool.page_nbytes
    body = NativePages(pool).read_pages(some_pages(num_pages))
    assert body.readonly
    assert body == pool.read_pages(some_pages(num_pages))


@pytest.mark.parametrize("num_pages", [1, 27])
@pytest.mark.parametrize("lead", [0, 2, 64])
def test_what_is_written_is_what_the_pool_writes(num_pages: int, lead: int) -> None:
    """From any address, and nowhere else in the pool."""
    source, pool, native = make_pool(seed=2), make_pool(seed=3), make_pool(seed=3)
    whole = memoryview(bytes(lead) + bytes(source.read_pages(range(num_pages))))
    pool.write_pages(some_pages(num_pages), whole[lead:])
    NativePages(native).write_pages(some_pages(num_pages), whole[lead:])
    assert native.read_pages(range(NUM_PAGES)) == pool.read_pages(range(NUM_PAGES))
    assert torch.equal(native.whole_pages(), pool.whole_pages())


def test_nothing_but_finite_values_gets_in() -> None:
    """Every bit pattern of bfloat16, wherever it is: what is NaN or infinite is zero, all else as
    it was."""
    pool, native = make_pool(), make_pool()
    patterns = (list(range(1 << 16)) * 2)[: 3 * pool.page_nbytes // 2]
    random.Random(4).shuffle(patterns)
    body = memoryview(torch.tensor(patterns, dtype=torch.uint16).numpy().tobytes())
    pool.write_pages([1, 7, 2], body)
    NativePages(native).write_pages([1, 7, 2], body)
    assert native.whole_pages().isfinite().all()
    assert native.read_pages(range(NUM_PAGES)) == pool.read_pages(range(NUM_PAGES))
    assert bytes(native.read_pages([1])) != bytes(body[: pool.page_nbytes])


def test_wrong_sizes_are_refused() -> None:
    """As the pool does, before the library sees an address."""
    pages = NativePages(make_pool())
    with pytest.raises(ValueError, match="1 pages have"):
        pages.write_pages([0], memoryview(b"x"))
    with pytest.raises(IndexError):
        pages.read_pages([NUM_PAGES] * 20)
    with pytest.raises(IndexError):
        pages.write_pages([-1], pages.read_pages([0]))
    with pytest.raises(ValueError, match="multiple of 64"):
        NativePages(KvPool(KvShape(1, 1, 4, torch.bfloat16), 2, 4, torch.device("cpu")))
