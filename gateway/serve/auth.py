"""Finds the key of a request, and the tenant that the policy knows by it.

Stores and logs no key.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import Unauthenticated
from policies.schema import Policy
from policies.tenancy import Tenant, identify


def api_key(headers: Mapping[str, str]) -> str | None:
    """The key sent, from lower-case `headers`: `x-api-key` wins over a bearer token, as with the
    providers."""
    key = headers.get("x-api-key", "").strip()
    if key:
        return key
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def authenticate(policy: Policy, headers: Mapping[str, str]) -> Tenant:
    """The tenant the request belongs to; `Unauthenticated` for a missing or unknown key where the
    policy names tenants."""
    key = api_key(headers)
    tenant = identify(policy, key)
    if tenant is None:
        raise Unauthenticated(
            "invalid API key" if key else "no API key: send x-api-key or Authorization: Bearer"
        )
    return tenant
