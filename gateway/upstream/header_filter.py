"""Filters the header fields that pass between a client and an upstream, in either direction.

Pure; names are lower-case. Knows no key.

RFC 9110, section 7.6.1, names the fields that belong to one connection. The others that are left
out of a request are the gateway's own business: credentials, cookies, addresses of clients,
encodings, and traces but for those of the W3C, by which an upstream's spans join the client's. Of
an answer only the listed ones pass: it is the gateway that a client, and a proxy between them,
trust.
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
_PASSED_BACK: Final = frozenset(
    {
        *("content-type", "content-encoding", "content-language", "content-disposition"),
        *("retry-after", "retry-after-ms", "x-should-retry"),
        *("request-id", "x-request-id", "cf-ray", "traceresponse"),
        *("x-amzn-requestid", "x-ms-request-id", "apim-request-id", "x-generation-id"),
        *("x-trace-id", "x-correlation-id", "x-ds-trace-id", "msh-request-id"),
        *("cache-status", "server-timing"),
        *("ratelimit", "ratelimit-policy", "deprecation", "sunset"),
    }
)
_PASSED_BACK_BEGINNINGS: Final = (
    *("anthropic-", "openai-", "x-ratelimit-", "ratelimit-", "x-envoy-upstream-service-time"),
    *("x-groq-", "x-ms-region", "x-litellm-", "x-vllm-", "x-inference-", "x-compute-"),
)
"""The fields of providers and engines that tell of an answer, its limits or its cost."""


def to_upstream(headers: Mapping[str, str], *, credentials: frozenset[str]) -> dict[str, str]:
    """A request's fields as they may go on: the provider's own (`anthropic-beta`, `openai-*`,
    `x-stainless-*`, ...) among them, but for `credentials`.

    The body goes on decoded, and the answer must come so that usage can be read from it.
    """
    dropped = _HOP_BY_HOP | _OURS | _ABOUT_CLIENTS | credentials
    passed = _without(headers, dropped, prefixes=(*_BEGINNINGS, "pcg-", "sec-", "access-control-"))
    return {**passed, "accept-encoding": "identity"}


def to_client(headers: Mapping[str, str]) -> dict[str, str]:
    """An answer's fields as they may go on: its type, `retry-after`, request ids and rate limits.

    The others could be orders to a client, or to a proxy in front of the gateway: cookies,
    `clear-site-data`, `x-accel-redirect`, `cache-control: public`.
    """
    return {
        name: value
        for name, value in _without(headers, _HOP_BY_HOP, prefixes=("pcg-",)).items()
        if name in _PASSED_BACK or name.startswith(_PASSED_BACK_BEGINNINGS)
    }


def _without(
    headers: Mapping[str, str], dropped: frozenset[str], *, prefixes: tuple[str, ...]
) -> dict[str, str]:
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {
        name: value
        for name, value in headers.items()
        if name not in dropped and name not in named and not name.startswith(prefixes)
    }
