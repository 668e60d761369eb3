"""Who is believed to hold which prefix, and who is to get a request. Knows no requests, no processes and no clock.

Beliefs are kept for as long as what they are about: the time to live of what was cached. A wrong one costs a prefill.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.backends.prefixes import Trace

MAX_PREFIXES: Final = 50_000
"""Remembered, of all prompts together: some 20 MB at most."""

LOAD_FACTOR: Final = 1.25
"""Nobody gets a request who has this many times the mean of requests in flight, the new one counted."""

PATIENCE: Final = 8
"""But whoever holds a promised or long prefix keeps its requests up to so many in flight: elsewhere they would compute it."""

LONG_NBYTES: Final = 2048
"""About 500 tokens, the shortest prefix that any provider caches."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker in one of its lives: what it had on its device ends with its process."""

    index: int
    life: int


class Affinity:
    """Owned by the event loop. Forgets what has expired, and beyond `max_prefixes` what was used longest ago."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._held: OrderedDict[bytes, dict[Holder, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def note(self, digests: tuple[bytes, ...], holder: Holder, now_s: float, ttl_s: float) -> None:
        """From now on `holder` is believed to hold these for `ttl_s`, or for longer where it was so already."""
        for digest in digests:
            held = self._held.setdefault(digest, {})
            self._held.move_to_end(digest)
            expires_at_s = max(held.get(holder, 0.0), now_s + ttl_s)
            for other in [other for other, end_s in held.items() if end_s <= now_s or other.index == holder.index]:
                del held[other]
            held[holder] = expires_at_s
        while len(self._held) > self._max_prefixes:
            self._held.popitem(last=False)

    def forget(self, digests: tuple[bytes, ...], holder: Holder) -> None:
        """From now on `holder` is not believed to hold these."""
        for digest in digests:
            self._held.get(digest, {}).pop(holder, None)

    def holds(self, digest: bytes, holder: Holder, now_s: float) -> bool:
        return self._held.get(digest, {}).get(holder, 0.0) > now_s


def choose(trace: Trace, loads: Mapping[Holder, int], affinity: Affinity, now_s: float) -> Holder:
    """Who gets the request, of those who can serve it now. `loads` are their requests in flight; there is at least one.

    The holder of the longest prefix that is not too busy; of several, the one the request's like go to, then the least
    busy. Where nobody holds anything: the first by rendezvous hashing that is not too busy, the same after a restart.
    """
    bound = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
    for prefix in reversed(trace.prefixes):
        patience = max(bound, PATIENCE) if prefix.promised or prefix.nbytes >= LONG_NBYTES else bound
        found = [who for who, load in loads.items() if load < patience and affinity.holds(prefix.digest, who, now_s)]
        if found:
            return min(found, key=lambda who: (not affinity.holds(trace.home, who, now_s), loads[who], who.index))
    order = sorted(loads, key=lambda who: (not affinity.holds(trace.home, who, now_s), _distance(trace.home, who.index)))
    return next(who for who in order if loads[who] < bound)


def _distance(home: bytes, index: int) -> bytes:
    """Rendezvous hashing: every key has an order of all workers of its own, whichever of them are there."""
    return hashlib.blake2b(home, digest_size=8, salt=index.to_bytes(8, "little")).digest()
