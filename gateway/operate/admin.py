"""The routes for operators and their machines: liveness, readiness, health, metrics, version.

Never in a provider's format.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import msgspec
from aiohttp import web

from engine.messages import PROTOCOL_VERSION, EngineStats
from gateway.backends.base import Backend, workers_of
from gateway.errors import GatewayError, Unauthenticated
from gateway.http.problem import json_reply, problem
from gateway.operate.metrics import CONTENT_TYPE, Metrics
from gateway.serve.auth import authenticate
from gateway.serve.limits import InFlight
from gateway.state.response_cache import ResponseCache
from gateway.wire.plain import plain_headers
from policies.schema import Policy

STATS_TIMEOUT_S: Final = 1.0
"""A scrape never waits longer for an engine."""


@runtime_checkable
class HasStats(Protocol):
    """A backend that has the numbers of its engine."""

    def stats(self) -> Awaitable[EngineStats | None]: ...


@dataclass(slots=True)
class Admin:
    """The operators' routes. `draining` is set when the process is asked to end."""

    policy: Policy
    backends: Mapping[str, Backend]
    metrics: Metrics
    in_flight: InFlight
    responses: ResponseCache
    draining: bool = False

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/livez", self.livez)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.show_metrics)
        app.router.add_get("/version", self.version)

    async def livez(self, http: web.Request) -> web.Response:
        """200 as long as the event loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, http: web.Request) -> web.Response:
        """200 when a request would be served now, 503 while a model loads or the process drains."""
        waiting = [name for name, backend in self.backends.items() if not backend.ready]
        if self.draining:
            return web.Response(status=503, text="draining\n", headers={"Connection": "close"})
        if waiting:
            return web.Response(status=503, text=f"loading: {', '.join(waiting)}\n")
        return web.Response(text="ready\n")

    async def health(self, http: web.Request) -> web.Response:
        """JSON for people and dashboards; needs a key where the policy names tenants."""
        headers = plain_headers(http.headers)
        try:
            authenticate(self.policy, headers)
        except Unauthenticated as error:
            return problem(401, error)
        models = {
            name: {
                "ready": backend.ready,
                "workers": [worker.backend.ready for worker in workers_of({name: backend})],
                "info": None if backend.model is None else msgspec.to_builtins(backend.model),
            }
            for name, backend in self.backends.items()
        }
        status = (
            "draining"
            if self.draining
            else "ok"
            if all(b.ready for b in self.backends.values())
            else "loading"
        )
        return json_reply({"status": status, "in_flight": len(self.in_flight), "models": models})

    async def show_metrics(self, http: web.Request) -> web.Response:
        """Prometheus text; engines that do not answer in time are shown as down."""
        body = self.metrics.scrape(
            await all_stats(self.backends), len(self.in_flight), self.responses.nbytes
        )
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def version(self, http: web.Request) -> web.Response:
        return json_reply({"version": package_version(), "engine_protocol": PROTOCOL_VERSION})


def package_version() -> str:
    """Of the installed distribution."""
    return importlib.metadata.version("prompt-cache-gateway")


async def all_stats(backends: Mapping[str, Backend]) -> dict[tuple[str, int], EngineStats | None]:
    """The numbers of every worker, by model and number, all asked at once; see `engine_stats`."""
    workers = workers_of(backends)
    answers = await asyncio.gather(*(engine_stats(worker.backend) for worker in workers))
    return {
        (worker.model, worker.number): stats for worker, stats in zip(workers, answers, strict=True)
    }


async def engine_stats(backend: Backend) -> EngineStats | None:
    """The numbers of the backend's engine; None when it has none, or does not answer within
    `STATS_TIMEOUT_S`."""
    if not isinstance(backend, HasStats):
        return None
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await backend.stats()
    except (TimeoutError, GatewayError):
        return None
