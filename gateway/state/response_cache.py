"""Whole answers, given again to requests that are the same in everything that could change them.
Off by default.

In memory only, bounded by bytes, forgotten with time, and a tenant's own. Holds the engine's events
and not the bytes that a client was sent: an answer is encoded anew for every request, streamed or
not. Knows no prices and no HTTP.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain, groupby
from typing import Any, Final, TypeAlias

import msgspec

from engine.messages import TextDelta, ToolCallDelta
from gateway.backends.base import Event
from gateway.bill.lookup import CachedAnswer, ResponseLookup
from gateway.calls.choices import ChoiceEvent
from gateway.calls.exchange import Call
from gateway.request import Request
from policies.pricing import Usage
from policies.sections import ResponseCachePolicy

SAME_ANSWER: Final = frozenset(
    {
        *(
            "id",
            "stream",
            "tenant",
            "routing_key",
            "started_at_s",
            "plan",
            "warnings",
            "end_user",
            "nbytes",
        ),
        *("options", "directives", "background", "store_answer", "response_id", "service_tier"),
    }
)
"""The fields of a request that change neither the model's input nor its answer. All others are in
the key, those of later versions too."""

VERSIONS: Final = ("anthropic-version", "anthropic-beta", "openai-beta")
"""Headers that choose among versions of an API."""

DAY_S: Final = 86400.0
"""A chat template may tell the model which day it is."""

RecordedEvents: TypeAlias = list[tuple[int, Event]]
"""The events of one request as they came, each with the number of the answer it belongs to."""


class ResponseCache:
    """Owned by the event loop."""

    def __init__(self, policy: ResponseCachePolicy) -> None:
        self._policy = policy
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._flush_generation = 0
        self._swept_at_s = 0.0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def enabled(self) -> bool:
        return self._policy.enabled

    def look_up(self, call: Call, request: Request, model: str) -> ResponseLookup:
        """The cached answer to a request that `model` would answer, or why there is none.

        `model` distinguishes a model from every other one, and from other weights of its name.
        """
        reason = self._bypass_reason(request)
        if reason is not None:
            return ResponseLookup("bypass", reason)
        key = request_key(call, request, model, apart=self._policy.end_users == "apart")
        found = ResponseLookup("miss", None, key, flush_generation=self._flush_generation)
        cached = self._answers.get(key)
        if not request.directives.read:
            return replace(found, outcome="request", detail="no-cache")
        if cached is None:
            return found
        age_s = request.started_at_s - cached.created_at_s
        if age_s >= self._policy.ttl:
            return replace(found, outcome="stale")
        if request.directives.max_age_s is not None and age_s > request.directives.max_age_s:
            return replace(found, outcome="request", detail="max-age")
        self._answers.move_to_end(key)
        return replace(found, outcome="hit", cached=cached, ttl_left_s=self._policy.ttl - age_s)

    def keep(
        self,
        lookup: ResponseLookup,
        request: Request,
        events: RecordedEvents,
        usage: Usage,
        cost_usd: Decimal,
    ) -> float | None:
        """Keep a whole answer, in place of those used longest ago; returns for how many seconds.

        None where it is not kept: its look-up has no key, it is too large, or there was a flush
        since the look-up.
        """
        if lookup.key is None:
            return None
        answer = CachedAnswer(
            request.tenant,
            msgspec.msgpack.encode(list(joined(events))),
            usage,
            cost_usd,
            request.started_at_s,
        )
        self._sweep(request.started_at_s)
        self._drop(lookup.key)
        if answer.nbytes > self._policy.bytes or lookup.flush_generation != self._flush_generation:
            return None
        while self.nbytes + answer.nbytes > self._policy.bytes:
            self._drop(next(iter(self._answers)))
        self._answers[lookup.key] = answer
        self.nbytes += answer.nbytes
        return self._policy.ttl

    def flush(self, tenant: str | None) -> None:
        """Forget the answers to a tenant, or all; those being generated are not kept."""
        self._flush_generation += 1
        for key in [
            key for key, answer in self._answers.items() if tenant in (None, answer.tenant)
        ]:
            self._drop(key)

    def answers_to(self, tenant: str | None) -> list[CachedAnswer]:
        """The answers kept of a tenant, or all."""
        return [answer for answer in self._answers.values() if tenant in (None, answer.tenant)]

    def _bypass_reason(self, request: Request) -> str | None:
        """The reason why a request's answer may not be given again; None where it may."""
        if not (request.directives.store and request.store_answer):
            return "no-store"
        if request.prewarm:
            return "no-answer"
        if request.prompt.tools and not self._policy.tools:
            return "tools"
        sampled = request.sampling.temperature > 0 and request.sampling.seed is None
        return "sampled" if sampled and not self._policy.sampled else None

    def _sweep(self, now_s: float) -> None:
        """Drop expired answers, once per TTL: no request may ever ask for them again."""
        if now_s - self._swept_at_s < self._policy.ttl:
            return
        self._swept_at_s = now_s
        for key in [
            key
            for key, answer in self._answers.items()
            if now_s - answer.created_at_s >= self._policy.ttl
        ]:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.nbytes -= answer.nbytes


async def replay(
    cached: CachedAnswer, request: Request
) -> AsyncGenerator[Event | ChoiceEvent, None]:
    """The events of a cached answer, in their order, as a backend would send them again."""
    for index, event in msgspec.msgpack.decode(cached.events, type=list[tuple[int, Event]]):
        yield event if request.num_answers == 1 else ChoiceEvent(index, event)


def request_key(call: Call, request: Request, model: str, *, apart: bool) -> bytes:
    """The same only for requests of one tenant, to one model, in one API and its version, that ask
    the same.

    The order of keys in tools and schemas counts, as the model sees it. With `apart` so do end
    users.
    """
    asked: list[Any] = [
        call.wire.provider.name,
        call.route,
        model,
        [call.headers.get(name) for name in VERSIONS],
        request.tenant,
    ]
    asked += [request.started_at_s // DAY_S]
    asked += [request.end_user] if apart else []
    asked += [
        [name, getattr(request, name)]
        for name in request.__struct_fields__
        if name not in SAME_ANSWER
    ]
    return hashlib.sha256(msgspec.msgpack.encode(asked)).digest()


def joined(recorded: Sequence[tuple[int, Event]]) -> Iterator[tuple[int, Event]]:
    """The events with every run of deltas to one text, or one call, as a single delta."""
    for (index, _), run in groupby(recorded, key=_kind):
        events = [event for _, event in run]
        yield from ((index, event) for event in _as_one(events))


def _kind(step: tuple[int, Event]) -> tuple[int, object]:
    index, event = step
    match event:
        case TextDelta():
            return index, ("text", event.thinking)
        case ToolCallDelta():
            return index, ("call", event.index)
    return index, type(event).__name__


def _as_one(events: list[Event]) -> Iterable[Event]:
    first = events[0]
    deltas = [event for event in events if isinstance(event, TextDelta | ToolCallDelta)]
    token_ids = tuple(chain.from_iterable(delta.token_ids for delta in deltas))
    logprobs = tuple(chain.from_iterable(delta.logprobs for delta in deltas))
    match first:
        case TextDelta():
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            return [
                msgspec.structs.replace(first, text=text, token_ids=token_ids, logprobs=logprobs)
            ]
        case ToolCallDelta():
            arguments = "".join(
                event.arguments for event in events if isinstance(event, ToolCallDelta)
            )
            return [
                msgspec.structs.replace(
                    first, arguments=arguments, token_ids=token_ids, logprobs=logprobs
                )
            ]
    return events
