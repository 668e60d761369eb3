"""The composition root: puts policy, backends, wires and HTTP together, runs them,
and takes them down in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web

from engine.config import EngineConfig
from gateway.backends.base import Backend
from gateway.backends.local import WORKER, LocalBackend
from gateway.backends.poison import Poison
from gateway.backends.router import Router
from gateway.bill.record import Record
from gateway.budget import ByteBudget
from gateway.calls.catalog import ModelCatalog
from gateway.clock import Clock
from gateway.dialects.dialect import Dialect
from gateway.dialects.registry import DIALECTS
from gateway.http.batch_routes import BatchRoutes
from gateway.http.connections import AcceptErrors, Connections, GuardedRunner, most_connections
from gateway.http.server import Server
from gateway.offload import OffloadThread
from gateway.operate.admin import Admin
from gateway.operate.cache_admin import CacheAdmin
from gateway.operate.inventory import Inventory
from gateway.operate.logs import KindAndPlace, log_record
from gateway.operate.loop_lag import watching_the_loop
from gateway.operate.metrics import Metrics
from gateway.operate.tier_maintenance import open_inventory
from gateway.serve.delivery import AnswerDelivery
from gateway.serve.handler import Handler
from gateway.serve.limits import InFlight
from gateway.signals import stop_signals
from gateway.state.archive import Archive
from gateway.state.background import Background
from gateway.state.batches import BatchStore
from gateway.state.response_cache import ResponseCache
from gateway.upstream.http import HttpUpstream
from gateway.upstream.proxy import UpstreamProxy
from gateway.waits import first_of
from gateway.wire.base import Wire
from gateway.wire.registry import WIRES
from policies.rules import PresetName
from policies.schema import Policy

KEEPALIVE_S: Final = 3630.0
"""Idle connections stay open longer than any load balancer's, so that it never reuses one we are
closing."""

GOODBYE_S: Final = 5.0
"""For streams still open after the drain to send their error event."""

MAX_LINE_NBYTES: Final = 64 * 1024
"""Of a request line and of one header field."""

_log = structlog.get_logger("pcg")


@dataclass(frozen=True, slots=True)
class Gateway:
    """Everything of one gateway but the process it runs in."""

    policy: Policy
    app: web.Application
    server: Server
    admin: Admin
    in_flight: InFlight
    metrics: Metrics
    background: Background
    connections: Connections
    batches: BatchRoutes | None = None
    upstreams: tuple[HttpUpstream, ...] = ()


def build_app(
    policy: Policy,
    backends: Mapping[str, Backend],
    clock: Clock,
    *,
    metrics: Metrics | None = None,
    on_record: Callable[[Record], None] = log_record,
    inventory: Inventory | None = None,
    root_secret: bytes | None = None,
    batches: Path | None = None,
    aside: OffloadThread | None = None,
    wires: Mapping[str, Wire] = WIRES,
    dialects: Mapping[PresetName, Dialect] = DIALECTS,
) -> Gateway:
    """A gateway over backends, one per model name of the policy, and the policy's upstreams. Starts
    nothing.

    `inventory` lists the objects of its tiers. `batches` is the folder of message batches; without
    it there are none. Large bodies are worked on `aside`. `wires` are its formats by name,
    `dialects` the rules of its presets.
    """
    metrics = metrics or Metrics()
    in_flight = InFlight(_most_requests(policy))
    providers = {wire.provider.name: wire.provider for wire in wires.values()}
    upstreams = {
        backend.name: HttpUpstream(backend, providers[backend.api].upstream_key_header)
        for backend in policy.backends
    }

    titles = {name: provider.title for name, provider in providers.items()}
    catalog = ModelCatalog(policy, backends, upstreams, titles)
    archive = Archive(policy.server.responses.bytes, policy.server.responses.max_age)
    responses, background = ResponseCache(policy.caching.responses), Background(clock)
    aside = aside or OffloadThread()
    handler = Handler(
        policy,
        catalog,
        in_flight,
        (metrics.add, on_record),
        archive,
        AnswerDelivery(policy.server.sse, archive, responses if responses.enabled else None, aside),
        background,
        dialects,
        UpstreamProxy(policy, catalog) if policy.backends else None,
        offload=aside,
    )
    limits = policy.server.batches
    later = None
    if batches is not None and limits.bytes:
        later = BatchRoutes(
            handler,
            wires["anthropic"],
            clock,
            BatchStore(batches, limits.bytes),
            limits.concurrency,
        )
    most = most_connections(
        policy.server.max_connections, sum(backend.max_requests for backend in policy.backends)
    )
    connections = Connections(most, policy.server.header_timeout)
    server = Server(handler, wires, clock, _budget(policy), connections, later)
    admin = Admin(policy, backends, metrics, in_flight, responses)
    app = web.Application(client_max_size=policy.server.max_body)
    app.cleanup_ctx.extend(upstream.session for upstream in upstreams.values())
    server.add_routes(app)
    admin.add_routes(app)
    CacheAdmin(
        policy, backends, clock, inventory or Inventory(), root_secret, responses
    ).add_routes(app)
    passed = tuple(upstreams.values())
    return Gateway(
        policy,
        app,
        server,
        admin,
        in_flight,
        metrics,
        background,
        connections,
        later,
        passed,
    )


def _most_requests(policy: Policy) -> int:
    """The number of requests that engines and upstreams take at a time, waiting ones included."""
    engines = sum(
        m.engine.workers * (m.engine.max_queue + m.engine.max_sequences) for m in policy.models
    )
    return engines + sum(backend.max_requests for backend in policy.backends)


def _budget(policy: Policy) -> ByteBudget:
    """For bodies and unsent answers; without `tenants` there is one, and all of it is theirs."""
    memory = policy.server.memory
    return ByteBudget(
        memory.bytes, memory.tenant_bytes.resolve(memory.bytes) if policy.tenants else memory.bytes
    )


@dataclass(slots=True)
class Listener:
    """The gateway's listening socket. `stop` takes no more connections and leaves those that are
    open."""

    site: web.TCPSite
    host: str
    port: int
    open: bool = True

    @property
    def url(self) -> str:
        return (
            f"http://[{self.host}]:{self.port}"
            if ":" in self.host
            else f"http://{self.host}:{self.port}"
        )

    async def stop(self) -> None:
        await self.site.stop()
        self.open = False


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[Listener]:
    """The gateway on its port. Raises `OSError` when the port is taken.

    A client that leaves cancels its handler; bodies are decompressed by us, within bounds; nothing
    logs requests but us.
    """
    runner = GuardedRunner(
        gateway.app,
        gateway.connections,
        handler_cancellation=True,
        access_log=None,
        logger=KindAndPlace("pcg.http"),
        auto_decompress=False,
        keepalive_timeout=KEEPALIVE_S,
        max_line_size=MAX_LINE_NBYTES,
        max_field_size=MAX_LINE_NBYTES,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    try:
        async with watching_the_loop(gateway.metrics.lagged):
            site = web.TCPSite(runner, gateway.policy.server.host, gateway.policy.server.port)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield Listener(site, str(host), int(port))
    finally:
        await runner.cleanup()


async def drain(
    gateway: Gateway, listener: Listener, *, delay_s: float, hurry: asyncio.Event
) -> None:
    """Not ready but serving for `delay_s`, then nothing new, then what is in flight may finish
    within `drain.timeout`.

    `hurry` cuts every wait short. What is left afterwards is for the backends' end to answer with
    an error.
    """
    gateway.admin.draining = gateway.server.closing = True
    _log.info("draining", in_flight=len(gateway.in_flight))
    await _within(delay_s, hurry.wait())
    gateway.in_flight.close()
    await listener.stop()
    await _within(
        gateway.policy.server.drain.timeout, first_of(gateway.in_flight.wait_idle(), hurry.wait())
    )


async def serve(
    policy: Policy,
    engines: Mapping[str, Sequence[EngineConfig]],
    clock: Clock,
    on_ready: Callable[[str], None],
    *,
    root_secret: bytes | None = None,
    command: Sequence[str] = WORKER,
    batches: Path | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. SIGINT skips the delay, a second signal
    every wait.

    Raises `ModelError` when a model cannot be loaded at start, `OSError` when the port is taken.
    `on_ready` gets the base URL once every worker is loaded; until one of a model is, its
    requests wait and `/readyz` reports it. `engines` holds one configuration per worker, by model
    name, and `command` starts one. The operator's key follows from `root_secret`, which is that of
    the engines where there are any. Message batches are kept in the folder `batches`, and gone on
    with by the next start.
    """
    metrics, aside = Metrics(), OffloadThread()
    asyncio.get_running_loop().set_exception_handler(AcceptErrors())
    configs = [config for workers in engines.values() for config in workers]
    secret = next((config.root_secret for config in configs), root_secret)
    workers = {
        name: _workers(several, clock, command, metrics) for name, several in engines.items()
    }
    backends = {
        name: several[0]
        if len(several) == 1
        else Router(several, on_choice=partial(metrics.routed, name), aside=aside)
        for name, several in workers.items()
    }
    try:
        with stop_signals() as stop, open_inventory(configs) as inventory:
            gateway = build_app(
                policy,
                backends,
                clock,
                metrics=metrics,
                inventory=inventory,
                root_secret=secret,
                batches=batches,
                aside=aside,
            )
            gc.freeze()  # what is there now stays: no collection looks at it again
            async with listening(gateway) as listener, asyncio.TaskGroup() as group:
                everyone = [worker for several in workers.values() for worker in several]
                running = [group.create_task(worker.run()) for worker in everyone]
                running.append(group.create_task(gateway.background.run()))
                others = [group.create_task(_tell_ready(everyone, listener, on_ready))]
                if gateway.batches is not None:
                    others.append(group.create_task(gateway.batches.run()))
                await stop.asked.wait()
                for task in others:
                    task.cancel()
                delay_s = 0.0 if stop.interrupted else policy.server.drain.delay
                await drain(gateway, listener, delay_s=delay_s, hurry=stop.insisted)
                for engine in running:
                    engine.cancel()
                for upstream in gateway.upstreams:
                    upstream.close()
                await _within(GOODBYE_S, gateway.in_flight.wait_idle())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _workers(
    configs: Sequence[EngineConfig], clock: Clock, command: Sequence[str], metrics: Metrics
) -> list[LocalBackend]:
    """The workers of one model, not running yet. What one has died of is given to none."""
    poison = Poison()
    return [
        LocalBackend(
            config,
            clock,
            command=command,
            on_restart=partial(metrics.restarted, config.model, number),
            number=number,
            poison=poison,
        )
        for number, config in enumerate(configs)
    ]


async def _tell_ready(
    workers: Sequence[LocalBackend], listener: Listener, on_ready: Callable[[str], None]
) -> None:
    for worker in workers:
        await worker.wait_loaded()
    on_ready(listener.url)


async def _within(seconds: float, wait: Coroutine[Any, Any, Any]) -> None:
    """Await, but not for longer than `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wait
