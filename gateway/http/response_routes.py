"""Responses that are kept, or being made in the background: asked for again, followed, cancelled,
deleted.

Everything a tenant asks for is its own: another's response is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.calls.exchange import Call, Client
from gateway.errors import InvalidRequest, UnknownResponse
from gateway.ids import id_headers
from gateway.serve.delivery import send
from gateway.serve.handler import Handler
from gateway.wire.base import RememberingWire, StoredResponse


@dataclass(frozen=True, slots=True)
class ResponseRoutes:
    """The routes below /v1/responses/{id}."""

    handler: Handler

    async def show(
        self, call: Call, client: Client, response_id: str, query: Mapping[str, str]
    ) -> None:
        """GET /v1/responses/{id}: the whole answer, or its state so far; with `stream=true` its
        events."""
        async with self.handler.recorded(call, client) as draft:
            tenant = self.handler.identify(draft)
            if query.get("stream", "").lower() == "true":
                await self._follow(call, client, tenant, response_id, query)
                return
            job = self.handler.background.running(tenant, response_id)
            body = job.body() if job is not None else self._kept(call, tenant, response_id).body
            await send(call, client, body or b"")

    async def items(
        self, call: Call, client: Client, response_id: str, query: Mapping[str, str]
    ) -> None:
        """GET /v1/responses/{id}/input_items: the input of the request."""
        async with self.handler.recorded(call, client) as draft:
            tenant = self.handler.identify(draft)
            page = _wire(call).encode_items(self._kept(call, tenant, response_id), query)
            await send(call, client, page)

    async def delete(self, call: Call, client: Client, response_id: str) -> None:
        """DELETE /v1/responses/{id}: afterwards nothing can refer to it. Its prefix stays cached,
        as any other."""
        async with self.handler.recorded(call, client) as draft:
            tenant = self.handler.identify(draft)
            await self._stop(tenant, response_id)
            kept = self._kept(call, tenant, response_id)
            self.handler.archive.forget(tenant, response_id)
            self.handler.background.forget(tenant, response_id)
            await send(call, client, _wire(call).encode_deleted(kept))

    async def cancel(self, call: Call, client: Client, response_id: str) -> None:
        """POST /v1/responses/{id}/cancel: the response as it is then, whole where it was. To cancel
        one that is made while its client waits, close the connection."""
        async with self.handler.recorded(call, client) as draft:
            tenant = self.handler.identify(draft)
            await self._stop(tenant, response_id)
            body = self._kept(call, tenant, response_id).body or b""
            if not orjson.loads(body)["background"]:
                raise InvalidRequest("Cannot cancel a synchronous response.")
            await send(call, client, body)

    async def _follow(
        self, call: Call, client: Client, tenant: str, response_id: str, query: Mapping[str, str]
    ) -> None:
        """The events after number `starting_after`, as they come."""
        after = query.get("starting_after", "-1")
        if after != "-1" and not (after.isascii() and after.isdigit() and len(after) < 10):
            raise InvalidRequest(
                "Invalid 'starting_after': expected the number of an event.",
                path="starting_after",
                code="invalid_value",
            )
        log = self.handler.background.log(tenant, response_id)
        if log is None:
            self._kept(call, tenant, response_id)
            message = (
                "Unsupported parameter: 'stream' is for responses made in the background, "
                "for a while after their end."
            )
            raise InvalidRequest(message, path="stream", code="unsupported_parameter")
        await self.handler.follow(client, log, int(after) + 1, id_headers(call.wire.name, call.id))

    async def _stop(self, tenant: str, response_id: str) -> None:
        job = self.handler.background.running(tenant, response_id)
        if job is not None:
            await self.handler.background.cancel(job)

    def _kept(self, call: Call, tenant: str, response_id: str) -> StoredResponse:
        """Raises `UnknownResponse`, also for a response that was kept without its text."""
        kept = self.handler.archive.find(tenant, response_id, call.started_at_s)
        if kept is None or kept.body is None:
            raise UnknownResponse(f"Response with id '{response_id[:64]}' not found.")
        return kept


def _wire(call: Call) -> RememberingWire:
    """The format of these routes."""
    assert isinstance(call.wire, RememberingWire)
    return call.wire
