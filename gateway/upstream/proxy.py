"""Chooses the upstream that serves a request, and prepares the request to it.

Knows no HTTP library.

    the client's body -> the model it names -> an upstream -> the same bytes there, with its key
    its answer -> the client as it comes, while usage is read from a copy
    -> bill, and headers where they have not left yet

Only the model id may be another one, where the policy renames it. A stream may get comments in
between while its upstream is silent (`server.sse.keepalive`): every reader of events skips them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.backends.base import Outgoing, Upstream
from gateway.calls.catalog import ModelCatalog
from gateway.calls.exchange import BATCHED, Call
from gateway.errors import InvalidRequest, NotCached
from gateway.upstream.header_filter import CREDENTIALS, to_upstream
from gateway.upstream.reported import UpstreamUsage
from gateway.upstream.splice import summarize, with_model
from gateway.wire.directives import cache_directives
from policies.schema import Policy


@dataclass(frozen=True, slots=True)
class UpstreamRoute:
    """The upstream of one request, the request as it is sent there, and the usage to come."""

    upstream: Upstream
    outgoing: Outgoing
    usage: UpstreamUsage


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """The upstreams of a policy."""

    policy: Policy
    catalog: ModelCatalog

    def route(self, call: Call, body: bytes, *, billed: bool) -> UpstreamRoute | None:
        """None for a request that no upstream serves.

        Raises `InvalidRequest` where an upstream serves the model in another format only. `billed`:
        the answer reports usage that costs money.
        """
        summary = summarize(body)
        if summary is None:
            return None
        match = self.catalog.upstream_for(summary.model, call.wire.provider.name)
        if match is None:
            return None
        if call.route == BATCHED:
            raise InvalidRequest(
                "message batches are for models that this gateway serves itself", path="model"
            )
        if cache_directives(call.headers).only_if_cached:
            raise NotCached(
                "what an upstream has cached is not known before it answers, and the request says "
                "only-if-cached"
            )
        backend, provider = match.backend, call.wire.provider
        hidden = CREDENTIALS.union(provider.key_headers)
        if backend.pass_client_key:
            hidden = frozenset()
        usage = UpstreamUsage(
            upstream=backend.name,
            model=summary.model,
            stream=summary.stream,
            billed=billed,
            rules=self.policy.rules_for(match.model, provider.preset, backend.preset),
            prices=self.policy.prices_for(match.model),
            provider=backend.preset != "auto" or self.policy.names_provider(match.model),
            format=provider.preset_usage_formats.get(backend.preset, provider.usage_format),
        )
        outgoing = Outgoing(
            "POST",
            call.path,
            to_upstream(call.headers, credentials=hidden),
            with_model(body, match.model) if match.renamed else body,
        )
        return UpstreamRoute(self.catalog.upstream(backend.name), outgoing, usage)
