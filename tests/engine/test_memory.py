"""Memory that is lent again and again: nobody's bytes are another's, and it all comes back."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.memory import CELL_NBYTES, MAPPED_NBYTES, Stage, buffer, joined
from tests.fakes.stage import lent_nbytes


def test_a_buffer_is_writable_and_a_joined_one_is_not() -> None:
    """Small ones and ones with a mapping of their own alike."""
    for nbytes in (0, 10, MAPPED_NBYTES, MAPPED_NBYTES + 1):
        room = buffer(nbytes)
        room[:] = bytes([7]) * nbytes
        whole = joined((room, b"end"))
        assert bytes(whole) == bytes([7]) * nbytes + b"end"
        assert memoryview(whole).readonly


def test_what_is_lent_comes_back_with_its_last_view() -> None:
    """A slice keeps all of it out; afterwards the same memory is lent to the next one."""
    stage = Stage(4 * MAPPED_NBYTES)
    stage.touch()
    whole = stage.lend(MAPPED_NBYTES + 1)
    whole[:] = b"x" * len(whole)
    part = whole[10:20].toreadonly()
    del whole
    assert bytes(part) == b"x" * 10
    assert lent_nbytes(stage) == MAPPED_NBYTES + CELL_NBYTES
    del part
    gc.collect()
    assert lent_nbytes(stage) == 0
    assert bytes(stage.lend(MAPPED_NBYTES)[:5]) == b"xxxxx"


def test_what_does_not_fit_is_lent_from_elsewhere() -> None:
    """A stage that is out, too small, or asked for little still gives what was asked for."""
    stage = Stage(2 * MAPPED_NBYTES)
    out = [stage.lend(MAPPED_NBYTES) for _ in range(3)]
    assert lent_nbytes(stage) == 2 * MAPPED_NBYTES
    for i, view in enumerate(out):
        view[:] = bytes([i]) * MAPPED_NBYTES
    assert [view[0] for view in out] == [0, 1, 2]
    assert len(stage.lend(5 * MAPPED_NBYTES)) == 5 * MAPPED_NBYTES
    assert stage.lend(3).format == "B"
    assert lent_nbytes(stage) == 2 * MAPPED_NBYTES


@pytest.mark.parametrize("nbytes", [0, 1, CELL_NBYTES - 1, MAPPED_NBYTES - 1])
def test_a_stage_too_small_for_anything_is_one(nbytes: int) -> None:
    """A model with a tiny pool has a tiny stage."""
    stage = Stage(nbytes)
    stage.touch()
    assert len(stage.lend(MAPPED_NBYTES)) == MAPPED_NBYTES
    assert lent_nbytes(stage) == 0


def test_threads_never_share_what_they_borrowed() -> None:
    """Four threads borrow, write and look again, while what they let go of comes back in any of
    them."""
    stage = Stage(6 * MAPPED_NBYTES)

    def use(mark: int) -> bool:
        for i in range(60):
            view = stage.lend(MAPPED_NBYTES + i * 1000)
            view[:: CELL_NBYTES // 2] = bytes([mark]) * len(view[:: CELL_NBYTES // 2])
            if set(bytes(view[:: CELL_NBYTES // 2])) != {mark}:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(1, 5)))
    assert lent_nbytes(stage) == 0
