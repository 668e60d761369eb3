"""The cache of whole answers by itself: what it keeps of events, and for how long."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import orjson
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from engine.types import CacheReport
from gateway.calls.exchange import Call
from gateway.state.response_cache import ResponseCache, joined
from gateway.wire.openai import CHAT_WIRE
from policies.pricing import Usage
from policies.sections import ResponseCachePolicy
from tests.gateway.serving import openai_body

WIRE = CHAT_WIRE
CALL = Call("r", "chat", WIRE, {}, 0.0, 0.0)
TAPE: list[Any] = [
    (0, Started("r", CacheReport(9), 0.0, 0.0, 0.0)),
    (0, TextDelta("r", "Hi", (1,))),
    (0, Finished("r", "stop", 1)),
]

TEXTS = st.builds(TextDelta, st.just("r"), st.text(max_size=3), st.just((1, 2)), st.booleans())
ARGUMENTS = st.builds(
    ToolCallDelta,
    st.just("r"),
    st.integers(0, 1),
    st.sampled_from(["find", None]),
    st.text(max_size=3),
    st.just((3,)),
)


@given(st.lists(st.tuples(st.integers(0, 1), TEXTS | ARGUMENTS)))
def test_joined_deltas_say_what_the_deltas_said(tape: list[Any]) -> None:
    """Every text and every call is whole and in its place, no token is lost, and no two neighbours
    could be one."""
    short = list(joined(tape))

    def kind(step: tuple[int, Any]) -> tuple[object, ...]:
        index, event = step
        return (
            (index, event.thinking)
            if isinstance(event, TextDelta)
            else (index, event.index, "call")
        )

    def said(steps: list[Any]) -> dict[tuple[object, ...], str]:
        told: dict[tuple[object, ...], str] = {}
        for step in steps:
            more = step[1].text if isinstance(step[1], TextDelta) else step[1].arguments
            told[kind(step)] = told.get(kind(step), "") + more
        return told

    assert said(short) == said(tape)
    assert [token for _, event in short for token in event.token_ids] == [
        t for _, event in tape for t in event.token_ids
    ]
    assert all(kind(one) != kind(other) for one, other in pairwise(short))


def keep(cache: ResponseCache, now_s: float, words: str) -> None:
    """Ask for something new at `now_s`, and keep its answer."""
    body = orjson.dumps(openai_body(temperature=0, messages=[{"role": "user", "content": words}]))
    request = WIRE.parse(body, {}, request_id="r")
    request = msgspec.structs.replace(request, started_at_s=now_s)
    lookup = cache.look_up(CALL, request, "m")
    assert lookup is not None
    assert cache.keep(lookup, request, TAPE, Usage(9, output=1), Decimal(1)) == 100.0


def test_what_has_expired_does_not_stay() -> None:
    """Nobody asks for it again, and it is plain text: it is gone when others are kept, a while
    later at most."""
    cache = ResponseCache(ResponseCachePolicy(enabled=True, ttl=100.0))
    for now_s in (1000.0, 1050.0, 1099.0):
        keep(cache, now_s, f"at {now_s}")
    assert len(cache) == 3
    keep(cache, 1160.0, "later")
    assert len(cache) == 2
    assert cache.nbytes == sum(answer.nbytes for answer in cache.answers_to(None)) > 0
    cache.flush(None)
    assert (len(cache), cache.nbytes) == (0, 0)
