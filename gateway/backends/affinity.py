"""Who is believed to hold which prefix, and who is to get a request.

Knows no requests, no processes and no clock.

Beliefs are kept for as long as what they are about: the time to live of what was cached. A wrong
one costs a prefill.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gateway.backends.prefixes import PrefixTrace

MAX_PREFIXES: Final = 50_000
"""Remembered, of all prompts together: some 20 MB at most."""

LOAD_FACTOR: Final = 1.25
"""Nobody gets a request who has this many times the mean of requests in flight, the new one
counted."""

PATIENCE: Final = 8
"""But few requests in flight are never too many for a worker that has something to read for one
more."""

LOAD_NBYTES: Final = 512
"""A request in flight slows others down about as much as computing so much of a prompt, some 128
tokens, does."""

PROMISED: Final = 2
"""The weight of a promised prefix, as a multiple of its bytes.

Computed elsewhere, it is billed as written once more.
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker in one of its lives: what it had on its device ends with its process."""

    index: int
    life: int


Why: TypeAlias = Literal["held", "spilled", "like", "new"]
"""Has some of the prompt; has none, but those who have are too busy; has seen requests like it;
nobody has seen any."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Who gets a request, and why."""

    holder: Holder
    why: Why


class Affinity:
    """Owned by the event loop. Forgets what has expired, and beyond `max_prefixes` what was used
    longest ago."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._held: OrderedDict[bytes, dict[Holder, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def note(self, digests: tuple[bytes, ...], holder: Holder, now_s: float, ttl_s: float) -> None:
        """From now on `holder` is believed to hold these for `ttl_s`, or for longer where it was so
        already."""
        for digest in digests:
            held = self._held.setdefault(digest, {})
            self._held.move_to_end(digest)
            expires_at_s = max(held.get(holder, 0.0), now_s + ttl_s)
            for other in [
                other
                for other, end_s in held.items()
                if end_s <= now_s or other.index == holder.index
            ]:
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


def choose(
    trace: PrefixTrace, loads: Mapping[Holder, int], affinity: Affinity, now_s: float
) -> Placement:
    """Who gets the request, of those who can serve it now. `loads` are their requests in flight;
    there is at least one.

    Where something is held: whoever has most of the prompt, unless others have so much less to do
    that it is computed sooner there. Of several, the one the request's like go to. Where nothing
    is: that one, or the first by rendezvous hashing, the same after a restart. Nobody beyond the
    bound.
    """
    bound = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
    order = sorted(
        loads,
        key=lambda who: (
            not affinity.holds(trace.home, who, now_s),
            _distance(trace.home, who.index),
        ),
    )
    worth = {who: _worth(trace, who, affinity, now_s) for who in order}
    if any(worth.values()):
        able = [who for who in order if loads[who] < max(bound, PATIENCE)]
        best = max(able, key=lambda who: worth[who] - LOAD_NBYTES * loads[who])
        return Placement(best, "held" if worth[best] else "spilled")
    first = next(who for who in order if loads[who] < bound)
    return Placement(first, "like" if affinity.holds(trace.home, first, now_s) else "new")


def _worth(trace: PrefixTrace, who: Holder, affinity: Affinity, now_s: float) -> int:
    """Of the longest prefix that `who` is believed to hold, in bytes to compute; 0 without."""
    held = (
        prefix for prefix in reversed(trace.prefixes) if affinity.holds(prefix.digest, who, now_s)
    )
    longest = next(held, None)
    return 0 if longest is None else longest.nbytes * (PROMISED if longest.promised else 1)


def _distance(home: bytes, index: int) -> bytes:
    """Rendezvous hashing: every key has an order of all workers of its own, whichever of them are
    there."""
    return hashlib.blake2b(home, digest_size=8, salt=index.to_bytes(8, "little")).digest()
