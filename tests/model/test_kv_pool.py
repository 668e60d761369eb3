"""The KV pool: bytes in and out, copies, and nothing that is not finite."""

from __future__ import annotations

import resource

import pytest
import torch

from engine.model.kv_pool import PAD_SLOTS, KvPool, KvShape, slots_of
from engine.model.runs import SlotRun

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
SHAPE = KvShape(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.bfloat16)


def filled(shape: KvShape = SHAPE) -> KvPool:
    """Six pages of four slots with distinct values."""
    pool = KvPool(shape, 6, 4, CPU)
    for layer in range(shape.num_layers):
        values = torch.randn(2, 24, 3, 4, generator=torch.Generator().manual_seed(layer)).to(
            shape.dtype
        )
        pool.write(layer, values[0], values[1], slice(0, 24))
    return pool


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pages_round_trip(dtype: torch.dtype) -> None:
    """Bytes read from pages and written to others read back the same, and are as many as
    promised."""
    pool = filled(KvShape(2, 3, 4, dtype))
    body = pool.read_pages([1, 4])
    assert len(body) == 2 * pool.page_nbytes
    assert body[: pool.page_nbytes] != body[pool.page_nbytes :]
    pool.write_pages([5, 0], body)
    assert pool.read_pages([5, 0, 1, 4]) == bytes(body) * 2
    pool.write_pages([2, 3], body)
    assert pool.read_pages([2]) == body[: pool.page_nbytes]
    assert pool.read_pages([3, 2]) == bytes(body[pool.page_nbytes :]) + bytes(
        body[: pool.page_nbytes]
    )


def test_layout_is_as_documented() -> None:
    """Layer, K or V, slot, head, dimension: the bytes of a page in that order."""
    pool = filled()
    page = torch.frombuffer(bytearray(pool.read_pages([2])), dtype=torch.bfloat16).view(
        2, 2, 4, 3, 4
    )
    keys, values = pool.read(1, (SlotRun(8, 4),), 4)
    assert torch.equal(page[1, 0], keys)
    assert torch.equal(page[1, 1], values)


def test_copy_page_copies_slots_in_every_layer() -> None:
    """The first slots are copied, the others keep what they had."""
    pool = filled()
    before = pool.read_pages([3])
    pool.copy_page(1, 3, 3)
    for layer in (0, 1):
        for side in (0, 1):
            assert torch.equal(
                pool.read(layer, (SlotRun(12, 3),), 3)[side],
                pool.read(layer, (SlotRun(4, 3),), 3)[side],
            )
    pool.copy_page(3, 5, 4)
    assert pool.read_pages([5]) == pool.read_pages([3]) != before
    kept = torch.frombuffer(bytearray(before), dtype=torch.bfloat16).view(2, 2, 4, 3, 4)[:, :, 3]
    now = torch.frombuffer(bytearray(pool.read_pages([3])), dtype=torch.bfloat16).view(
        2, 2, 4, 3, 4
    )[:, :, 3]
    assert torch.equal(kept, now)


def test_one_run_is_a_view_and_several_are_gathered() -> None:
    """Reading in place copies nothing; scattered runs give the same values, zeros after them."""
    pool = filled()
    keys, _ = pool.read(0, (SlotRun(4, 8),), 8)
    assert keys.data_ptr() == pool.read(0, (SlotRun(4, 1),), 1)[0].data_ptr()
    gathered, _ = pool.read(0, (SlotRun(8, 4), SlotRun(4, 4)), 20)
    assert torch.equal(gathered[:8], torch.cat([keys[4:], keys[:4]]))
    assert gathered.shape[0] == 20
    assert not gathered[8:].any()


def test_view_past_the_last_page_is_zero() -> None:
    """A run at the pool's end can be extended by the padding, which stays zero."""
    keys, values = filled().read(0, (SlotRun(20, 4),), PAD_SLOTS)
    assert not keys[4:].any()
    assert not values[4:].any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nothing_but_finite_values_gets_in(bad: float) -> None:
    """What is written or loaded as NaN or infinity is zero in the pool."""
    pool = filled()
    rows = torch.full((3, 3, 4), bad, dtype=torch.bfloat16)
    pool.write(0, rows, rows, slots_of([SlotRun(0, 1), SlotRun(9, 2)], CPU))
    whole = (
        torch.full((pool.page_nbytes // 2,), bad, dtype=torch.bfloat16)
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )
    pool.write_pages([4], memoryview(whole))
    for layer in (0, 1):
        for side in pool.read(layer, (SlotRun(0, 24),), 24):
            assert bool(side.isfinite().all())
    assert not pool.read(0, (SlotRun(9, 2),), 2)[0].any()
    assert not any(pool.read_pages([4]))


def test_wrong_sizes_are_refused() -> None:
    """A payload of another length, a page outside the pool and too long a copy are errors, not
    corruption."""
    pool = filled()
    with pytest.raises(ValueError, match="1 pages have"):
        pool.write_pages([0], memoryview(b"x"))
    with pytest.raises(IndexError):
        pool.read_pages([6])
    with pytest.raises(ValueError, match="holds 4 tokens"):
        pool.copy_page(0, 1, 5)
    with pytest.raises(ValueError, match="2 pages have"):
        pool.write_pages([0, 1], pool.read_pages([0]))


@pytest.mark.parametrize("slots", [slice(3, 6), torch.tensor([3, 9, 4])], ids=["run", "scattered"])
def test_what_is_put_is_made_finite(slots: slice | torch.Tensor) -> None:
    """NaN and infinity put into any layer are zero after `keep_finite`; all else stays."""
    pool = KvPool(KvShape(2, 1, 2, torch.float32), 4, 4, CPU)
    good = torch.arange(6.0).view(3, 1, 2)
    bad = good.clone()
    bad[1, 0, 0], bad[2, 0, 1] = float("nan"), float("inf")
    pool.write_unchecked(0, good, good + 6, slots)
    pool.write_unchecked(1, bad, good + 6, slots)
    pool.keep_finite(slots)
    order = torch.arange(16)[slots]
    key, value = (side[0, 0, order] for side in pool.sides(1))
    assert key.tolist() == [[0, 1], [0, 3], [4, 0]]
    assert value.tolist() == (good + 6)[:, 0].tolist()
    assert pool.sides(0)[0][0, 0, order].tolist() == good[:, 0].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bad", ["nan", "-nan", "inf", "-inf"])
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype, bad: str) -> None:
    """Wherever it stands in what a tier gave, it alone becomes zero; the largest finite values stay
    what they are."""
    pool = filled(KvShape(2, 3, 4, dtype))
    values = torch.full((2, 2, 2, 4, 3, 4), torch.finfo(dtype).max, dtype=dtype)
    values[1] = torch.finfo(dtype).min
    values[1, 0, 1, 3, 2, 1] = torch.tensor(float(bad))
    pool.write_pages([1, 2], memoryview(values.view(torch.uint8).numpy().tobytes()))
    values[1, 0, 1, 3, 2, 1] = 0
    assert pool.read_pages([1, 2]) == values.view(torch.uint8).numpy().tobytes()


def test_touched_memory_is_at_hand() -> None:
    """Writing to pages that were touched waits for no memory, and writing to others does."""
    pool = KvPool(KvShape(2, 8, 64, torch.float32), 1024, 16, CPU)
    body = memoryview(bytes(100 * pool.page_nbytes))
    pool.touch(200 * pool.page_nbytes)

    def faults(first: int) -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        pool.write_pages(range(first, first + 100), body)
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults(0)  # what the code itself needs
    assert faults(50) < faults(700)


def test_touching_more_than_there_is() -> None:
    """The whole pool, and not a byte more."""
    pool = KvPool(KvShape(1, 1, 2, torch.float32), 4, 4, CPU)
    pool.touch(10**9)
    assert not any(pool.read_pages(range(4)))
