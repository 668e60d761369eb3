"""The routes behind aiohttp. No policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Final

from aiohttp import HttpVersion11, web

from gateway.budget import ByteBudget, Claim
from gateway.calls.exchange import Call, Client
from gateway.clock import Clock
from gateway.errors import Forbidden, GatewayError, MethodNotAllowed, Overloaded, UnknownPath
from gateway.http.batch_routes import BatchRoutes
from gateway.http.client import HttpClient, transmit
from gateway.http.connections import Connections
from gateway.http.problem import problem
from gateway.http.response_routes import ResponseRoutes
from gateway.http.routes import Route, guess_wire, provider_routes
from gateway.http.sites import SiteRules, cors_headers, is_preflight, preflight_headers
from gateway.ids import request_id
from gateway.serve.auth import api_key
from gateway.serve.handler import Handler
from gateway.wire.base import Wire
from gateway.wire.plain import plain_headers
from policies.tenancy import identify

UNROUTED: Final = "other"
"""The route label of requests that match none, so that paths chosen by clients never become metric
labels."""

ADMIN: Final = "/admin/"
"""The path prefix of the operators' routes."""

GREETING: Final = (
    "Prompt Cache Gateway\n\n"
    "POST /v1/messages, /v1/messages/count_tokens   Anthropic's format\n"
    "     /v1/messages/batches                      the same later, at half the price\n"
    "POST /v1/chat/completions, /v1/responses,\n"
    "     /v1/completions                           OpenAI's formats\n"
    "GET  /v1/models, /metrics, /readyz\n"
)

_ALLOWED: Final = web.RequestKey("allowed", str)
"""The methods of the path, of a request that came with another one."""

_CLOSING: Final = web.RequestKey("closing", bool)
"""A request that is the last one of its connection."""

_ORIGIN: Final = web.RequestKey("origin", str)
"""The site of the web page that may read the answer."""

PROBES: Final = ("/livez", "/readyz", "/health", "/metrics")
"""Served where there are too many connections for anything else."""


class Server:
    """Turns aiohttp requests into calls of the routes' functions."""

    def __init__(
        self,
        handler: Handler,
        wires: Mapping[str, Wire],
        clock: Clock,
        budget: ByteBudget,
        connections: Connections,
        batches: BatchRoutes | None = None,
    ) -> None:
        self._handler = handler
        self._budget = budget
        self._connections = connections
        self._wires = wires
        self._clock = clock
        self._sites = SiteRules(handler.policy.server, keyed=bool(handler.policy.tenants))
        self._routes = (
            *provider_routes(handler, wires),
            *ResponseRoutes(handler).routes(),
            *(() if batches is None else batches.routes()),
        )
        self.closing = False
        """Draining: answers ask clients to close their connections."""

    def add_routes(self, app: web.Application) -> None:
        """The provider-compatible routes, and the middleware that answers for every other path."""
        app.middlewares.append(self._within_connection)
        app.middlewares.append(self._catch)
        app.middlewares.append(self._from_known_sites)
        app.router.add_get("/", self._greet)
        app.router.add_routes(
            web.route(route.method, route.path, partial(self._serve, route))
            for route in self._routes
        )
        app.on_response_prepare.append(self._sign)

    async def _greet(self, http: web.Request) -> web.Response:
        return web.Response(text=GREETING)

    async def _serve(self, route: Route, http: web.Request) -> web.StreamResponse:
        call = self._call(http, route)
        with closing(Claim(self._budget, call.tenant or "")) as claim:
            client = HttpClient(
                http, self._handler.policy.server, claim, is_last=self.closing or _CLOSING in http
            )
            try:
                await route.serve(call, client)
                return await client.finish()
            except ConnectionError:
                # The client has gone, and the handler has recorded it: aiohttp need not know.
                return client.leftover

    def _call(self, http: web.Request, route: Route) -> Call:
        headers = plain_headers(http.headers)
        started_at_s = self._clock()
        query = http.rel_url.raw_query_string
        wire = self._wires[route.wire or guess_wire(self._wires, http.path, headers)]
        key = api_key(headers, wire.provider.key_headers)
        tenant = identify(self._handler.policy, key)
        return Call(
            id=request_id(headers.get("x-request-id"), started_at_s),
            route=route.name,
            wire=wire,
            headers=headers,
            arrived_s=asyncio.get_running_loop().time(),
            started_at_s=started_at_s,
            tenant=None if tenant is None else tenant.name,
            path=f"{http.path}?{query}" if query else http.path,
            resource_id=http.match_info.get("id", ""),
            query=plain_query(http) if query else {},
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

    @web.middleware
    async def _from_known_sites(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Nothing else is done for a host or a web page that is not served. No page reaches the
        operators' routes."""
        headers = plain_headers(request.headers)
        try:
            origin = self._sites.check(request.path, headers)
            if "origin" in headers and request.path.startswith(ADMIN):
                raise Forbidden("this route is not for web pages")
        except Forbidden as error:
            return await self._refuse(request, error, 403)
        if origin is not None:
            request[_ORIGIN] = origin
            if is_preflight(request.method, headers):
                return web.Response(status=204, headers=preflight_headers(headers))
        return await handler(request)

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
        if http.version < HttpVersion11 and response.content_length is None:
            response.force_close()  # there are no chunks: nothing else tells the answer's end
        if _ORIGIN in http:
            response.headers.update(cors_headers(http[_ORIGIN]))
        if _ALLOWED in http:
            response.headers["Allow"] = http[_ALLOWED]
        response.headers.setdefault(
            "pcg-request-id", request_id(http.headers.get("x-request-id"), self._clock())
        )


def plain_query(http: web.Request) -> dict[str, str]:
    """A parameter sent more than once becomes one list, as header fields do."""
    return {name: ",".join(http.query.getall(name)) for name in http.query}
