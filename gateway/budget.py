"""How many bytes requests and their answers may take of this process's memory.

Knows no HTTP and no wire format.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from gateway.errors import Overloaded, RateLimited

RETRY_AFTER_S: Final = 1.0
"""What is held is given back at the end of a request: nobody knows when."""


class ByteBudget:
    """Counts bytes that are held, of all tenants together and of each. Owned by the event loop."""

    def __init__(self, max_nbytes: int, tenant_nbytes: int) -> None:
        """At most `max_nbytes`, of which one tenant may hold `tenant_nbytes`."""
        if max_nbytes < 1 or tenant_nbytes < 1:
            raise ValueError("a budget must be at least a byte")
        self._max_nbytes = max_nbytes
        self._tenant_nbytes = min(tenant_nbytes, max_nbytes)
        self._held: Counter[str] = Counter()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """What is held now."""
        return self._nbytes

    def claim(self, tenant: str) -> Claim:
        """A claim of `tenant` that holds nothing yet."""
        return Claim(self, tenant)

    def fits(self, nbytes: int) -> bool:
        """Whether a tenant could hold so much if nobody held anything."""
        return nbytes <= self._tenant_nbytes

    def check(self, tenant: str, nbytes: int) -> None:
        """Raises `Overloaded` where all hold too much for `nbytes` more, `RateLimited` where the
        tenant does."""
        if self._nbytes + nbytes > self._max_nbytes:
            message = "the gateway's memory is full; please try again"
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S)
        if self._held[tenant] + nbytes > self._tenant_nbytes:
            message = "your requests take too much memory at once; please try again"
            raise RateLimited(message, retry_after_s=RETRY_AFTER_S)

    def add(self, tenant: str, nbytes: int) -> None:
        """Count more bytes, or fewer, past any limit."""
        self._nbytes += nbytes
        self._held[tenant] += nbytes
        if not self._held[tenant]:
            del self._held[tenant]


class Claim:
    """What one request holds of a budget."""

    def __init__(self, budget: ByteBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def grow(self, nbytes: int) -> None:
        """Hold so many bytes more, before they are allocated. Raises as `ByteBudget.check`, and
        then holds what it did."""
        self._budget.check(self._tenant, nbytes)
        self.take(nbytes)

    def fits(self, nbytes: int) -> bool:
        """Whether there could ever be room for `nbytes` more: if not, to try again is no use."""
        return self._budget.fits(self._nbytes + nbytes)

    def take(self, nbytes: int) -> None:
        """Hold so many bytes more that are there already, so that others are refused for them."""
        self._nbytes += nbytes
        self._budget.add(self._tenant, nbytes)

    def handed_over(self) -> Claim:
        """What this one holds, as a claim of its own: this one holds nothing then."""
        heir = Claim(self._budget, self._tenant)
        heir._nbytes, self._nbytes = self._nbytes, 0
        return heir

    def close(self) -> None:
        """Hold nothing any more. Idempotent."""
        self.take(-self._nbytes)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
