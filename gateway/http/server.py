"""The routes behind aiohttp, and the client's side of a request.

No policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from gateway.calls.exchange import Call, Client, Reply
from gateway.clock import Clock
from gateway.errors import GatewayError, MethodNotAllowed, UnknownPath
from gateway.http.batch_routes import BatchRoutes
from gateway.http.body import read_body
from gateway.http.problem import problem
from gateway.http.response_routes import ResponseRoutes
from gateway.http.routes import Route, guess_wire, provider_routes
from gateway.ids import request_id
from gateway.serve.handler import Handler
from gateway.wire.base import Wire
from gateway.wire.plain import plain_headers

UNROUTED: Final = "other"
"""The route label of requests that match none, so that paths chosen by clients never become metric
labels."""

ADMIN: Final = "/admin/"
"""The beginning of the operators' paths."""

GREETING: Final = (
    "Prompt Cache Gateway\n\n"
    "POST /v1/messages, /v1/messages/count_tokens   Anthropic's format\n"
    "     /v1/messages/batches                      the same later, at half the price\n"
    "POST /v1/chat/completions, /v1/responses,\n"
    "     /v1/completions                           OpenAI's formats\n"
    "GET  /v1/models, /metrics, /readyz\n"
)


class HttpClient:
    """A `Client` over one aiohttp request, which waits `silence_s` for each piece of its body."""

    def __init__(self, http: web.Request, silence_s: float, *, closing: bool) -> None:
        self._http = http
        self._silence_s = silence_s
        self._closing = closing
        self._stream: web.StreamResponse | None = None
        self._whole: web.Response | None = None

    async def read(self, max_nbytes: int) -> bytes:
        return await read_body(self._http, max_nbytes, self._silence_s)

    async def send(self, reply: Reply) -> None:
        assert self._stream is None
        self._whole = web.Response(status=reply.status, body=reply.body, headers=reply.headers)

    async def open(self, headers: Mapping[str, str]) -> None:
        self._stream = web.StreamResponse(headers=headers)
        if self._closing:
            self._stream.force_close()
        await self._stream.prepare(self._http)

    async def write(self, data: bytes) -> None:
        assert self._stream is not None
        await self._stream.write(data)

    @property
    def leftover(self) -> web.StreamResponse:
        """The response for aiohttp when the client has gone: nobody reads it."""
        return self._stream or web.Response(status=400)

    async def finish(self) -> web.StreamResponse:
        """The response for aiohttp; a stream has ended when this returns."""
        if self._stream is not None:
            await self._stream.write_eof()
            return self._stream
        assert self._whole is not None
        if self._closing:
            self._whole.force_close()
        return self._whole


class Server:
    """Turns aiohttp requests into calls of the routes' functions."""

    def __init__(
        self,
        handler: Handler,
        wires: Mapping[str, Wire],
        clock: Clock,
        batches: BatchRoutes | None = None,
    ) -> None:
        self._handler = handler
        self._wires = wires
        self._clock = clock
        self._routes = (
            *provider_routes(handler, wires),
            *ResponseRoutes(handler).routes(),
            *(() if batches is None else batches.routes()),
        )
        self.closing = False
        """Draining: answers ask clients to close their connections."""

    def add_routes(self, app: web.Application) -> None:
        """The provider-compatible routes, and the middleware that answers for every other path."""
        app.middlewares.append(self._catch)
        app.router.add_get("/", self._greet)
        app.router.add_routes(
            web.route(route.method, route.path, partial(self._serve, route))
            for route in self._routes
        )
        app.on_response_prepare.append(self._sign)

    async def _greet(self, http: web.Request) -> web.Response:
        return web.Response(text=GREETING)

    async def _serve(self, route: Route, http: web.Request) -> web.StreamResponse:
        client = HttpClient(http, self._handler.policy.server.body_timeout, closing=self.closing)
        try:
            await route.serve(self._call(http, route), client)
            return await client.finish()
        except ConnectionError:
            # The client has gone, and the handler has recorded it: aiohttp need not know.
            return client.leftover

    def _call(self, http: web.Request, route: Route) -> Call:
        headers = plain_headers(http.headers)
        started_at_s = self._clock()
        query = http.rel_url.raw_query_string
        return Call(
            id=request_id(headers.get("x-request-id"), started_at_s),
            route=route.name,
            wire=self._wires[route.wire or guess_wire(self._wires, http.path, headers)],
            headers=headers,
            arrived_s=asyncio.get_running_loop().time(),
            started_at_s=started_at_s,
            path=f"{http.path}?{query}" if query else http.path,
            resource_id=http.match_info.get("id", ""),
            query=plain_query(http) if query else {},
        )

    @web.middleware
    async def _catch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """A path or method that does not exist, in the shape of the provider the client speaks; RFC
        9457 for operators."""
        error: GatewayError
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as refusal:
            allowed = ", ".join(sorted(refusal.allowed_methods))
            error = MethodNotAllowed(f"{request.method} is not allowed here; use {allowed}")
            response = await self._refuse(request, error, refusal.status)
            response.headers["Allow"] = allowed
            return response
        except web.HTTPNotFound as refusal:
            error = UnknownPath(f"no such path: {request.method} {request.path}")
            return await self._refuse(request, error, refusal.status)

    async def _refuse(
        self, http: web.Request, error: GatewayError, status: int
    ) -> web.StreamResponse:
        if http.path.startswith(ADMIN):
            return problem(status, error)

        def refuse(call: Call, client: Client) -> Awaitable[None]:
            return self._handler.refuse(call, client, error)

        return await self._serve(Route(http.method, http.path, UNROUTED, refuse), http)

    async def _sign(self, http: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "pcg"
        response.headers.setdefault(
            "pcg-request-id", request_id(http.headers.get("x-request-id"), self._clock())
        )


def plain_query(http: web.Request) -> dict[str, str]:
    """A parameter sent more than once becomes one list, as header fields do."""
    return {name: ",".join(http.query.getall(name)) for name in http.query}
