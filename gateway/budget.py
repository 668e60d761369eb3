"""The budget of bytes for requests and their unsent answers in this process's memory.

Knows no HTTP and no wire format.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from gateway.errors import Overloaded, RateLimited

RETRY_AFTER_S: Final = 1.0
"""A guess: memory is given back when a request ends."""


class ByteBudget:
    """Counts bytes that are held, of all tenants together and of each: `nbytes` and `held`, which
    claims alone change. Owned by the event loop."""

    def __init__(self, max_nbytes: int, tenant_nbytes: int) -> None:
        """At most `max_nbytes`, of which one tenant may hold `tenant_nbytes`."""
        if max_nbytes < 1 or tenant_nbytes < 1:
            raise ValueError("a budget must be at least a byte")
        self.max_nbytes = max_nbytes
        self.tenant_nbytes = min(tenant_nbytes, max_nbytes)
        self.held: Counter[str] = Counter()
        self.nbytes = 0


@dataclass(slots=True)
class Claim:
    """The `nbytes` of a budget that one request of `tenant` holds."""

    budget: ByteBudget
    tenant: str
    nbytes: int = 0

    def grow(self, nbytes: int) -> None:
        """Hold so many bytes more, before they are allocated.

        Raises `Overloaded` where all hold too much for them, `RateLimited` where the tenant does,
        and then holds what it did.
        """
        budget = self.budget
        if budget.nbytes + nbytes > budget.max_nbytes:
            message = "the gateway's memory is full; please try again"
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S)
        if budget.held[self.tenant] + nbytes > budget.tenant_nbytes:
            message = "your requests take too much memory at once; please try again"
            raise RateLimited(message, retry_after_s=RETRY_AFTER_S)
        self.take(nbytes)

    def take(self, nbytes: int) -> None:
        """Hold so many bytes more that are there already, or fewer, past any limit: others are
        refused for them."""
        self.nbytes += nbytes
        self.budget.nbytes += nbytes
        held = self.budget.held
        held[self.tenant] += nbytes
        if not held[self.tenant]:
            del held[self.tenant]

    def handed_over(self) -> Claim:
        """A claim that holds the bytes of this one, which then holds none."""
        heir = Claim(self.budget, self.tenant, self.nbytes)
        self.nbytes = 0
        return heir

    def close(self) -> None:
        """Hold nothing any more. Idempotent."""
        self.take(-self.nbytes)
