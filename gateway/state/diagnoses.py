"""Remembers the structure of requests that ask to be compared with an earlier one.

Bounded; holds hashes and no text.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from gateway.request import Request
from gateway.wire.anthropic.diagnosis import Fingerprint, compare, fingerprint
from gateway.wire.anthropic.encode import message_id
from gateway.wire.anthropic.settings import AnthropicOptions

MAX_REQUESTS: Final = 4096
MAX_HASHES: Final = 1_000_000
"""Of all remembered requests together: about 100 MB at most, were they all so long."""

REMEMBERED_S: Final = 3600.0


def comparable(request: Request) -> Fingerprint | None:
    """The fingerprint of a request that asks to be compared with another; None for others."""
    asked = request.options_of(AnthropicOptions).diagnostics
    return None if asked is None else fingerprint(request, asked.settings)


class Diagnoses:
    """Owned by the event loop. A tenant is compared with its own requests only."""

    def __init__(self, max_requests: int = MAX_REQUESTS, max_hashes: int = MAX_HASHES) -> None:
        self._max_requests = max_requests
        self._max_hashes = max_hashes
        self._seen: OrderedDict[tuple[str, str], Fingerprint] = OrderedDict()
        self.num_hashes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def diagnose(self, request: Request, now: Fingerprint | None = None) -> Request:
        """The request with the `diagnostics` of its answer; one that did not ask for them is left
        as it is. `now` is its `comparable`, where that is known already."""
        now = comparable(request) if now is None else now
        options = request.options_of(AnthropicOptions)
        asked = options.diagnostics
        if now is None or asked is None:
            return request
        found = (
            self._look(request.tenant, asked.previous, now) if asked.previous is not None else None
        )
        self._remember((request.tenant, message_id(request)), now)
        diagnosis = None if found is None else {"cache_miss_reason": found}
        return msgspec.structs.replace(
            request, options=msgspec.structs.replace(options, diagnosis=diagnosis)
        )

    def _look(self, tenant: str, previous: str, now: Fingerprint) -> dict[str, Any] | None:
        before = self._seen.get((tenant, previous))
        if before is None or before.at_s + REMEMBERED_S <= now.at_s:
            return {"type": "previous_message_not_found"}
        return compare(before, now)

    def _remember(self, key: tuple[str, str], now: Fingerprint) -> None:
        replaced = self._seen.pop(key, None)
        self.num_hashes += now.num_hashes - (replaced.num_hashes if replaced else 0)
        self._seen[key] = now
        while len(self._seen) > self._max_requests or self.num_hashes > self._max_hashes:
            _, oldest = self._seen.popitem(last=False)
            self.num_hashes -= oldest.num_hashes
