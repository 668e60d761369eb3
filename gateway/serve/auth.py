"""Authentication: the key of a request, and the tenant the policy knows it as.

Stores and logs no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.calls.exchange import Call
from gateway.errors import Unauthenticated
from gateway.wire.base import KEY_HEADERS
from policies.schema import Policy
from policies.tenancy import Tenant, identify


def api_key(headers: Mapping[str, str], names: Sequence[str] = KEY_HEADERS) -> str | None:
    """The key sent, from lower-case `headers`: the first of the headers `names` that has one."""
    for name in names:
        value = headers.get(name, "").strip()
        if name == "authorization":
            scheme, _, token = value.partition(" ")
            value = token.strip() if scheme.lower() == "bearer" else ""
        if value:
            return value
    return None


def authenticate(
    policy: Policy, headers: Mapping[str, str], names: Sequence[str] = KEY_HEADERS
) -> Tenant:
    """The tenant of the key in one of the headers `names`; `Unauthenticated` for a missing or
    unknown key where the policy names tenants."""
    key = api_key(headers, names)
    tenant = identify(policy, key)
    if tenant is None:
        ways = ("Authorization: Bearer" if name == "authorization" else name for name in names)
        raise Unauthenticated("invalid API key" if key else f"no API key: send {' or '.join(ways)}")
    return tenant


def tenant_of(policy: Policy, call: Call) -> str:
    """The name of the tenant that the call belongs to. Raises `Unauthenticated`."""
    return call.tenant or authenticate(policy, call.headers, call.wire.provider.key_headers).name
