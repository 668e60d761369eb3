"""One request between its client and its upstream. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from gateway.backends.base import Head, Tail
from gateway.bill.headers import headers_without_counts, reported_headers
from gateway.calls.exchange import Client, Reply
from gateway.calls.feed import EventFeed, Keepalive, feed
from gateway.errors import GatewayError, UpstreamFailed
from gateway.serve.progress import Progress
from gateway.upstream.header_filter import to_client
from gateway.upstream.proxy import UpstreamRoute
from gateway.wire.plain import plain_headers
from gateway.wire.sse import KEEPALIVE_COMMENT, SSE_HEADERS
from policies.sections import SsePolicy

MAX_WHOLE_NBYTES: Final = 64 * 1024**2
"""Of an answer that is held to its end, so that its headers can tell what it cost."""


MAX_ID: Final = 128
"""Characters of an upstream's request id that are kept."""


LISTS: Final = ("cache-status", "server-timing")
"""Headers that every hop adds its part to."""


Events: TypeAlias = EventFeed[Head | bytes | Tail]


@dataclass(frozen=True, slots=True)
class UpstreamExchange:
    """One request between its client and its upstream."""

    way: UpstreamRoute
    progress: Progress
    client: Client
    sse: SsePolicy

    async def run(self) -> None:
        """Afterwards the client has the upstream's answer. Raises what the upstream raises before
        the client's began."""
        passing = self.way.passing
        self.progress.passing, self.progress.served_by = passing, passing.upstream
        async with feed(self.way.upstream.exchange(self.way.sent)) as events:
            head = await events.next(self.sse.early_headers_after if passing.stream else None)
            if head is None:
                await self.client.open(dict(SSE_HEADERS) | self._ids() | self._timing({}))
                await self._told_in_stream(self._late(events))
                return
            assert isinstance(head, Head)
            self._note(head)
            if _is_stream(head):
                passed = plain_headers(SSE_HEADERS) | self._ids() | to_client(head.headers)
                await self.client.open(passed | self._timing(head.headers))
                await self._told_in_stream(self._stream(events))
            else:
                await self._whole(events, head)

    async def _whole(self, events: Events, head: Head) -> None:
        """Status, body and the upstream's own headers as they came; ours say what it cost."""
        self.progress.began()
        body, passing = await _body(events), self.way.passing
        headers = {"cache-control": "no-store"} | self._ids() | to_client(head.headers)
        if head.status == 200 and passing.billed:
            passing.take_whole(body)
            timings, bill = self.progress.timings(), passing.bill()
            ours = reported_headers(
                passing.upstream, bill, timings=timings, warnings=passing.notes(bill)
            )
            headers |= _beside(head.headers, ours)
        else:
            headers |= self._timing(head.headers)
        await self.client.send(Reply(head.status, body, headers))
        self.progress.passed(head.status)

    async def _stream(self, events: Events) -> None:
        """Whole events as they come, so that a comment, or an error, stands between two of them."""
        passing, silence = self.way.passing, Keepalive(self.sse.keepalive)
        while not isinstance(piece := await events.next(silence.left_s), Tail):
            data = passing.take_piece(piece) if isinstance(piece, bytes) else b""
            if data:
                self.progress.began()
            await self.client.write(
                silence.broken(data, KEEPALIVE_COMMENT if passing.between_events else b"")
            )
        await self._write(passing.rest())
        self.progress.passed(200)

    async def _late(self, events: Events) -> None:
        """The client's answer has begun already: what comes must be a stream, or is told as an
        error in it."""
        while (head := await events.next(self.sse.keepalive)) is None:
            await self.client.write(KEEPALIVE_COMMENT)
        assert isinstance(head, Head)
        self._note(head)
        if _is_stream(head):
            return await self._stream(events)
        body, passing = await _body(events), self.way.passing
        if (
            head.status == 200
        ):  # whole, though a stream was wanted: nobody sees it, and it was computed all the same
            passing.take_whole(body)
        passing.failed = True
        await self.client.write(self._error_event(_error_body(body), head.status))
        return self.progress.passed(200)

    async def _told_in_stream(self, passing: Coroutine[Any, Any, None]) -> None:
        """What goes wrong once the client's stream is open is its last event."""
        try:
            await passing
        except ConnectionError:
            raise
        except GatewayError as error:
            self.progress.failed(error, 200)
            between = b"" if self.way.passing.between_events else b"\n\n"
            await self.client.write(between + self._error_event(self._encoded(error), 502))

    def _error_event(self, body: bytes | None, status: int) -> bytes:
        """`body` is an error of the client's format; None: the upstream said something else."""
        if body is None:
            body = self._encoded(
                UpstreamFailed(
                    f"upstream {self.way.passing.upstream} answered with status {status}"
                )
            )
        return self.progress.call.wire.error_event(body)

    def _encoded(self, error: GatewayError) -> bytes:
        call = self.progress.call
        return call.wire.encode_error(error, request_id=call.native_id).body

    async def _write(self, data: bytes) -> None:
        if data:
            self.progress.began()
            await self.client.write(data)

    def _note(self, head: Head) -> None:
        self.way.passing.upstream_id = _upstream_id(head)

    def _ids(self) -> dict[str, str]:
        """Ours, which the upstream's own request id may replace in the header its SDK reads."""
        return plain_headers(self.progress.call.id_headers)

    def _timing(self, theirs: Mapping[str, str]) -> dict[str, str]:
        return _beside(theirs, headers_without_counts(timings=self.progress.timings()))


def _is_stream(head: Head) -> bool:
    """Whether its events can be told apart: one that is encoded, though nobody asked for that,
    passes as a whole."""
    plain = head.headers.get("content-encoding", "identity").strip().lower() in ("identity", "")
    return (
        head.status == 200
        and plain
        and head.headers.get("content-type", "").lower().startswith("text/event-stream")
    )


def _upstream_id(head: Head) -> str | None:
    """How the upstream calls the request, in as much as is fit for a log."""
    name = head.headers.get("request-id") or head.headers.get("x-request-id")
    return None if name is None else name[:MAX_ID]


def _beside(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the lists that both have a part of: what is closer to the origin comes first (RFC
    9211, section 2)."""
    lower = plain_headers(ours)
    return lower | {
        name: f"{theirs[name]}, {lower[name]}" for name in LISTS if name in lower and name in theirs
    }


async def _body(events: Events) -> bytes:
    """All of an answer's body. Raises `UpstreamFailed` for one that is too large to be held."""
    pieces: list[bytes] = []
    nbytes = 0
    while not isinstance(piece := await events.next(), Tail):
        assert isinstance(piece, bytes)
        nbytes += len(piece)
        if nbytes > MAX_WHOLE_NBYTES:
            raise UpstreamFailed(f"the upstream's answer exceeds {MAX_WHOLE_NBYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _error_body(body: bytes) -> bytes | None:
    """An upstream's error on one line; None where the body is none that clients of its format would
    know."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return (
        orjson.dumps(told)
        if isinstance(told, dict) and isinstance(told.get("error"), dict)
        else None
    )
