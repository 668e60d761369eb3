"""The byte budget: what is refused, what is given back,
and that the estimate of a body's cost is an upper bound.
"""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import closing
from typing import Any

import msgspec
import orjson
import pytest

from gateway.budget import ByteBudget, Claim
from gateway.errors import Overloaded, RateLimited
from gateway.http.cost import BodyCost


def test_what_all_hold_and_what_one_holds() -> None:
    """Nobody is refused for less than the whole, no tenant holds more than its share, and a refusal
    holds nothing."""
    budget = ByteBudget(100, 60)
    alice, bob = Claim(budget, "alice"), Claim(budget, "bob")
    alice.grow(60)
    with pytest.raises(RateLimited) as limited:
        Claim(budget, "alice").grow(1)
    assert limited.value.retry_after_s == 1.0
    bob.grow(40)
    with pytest.raises(Overloaded) as full:
        bob.grow(1)
    assert full.value.retry_after_s == 1.0
    assert budget.nbytes == 100
    alice.close()
    alice.close()
    bob.grow(20)
    assert (budget.nbytes, bob.nbytes) == (60, 60)


def test_what_is_there_already_counts_past_the_limit() -> None:
    """An answer that exists is not refused: others are for it."""
    budget = ByteBudget(100, 100)
    with closing(Claim(budget, "alice")) as claim:
        claim.take(150)
        with pytest.raises(Overloaded):
            Claim(budget, "bob").grow(1)
    Claim(budget, "bob").grow(100)


def test_what_is_handed_over() -> None:
    """The end of the request gives nothing back then: the heir's does."""
    budget = ByteBudget(100, 100)
    with closing(Claim(budget, "alice")) as claim:
        claim.grow(70)
        heir = claim.handed_over()
    assert budget.nbytes == 70
    with closing(heir):
        assert (claim.nbytes, heir.nbytes) == (0, 70)
    assert budget.nbytes == 0


@pytest.mark.parametrize(("most", "share"), [(0, 1), (1, 0)])
def test_a_budget_of_nothing(most: int, share: int) -> None:
    """Would serve nobody."""
    with pytest.raises(ValueError, match="at least a byte"):
        ByteBudget(most, share)


BODIES = {
    "text": b'"' + b"a" * 300_000 + b'"',
    "escapes": b'"' + b"\\n" * 150_000 + b'"',
    "umlauts": b'"' + "ä".encode() * 150_000 + b'"',
    "cjk": b'"' + "中".encode() * 100_000 + b'"',
    "one emoji": b'"' + b"a" * 300_000 + "😀".encode() + b'"',
    "one escaped emoji": b'"' + b"a" * 300_000 + rb"\ud83d\ude00" + b'"',
    "lists": b"[" + b"[]," * 100_000 + b"[]]",
    "lists of one": b"[" + b"[1]," * 75_000 + b"[]]",
    "objects": b"[" + b"{}," * 100_000 + b"{}]",
    "objects of one": b"[" + b'{"a":1},' * 40_000 + b"{}]",
    "objects in objects": b"[" + b'{"a":{"b":{}}},' * 20_000 + b"{}]",
    "keys": b"{" + b",".join(b'"%d":1' % i for i in range(30_000)) + b"}",
    "texts": b"[" + b",".join(b'"%d"' % i for i in range(40_000)) + b"]",
    "floats": b"[" + b"1.5," * 75_000 + b"1]",
    "integers": b"[" + b",".join(b"%d" % i for i in range(50_000)) + b"]",
    "blocks": b"[" + b'{"type":"text","text":"a"},' * 12_000 + b"{}]",
    "deep": (b"[" * 500 + b"]" * 500 + b",") * 300,
}


@pytest.mark.parametrize("size", [64 * 1024, 7])
@pytest.mark.parametrize("kind", BODIES)
def test_the_estimate_is_an_upper_bound(kind: str, size: int) -> None:
    """Of the body and all that is decoded of it, in whatever pieces it comes, with both decoders;
    and not a wild one."""
    body = b"[" + BODIES[kind].rstrip(b",") + b"]"
    cost = BodyCost()
    added = sum(cost.add(body[i : i + size]) for i in range(0, len(body), size))
    assert added == cost.total
    for decode in (orjson.loads, msgspec.json.decode):
        taken = len(body) + measured(decode, body)
        assert taken <= cost.total < 6 * taken


def measured(decode: Any, body: bytes) -> int:
    """Bytes of what is decoded of a body. What a decoder reserves beside it is not all touched."""
    gc.collect()
    tracemalloc.start()
    try:
        decoded = decode(body)
        kept, _ = tracemalloc.get_traced_memory()
        assert decoded
        return kept
    finally:
        tracemalloc.stop()
