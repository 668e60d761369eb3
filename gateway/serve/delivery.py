"""Takes a backend's events to the client, whole or as a stream. Knows no policy but its timing.

One answer passes through these steps:

    look up among whole answers -> the events of that answer, else the backend's
    -> headers and body, or headers and a stream
    -> kept for later requests, before the client has all of it
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import structlog

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from gateway.backends.base import Event
from gateway.calls.choices import ChoiceEvent, merge_choices
from gateway.calls.exchange import Call, Client, Reply
from gateway.calls.feed import EventFeed, Keepalive
from gateway.errors import EngineFailed, GatewayError
from gateway.offload import OffloadThread
from gateway.serve.answering import Answering
from gateway.serve.record_draft import RecordDraft
from gateway.serve.stages import ANSWERED, Admitted, Ended
from gateway.state.archive import Archive
from gateway.state.response_cache import ResponseCache, replay
from gateway.wire.base import Answer, StreamEncoder, ToolCall
from gateway.wire.sse import SSE_HEADERS
from policies.sections import SsePolicy

JSON_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
}

Events: TypeAlias = EventFeed[Event | ChoiceEvent]

_log = structlog.get_logger("pcg.handler")


@dataclass(frozen=True, slots=True)
class AnswerDelivery:
    """Generates the answer to an admitted request and sends it. `responses` is None where whole
    answers are not cached."""

    sse: SsePolicy
    archive: Archive
    responses: ResponseCache | None
    offload: OffloadThread = field(default_factory=OffloadThread)

    async def deliver(self, draft: RecordDraft, admitted: Admitted, client: Client) -> None:
        """Afterwards the client has its whole answer, and `draft` how it ended."""
        call, request = admitted.call, admitted.request
        lookup = None
        if self.responses is not None:
            lookup = self.responses.look_up(call, request, admitted.model_identity)
        draft.work = answering = Answering.begin(admitted, lookup, draft.timings)
        async with aclosing(EventFeed(_events(answering))) as events:
            if request.stream:
                await self._stream(draft, answering, events, client)
                return
            while answering.num_open:
                await _next(answering, events)
            answer = await self._finish(answering)
            body = call.wire.encode_answer(request, answer, created_at_s=call.started_at_s)
            await send(call, client, body, answering.headers())
            draft.ended = ANSWERED

    async def _stream(
        self, draft: RecordDraft, answering: Answering, events: Events, client: Client
    ) -> None:
        """Headers leave with the exact bill of the prompt, or without counts when that takes too
        long; then silence is filled."""
        call = answering.admitted.call
        encoder = call.wire.stream(answering.admitted.request, created_at_s=call.started_at_s)
        choice, event = await _next(answering, events, self.sse.early_headers_after)
        await client.open(dict(SSE_HEADERS) | call.id_headers | answering.headers())
        keepalive = Keepalive(self.sse.keepalive)
        try:
            while answering.num_open:
                data = _encode(answering, choice, event, encoder)
                await client.write(keepalive.next_chunk(data, encoder.keepalive()))
                choice, event = await _next(answering, events, keepalive.left_s)
            await client.write(encoder.finish(await self._finish(answering)))
            draft.ended = ANSWERED
        except ConnectionError:
            raise
        except Exception as error:
            shown = client_error(error, call)
            draft.ended = Ended.failed(shown, 200)
            await client.write(encoder.error(shown))

    async def _finish(self, answering: Answering) -> Answer:
        """The whole answer, kept for later requests: for those that refer to it, before its client
        knows its name, and for those that ask the same."""
        admitted, answer = answering.admitted, answering.answer()
        memory = admitted.call.wire.memory
        if memory is not None:
            request, now_s = admitted.request, admitted.call.started_at_s
            keep = partial(memory.keep, request, answer, created_at_s=now_s)
            kept = await self.offload.run(request.nbytes, keep)
            self.archive.put(request.tenant, kept, now_s)
        if self.responses is not None:
            answering.keep(self.responses)
        return answer


async def send(
    call: Call, client: Client, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Send a whole answer with status 200."""
    await client.send(Reply(200, body, dict(JSON_HEADERS) | call.id_headers | dict(headers or {})))


def client_error(error: Exception, call: Call) -> GatewayError:
    """The error as a client may see it.

    A bug is logged by kind and place only: its message may quote the prompt.
    """
    if isinstance(error, GatewayError):
        return error
    _log.error(
        "bug", id=call.id, error=type(error).__name__, at=traceback.format_tb(error.__traceback__)
    )
    return EngineFailed("internal error")


def _events(answering: Answering) -> AsyncIterator[Event | ChoiceEvent]:
    """The events of the cached answer, else the backend's, of one answer or of several."""
    admitted = answering.admitted
    if answering.cached is not None:
        return replay(answering.cached, admitted.request)
    if admitted.request.num_answers == 1:
        return admitted.backend.generate(admitted.request)
    return merge_choices(admitted.backend, admitted.request)


async def _next(
    answering: Answering, events: Events, within_s: float | None = None
) -> tuple[int, Event | None]:
    """The next event, already noted, with the number of its answer; None for silence."""
    item = await events.next(within_s)
    choice, event = (item.index, item.event) if isinstance(item, ChoiceEvent) else (0, item)
    if event is not None:
        answering.note(event, choice)
    return choice, event


def _encode(
    answering: Answering, choice: int, event: Event | None, encoder: StreamEncoder
) -> bytes:
    """One event as the stream shows it; None is silence."""
    match event:
        case Started():
            return encoder.start(answering.usage) if choice == 0 else b""
        case TextDelta():
            return encoder.delta(
                event.text, thinking=event.thinking, logprobs=event.logprobs, choice=choice
            )
        case ToolCallDelta():
            call = ToolCall(event.name or "", event.arguments)
            begins = event.name is not None
            return encoder.call(
                event.index, call, begins=begins, logprobs=event.logprobs, choice=choice
            )
        case Finished():
            return b""  # of one of several answers: they end together
        case None:
            return encoder.keepalive()
