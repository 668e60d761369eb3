"""`/v1/messages/batches`: creates, shows, cancels and deletes batches,
and works through them when there is room.

The requests of a batch go through the same handler as any other, at half the price, a few at a
time, and wait while clients are being served.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import orjson
import structlog

from engine.prompt.numerals import in_json
from gateway.calls.exchange import BATCHED, Call, Client, Reply
from gateway.clock import Clock
from gateway.errors import GatewayError, InvalidRequest, Overloaded, UnknownPath
from gateway.http.routes import Route, Serve
from gateway.ids import request_id
from gateway.serve.auth import tenant_of
from gateway.serve.delivery import send
from gateway.serve.handler import Handler
from gateway.state.batches import (
    LIFETIME_S,
    OUTCOMES,
    Batch,
    BatchesFull,
    BatchItem,
    BatchStore,
    Outcome,
    as_json,
    as_lines,
)
from gateway.wire import json_text
from gateway.wire.anthropic.batch import read_items
from gateway.wire.anthropic.paging import read_page
from gateway.wire.base import Wire
from gateway.wire.structure import check_structure

MAX_TRIES: Final = 20
RETRY_S: Final = 1.0
STUCK_S: Final = 30.0
"""Until a batch that failed is tried again: a disk was full or broken, or there is a bug."""

TIDY_S: Final = 3600.0
"""Between two deletions of old batches while there is no work."""

_log = structlog.get_logger("pcg.batches")


@dataclass(slots=True)
class _Captured:
    """A `Client` in memory: holds one request's body and takes its answer."""

    body: bytes
    reply: Reply | None = None

    async def read(self, max_nbytes: int) -> bytes:
        return self.body

    def hold(self, nbytes: int) -> None:
        """Uncounted: there are only a few of these at a time."""

    def hand_over(self) -> AbstractContextManager[object]:
        return nullcontext()

    async def send(self, reply: Reply) -> None:
        self.reply = reply

    async def deliver(self) -> None:
        """It is here."""

    async def open(self, headers: Mapping[str, str]) -> None:
        raise AssertionError("a batch has no streams")

    async def write(self, data: bytes) -> None:
        raise AssertionError("a batch has no streams")


@dataclass(slots=True)
class BatchRoutes:
    """All batches of a gateway. `run` works through them; without it they only wait."""

    handler: Handler
    wire: Wire
    clock: Clock
    store: BatchStore
    concurrency: int = 2
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> tuple[Route, ...]:
        """The rows of these routes."""
        every, one = "/v1/messages/batches", "/v1/messages/batches/{id}"
        rows = (
            ("POST", every, self.create),
            ("GET", every, self.list),
            ("GET", one, self.show),
            ("GET", f"{one}/results", self.results),
            ("POST", f"{one}/cancel", self.cancel),
            ("DELETE", one, self.delete),
        )
        return tuple(
            Route(method, path, "batches", self._recorded(serve), "anthropic")
            for method, path, serve in rows
        )

    def _recorded(self, serve: Serve) -> Serve:
        """The route with its errors answered and its outcome recorded."""

        async def recorded(call: Call, client: Client) -> None:
            async with self.handler.recorded(call, client):
                await serve(call, client)

        return recorded

    # The routes -----------------------------------------------------------------------------------

    async def create(self, call: Call, client: Client) -> None:
        """POST /v1/messages/batches."""
        tenant = tenant_of(self.handler.policy, call)
        server = self.handler.policy.server
        body = await client.read(server.max_body)
        num_requests, lines = await self.handler.offload.run(
            len(body), partial(_read, body, server.max_values)
        )
        kept = {
            name: call.headers[name]
            for name in ("anthropic-version", "anthropic-beta")
            if name in call.headers
        }
        batch = Batch(
            id=f"msgbatch_{secrets.token_hex(12)}",
            tenant=tenant,
            num_requests=num_requests,
            created_at_s=call.started_at_s,
            headers=kept,
            counts=dict.fromkeys(OUTCOMES, 0),
        )
        try:
            self.store.create(batch, lines)
        except BatchesFull:
            raise Overloaded(
                "there is no room for further batches; delete some", retry_after_s=60.0
            ) from None
        self._wake.set()
        await send(call, client, orjson.dumps(as_json(batch, base_url(call))))

    async def show(self, call: Call, client: Client) -> None:
        """GET /v1/messages/batches/{id}."""
        await send(
            call, client, orjson.dumps(as_json(self._find(call, call.resource_id), base_url(call)))
        )

    async def list(self, call: Call, client: Client) -> None:
        """GET /v1/messages/batches."""
        tenant = tenant_of(self.handler.policy, call)
        page = read_page(call.query, [batch.id for batch in self.store.of(tenant)])
        found = [as_json(self._find(call, name), base_url(call)) for name in page.ids]
        first, last = (page.ids[0], page.ids[-1]) if page.ids else (None, None)
        body = {"data": found, "has_more": page.has_more, "first_id": first, "last_id": last}
        await send(call, client, orjson.dumps(body))

    async def results(self, call: Call, client: Client) -> None:
        """GET /v1/messages/batches/{id}/results."""
        batch = self._find(call, call.resource_id)
        if batch.ended_at_s is None:
            raise InvalidRequest(
                f"Batch {batch.id} has not ended; its results are not available yet."
            )
        form = {"Content-Type": "application/x-jsonl", "Cache-Control": "no-store"}
        await client.open(form | call.id_headers)
        pieces = self.store.results(batch)
        while piece := await asyncio.to_thread(next, pieces, b""):
            await client.write(piece)

    async def cancel(self, call: Call, client: Client) -> None:
        """POST /v1/messages/batches/{id}/cancel: running requests end, others do not begin.
        Idempotent."""
        batch = self._find(call, call.resource_id)
        if batch.cancelled_at_s is None and batch.ended_at_s is None:
            batch.cancelled_at_s = call.started_at_s
            self.store.save(batch)
            self._wake.set()
        await send(call, client, orjson.dumps(as_json(batch, base_url(call))))

    async def delete(self, call: Call, client: Client) -> None:
        """DELETE /v1/messages/batches/{id}: of one that has ended."""
        batch = self._find(call, call.resource_id)
        if batch.ended_at_s is None:
            raise InvalidRequest(
                f"Batch {batch.id} cannot be deleted while it is being processed; cancel it first."
            )
        self.store.delete(batch)
        body = orjson.dumps({"id": batch.id, "type": "message_batch_deleted"})
        await send(call, client, body)

    def _find(self, call: Call, batch_id: str) -> Batch:
        batch = self.store.find(tenant_of(self.handler.policy, call), batch_id)
        if batch is None:
            raise UnknownPath(f"batch: {batch_id[:80]}")
        return batch

    # The work -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: work through every batch, the oldest first. A restart goes on where this
        one ends."""
        while True:
            self._forget_old()
            stuck = False
            for batch in self.store.open():
                try:
                    await self._work(batch)
                except* Exception as errors:
                    _log.error(
                        "batch cannot go on", id=batch.id, error=type(errors.exceptions[0]).__name__
                    )
                    stuck = True
            if stuck:
                await asyncio.sleep(STUCK_S)
            elif not self.store.open():
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), TIDY_S)

    def _forget_old(self) -> None:
        for batch in self.store.old(self.clock()):
            try:
                self.store.delete(batch)
            except OSError as error:
                _log.error("old batch cannot be deleted", id=batch.id, error=type(error).__name__)

    async def _work(self, batch: Batch) -> None:
        room = asyncio.Semaphore(self.concurrency)
        async with asyncio.TaskGroup() as group:
            for item in await asyncio.to_thread(lambda: list(self.store.left(batch))):
                await room.acquire()
                await self.handler.in_flight.wait_at_most(self.concurrency)  # clients first
                task = group.create_task(self._serve(batch, item))
                task.add_done_callback(lambda _: room.release())
        self.store.end(batch, self.clock())
        _log.info("batch ended", id=batch.id, **batch.counts)

    async def _serve(self, batch: Batch, item: BatchItem) -> None:
        if batch.cancelled_at_s is not None:
            return self.store.add(batch, item.custom_id, "canceled", {})
        if self.clock() >= batch.created_at_s + LIFETIME_S:
            return self.store.add(batch, item.custom_id, "expired", {})
        outcome, result = await self._answer(batch, item)
        return self.store.add(batch, item.custom_id, outcome, result)

    async def _answer(self, batch: Batch, item: BatchItem) -> tuple[Outcome, dict[str, Any]]:
        """One request through the handler, again while the engine has no room for it."""
        refusal = _refused(item.params)
        if refusal is not None:
            error = self.wire.encode_error(
                refusal, request_id=self.wire.provider.native_id(request_id(None, self.clock()))
            )
            return "errored", {"error": orjson.loads(error.body)}
        reply = await self._asked(batch, item)
        for _ in range(MAX_TRIES - 1):
            if reply.status < 500 or reply.headers.get("x-should-retry") == "false":
                break
            await asyncio.sleep(RETRY_S)
            reply = await self._asked(batch, item)
        body = json_text.loads(reply.body)
        return (
            ("succeeded", {"message": body})
            if reply.status == 200
            else ("errored", {"error": body})
        )

    async def _asked(self, batch: Batch, item: BatchItem) -> Reply:
        client = _Captured(msgspec.json.encode(item.params, enc_hook=in_json))
        await self.handler.generate(self._call(batch), client)
        assert client.reply is not None
        return client.reply

    def _call(self, batch: Batch) -> Call:
        now_s = self.clock()
        name = request_id(None, now_s)
        loop_s = asyncio.get_running_loop().time()
        return Call(
            name,
            BATCHED,
            self.wire,
            batch.headers,
            arrived_s=loop_s,
            started_at_s=now_s,
            tenant=batch.tenant,
        )


def _read(body: bytes, max_values: int) -> tuple[int, bytes]:
    """The number of requests in a batch's body, and the requests as they are kept.

    Raises `InvalidRequest`, `BodyTooLarge`.
    """
    check_structure(body, max_values)
    items = read_items(body)
    return len(items), as_lines(BatchItem(custom_id, params) for custom_id, params in items)


def base_url(call: Call) -> str:
    """The URL by which the client reached the gateway, or the proxy in front of it that forwards
    its own."""
    forwarded = {
        name: call.headers.get(f"x-forwarded-{name}", "").partition(",")[0].strip()
        for name in ("proto", "host")
    }
    scheme = "https" if forwarded["proto"].lower() == "https" else "http"
    return f"{scheme}://{forwarded['host'] or call.headers.get('host', 'localhost')}"


def _refused(params: dict[str, Any]) -> GatewayError | None:
    """The error of a request that a batch does not allow; None: it is allowed."""
    if params.get("stream"):
        return InvalidRequest("streaming is not supported in batches", path="stream")
    if params.get("max_tokens") == 0:
        return InvalidRequest("Input should be greater than or equal to 1", path="max_tokens")
    return None
