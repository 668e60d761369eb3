"""Filters the header fields that pass between a client and an upstream, in either direction.

Pure; names are lower-case. Knows no key.

RFC 9110, section 7.6.1, names the fields that belong to one connection. The others that are left
out are the gateway's own business: credentials, cookies, addresses of clients, traces, encodings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_HOP_BY_HOP: Final = frozenset(
    {
        *(
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ),
        *("proxy-authenticate", "proxy-authorization", "proxy-authentication-info"),
    }
)
CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
_OURS: Final = frozenset(
    {"host", "content-length", "content-encoding", "accept-encoding", "expect", "cookie"}
)
_ABOUT_CLIENTS: Final = frozenset(
    {
        *("forwarded", "via", "origin", "referer"),
        *(
            "x-real-ip",
            "x-client-ip",
            "x-cluster-client-ip",
            "x-original-forwarded-for",
            "x-envoy-external-address",
        ),
        *("true-client-ip", "fastly-client-ip", "fly-client-ip"),
        *(
            "traceparent",
            "tracestate",
            "baggage",
            "b3",
            "uber-trace-id",
            "sentry-trace",
            "newrelic",
        ),
        *("x-cloud-trace-context", "x-amzn-trace-id"),
    }
)
_BEGINNINGS: Final = ("x-forwarded-", "x-b3-", "x-datadog-", "cf-")
"""The beginnings of further ones. Those of `cf-` are Cloudflare's, addresses and credentials: it
refuses them from any other sender."""
_THEIRS: Final = frozenset(
    {"content-length", "set-cookie", "server", "date", "alt-svc", "strict-transport-security"}
)


def to_upstream(headers: Mapping[str, str], *, credentials: frozenset[str]) -> dict[str, str]:
    """A request's fields as they may go on: the provider's own (`anthropic-beta`, `openai-*`,
    `x-stainless-*`, ...) among them, but for `credentials`.

    The body goes on decoded, and the answer must come so that usage can be read from it.
    """
    dropped = _HOP_BY_HOP | _OURS | _ABOUT_CLIENTS | credentials
    passed = _without(headers, dropped, prefixes=(*_BEGINNINGS, "pcg-", "sec-", "access-control-"))
    return {**passed, "accept-encoding": "identity"}


def to_client(headers: Mapping[str, str]) -> dict[str, str]:
    """An answer's fields as they may go on: `retry-after`, request ids and rate limits among them.
    `pcg-*` are ours alone."""
    return _without(headers, _HOP_BY_HOP | _THEIRS, prefixes=("pcg-", "access-control-"))


def _without(
    headers: Mapping[str, str], dropped: frozenset[str], *, prefixes: tuple[str, ...]
) -> dict[str, str]:
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {
        name: value
        for name, value in headers.items()
        if name not in dropped and name not in named and not name.startswith(prefixes)
    }
