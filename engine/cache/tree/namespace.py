"""The part of every stored object's key and MAC that is a tenant's."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

NAMESPACE_NBYTES: Final = 8


@dataclass(frozen=True, slots=True, repr=False)
class ObjectNamespace:
    """The identity that every object of one tenant under one model is bound to."""

    prefix: bytes
    root_key: bytes
    fingerprint: bytes


def namespace(root_secret: bytes, tenant: str) -> bytes:
    """The first bytes of the keys of all objects of a tenant, in any tier, under any model. They
    do not tell the tenant."""
    name = tenant.encode("utf-8", "surrogatepass")
    return hmac.digest(root_secret, b"stored\0" + len(name).to_bytes(8, "little") + name, "sha256")[
        :NAMESPACE_NBYTES
    ]
