"""One request, top to bottom: the file to read first.

Knows no HTTP library and no engine, only their contracts.

    client bytes -> Received (authenticate) -> Admitted (parse, normalize, plan)
    -> Answering (events of the backend, the bill) -> Ended -> Record (metrics, log)

A request for a model that an upstream serves is proxied instead, byte for byte. However a request
ends (an answer, an error, a client that left), it ends here and is recorded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Final

import msgspec

from gateway.bill.headers import headers_without_counts
from gateway.bill.record import Record
from gateway.calls.catalog import ModelCatalog
from gateway.calls.exchange import BATCHED, Call, Client, Reply
from gateway.dialects.abilities import check_abilities
from gateway.dialects.dialect import Dialect
from gateway.errors import GatewayError, UnknownModel
from gateway.offload import OffloadThread
from gateway.request import Request
from gateway.serve.auth import tenant_of
from gateway.serve.delivery import JSON_HEADERS, AnswerDelivery, client_error, send
from gateway.serve.limits import InFlight
from gateway.serve.record_draft import RecordDraft
from gateway.serve.stages import ANSWERED, CANCELLED, Admitted, Ended, Received
from gateway.serve.timings import Timings
from gateway.serve.upstream_exchange import UpstreamExchange
from gateway.session import routing_key
from gateway.state.archive import Archive
from gateway.state.background import Background, EventLog
from gateway.state.diagnoses import Diagnoses, comparable
from gateway.upstream.proxy import UpstreamProxy
from gateway.wire.anthropic.diagnosis import Fingerprint
from gateway.wire.base import Memory
from gateway.wire.sse import KEEPALIVE_COMMENT, SSE_HEADERS
from gateway.wire.structure import check_structure
from policies.rules import DialectRules, PresetName
from policies.schema import Policy

BACKGROUND: Final = "background"
"""The route of an answer that is generated in the background."""

BATCH_MULTIPLIER: Final = Decimal("0.5")
"""Of every price (page "Batch processing", 2026-08)."""


@dataclass(frozen=True, slots=True)
class Handler:
    """Serves every provider-compatible route.

    Each of `recorders` gets the record of each request once, when that has ended. `proxy` is None
    where the policy has no upstreams. Large bodies are worked on in `offload`, beside the event
    loop.
    """

    policy: Policy
    catalog: ModelCatalog
    in_flight: InFlight
    recorders: tuple[Callable[[Record], None], ...]
    archive: Archive
    delivery: AnswerDelivery
    background: Background
    dialects: Mapping[PresetName, Dialect]
    proxy: UpstreamProxy | None = None
    diagnoses: Diagnoses = field(default_factory=Diagnoses)
    offload: OffloadThread = field(default_factory=OffloadThread)

    # The routes -----------------------------------------------------------------------------------

    async def generate(self, call: Call, client: Client) -> None:
        """POST /v1/messages, /v1/chat/completions, /v1/responses, /v1/completions."""
        async with self.recorded(call, client) as draft:
            with self.in_flight.slot():
                received = await self._receive(draft, client)
                if await self._proxied(draft, received, client):
                    return
                admitted = await self._admit(draft, received)
                memory = call.wire.memory
                if memory is None or not admitted.request.background:
                    await self.delivery.deliver(draft, admitted, client)
                    return
            await self._defer(draft, admitted, memory, client)

    async def count(self, call: Call, client: Client) -> None:
        """POST /v1/messages/count_tokens, /v1/responses/input_tokens: free, and exactly the number
        that the same body would be billed."""
        async with self.recorded(call, client) as draft:
            with self.in_flight.slot():
                received = await self._receive(draft, client)
                if await self._proxied(draft, received, client, billed=False):
                    return
                with draft.timings.phase("parse"):
                    request = await self._parse(received, call.wire.parse_count)
                served = self.catalog.find(request.model)
                draft.request, draft.served_by = request, served.name
                if call.wire.memory is not None:
                    request = await self._resume(call.wire.memory, received, request)
                rules = self.policy.rules_for(request.model, call.wire.provider.preset)
                dialect = self.dialects[rules.preset]
                normalize = partial(dialect.normalize, request, rules, call.wire)
                request = await self.offload.run(request.nbytes, normalize)
                num_prompt = await served.backend.count(request.prompt)
            await send(call, client, call.wire.encode_count(num_prompt))

    async def models(self, call: Call, client: Client) -> None:
        """GET /v1/models."""
        async with self.recorded(call, client) as draft:
            self.identify(draft)
            listed = self.catalog.listed(call.wire.provider.name)
            await send(call, client, call.wire.encode_models(listed, call.query))

    async def model(self, call: Call, client: Client) -> None:
        """GET /v1/models/{id}."""
        async with self.recorded(call, client) as draft:
            self.identify(draft)
            info = self.catalog.info(call.resource_id, call.wire.provider.name)
            await send(call, client, call.wire.encode_model(info, call.resource_id))

    async def proxied_only(self, call: Call, client: Client) -> None:
        """POST /v1/embeddings and others that only upstreams serve."""
        async with self.recorded(call, client) as draft:
            with self.in_flight.slot():
                if not await self._proxied(draft, await self._receive(draft, client), client):
                    raise UnknownModel(
                        "the body names no model that an upstream serves", path="model"
                    )

    async def refuse(self, call: Call, client: Client, error: GatewayError) -> None:
        """Answer with `error` a request that no route takes."""
        async with self.recorded(call, client):
            raise error

    @asynccontextmanager
    async def recorded(self, call: Call, client: Client) -> AsyncIterator[RecordDraft]:
        """Sends the client an error that is raised before its answer began, and records how the
        request ended: answered, where the block ends by itself."""
        draft = RecordDraft(call, Timings(call.arrived_s))
        try:
            try:
                yield draft
                draft.ended = draft.ended or ANSWERED
            except ConnectionError:
                raise  # the client has gone
            except Exception as error:
                shown = client_error(error, call)
                reply = call.wire.encode_error(shown, request_id=call.native_id)
                draft.ended = Ended.failed(shown, reply.status)
                headers = dict(JSON_HEADERS) | call.id_headers | dict(reply.headers)
                await client.send(Reply(reply.status, reply.body, headers))
            await client.deliver()
        except (ConnectionError, asyncio.CancelledError):
            if draft.ended == ANSWERED:
                draft.ended = CANCELLED  # it did not take all of its answer, and owes for it
            raise
        finally:
            record = draft.record()
            for add in self.recorders:
                add(record)

    def identify(self, draft: RecordDraft) -> str:
        """The name of the tenant that asks, which the record then has. Raises `Unauthenticated`."""
        draft.tenant = tenant = tenant_of(self.policy, draft.call)
        return tenant

    async def follow(
        self, client: Client, log: EventLog, first: int, headers: Mapping[str, str]
    ) -> None:
        """Stream the events of an answer in the background from number `first` on, to its end."""
        await client.open(dict(SSE_HEADERS) | dict(headers))
        async for event in log.follow(first, self.policy.server.sse.keepalive):
            await client.write(event or KEEPALIVE_COMMENT)

    # The steps of `generate` ----------------------------------------------------------------------

    async def _receive(self, draft: RecordDraft, client: Client) -> Received:
        """Authenticate, then read the body."""
        tenant = self.identify(draft)
        with draft.timings.phase("read"):
            body = await client.read(self.policy.server.max_body)
        check = partial(check_structure, body, self.policy.server.max_values)
        await self.offload.run(len(body), check)
        return Received(draft.call, tenant, body)

    async def _proxied(
        self, draft: RecordDraft, received: Received, client: Client, *, billed: bool = True
    ) -> bool:
        """Whether an upstream serves the request; it has answered then."""
        if self.proxy is None:
            return False
        with draft.timings.phase("parse"):
            find = partial(self.proxy.route, received.call, received.body, billed=billed)
            route = await self.offload.run(len(received.body), find)
        if route is not None:
            await UpstreamExchange(route, draft, client, self.policy.server.sse).run()
        return route is not None

    async def _admit(self, draft: RecordDraft, received: Received) -> Admitted:
        """The request as the backend is to serve it: no later stage asks the policy."""
        call = received.call
        with draft.timings.phase("parse"):
            draft.request = request = await self._parse(received, call.wire.parse)
        served = self.catalog.find(request.model)
        draft.served_by = served.name
        if call.wire.memory is not None:
            request = await self._resume(call.wire.memory, received, request)
        with draft.timings.phase("plan"):
            rules = self.policy.rules_for(request.model, call.wire.provider.preset)
            dialect = self.dialects[rules.preset]
            check_abilities(request, rules, call.wire)
            plan = partial(_planned, request, dialect, rules, received)
            request, fingerprint = await self.offload.run(request.nbytes, plan)
        if fingerprint is not None:
            request = self.diagnoses.diagnose(request, fingerprint)
        prices = self.policy.prices_for(request.model)
        if call.route == BATCHED:
            request = msgspec.structs.replace(request, service_tier="batch")
            prices = prices.times(BATCH_MULTIPLIER)
        draft.request = request
        model = served.backend.model
        context = None if model is None else model.context
        return Admitted(call, request, dialect, rules, prices, served.name, served.backend, context)

    async def _parse(self, received: Received, parse: Callable[..., Request]) -> Request:
        """The body as a request."""
        call, body = received.call, received.body
        read = partial(parse, body, call.headers, request_id=call.native_id)
        return msgspec.structs.replace(await self.offload.run(len(body), read), nbytes=len(body))

    async def _resume(self, memory: Memory, received: Received, request: Request) -> Request:
        """The request with the conversation it refers to."""
        tenant, now_s = received.tenant, received.call.started_at_s
        earlier = {name: self.archive.find(tenant, name, now_s) for name in memory.refers(request)}
        nbytes = request.nbytes + sum(kept.nbytes for kept in earlier.values() if kept is not None)
        resumed = await self.offload.run(nbytes, partial(memory.resume, request, earlier.get))
        return msgspec.structs.replace(resumed, nbytes=nbytes)

    # Answers in the background --------------------------------------------------------------------

    async def _defer(
        self, draft: RecordDraft, admitted: Admitted, memory: Memory, client: Client
    ) -> None:
        """Have the answer generated in the background; the client gets its name, or its events as
        they come.

        The prompt is billed to the answer and not again to the request that started it, so the
        answer is another `Answering`, of the same `Admitted`.
        """
        call, request = admitted.call, admitted.request
        state = partial(memory.encode_unfinished, request, created_at_s=call.started_at_s)
        later = replace(
            admitted,
            call=replace(call, route=BACKGROUND),
            request=msgspec.structs.replace(request, stream=True, warnings=()),
        )
        log = self.background.begin(
            request.tenant,
            request.response_id,
            state,
            lambda log: self._answer_later(later, memory, log),
            client.hand_over,
        )
        headers = headers_without_counts(timings=draft.timings.shown(), warnings=request.warnings)
        if request.stream:
            await self.follow(client, log, 0, call.id_headers | headers)
        else:
            await send(call, client, state(begun=False), headers)

    async def _answer_later(self, admitted: Admitted, memory: Memory, log: EventLog) -> None:
        """Generate an answer while no client waits. Afterwards the archive has it, or its error."""
        call, request = admitted.call, admitted.request
        keep = partial(memory.keep_unanswered, request, created_at_s=call.started_at_s)
        try:
            async with self.recorded(call, log) as draft:
                draft.tenant, draft.request = request.tenant, request
                draft.served_by = admitted.served_by
                await self.in_flight.wait_free()
                with self.in_flight.slot():
                    await self.delivery.deliver(draft, admitted, log)
        except asyncio.CancelledError:
            kept = await self.offload.run(request.nbytes, partial(keep, None))
            self.archive.put(request.tenant, kept, call.started_at_s)
            raise
        error = None if draft.ended is None else draft.ended.error
        if error is not None:
            kept = await self.offload.run(request.nbytes, partial(keep, error))
            self.archive.put(request.tenant, kept, call.started_at_s)
            if not log.events:
                encoder = call.wire.stream(request, created_at_s=call.started_at_s)
                await log.write(encoder.error(error))


def _planned(
    request: Request, dialect: Dialect, rules: DialectRules, received: Received
) -> tuple[Request, Fingerprint | None]:
    """The request by its dialect's rules, and its fingerprint where one is asked for."""
    call, tenant = received.call, received.tenant
    request = dialect.normalize(request, rules, call.wire)
    request = msgspec.structs.replace(
        request,
        tenant=tenant,
        plan=dialect.plan(request, rules),
        ttl_classes=dict(rules.lifetimes),
        usage_fields=rules.usage_fields,
        started_at_s=call.started_at_s,
        routing_key=routing_key(tenant, call.headers, request.parameters),
    )
    return request, comparable(request)
