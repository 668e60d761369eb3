"""Responses that later requests of the same tenant may refer to.

In memory only, bounded, forgotten with time. They hold prompts and answers, so they never touch a
disk: after a restart a client gets the error that its response is not there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from gateway.wire.base import StoredResponse


@dataclass(slots=True)
class _TenantResponses:
    """One tenant's responses, oldest first, with the time each was kept."""

    held: OrderedDict[str, tuple[float, StoredResponse]] = field(default_factory=OrderedDict)
    nbytes: int = 0


class Archive:
    """Owned by the event loop. Every tenant has `max_nbytes` of its own: none can push out
    another's responses."""

    def __init__(self, max_nbytes: int, max_age_s: float) -> None:
        self._max_nbytes = max_nbytes
        self._max_age_s = max_age_s
        self._tenants: dict[str, _TenantResponses] = {}

    def put(self, tenant: str, kept: StoredResponse, now_s: float) -> None:
        """Keep one more, in place of the oldest ones where there is no room. One that is larger
        than `max_nbytes` is not kept."""
        responses = self._tenants.setdefault(tenant, _TenantResponses())
        self._drop(responses, kept.id)
        responses.held[kept.id] = (now_s, kept)
        responses.nbytes += kept.nbytes
        while responses.held and (
            responses.nbytes > self._max_nbytes
            or self._expired(next(iter(responses.held.values()))[0], now_s)
        ):
            self._drop(responses, next(iter(responses.held)))

    def find(self, tenant: str, response_id: str, now_s: float) -> StoredResponse | None:
        """The tenant's response of this id, unless it is too old."""
        responses = self._tenants.get(tenant)
        found = responses.held.get(response_id) if responses is not None else None
        return None if found is None or self._expired(found[0], now_s) else found[1]

    def forget(self, tenant: str, response_id: str) -> None:
        """Afterwards it is not there."""
        if (responses := self._tenants.get(tenant)) is not None:
            self._drop(responses, response_id)

    def nbytes(self, tenant: str) -> int:
        """The memory that the tenant's responses take: never more than `max_nbytes`."""
        responses = self._tenants.get(tenant)
        return 0 if responses is None else responses.nbytes

    def _expired(self, kept_at_s: float, now_s: float) -> bool:
        return now_s - kept_at_s > self._max_age_s

    def _drop(self, responses: _TenantResponses, response_id: str) -> None:
        if (found := responses.held.pop(response_id, None)) is not None:
            responses.nbytes -= found[1].nbytes
