"""The handler behind aiohttp: routes, the client's side of a request,
and which provider's format speaks.

No policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

from aiohttp import web

from gateway.calls.exchange import Call, Reply
from gateway.clock import Clock
from gateway.errors import GatewayError, MethodNotAllowed, UnknownPath
from gateway.http.batch_routes import BatchRoutes
from gateway.http.body import read_body
from gateway.http.problem import problem
from gateway.http.response_routes import ResponseRoutes
from gateway.ids import request_id
from gateway.serve.handler import Handler
from gateway.wire.base import Wire
from gateway.wire.plain import plain_headers

UNROUTED: Final = "other"
"""The route label of requests that match none, so that paths chosen by clients never become metric
labels."""

ADMIN: Final = "/admin/"
"""Where the operators' routes are."""

GREETING: Final = (
    "Prompt Cache Gateway\n\n"
    "POST /v1/messages, /v1/messages/count_tokens   Anthropic's format\n"
    "     /v1/messages/batches                      the same later, at half the price\n"
    "POST /v1/chat/completions, /v1/responses,\n"
    "     /v1/completions                           OpenAI's formats\n"
    "GET  /v1/models, /metrics, /readyz\n"
)

PASSED: Final = (
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/rerank",
    "/v1/score",
)
"""What only upstreams serve: OpenAI's paths, and vLLM's, whose JSON body names a model. No other
path is passed on: an upstream that takes our key may have paths that are not for our clients."""

WireKey: TypeAlias = Literal["anthropic", "openai", "responses", "compact", "completions"]
"""Which of the wire formats; a provider may have several."""

Route = Callable[[Call, "HttpClient"], Awaitable[None]]
NamedRoute = Callable[[Call, "HttpClient", str], Awaitable[None]]
QueriedRoute = Callable[[Call, "HttpClient", str, Mapping[str, str]], Awaitable[None]]
BatchRoute = Callable[[Call, "HttpClient", web.Request], Awaitable[None]]


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
        """For a client that has gone: whatever aiohttp may try to write to nobody."""
        return self._stream or web.Response(status=400)

    async def finish(self) -> web.StreamResponse:
        """What aiohttp is to be given; a stream has ended when this returns."""
        if self._stream is not None:
            await self._stream.write_eof()
            return self._stream
        assert self._whole is not None
        if self._closing:
            self._whole.force_close()
        return self._whole


class Server:
    """Turns aiohttp requests into calls of the handler."""

    def __init__(
        self,
        handler: Handler,
        wires: Mapping[WireKey, Wire],
        clock: Clock,
        batches: BatchRoutes | None = None,
    ) -> None:
        self._handler = handler
        self._batches = batches
        self._wires = wires
        self._clock = clock
        self.closing = False
        """Draining: answers ask clients to close their connections."""

    def add_routes(self, app: web.Application) -> None:
        """The provider-compatible routes, and the middleware that answers for every other path."""
        stored = ResponseRoutes(self._handler)
        app.middlewares.append(self._catch)
        app.router.add_post("/v1/messages", self._route("messages", self._handler.generate))
        app.router.add_post(
            "/v1/messages/count_tokens", self._route("count_tokens", self._handler.count)
        )
        app.router.add_post(
            "/v1/chat/completions", self._route("chat_completions", self._handler.generate)
        )
        app.router.add_post("/v1/completions", self._route("completions", self._handler.generate))
        app.router.add_post("/v1/responses", self._route("responses", self._handler.generate))
        app.router.add_post("/v1/responses/compact", self._route("compact", self._handler.generate))
        app.router.add_post(
            "/v1/responses/input_tokens", self._route("input_tokens", self._handler.count)
        )
        app.router.add_get("/v1/responses/{id}", self._queried("response", stored.show))
        app.router.add_delete("/v1/responses/{id}", self._named("response", stored.delete))
        app.router.add_post("/v1/responses/{id}/cancel", self._named("cancel", stored.cancel))
        app.router.add_get(
            "/v1/responses/{id}/input_items", self._queried("input_items", stored.items)
        )
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{id:.+}", self._named("model", self._handler.model))
        app.router.add_get("/", self._greet)
        for path in PASSED if self._handler.policy.backends else ():
            app.router.add_post(
                path,
                self._route(
                    path.removeprefix("/v1/").replace("/", "_"), self._handler.proxied_only
                ),
            )
        if self._batches is not None:
            self._add_batches(app, self._batches)
        app.on_response_prepare.append(self._sign)

    def _add_batches(self, app: web.Application, batches: BatchRoutes) -> None:
        """The routes of message batches."""
        one = "/v1/messages/batches/{id}"

        def listed(call: Call, client: HttpClient, http: web.Request) -> Awaitable[None]:
            return batches.list(call, client, plain_query(http))

        def named(route: NamedRoute) -> BatchRoute:
            return lambda call, client, http: route(call, client, http.match_info["id"])

        app.router.add_post(
            "/v1/messages/batches",
            self._recorded(lambda call, client, _: batches.create(call, client)),
        )
        app.router.add_get("/v1/messages/batches", self._recorded(listed))
        app.router.add_get(one, self._recorded(named(batches.show)))
        app.router.add_get(f"{one}/results", self._recorded(named(batches.results)))
        app.router.add_post(f"{one}/cancel", self._recorded(named(batches.cancel)))
        app.router.add_delete(one, self._recorded(named(batches.delete)))

    def _recorded(
        self, route: BatchRoute
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A route that leaves errors and records to the handler."""

        async def serve(http: web.Request) -> web.StreamResponse:
            async def recorded(call: Call, client: HttpClient) -> None:
                async with self._handler.recorded(call, client):
                    await route(call, client, http)

            return await self._serve(http, "batches", recorded)

        return serve

    def _route(
        self, name: str, route: Route
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(http: web.Request) -> web.StreamResponse:
            return await self._serve(http, name, route)

        return serve

    def _named(
        self, name: str, route: NamedRoute
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A route whose path ends in the `id` of what is asked for."""

        async def serve(http: web.Request) -> web.StreamResponse:
            return await self._serve(
                http, name, lambda call, client: route(call, client, http.match_info["id"])
            )

        return serve

    def _queried(
        self, name: str, route: QueriedRoute
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A named route that reads the query too."""

        async def serve(http: web.Request) -> web.StreamResponse:
            asked, query = http.match_info["id"], plain_query(http)
            return await self._serve(
                http, name, lambda call, client: route(call, client, asked, query)
            )

        return serve

    async def _models(self, http: web.Request) -> web.StreamResponse:
        async def route(call: Call, client: HttpClient) -> None:
            await self._handler.models(call, client, plain_query(http))

        return await self._serve(http, "models", route)

    async def _greet(self, http: web.Request) -> web.Response:
        return web.Response(text=GREETING)

    async def _serve(self, http: web.Request, name: str, route: Route) -> web.StreamResponse:
        client = HttpClient(http, self._handler.policy.server.body_timeout, closing=self.closing)
        try:
            await route(self._call(http, name), client)
            return await client.finish()
        except (
            ConnectionError
        ):  # the client has gone, and the handler has recorded it: aiohttp need not know
            return client.leftover

    def _call(self, http: web.Request, route: str) -> Call:
        headers = plain_headers(http.headers)
        started_at_s = self._clock()
        return Call(
            id=request_id(headers.get("x-request-id"), started_at_s),
            route=route,
            wire=self._wires[wire_for(http.path, headers)],
            headers=headers,
            arrived_s=asyncio.get_running_loop().time(),
            started_at_s=started_at_s,
            path=f"{http.path}?{query}" if (query := http.rel_url.raw_query_string) else http.path,
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
        return await self._serve(
            http, UNROUTED, lambda call, client: self._handler.refuse(call, client, error)
        )

    async def _sign(self, http: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "pcg"
        response.headers.setdefault(
            "pcg-request-id", request_id(http.headers.get("x-request-id"), self._clock())
        )


def plain_query(http: web.Request) -> dict[str, str]:
    """A parameter sent more than once becomes one list, as header fields do."""
    return {name: ",".join(http.query.getall(name)) for name in http.query}


def wire_for(path: str, headers: Mapping[str, str]) -> WireKey:
    """Which format a request speaks, from its path and lower-case header names."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    if path == "/v1/responses/compact":
        return "compact"
    if path.startswith("/v1/responses"):
        return "responses"
    if path.startswith("/v1/completions"):
        return "completions"
    if path.startswith("/v1/chat/") or path in PASSED:
        return "openai"
    return "anthropic" if "anthropic-version" in headers or "x-api-key" in headers else "openai"
