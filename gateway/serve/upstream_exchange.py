"""One request between its client and its upstream. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from gateway.backends.base import Head, Tail
from gateway.bill.headers import headers_without_counts, reported_headers
from gateway.calls.exchange import Client, Reply
from gateway.calls.feed import EventFeed, Keepalive
from gateway.errors import GatewayError, TimedOut, UpstreamFailed
from gateway.serve.record_draft import RecordDraft
from gateway.serve.stages import Ended
from gateway.upstream.header_filter import to_client
from gateway.upstream.proxy import UpstreamRoute
from gateway.upstream.reported import is_object
from gateway.wire.plain import plain_headers
from gateway.wire.sse import KEEPALIVE_COMMENT, SSE_HEADERS
from policies.sections import SsePolicy

MAX_WHOLE_NBYTES: Final = 64 * 1024**2
"""Of an answer that is held to its end, so that its headers can show its bill."""

MAX_ID: Final = 128
"""Characters of an upstream's request id that are kept."""

LISTS: Final = ("cache-status", "server-timing")
"""Headers that every hop adds its part to."""

Events: TypeAlias = EventFeed[Head | bytes | Tail]


@dataclass(frozen=True, slots=True)
class UpstreamExchange:
    """One request between its client and its upstream."""

    route: UpstreamRoute
    draft: RecordDraft
    client: Client
    sse: SsePolicy

    async def run(self) -> None:
        """Afterwards the client has the upstream's answer. Raises the upstream's errors from before
        the client's answer began."""
        usage = self.route.usage
        self.draft.work, self.draft.served_by = usage, usage.upstream
        answer = EventFeed(self.route.upstream.exchange(self.route.outgoing))
        async with aclosing(answer) as events:
            first = await events.next(self.sse.early_headers_after if usage.stream else None)
            if first is None:
                await self.client.open(dict(SSE_HEADERS) | self._ids() | self._timing({}))
                await self._errors_as_events(self._late(events))
                return
            head = self._head(first)
            if _is_stream(head):
                headers = plain_headers(SSE_HEADERS) | self._ids() | to_client(head.headers)
                await self.client.open(headers | self._timing(head.headers))
                await self._errors_as_events(self._stream(events))
            else:
                await self._whole(events, head)

    async def _whole(self, events: Events, head: Head) -> None:
        """Status, body and the upstream's own headers as they came; ours show the bill."""
        self.draft.timings.first_token()
        body, usage = await self._body(events), self.route.usage
        headers = {"cache-control": "no-store"} | self._ids() | to_client(head.headers)
        if head.status == 200 and usage.billed:
            usage.take_whole(body)
            timings, bill = self.draft.timings.shown(), usage.final_bill()
            ours = reported_headers(
                usage.upstream, bill, timings=timings, warnings=usage.notes(bill)
            )
            headers |= _beside(head.headers, ours)
        else:
            headers |= self._timing(head.headers)
        await self.client.send(Reply(head.status, body, headers))
        self._end(head.status)

    async def _stream(self, events: Events) -> None:
        """Whole events as they come, so that a comment, or an error, stands between two of them."""
        usage, keepalive = self.route.usage, Keepalive(self.sse.keepalive)
        while not isinstance(piece := await events.next(keepalive.left_s), Tail):
            data = usage.take_piece(piece) if isinstance(piece, bytes) else b""
            if data:
                self.draft.timings.first_token()
            ping = KEEPALIVE_COMMENT if usage.between_events else b""
            await self.client.write(keepalive.next_chunk(data, ping))
        if rest := usage.rest():
            self.draft.timings.first_token()
            await self.client.write(rest)
        self._end(200)

    async def _late(self, events: Events) -> None:
        """The client's answer has begun already: the upstream's must be a stream, or becomes an
        error in it."""
        while (first := await events.next(self.sse.keepalive)) is None:
            await self.client.write(KEEPALIVE_COMMENT)
        head = self._head(first)
        if _is_stream(head):
            await self._stream(events)
            return
        body, usage = await self._body(events), self.route.usage
        if head.status == 200:
            usage.take_whole(body)  # no client gets it, and it was computed all the same
        usage.failed = True
        await self.client.write(self._error_event(_error_body(body), head.status))
        self._end(200)

    async def _body(self, events: Events) -> bytes:
        """The whole body of an answer, and a whole JSON object is one even where the upstream broke
        off behind it.

        Raises `UpstreamFailed` for one too large to be held, and what `Client.hold` raises.
        """
        pieces: list[bytes] = []
        nbytes = 0
        while not isinstance(piece := await _next(events, pieces), Tail):
            assert isinstance(piece, bytes)
            nbytes += len(piece)
            if nbytes > MAX_WHOLE_NBYTES:
                raise UpstreamFailed(f"the upstream's answer exceeds {MAX_WHOLE_NBYTES} bytes")
            self.client.hold(2 * len(piece))  # once more when it is joined, or read for its usage
            pieces.append(piece)
        return b"".join(pieces)

    async def _errors_as_events(self, answer: Coroutine[Any, Any, None]) -> None:
        """An error that is raised once the client's stream is open is its last event, but for a
        stream whose last event has come: that one is over."""
        usage = self.route.usage
        try:
            await answer
        except ConnectionError:
            raise
        except GatewayError as error:
            between = b"" if usage.between_events else b"\n\n"
            was_over = usage.ended
            if (rest := usage.broken_off()) and not was_over:
                await self.client.write(rest)
            if usage.ended:
                self._end(200)
                return
            self.draft.ended = Ended.failed(error, 200)
            await self.client.write(between + self._error_event(self._encoded(error), 502))

    def _error_event(self, body: bytes | None, status: int) -> bytes:
        """`body` is an error of the client's format; None: the upstream's answer was no error of
        that format."""
        if body is None:
            upstream = self.route.usage.upstream
            body = self._encoded(
                UpstreamFailed(f"upstream {upstream} answered with status {status}")
            )
        return self.draft.call.wire.error_event(body)

    def _encoded(self, error: GatewayError) -> bytes:
        call = self.draft.call
        return call.wire.encode_error(error, request_id=call.native_id).body

    def _head(self, first: Head | bytes | Tail) -> Head:
        """The beginning of the upstream's answer, once the upstream's id of it is noted."""
        if not isinstance(first, Head):
            raise TypeError("an upstream's answer begins with its head")
        self.route.usage.upstream_id = _upstream_id(first)
        return first

    def _end(self, status: int) -> None:
        """The client has the upstream's answer, or its refusal, whole."""
        failed = status >= 400 or self.route.usage.failed
        self.draft.ended = Ended("failed" if failed else "answered", status)

    def _ids(self) -> dict[str, str]:
        """Ours, which the upstream's own request id may replace in the header its SDK reads."""
        return plain_headers(self.draft.call.id_headers)

    def _timing(self, theirs: Mapping[str, str]) -> dict[str, str]:
        return _beside(theirs, headers_without_counts(timings=self.draft.timings.shown()))


async def _next(events: Events, pieces: list[bytes]) -> Head | bytes | Tail | None:
    """The next event of an answer of which `pieces` have come; its end where the upstream fails
    behind a whole JSON object."""
    try:
        return await events.next()
    except (UpstreamFailed, TimedOut):
        if is_object(b"".join(pieces)):
            return Tail()
        raise


def _is_stream(head: Head) -> bool:
    """Whether its events can be read: an answer that is encoded, though it was asked for plain,
    passes as a whole."""
    plain = head.headers.get("content-encoding", "identity").strip().lower() in ("identity", "")
    return (
        head.status == 200
        and plain
        and head.headers.get("content-type", "").lower().startswith("text/event-stream")
    )


def _upstream_id(head: Head) -> str | None:
    """The upstream's id of the request, cut to a length that is fit for a log."""
    name = head.headers.get("request-id") or head.headers.get("x-request-id")
    return None if name is None else name[:MAX_ID]


def _beside(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the lists that both have a part of: what is closer to the origin comes first (RFC
    9211, section 2)."""
    lower = plain_headers(ours)
    return lower | {
        name: f"{theirs[name]}, {lower[name]}" for name in LISTS if name in lower and name in theirs
    }


def _error_body(body: bytes) -> bytes | None:
    """An upstream's error on one line; None where the body is no error of the client's format."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return (
        orjson.dumps(content)
        if isinstance(content, dict) and isinstance(content.get("error"), dict)
        else None
    )
