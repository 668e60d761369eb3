"""Passes a request to an upstream and its answer back, byte for byte.

Knows no HTTP library; beside `handler`, which calls it.

    body -> the model it names -> an upstream -> the same body there, with the upstream's key
    its answer -> the client as it comes, while usage is read from a copy
    -> bill, headers where they can still say it

Only the model id may be another one, where the policy renames it. Streams may get comments in
between, which every reader of events skips, while their upstream is silent
(`server.sse.keepalive`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.backends.base import Outgoing, Upstream
from gateway.calls.catalog import ModelCatalog
from gateway.calls.exchange import Call
from gateway.errors import InvalidRequest, NotCached
from gateway.upstream.header_filter import CREDENTIALS, to_upstream
from gateway.upstream.reported import UpstreamUsage
from gateway.upstream.splice import summarize, with_model
from gateway.wire.directives import cache_directives
from policies.schema import Policy


@dataclass(frozen=True, slots=True)
class UpstreamRoute:
    """Where one request goes and what it is then."""

    upstream: Upstream
    passing: UpstreamUsage
    sent: Outgoing


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """The part of a handler that is for upstreams."""

    policy: Policy
    catalogue: ModelCatalog

    def way(self, call: Call, body: bytes, *, billed: bool) -> UpstreamRoute | None:
        """None for requests that no upstream serves. Raises `InvalidRequest` where one does in
        another format only.

        `billed`: the answer tells usage that is owed for.
        """
        asked = summarize(body) if self.policy.backends else None
        if asked is None:
            return None
        passage = self.catalogue.passage(asked.model, call.wire.provider.name)
        if passage is None:
            return None
        if call.tenant is not None:
            raise InvalidRequest(
                "message batches are for models that this gateway serves itself", path="model"
            )
        if cache_directives(call.headers).only_if_cached:
            raise NotCached(
                "what an upstream has cached is not known before it answers, and the request says "
                "only-if-cached"
            )
        backend, provider = passage.backend, call.wire.provider
        hidden = CREDENTIALS.union(provider.key_headers)
        if backend.pass_client_key:
            hidden = frozenset()
        passing = UpstreamUsage(
            upstream=backend.name,
            model=asked.model,
            stream=asked.stream,
            billed=billed,
            rules=self.policy.rules_for(passage.model, provider.preset, backend.preset),
            prices=self.policy.prices_for(passage.model),
            format=provider.preset_usage_formats.get(backend.preset, provider.usage_format),
        )
        sent = Outgoing(
            "POST",
            call.path,
            to_upstream(call.headers, credentials=hidden),
            with_model(body, passage.model) if passage.renamed else body,
        )
        return UpstreamRoute(self.catalogue.upstream(backend.name), passing, sent)
