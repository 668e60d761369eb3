"""The handler behind aiohttp: routes, the client's side of a request,
and which provider's format speaks.

No policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

from aiohttp import web

from gateway.budget import ByteBudget
from gateway.calls.exchange import Call
from gateway.clock import Clock
from gateway.errors import GatewayError, MethodNotAllowed, Overloaded, Unauthenticated, UnknownPath
from gateway.http.batch_routes import BatchRoutes
from gateway.http.client import HttpClient, transmit
from gateway.http.connections import Connections
from gateway.http.problem import problem
from gateway.http.response_routes import ResponseRoutes
from gateway.ids import request_id
from gateway.serve.auth import authenticate
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

_ALLOWED: Final = web.RequestKey("allowed", str)
"""The methods of the path, of a request that came with another one."""

_CLOSING: Final = web.RequestKey("closing", bool)
"""A request that is the last one of its connection."""

PROBES: Final = ("/livez", "/readyz", "/health", "/metrics")
"""Served where there are too many connections for anything else."""

WireKey: TypeAlias = Literal["anthropic", "openai", "responses", "compact", "completions"]
"""Which of the wire formats; a provider may have several."""

Route = Callable[[Call, "HttpClient"], Awaitable[None]]
NamedRoute = Callable[[Call, "HttpClient", str], Awaitable[None]]
QueriedRoute = Callable[[Call, "HttpClient", str, Mapping[str, str]], Awaitable[None]]
BatchRoute = Callable[[Call, "HttpClient", web.Request], Awaitable[None]]


class Server:
    """Turns aiohttp requests into calls of the handler."""

    def __init__(
        self,
        handler: Handler,
        wires: Mapping[WireKey, Wire],
        clock: Clock,
        budget: ByteBudget,
        connections: Connections,
        batches: BatchRoutes | None = None,
    ) -> None:
        self._handler = handler
        self._budget = budget
        self._connections = connections
        self._batches = batches
        self._wires = wires
        self._clock = clock
        self.closing = False
        """Draining: answers ask clients to close their connections."""

    def add_routes(self, app: web.Application) -> None:
        """The provider-compatible routes, and the middleware that answers for every other path."""
        stored = ResponseRoutes(self._handler)
        app.middlewares.append(self._within_connection)
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
        call = self._call(http, name)
        with self._budget.claim(self._tenant(call)) as claim:
            client = HttpClient(
                http, self._handler.policy.server, claim, closing=self.closing or _CLOSING in http
            )
            try:
                await route(call, client)
                return await client.finish()
            except (
                ConnectionError
            ):  # the client has gone, and the handler has recorded it: aiohttp need not know
                return client.leftover

    def _tenant(self, call: Call) -> str:
        """Whose memory it is; that of a request which will be refused for its key is nobody's."""
        try:
            return authenticate(self._handler.policy, call.headers).name
        except Unauthenticated:
            return ""

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
    async def _within_connection(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Everything a connection does but wait. On those kept for probes nothing else is
        served."""
        with self._connections.working(request.transport) as probes_only:
            if probes_only and request.path not in PROBES:
                request[_CLOSING] = True
                error = Overloaded("too many connections; please try again", retry_after_s=1.0)
                return await self._refuse(request, error, 503)
            return await handler(request)

    @web.middleware
    async def _catch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """A path or method that does not exist, in the shape of the provider the client speaks; RFC
        9457 for operators."""
        error: GatewayError
        try:
            response = await handler(request)
            if isinstance(response, web.Response) and not response.prepared:
                await transmit(request, response, self._handler.policy.server.write_timeout)
            return response
        except ConnectionError:
            return web.Response(status=400)
        except web.HTTPMethodNotAllowed as refusal:
            allowed = ", ".join(sorted(refusal.allowed_methods))
            error = MethodNotAllowed(f"{request.method} is not allowed here; use {allowed}")
            request[_ALLOWED] = allowed
            return await self._refuse(request, error, refusal.status)
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
        if _ALLOWED in http:
            response.headers["Allow"] = http[_ALLOWED]
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
