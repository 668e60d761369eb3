"""The operators' routes about stored objects: `/admin/cache/*`.

JSON out, RFC 9457 errors, never in a provider's format.

Where the policy names tenants, a key sees and forgets its own tenant's objects; the operator's key,
which follows from the gateway's secret, everyone's, and it alone pins. Without tenants the routes
answer loopback alone. A browser's page is never answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec
from aiohttp import web

from engine.messages import EngineStats
from gateway.backends.base import Backend, workers_of
from gateway.clock import Clock
from gateway.errors import (
    BodyLate,
    BodyTooLarge,
    EngineFailed,
    Forbidden,
    GatewayError,
    InvalidRequest,
    Overloaded,
    Unauthenticated,
    UnknownEncoding,
)
from gateway.http.body import read_body
from gateway.http.problem import json_reply, problem
from gateway.operate.admin import all_stats
from gateway.operate.cache_pins import PinDone, PinRequest, find_entry, set_pinned
from gateway.operate.inventory import Contents, EntryLine, Inventory, Verified, tenant_hash
from gateway.serve.auth import api_key, authenticate
from gateway.state.response_cache import ResponseCache
from gateway.wire.plain import plain_headers
from policies.schema import Policy
from policies.tenancy import is_loopback

MAX_BODY_NBYTES: Final = 4096
MAX_ENTRIES: Final = 10_000
"""Entries listed at most; the answer says when there were more."""
PROGRESS_S: Final = 0.1
"""Least time between two lines of progress."""

_STATUS: Final[Mapping[type[GatewayError], int]] = {
    InvalidRequest: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    BodyLate: 408,
    BodyTooLarge: 413,
    UnknownEncoding: 415,
    EngineFailed: 500,
    Overloaded: 503,
}


class EngineNumbers(msgspec.Struct, frozen=True):
    """One engine's counters since it started, and its gauges now."""

    counters: dict[str, float]
    gauges: dict[str, float]


class Stat(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/cache/stat`. An engine that does not answer is None; where a model
    has several, they are named `model#0`, `model#1`, ..."""

    engines: dict[str, EngineNumbers | None]
    contents: list[Contents]


class Entries(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/cache/entries`."""

    entries: list[EntryLine]
    truncated: bool


class FlushRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /admin/cache/flush`: a tenant's name, or nothing for everyone."""

    tenant: str | None = None


class FlushReply(msgspec.Struct, frozen=True):
    """Its answer: how many blocks the engines forgot. By then every tier has, too."""

    num_blocks: int


class VerifyLine(msgspec.Struct, frozen=True):
    """One line of `POST /admin/cache/verify`; the last one has `verified`."""

    done_nbytes: int
    total_nbytes: int
    verified: Verified | None = None


@runtime_checkable
class CanFlush(Protocol):
    """A backend whose cache can be emptied."""

    def flush(self, tenant: str | None) -> Awaitable[int]: ...


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """The owner of a request's key. `tenant` is None for the operator, who may see everything."""

    tenant: str | None


T = TypeVar("T", bound=msgspec.Struct)

Route: TypeAlias = Callable[[web.Request, AdminCaller], Awaitable[web.StreamResponse]]


def operator_key(root_secret: bytes) -> str:
    """The key of the operator, who can read the gateway's secret file."""
    return hmac.digest(root_secret, b"operator of this gateway", "sha256").hex()


@dataclass(frozen=True, slots=True)
class CacheAdmin:
    """The routes. Without a `root_secret` there is no operator's key."""

    policy: Policy
    backends: Mapping[str, Backend]
    clock: Clock
    inventory: Inventory
    root_secret: bytes | None
    responses: ResponseCache

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/admin/cache/stat", self._guarded(self.stat))
        app.router.add_get("/admin/cache/entries", self._guarded(self.entries))
        app.router.add_post("/admin/cache/flush", self._guarded(self.flush))
        app.router.add_post("/admin/cache/pin", self._guarded(self.pin))
        app.router.add_post("/admin/cache/unpin", self._guarded(self.unpin))
        app.router.add_post("/admin/cache/verify", self._guarded(self.verify))

    async def stat(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """Sizes of every place, and every engine's numbers."""
        stats_of = await all_stats(self.backends)
        several = {model for model, number in stats_of if number}
        engines = {
            f"{model}#{number}" if model in several else model: _numbers(stats)
            for (model, number), stats in stats_of.items()
        }
        contents = await asyncio.to_thread(self.inventory.contents, self._hash(caller.tenant))
        return json_reply(Stat(engines, [*contents, *self._whole_answers(caller.tenant)]))

    async def entries(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """The stored entries."""

        def listed() -> list[EntryLine]:
            lines = []
            for line in self.inventory.entries(self.clock(), self._hash(caller.tenant)):
                lines.append(line)
                if len(lines) > MAX_ENTRIES:
                    break
            return lines

        lines = await asyncio.to_thread(listed)
        return json_reply(Entries(lines[:MAX_ENTRIES], truncated=len(lines) > MAX_ENTRIES))

    async def flush(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """Forget the cache of a tenant, or of everyone, in every tier of every engine."""
        wanted = await self._body(http, FlushRequest)
        if caller.tenant is not None and wanted.tenant not in (None, caller.tenant):
            raise Forbidden("a key forgets its own tenant's cache, no other's")
        tenant = caller.tenant or wanted.tenant
        self.responses.flush(tenant)
        able = [engine for engine in self._engines() if isinstance(engine, CanFlush)]
        return json_reply(
            FlushReply(sum(await asyncio.gather(*(engine.flush(tenant) for engine in able))))
        )

    async def pin(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """Keep an entry until it is unpinned."""
        return await self._pin(http, caller, pinned=True)

    async def unpin(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """Let an entry expire again."""
        return await self._pin(http, caller, pinned=False)

    async def verify(self, http: web.Request, caller: AdminCaller) -> web.StreamResponse:
        """Read everything stored and check it: lines of JSON, progress first and the outcome
        last."""
        reached = [0, 0]

        def progress(done_nbytes: int, total_nbytes: int) -> None:
            reached[:] = done_nbytes, total_nbytes

        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        await response.prepare(http)
        work = asyncio.create_task(
            asyncio.to_thread(self.inventory.verify, progress, self._hash(caller.tenant))
        )
        with contextlib.suppress(ConnectionError):  # nobody listens any more
            while not (await asyncio.wait([work], timeout=PROGRESS_S))[0]:
                await response.write(_line(VerifyLine(reached[0], reached[1])))
            await response.write(_line(VerifyLine(reached[1], reached[1], await work)))
            await response.write_eof()
        return response

    async def _pin(
        self, http: web.Request, caller: AdminCaller, *, pinned: bool
    ) -> web.StreamResponse:
        digits = (await self._body(http, PinRequest)).key
        if caller.tenant is not None:
            raise Forbidden(
                "pins take from what all tenants share: only the operator's key sets and ends them"
            )
        lines = await asyncio.to_thread(lambda: list(self.inventory.entries(self.clock())))
        found = find_entry(lines, digits)
        result = (
            await set_pinned(found, self._engines(), pinned=pinned)
            if isinstance(found, EntryLine)
            else found
        )
        if isinstance(result, PinDone):
            return json_reply(result)
        content = {
            "type": "about:blank",
            "title": result.title,
            "status": result.status,
            "detail": result.detail,
        }
        return json_reply(content, result.status, "application/problem+json")

    def _whole_answers(self, tenant: str | None) -> list[Contents]:
        """The cache of whole answers, as one more place."""
        if not self.responses.enabled:
            return []
        tenants = Counter[str]()
        answers = self.responses.answers_to(tenant)
        for answer in answers:
            tenants[tenant_hash(self.root_secret or b"", answer.tenant)] += answer.nbytes
        return [Contents("responses", "memory", len(answers), tenants.total(), dict(tenants))]

    def _engines(self) -> list[Backend]:
        return [worker.backend for worker in workers_of(self.backends)]

    def _guarded(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(http: web.Request) -> web.StreamResponse:
            try:
                return await route(http, self._caller(http))
            except GatewayError as error:
                return problem(_STATUS.get(type(error), 500), error)

        return serve

    async def _body(self, http: web.Request, kind: type[T]) -> T:
        body = await read_body(http, MAX_BODY_NBYTES, self.policy.server.body_timeout)
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(str(error)) from None

    def _caller(self, http: web.Request) -> AdminCaller:
        if "Origin" in http.headers:
            raise Forbidden("this route is not for web pages")
        headers = plain_headers(http.headers)
        key = api_key(headers)
        if (
            key
            and self.root_secret
            and hmac.compare_digest(key.encode(), operator_key(self.root_secret).encode())
        ):
            return AdminCaller(None)
        if self.policy.tenants:
            return AdminCaller(authenticate(self.policy, headers).name)
        if not is_loopback(http.remote or ""):
            raise Forbidden("without tenants this route answers loopback only")
        return AdminCaller(None)

    def _hash(self, tenant: str | None) -> str | None:
        return None if tenant is None else tenant_hash(self.root_secret or b"", tenant)


def _numbers(stats: EngineStats | None) -> EngineNumbers | None:
    return None if stats is None else EngineNumbers(stats.counters, stats.gauges)


def _line(line: VerifyLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"
