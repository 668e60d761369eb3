"""How many bytes requests and their answers may take of this process's memory.

Knows no HTTP and no wire format.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from gateway.errors import Overloaded, RateLimited

RETRY_AFTER_S: Final = 1.0
"""What is held is given back at the end of a request: nobody knows when."""


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
    """What one request of `tenant` holds of a budget: `nbytes`."""

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
        """What this one holds, as a claim of its own: this one holds nothing then."""
        heir = Claim(self.budget, self.tenant, self.nbytes)
        self.nbytes = 0
        return heir

    def close(self) -> None:
        """Hold nothing any more. Idempotent."""
        self.take(-self.nbytes)
