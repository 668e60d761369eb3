"""From an API key to its tenant.

Knows no HTTP; keys are compared as hashes, in constant time, and never kept.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from policies.schema import Policy
from policies.values import KeyHash


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a cache. Two tenants never share one."""

    name: str


DEFAULT_TENANT: Final = Tenant("default")
"""Everyone, where the policy names no tenants."""


def identify(policy: Policy, api_key: str | None) -> Tenant | None:
    """The tenant of a key, None for a missing or unknown one. Takes as long for a right key as for
    a wrong one."""
    if not policy.tenants:
        return DEFAULT_TENANT
    if api_key is None:
        return None
    asked = KeyHash.of(api_key)
    found: Tenant | None = None
    for tenant in policy.tenants:
        for key in tenant.keys:
            if key.matches(asked):
                found = Tenant(tenant.name)
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a socket bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
