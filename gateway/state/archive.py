"""What finished requests left for later ones of the same tenant to refer to. In memory only,
bounded, forgotten with time.

It holds prompts and answers, so it never touches a disk: after a restart a client is told that its
response is not there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from gateway.wire.base import StoredResponse


@dataclass(slots=True)
class _Shelf:
    """One tenant's responses, oldest first, with the time each was kept."""

    held: OrderedDict[str, tuple[float, StoredResponse]] = field(default_factory=OrderedDict)
    nbytes: int = 0


class Archive:
    """Owned by the event loop. Every tenant has `max_nbytes` of its own: none can push out what
    another kept."""

    def __init__(self, max_nbytes: int, max_age_s: float) -> None:
        self._max_nbytes = max_nbytes
        self._max_age_s = max_age_s
        self._shelves: dict[str, _Shelf] = {}

    def put(self, tenant: str, kept: StoredResponse, now_s: float) -> None:
        """Keep one more, in the place of the oldest ones where there is no room. What is larger
        than all room is not kept."""
        shelf = self._shelves.setdefault(tenant, _Shelf())
        self._drop(shelf, kept.id)
        shelf.held[kept.id] = (now_s, kept)
        shelf.nbytes += kept.nbytes
        while shelf.held and (
            shelf.nbytes > self._max_nbytes
            or self._expired(next(iter(shelf.held.values()))[0], now_s)
        ):
            self._drop(shelf, next(iter(shelf.held)))

    def find(self, tenant: str, response_id: str, now_s: float) -> StoredResponse | None:
        """What `tenant` kept under the id, unless it is too old."""
        shelf = self._shelves.get(tenant)
        found = shelf.held.get(response_id) if shelf is not None else None
        return None if found is None or self._expired(found[0], now_s) else found[1]

    def forget(self, tenant: str, response_id: str) -> None:
        """Afterwards it is not there."""
        if (shelf := self._shelves.get(tenant)) is not None:
            self._drop(shelf, response_id)

    def nbytes(self, tenant: str) -> int:
        """What the tenant's responses take, never more than its room."""
        shelf = self._shelves.get(tenant)
        return 0 if shelf is None else shelf.nbytes

    def _expired(self, kept_at_s: float, now_s: float) -> bool:
        return now_s - kept_at_s > self._max_age_s

    def _drop(self, shelf: _Shelf, response_id: str) -> None:
        if (found := shelf.held.pop(response_id, None)) is not None:
            shelf.nbytes -= found[1].nbytes
