"""One request, top to bottom: the file to read first.

Knows no HTTP library and no engine, only their contracts.

    client bytes -> authenticate -> wire.parse -> dialects.normalize, plan -> backend.generate
    Started (the prompt's bill) -> TextDelta ... -> Finished
    -> headers and body, or a stream -> record, metrics, log

A model that an upstream serves is passed to it instead, byte for byte: `relay`. Whatever ends a
request (an answer, an error, a client that left) ends here, and is recorded once.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Final

import msgspec
import structlog

from engine.messages import Finished, Started, TextDelta, ToolCallDelta
from gateway import dialects
from gateway.backends.base import Backend, Event
from gateway.bill.headers import billing_headers, headers_without_counts
from gateway.bill.record import Record
from gateway.calls.catalog import ModelCatalog
from gateway.calls.choices import ChoiceEvent, merge_choices
from gateway.calls.exchange import Call, Client, Reply
from gateway.calls.feed import EventFeed, Keepalive, feed
from gateway.errors import EngineFailed, GatewayError, NotCached, UnknownModel
from gateway.ids import id_headers, native_id
from gateway.request import Request
from gateway.serve.auth import authenticate
from gateway.serve.limits import InFlight
from gateway.serve.progress import ChoiceBuilder, Progress
from gateway.serve.upstream_exchange import UpstreamExchange
from gateway.session import routing_key
from gateway.state.archive import Archive
from gateway.state.background import Background, EventLog
from gateway.state.diagnoses import Diagnoses
from gateway.state.response_cache import ResponseCache, replay
from gateway.upstream.proxy import UpstreamProxy
from gateway.wire.base import RememberingWire, StreamEncoder, ToolCall
from gateway.wire.sse import KEEPALIVE_COMMENT, SSE_HEADERS
from policies.schema import Policy

JSON_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Cache-Control": "no-store",
}

BATCHED: Final = "batched"
"""The route of a batch's requests, one by one."""

BACKGROUND: Final = "background"
"""The route of an answer for which nobody waits."""

BATCH_MULTIPLIER: Final = Decimal("0.5")
"""Of every price (page "Batch processing", 2026-08)."""

_log = structlog.get_logger("pcg.handler")


@dataclass(frozen=True, slots=True)
class Handler:
    """Serves every provider-compatible route. `record` is told of each request once, when it is
    over."""

    policy: Policy
    catalogue: ModelCatalog
    in_flight: InFlight
    record: Callable[[Record], None]
    archive: Archive
    responses: ResponseCache
    background: Background
    diagnoses: Diagnoses = field(default_factory=Diagnoses)

    @property
    def relay(self) -> UpstreamProxy:
        return UpstreamProxy(self.policy, self.catalogue)

    # The routes -----------------------------------------------------------------------------------

    async def generate(self, call: Call, client: Client) -> None:
        """POST /v1/messages, /v1/chat/completions, /v1/responses, /v1/completions."""
        progress = Progress(call)
        async with self._recorded(progress, client):
            with self.in_flight.slot():
                body = await self._read(progress, client)
                if await self._passed(progress, body, client):
                    return
                request, backend = self._admit(progress, body)
                if not request.wire_options.get("background"):
                    await self._answer(progress, backend, client)
                    return
            await self._defer(progress, backend, client)

    async def count(self, call: Call, client: Client) -> None:
        """POST /v1/messages/count_tokens, /v1/responses/input_tokens: free, and exactly what the
        same body would be billed."""
        progress = Progress(call)
        async with self._recorded(progress, client):
            with self.in_flight.slot():
                body = await self._read(progress, client)
                if await self._passed(progress, body, client, billed=False):
                    return
                request = call.wire.parse_count(
                    body, call.headers, request_id=native_id(call.wire.name, call.id)
                )
                served = self.catalogue.find(request.model)
                progress.request, progress.served_by = request, served.name
                request = self._resumed(progress, request)
                request = dialects.normalize(
                    request, self.policy.rules_for(request.model, request.wire)
                )
                num_prompt = await served.backend.count(request.prompt)
            await self.send(call, client, call.wire.encode_count(num_prompt))
            progress.answered()

    async def models(self, call: Call, client: Client, query: Mapping[str, str]) -> None:
        """GET /v1/models."""
        await self._lookup(
            call,
            client,
            lambda: call.wire.encode_models(self.catalogue.listed(call.wire.name), query),
        )

    async def model(self, call: Call, client: Client, model_id: str) -> None:
        """GET /v1/models/{id}."""

        def encode() -> bytes:
            return call.wire.encode_model(self.catalogue.info(model_id, call.wire.name), model_id)

        await self._lookup(call, client, encode)

    async def passed_only(self, call: Call, client: Client) -> None:
        """POST /v1/embeddings and its like: what upstreams serve and no engine of ours does."""
        progress = Progress(call)
        async with self._recorded(progress, client):
            with self.in_flight.slot():
                body = await self._read(progress, client)
                if not await self._passed(progress, body, client):
                    raise UnknownModel(
                        "the body names no model that an upstream serves", path="model"
                    )

    async def refuse(self, call: Call, client: Client, error: GatewayError) -> None:
        """A request that no route takes."""
        async with self._recorded(Progress(call), client):
            raise error

    @asynccontextmanager
    async def recorded(self, call: Call, client: Client) -> AsyncIterator[Progress]:
        """For routes that are served elsewhere: errors are told and the outcome is recorded as for
        every other."""
        progress = Progress(call)
        async with self._recorded(progress, client):
            yield progress
            progress.answered()

    async def send(
        self, call: Call, client: Client, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole answer with status 200."""
        told = dict(JSON_HEADERS) | id_headers(call.wire.name, call.id) | dict(headers or {})
        await client.send(Reply(200, body, told))

    async def follow(
        self, client: Client, log: EventLog, first: int, headers: Mapping[str, str]
    ) -> None:
        """The events of an answer in the background from number `first` on, as they come, to its
        end."""
        await client.open(dict(SSE_HEADERS) | dict(headers))
        async for event in log.follow(first, self.policy.server.sse.keepalive):
            await client.write(event or KEEPALIVE_COMMENT)

    async def _lookup(self, call: Call, client: Client, encode: Callable[[], bytes]) -> None:
        """Answer from what is at hand."""
        progress = Progress(call)
        async with self._recorded(progress, client):
            progress.tenant = authenticate(self.policy, call.headers).name
            await self.send(call, client, encode())
            progress.answered()

    # The steps of `generate` ----------------------------------------------------------------------

    async def _read(self, progress: Progress, client: Client) -> bytes:
        """The body, of a tenant that is known then."""
        progress.tenant = (
            progress.call.tenant or authenticate(self.policy, progress.call.headers).name
        )
        with progress.phase("read"):
            return await client.read(self.policy.server.max_body)

    async def _passed(
        self, progress: Progress, body: bytes, client: Client, *, billed: bool = True
    ) -> bool:
        """Whether an upstream serves the request, and then has answered it."""
        with progress.phase("parse"):
            way = self.relay.way(progress.call, body, billed=billed)
        if way is not None:
            await UpstreamExchange(way, progress, client, self.policy.server.sse).run()
        return way is not None

    def _admit(self, progress: Progress, body: bytes) -> tuple[Request, Backend]:
        """The request as the backend is to serve it: nothing downstream asks a policy again."""
        call = progress.call
        assert progress.tenant is not None
        with progress.phase("parse"):
            request = call.wire.parse(
                body, call.headers, request_id=native_id(call.wire.name, call.id)
            )
        progress.request = request
        served = self.catalogue.find(request.model)
        progress.served_by = served.name
        request = self._resumed(progress, request)
        with progress.phase("plan"):
            rules = self.policy.rules_for(request.model, request.wire)
            dialects.check_abilities(request, rules)
            request = dialects.normalize(request, rules)
            request = msgspec.structs.replace(
                request,
                tenant=progress.tenant,
                plan=dialects.plan(request, rules),
                ttl_classes=dict(rules.lifetimes),
                usage_fields=rules.usage_fields,
                started_at_s=call.started_at_s,
                routing_key=routing_key(progress.tenant, call.headers, request.parameters),
            )
        request = self.diagnoses.diagnose(request)
        prices = self.policy.prices_for(request.model)
        if call.route == BATCHED:
            request = msgspec.structs.replace(
                request, wire_options={**request.wire_options, "service_tier": "batch"}
            )
            prices = prices.times(BATCH_MULTIPLIER)
        progress.request, progress.rules, progress.prices = request, rules, prices
        progress.choices = [ChoiceBuilder() for _ in range(request.num_answers)]
        progress.context = None if served.backend.model is None else served.backend.model.context
        return request, served.backend

    async def _answer(self, progress: Progress, backend: Backend, client: Client) -> None:
        """Whole or streamed, as the request wants it."""
        assert progress.request is not None
        async with feed(self._answers(progress, progress.request, backend)) as events:
            if progress.request.stream:
                await self._stream(progress, events, client)
            else:
                await self._whole(progress, events, client)

    async def _whole(
        self, progress: Progress, events: EventFeed[Event | ChoiceEvent], client: Client
    ) -> None:
        while not progress.finished:
            _note(progress, await events.next())
        call, request = progress.call, progress.request
        assert request is not None
        self._keep(progress)
        self._keep_whole(progress)
        body = call.wire.encode_answer(request, progress.answer(), created_at_s=call.started_at_s)
        await self.send(call, client, body, _billing(progress))
        progress.answered()

    async def _stream(
        self, progress: Progress, events: EventFeed[Event | ChoiceEvent], client: Client
    ) -> None:
        """Headers leave with the exact bill, or without counts when that takes too long; then
        silence is filled."""
        call, request, sse = progress.call, progress.request, self.policy.server.sse
        assert request is not None
        encoder = call.wire.stream(request, created_at_s=call.started_at_s)
        event = await events.next(sse.early_headers_after)
        _note(progress, event)
        await client.open(
            dict(SSE_HEADERS) | id_headers(call.wire.name, call.id) | _billing(progress)
        )
        silence = Keepalive(sse.keepalive)
        try:
            while not progress.finished:
                await client.write(
                    silence.broken(_encode(progress, event, encoder), encoder.keepalive())
                )
                event = await events.next(silence.left_s)
                _note(progress, event)
            self._keep(progress)
            self._keep_whole(progress)
            await client.write(encoder.finish(progress.answer()))
            progress.answered()
        except ConnectionError:
            raise
        except Exception as error:
            known = _known(error, call)
            progress.failed(known, 200)
            await client.write(encoder.error(known))

    async def _defer(self, progress: Progress, backend: Backend, client: Client) -> None:
        """Has the answer made in the background, and tells the client where it will be, or its
        events as they come."""
        call, request = progress.call, progress.request
        assert request is not None
        assert isinstance(call.wire, RememberingWire)
        state = partial(call.wire.encode_unfinished, request, created_at_s=call.started_at_s)
        later = replace(
            progress,
            call=replace(call, route=BACKGROUND),
            request=msgspec.structs.replace(request, stream=True, warnings=()),
            # Of its own: what the engine tells is the answer's to pay, not again its watcher's.
            started={},
            choices=[ChoiceBuilder() for _ in progress.choices],
            phases={},
        )
        log = self.background.begin(
            request.tenant,
            request.wire_options["response_id"],
            state,
            lambda log: self._make(later, backend, log),
        )
        if request.stream:
            await self.follow(
                client, log, 0, id_headers(call.wire.name, call.id) | _billing(progress)
            )
        else:
            await self.send(call, client, state(begun=False), _billing(progress))
        progress.answered()

    async def _make(self, progress: Progress, backend: Backend, log: EventLog) -> None:
        """Make an answer for which nobody waits. Afterwards it is kept, whatever it came to."""
        call, request = progress.call, progress.request
        assert request is not None
        assert isinstance(call.wire, RememberingWire)
        keep = partial(call.wire.keep_unanswered, request, created_at_s=call.started_at_s)
        try:
            async with self._recorded(progress, log):
                await self.in_flight.wait_free()
                with self.in_flight.slot():
                    await self._answer(progress, backend, log)
        except asyncio.CancelledError:
            self.archive.put(request.tenant, keep(None), call.started_at_s)
            raise
        if progress.failure is not None:
            self.archive.put(request.tenant, keep(progress.failure), call.started_at_s)
            if not log.events:
                await log.write(
                    call.wire.stream(request, created_at_s=call.started_at_s).error(
                        progress.failure
                    )
                )

    def _resumed(self, progress: Progress, request: Request) -> Request:
        """With what it refers to filled in, where its format can refer to earlier requests."""
        call, tenant = progress.call, progress.tenant
        assert tenant is not None
        if not isinstance(call.wire, RememberingWire):
            return request
        return call.wire.resume(
            request, lambda name: self.archive.find(tenant, name, call.started_at_s)
        )

    def _keep(self, progress: Progress) -> None:
        """For later requests to refer to, before the client knows its name."""
        call, request = progress.call, progress.request
        if isinstance(call.wire, RememberingWire):
            assert request is not None
            kept = call.wire.keep(request, progress.answer(), created_at_s=call.started_at_s)
            self.archive.put(request.tenant, kept, call.started_at_s)

    def _answers(
        self, progress: Progress, request: Request, backend: Backend
    ) -> AsyncIterator[Event | ChoiceEvent]:
        """The events of an answer that was given before, else the backend's, of one answer or of
        several."""
        model = (
            f"{progress.served_by} {backend.model.fingerprint if backend.model is not None else ''}"
        )
        progress.lookup = lookup = self.responses.look(progress.call, request, model)
        if lookup is not None and lookup.given is not None:
            return replay(lookup.given, request)
        if lookup is not None and lookup.key is not None:
            progress.tape = []
        return (
            backend.generate(request)
            if request.num_answers == 1
            else merge_choices(backend, request)
        )

    def _keep_whole(self, progress: Progress) -> None:
        """For later requests that are the same, where this one's answer may be given to them."""
        bill = progress.bill()
        if progress.tape is not None and progress.lookup is not None and bill is not None:
            assert progress.request is not None
            kept_s = self.responses.keep(
                progress.lookup, progress.request, progress.tape, bill.usage, bill.charge.total
            )
            progress.kept_s = kept_s

    @asynccontextmanager
    async def _recorded(self, progress: Progress, client: Client) -> AsyncIterator[None]:
        """Tells the client of errors raised before its answer began, and records the outcome,
        whatever it is."""
        try:
            yield
        except ConnectionError:
            raise  # the client has gone: nobody to tell
        except Exception as error:
            await self._tell(progress, client, _known(error, progress.call))
        finally:
            self.record(progress.record())

    async def _tell(self, progress: Progress, client: Client, error: GatewayError) -> None:
        call = progress.call
        told = call.wire.encode_error(error, request_id=native_id(call.wire.name, call.id))
        progress.failed(error, told.status)
        headers = dict(JSON_HEADERS) | id_headers(call.wire.name, call.id) | dict(told.headers)
        await client.send(Reply(told.status, told.body, headers))


def _known(error: Exception, call: Call) -> GatewayError:
    """The error as a client may see it. A bug is logged by kind and place only: its message may
    quote the prompt."""
    if isinstance(error, GatewayError):
        return error
    _log.error(
        "bug", id=call.id, error=type(error).__name__, at=traceback.format_tb(error.__traceback__)
    )
    return EngineFailed("internal error")


def _note(progress: Progress, event: Event | ChoiceEvent | None) -> None:
    index = 0
    if isinstance(event, ChoiceEvent):
        index, event = event.index, event.event
    if event is not None and progress.tape is not None:
        progress.tape.append((index, event))
    match event:
        case Started():
            progress.on_started(event, index)
            _check_cached(progress)
        case TextDelta() | ToolCallDelta():
            progress.on_delta(event, index)
        case Finished():
            progress.on_finished(event, index)


def _check_cached(progress: Progress) -> None:
    """`only-if-cached`: a prompt of which nothing is read is not computed."""
    bill = progress.bill()
    assert bill is not None
    assert progress.request is not None
    if (
        progress.request.only_if_cached
        and progress.all_started
        and not bill.usage.cache_read
        and not progress.replays
    ):
        raise NotCached("nothing of this prompt is cached, and the request says only-if-cached")


def _encode(progress: Progress, event: Event | ChoiceEvent | None, encoder: StreamEncoder) -> bytes:
    """One event as the stream shows it; None is silence."""
    choice = 0
    if isinstance(event, ChoiceEvent):
        choice, event = event.index, event.event
    match event:
        case Started():
            bill = progress.bill()
            assert bill is not None
            return encoder.start(bill.usage) if choice == 0 else b""
        case TextDelta():
            return encoder.delta(
                event.text, thinking=event.thinking, logprobs=event.logprobs, choice=choice
            )
        case ToolCallDelta():
            call = ToolCall(event.name or "", event.arguments)
            begins = event.name is not None
            return encoder.call(
                event.index, call, begins=begins, logprobs=event.logprobs, choice=choice
            )
        case Finished():
            return b""  # of one of several answers: they end together
        case None:
            return encoder.keepalive()


def _billing(progress: Progress) -> dict[str, str]:
    """Headers about cache and cost: exact once the engine has started, else only what is known."""
    bill = progress.bill()
    if bill is None or not progress.all_started:
        return headers_without_counts(timings=progress.timings(), warnings=progress.warnings())
    return billing_headers(bill, timings=progress.timings(), warnings=progress.warnings())
