"""Attention over pages: right,
and the same bits for a row however a step is made up and whoever computes it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.native.library import Team, library
from tests.fakes.native_attention import Planned, Pool, Rows, attend, defined
from tests.native.conftest import REASON

pytestmark = pytest.mark.engine

SLOTS = 4096
HEADS = ((1, 1), (9, 3), (8, 1), (7, 7))
"""Query heads and KV heads."""

CLOSE = {"rtol": 2**-7, "atol": 2**-8}
"""Weights and results are rounded to bf16, which has eight bits."""


BITS = {1: "921524e380f10729"}
"""The version of the library's bits, and what attention gives in it."""


def normal(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16()


def pool_of(
    heads: tuple[int, int] = (9, 3), head_dim: int = 64, window: int = 0, page_size: int = 16
) -> Pool:
    num_heads, num_kv = heads
    return Pool(
        normal(SLOTS, num_kv, head_dim),
        normal(num_kv, SLOTS, head_dim).view(SLOTS, num_kv, -1),
        page_size,
        num_heads,
        window,
    )


def queries(pool: Pool, spans: Seq[Rows]) -> torch.Tensor:
    return normal(sum(rows.num_rows for rows in spans), pool.num_heads, pool.head_dim)


def pages_of(pool: Pool, seed: int = 0) -> list[int]:
    """All pages of the pool in some order."""
    pages = list(range(SLOTS // pool.page_size))
    random.Random(seed).shuffle(pages)
    return pages


def mixed(pool: Pool) -> list[Rows]:
    """A step with all kinds of rows: a prefill, a chunk, a draft, and sequences that begin
    alike."""
    pages, size = pages_of(pool), pool.page_size
    first, common, rest = (
        pages[: 48 // size + 1],
        pages[10 : 10 + 1024 // size],
        pages[10 + 1024 // size :],
    )
    own = [rest[i * 200 // size : (i + 1) * 200 // size] for i in range(4)]
    return [
        Rows(0, 37, tuple(first)),
        Rows(1100, 1, (*common, *own[0])),
        Rows(600, 70, tuple(common)),
        Rows(1111, 4, (*common, *own[1])),
        Rows(1024, 1, (*common, *own[2])),
        Rows(530, 1, (*common[: 512 // size], *own[3])),
    ]


@pytest.mark.parametrize("window", [0, 1, 100, 700])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
def test_attention_is_that_of_fp32(team: Team, head_dim: int, window: int) -> None:
    """For groups of one to eight, rows that are tiles and rows that are none, and windows that end
    anywhere."""
    for heads in HEADS:
        pool = pool_of(heads, head_dim, window)
        spans = mixed(pool)
        query = queries(pool, spans)
        torch.testing.assert_close(
            attend(team, pool, spans, query).float(), defined(pool, spans, query), **CLOSE
        )


@pytest.mark.parametrize("page_size", [16, 48, 256])
def test_pages_may_be_of_any_multiple_of_sixteen(team: Team, page_size: int) -> None:
    """Also ones that are longer than what is packed at a time, and ones that do not divide a
    segment."""
    pool = pool_of(page_size=page_size)
    pages = pages_of(pool)
    spans = [
        Rows(700, 200, tuple(pages[:-1][: 900 // page_size + 1])),
        Rows(77, 1, tuple(pages[-6:])),
    ]
    query = queries(pool, spans)
    torch.testing.assert_close(
        attend(team, pool, spans, query).float(), defined(pool, spans, query), **CLOSE
    )


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("heads", HEADS)
def test_a_prompt_has_the_same_bits_however_it_is_cut(
    team: Team, heads: tuple[int, int], window: int
) -> None:
    """Whole, in chunks of several sizes, and a row at a time from the middle on: as decoding would
    have it."""
    pool, num_rows = pool_of(heads, window=window), 1100
    pages = tuple(pages_of(pool)[: num_rows // 16 + 1])
    query = normal(num_rows, pool.num_heads, pool.head_dim)
    whole = attend(team, pool, [Rows(0, num_rows, pages)], query)
    for size in (7, 64, 301, 512):
        for start in range(0, num_rows, size):
            chunk = query[start : start + size].contiguous()
            assert torch.equal(
                attend(team, pool, [Rows(start, len(chunk), pages)], chunk),
                whole[start : start + size],
            )
    for start in itertools.chain(range(500, 530), (1, 700, 1023, 1024, 1099)):
        assert torch.equal(
            attend(team, pool, [Rows(start, 1, pages)], query[start : start + 1]),
            whole[start : start + 1],
        )


def check_alone(team: Team, alone: Team, pool: Pool, spans: Seq[Rows]) -> None:
    """Each sequence of a step has the bits by itself in one team that it has among the others in
    another."""
    query, row = queries(pool, spans), 0
    together = attend(team, pool, spans, query)
    for rows in spans:
        end = row + rows.num_rows
        assert torch.equal(attend(alone, pool, [rows], query[row:end]), together[row:end])
        row = end


@pytest.mark.parametrize("window", [0, 300])
def test_a_row_has_the_same_bits_in_any_company(team: Team, window: int) -> None:
    """Each sequence of a mixed step alone, in one thread, which never splits one, as among the
    others."""
    pool, alone = pool_of(window=window), Team(1)
    spans = mixed(pool)
    check_alone(team, alone, pool, spans)
    alone.close()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_steps_have_the_bits_of_their_sequences_alone(data: st.DataObject) -> None:
    """Trees of sequences that leave one another at any page, with rows of any number, in any
    order."""
    pool = pool_of((4, 2), 32, data.draw(st.sampled_from((0, 33, 600)), "window"))
    pages = iter(pages_of(pool, data.draw(st.integers(0, 9), "order")))
    spans: list[Rows] = []
    for _ in range(data.draw(st.integers(1, 7), "sequences")):
        num_rows = data.draw(st.one_of(st.integers(1, 6), st.integers(1, 200)), "rows")
        start = data.draw(st.integers(0, 1200), "start")
        num_pages = (start + num_rows - 1) // 16 + 1
        before = data.draw(st.sampled_from(spans), "parent").pages if spans else ()
        num_shared = data.draw(st.integers(0, min(len(before), num_pages)), "shared pages")
        own = tuple(itertools.islice(pages, num_pages - num_shared))
        if num_shared + len(own) == num_pages:
            spans.append(Rows(start, num_rows, (*before[:num_shared], *own)))
    several, alone = Team(3), Team(1)
    check_alone(several, alone, pool, spans)
    several.close()
    alone.close()


def test_bits_depend_on_no_page_and_on_nothing_after_a_row(team: Team) -> None:
    """The same keys and values in other pages, with others after them, give the same bits."""
    pool = pool_of()
    rows = Rows(1300, 2, tuple(pages_of(pool)[:82]))
    other = Rows(1300, 2, tuple(pages_of(pool, 1)[:82]))
    key, value = (side.roll(9, 1).mul(30) for side in (pool.key, pool.value))
    for page, before in zip(other.pages, rows.pages, strict=True):
        for side, source in ((key, pool.key), (value, pool.value)):
            side[page * 16 : page * 16 + 16] = source[before * 16 : before * 16 + 16]
    last = other.pages[-1] * 16
    key[last + 6 : last + 16] = 1e4
    value[last + 6 : last + 16] = -1e4
    query = queries(pool, [rows])
    moved = Pool(key, value, 16, pool.num_heads)
    assert torch.equal(attend(team, pool, [rows], query), attend(team, moved, [other], query))


def test_scores_of_any_size_are_weighed(team: Team) -> None:
    """Scores far apart, all far below zero, and far above: no weight overflows, and the sum is
    never zero."""
    pool, rows = pool_of(), Rows(1000, 3, tuple(range(63)))
    for factor in (-100.0, 100.0):
        loud = Pool(pool.key.abs() * factor, pool.value, 16, pool.num_heads)
        query = queries(pool, [rows]).abs()
        torch.testing.assert_close(
            attend(team, loud, [rows], query).float(), defined(loud, [rows], query), **CLOSE
        )


def test_a_plan_serves_many_layers(team: Team) -> None:
    """One plan after another call of it, five hundred times: whoever finishes a split row last, it
    is whole."""
    pool = pool_of()
    spans = mixed(pool)
    planned, query = Planned(team, pool, spans), queries(pool, spans)
    wanted = planned(query)
    assert all(torch.equal(planned(query), wanted) for _ in range(500))
    planned.free()


def test_bits_are_those_of_their_version(team: Team) -> None:
    """Kept keys and values are found again under `PCG_BITS`: who changes what comes out must change
    that, and this."""

    def mixture(*shape: int) -> torch.Tensor:
        return (
            (torch.arange(math.prod(shape)) * 2654435761 % 2003 - 1001)
            .div(700)
            .bfloat16()
            .view(shape)
        )

    pool = Pool(mixture(1200, 3, 64), mixture(1201, 3, 64)[1:], 16, 9, window=700)
    query = mixture(1200, 9, 64)
    out = attend(team, pool, [Rows(0, 1200, tuple(range(75)))], query)
    digest = hashlib.sha256(out.view(torch.int16).numpy().tobytes()).hexdigest()[:16]
    assert {library().pcg_bits(): digest} == BITS


def test_no_rows_are_nothing_to_do(team: Team) -> None:
    """A step that samples nothing attends to nothing in its last layer."""
    pool = pool_of()
    assert attend(team, pool, [], queries(pool, [])).shape[0] == 0
